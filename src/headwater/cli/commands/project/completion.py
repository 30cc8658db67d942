"""`headwater completion SHELL`: a script by which a shell completes commands and options."""

import argparse
from importlib import import_module
from typing import Final

from headwater.cli.parser import Command, Parser, client_options
from headwater.terminal.output import say

SHELLS: Final = ("bash", "zsh", "tcsh", "fish")


def _configure(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _run(args: argparse.Namespace) -> int:
    import shtab

    say(shtab.complete(_whole_parser(), shell=args.shell))
    return 0


def _whole_parser() -> Parser:
    """All commands as one tree of parsers. Imports every command's module."""
    from headwater.cli.main import COMMANDS as ALL

    root = Parser("headwater")
    client_options(root)
    _with_files(root)
    commands = root.add_subparsers(metavar="COMMAND")
    for name, (module, summary) in ALL.items():
        found: dict[str, Command] = import_module(f"headwater.cli.commands.{module}").COMMANDS
        parser = commands.add_parser(name, help=summary, summary=summary)
        if "" in found:
            found[""].configure(parser)
            _with_files(parser)
            continue
        subcommands = parser.add_subparsers(metavar="COMMAND")
        for subcommand, command in found.items():
            below = subcommands.add_parser(
                subcommand, help=command.summary, summary=command.summary
            )
            command.configure(below)
            _with_files(below)
    return root


def _with_files(parser: Parser) -> None:
    """Paths are completed where an option takes one."""
    import shtab

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in parser.added:
        if action.metavar in kinds:
            action.complete = kinds[str(action.metavar)]  # type: ignore[attr-defined]


COMMANDS = {
    "": Command(
        "completion of commands and options, as a script for a shell",
        _configure,
        _run,
        '  eval "$(headwater completion bash)"\n'
        "  headwater completion bash > /etc/bash_completion.d/headwater\n"
        "  headwater completion zsh > ~/.zsh/functions/_headwater",
    )
}
