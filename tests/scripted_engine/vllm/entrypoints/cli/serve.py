"""The ``serve`` command, registered as vLLM registers its own."""

import argparse

from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser as FlexibleArgumentParser


class ServeSubcommand:
    """``vllm serve MODEL --option ...``."""

    name = "serve"

    @staticmethod
    def cmd(args: argparse.Namespace) -> int:
        """Serve until stopped; the exit status."""
        from vllm.scripted.server import serve

        return serve(args)

    def subparser_init(
        self, subparsers: "argparse._SubParsersAction[FlexibleArgumentParser]"
    ) -> FlexibleArgumentParser:
        """Add this command's parser."""
        return make_arg_parser(subparsers.add_parser(self.name, prog="vllm serve"))


def cmd_init() -> list[ServeSubcommand]:
    """The commands of this module."""
    return [ServeSubcommand()]
