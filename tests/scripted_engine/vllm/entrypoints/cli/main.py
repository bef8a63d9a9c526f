"""The ``vllm`` command: ``vllm serve MODEL --option ...`` and ``vllm --version``."""

import sys

from vllm import __version__
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.scripted.server import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Run the command line."""
    parser = FlexibleArgumentParser(prog="vllm", description="vLLM CLI (scripted stand-in)")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, dest="subparser")
    make_arg_parser(commands.add_parser("serve", prog="vllm serve"))
    sys.exit(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
