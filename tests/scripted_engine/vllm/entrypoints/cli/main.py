"""The ``vllm`` command: ``vllm serve MODEL --option ...`` and ``vllm --version``."""

import sys

from vllm import __version__
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Run the command line."""
    parser = FlexibleArgumentParser(prog="vllm", description="vLLM CLI (scripted stand-in)")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, dest="subparser")
    for command in cmd_init():
        command.subparser_init(commands).set_defaults(run=command.cmd)
    arguments = parser.parse_args()
    sys.exit(arguments.run(arguments))


if __name__ == "__main__":
    main()
