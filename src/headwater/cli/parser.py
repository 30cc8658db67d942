"""Commands and their options: argparse, with kinder errors.

argparse and not a richer library because of its price: it is imported in 7 ms, where the richer
ones take 130 ms before the first line of a command runs.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from headwater.errors import UsageError
from headwater.settings import parse_duration_ms, parse_size_bytes
from headwater.spelling import nearest

_NEGATIVE: Final = re.compile(r"-\d")
_HELP_COLUMN: Final = 34


class Option(NamedTuple):
    """One option or argument, as the reference (docs/cli.md) shows it."""

    names: str
    help: str


class Parser(argparse.ArgumentParser):
    """The options of one command. A mistake is a UsageError that suggests what was meant."""

    def __init__(self, prog: str, summary: str = "", examples: str = "", **_: Any) -> None:
        self.added: list[argparse.Action] = []  # before argparse adds --help
        super().__init__(
            prog=prog,
            description=summary,
            epilog=f"examples:\n{examples.rstrip()}" if examples else None,
            allow_abbrev=False,
        )

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.added.append(action)
        return action

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        args, unknown = self.parse_known_args(list(self._with_negative_values(argv)))
        if unknown:
            self._refuse(unknown[0])
        return args

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options")

    def described(self) -> Iterator[Option]:
        return (
            _described(action) for action in self.added if "--help" not in action.option_strings
        )

    def format_help(self) -> str:
        """Each option with its value once (-o, --offset POSITION), as Python 3.13 has it."""
        arguments = [
            Option(str(action.metavar or action.dest.upper()), _described(action).help)
            for action in self.added
            if not action.option_strings
        ]
        options = [_described(action) for action in self.added if action.option_strings]
        longest = max(len(option.names) for option in (*arguments, *options))
        column = min(longest + 4, _HELP_COLUMN)
        parts = [
            f"usage: {self.usage or self.prog}",
            self.description or "",
            _listed("arguments", arguments, column),
            _listed("options", options, column),
            self.epilog or "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _with_negative_values(self, argv: Sequence[str]) -> Iterator[str]:
        """With values such as -5 or -5:end (offsets) attached to their options; argparse would
        take them for options.
        """
        with_value = {name for action in self.added for name in _names_with_value(action)}
        left = iter(argv)
        for argument in left:
            if argument == "--":
                yield argument
                yield from left
                return
            value = next(left, None) if argument in with_value else None
            if value is None:
                yield argument
            elif not _NEGATIVE.match(value):
                yield from (argument, value)
            else:
                yield f"{argument}={value}" if argument.startswith("--") else argument + value

    def _refuse(self, argument: str) -> NoReturn:
        if not argument.startswith("-"):
            raise UsageError(
                f"one argument too many: {argument}",
                hint=f"`{self.prog} --help` shows how it is called",
            )
        names = [name for action in self.added for name in action.option_strings]
        meant = nearest(argument.partition("=")[0], names)
        raise UsageError(
            f"unknown option {argument}",
            hint=f"did you mean {meant}?" if meant else f"`{self.prog} --help` lists the options",
        )


def _names_with_value(action: argparse.Action) -> Sequence[str]:
    return action.option_strings if action.nargs is None else ()


def _described(action: argparse.Action) -> Option:
    value = action.metavar or action.dest.upper()
    text = (action.help or "").replace("%%", "%")
    if not action.option_strings:
        shown = {"+": f"{value} [{value}...]", "*": f"[{value}...]", "?": f"[{value}]"}
        return Option(shown.get(str(action.nargs), str(value)), text)
    names = ", ".join(action.option_strings)
    return Option(f"{names} {value}" if action.nargs != 0 else names, text)


def _listed(title: str, options: Sequence[Option], column: int) -> str:
    """Names in a column, what they are for beside them, or below a name that is too long."""
    if not options:
        return ""
    width = max(shutil.get_terminal_size().columns - 2 - column, 20)
    lines = [f"{title}:"]
    for names, text in options:
        first, *more = textwrap.wrap(text, width) or [""]
        if len(names) + 4 <= column:
            lines.append(f"  {names:{column - 2}}{first}".rstrip())
        else:
            lines += [f"  {names}", " " * column + first]
        lines += [" " * column + line for line in more]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it is for, its options, and what it does. `run` returns the exit code."""

    summary: str
    configure: Callable[[Parser], Any]
    run: Callable[[argparse.Namespace], int]
    examples: str = ""

    def parser(self, prog: str) -> Parser:
        parser = Parser(prog, self.summary, self.examples)
        self.configure(parser)
        arguments = [
            argument.names for argument in parser.described() if not argument.names.startswith("-")
        ]
        parser.usage = " ".join((prog, *arguments, "[OPTIONS]"))
        return parser


def common_options(parser: Parser, *, json_help: str = "write JSON, for machines") -> None:
    """What every command takes that reads the configuration."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (./headwater.toml)")
    output_options(parser, json_help=json_help)


def output_options(parser: Parser, *, json_help: str = "write JSON, for machines") -> None:
    """What every command takes."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the traceback of an error"
    )


def client_options(parser: Parser, *, json_help: str = "write JSON, for machines") -> None:
    """What every command takes that talks to a broker, ours or Apache Kafka."""
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        help="brokers to talk to (broker.bootstrap, else broker.advertise, else broker.listen)",
    )
    parser.add_argument(
        "-X",
        dest="properties",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="librdkafka property, for example security.protocol=ssl",
    )
    common_options(parser, json_help=json_help)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """An option's value from `least` to `most`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return parse


def duration_s(text: str) -> float:
    """An option's 90s, 1h30m."""
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def size_bytes(text: str) -> int:
    """An option's 64MiB, 1MB, 4096; above 0."""
    try:
        found = parse_size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0")
    return found


def key_value(text: str) -> tuple[str, str]:
    """An option's KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value
