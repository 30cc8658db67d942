"""Commands and their options: argparse, with kinder errors.

argparse and not a richer library because of its price: it is imported in 7 ms, where the richer
ones take 130 ms before the first line of a command runs.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from headwater.errors import UsageError
from headwater.settings import parse_duration_ms
from headwater.spelling import nearest


class Option(NamedTuple):
    """One option or argument, as the reference (docs/cli.md) shows it."""

    names: str
    help: str


class Parser(argparse.ArgumentParser):
    """The options of one command. A mistake is a UsageError that suggests what was meant."""

    def __init__(self, prog: str, summary: str = "", examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=summary,
            epilog=f"examples:\n{examples.rstrip()}" if examples else None,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        self._positionals.title = "arguments"
        # "-5", "-5:end" are values (offsets), never options.
        self._negative_number_matcher = re.compile(r"^-\d.*$")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        args, unknown = self.parse_known_args(argv)
        if unknown:
            self._refuse(unknown[0])
        return args

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options")

    def described(self) -> Iterator[Option]:
        for action in self._actions:
            if isinstance(action, argparse._HelpAction):  # noqa: SLF001
                continue
            value = action.metavar or action.dest.upper()
            if not action.option_strings:
                shown = {"+": f"{value} [{value}...]", "*": f"[{value}...]", "?": f"[{value}]"}
                yield Option(shown.get(str(action.nargs), str(value)), action.help or "")
                continue
            names = ", ".join(action.option_strings)
            yield Option(f"{names} {value}" if action.nargs != 0 else names, action.help or "")

    def _refuse(self, argument: str) -> NoReturn:
        if not argument.startswith("-"):
            raise UsageError(
                f"one argument too many: {argument}",
                hint=f"`{self.prog} --help` shows how it is called",
            )
        meant = nearest(argument.partition("=")[0], list(self._option_string_actions))
        raise UsageError(
            f"unknown option {argument}",
            hint=f"did you mean {meant}?" if meant else f"`{self.prog} --help` lists the options",
        )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """-o, --offset POSITION: the value once, as Python 3.13 has it."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar or action.dest.upper()}"


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


def key_value(text: str) -> tuple[str, str]:
    """An option's KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value
