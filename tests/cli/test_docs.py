"""docs/cli.md is what the commands say of themselves."""

import argparse
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from headwater.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent.parent


def parsers():
    for name, (module, _) in COMMANDS.items():
        commands = import_module(f"headwater.cli.commands.{module}").COMMANDS
        for subcommand, command in commands.items():
            yield command.parser(f"headwater {name} {subcommand}".rstrip())


def test_arguments_that_may_be_left_out_are_shown_so():
    usages = [parser.usage for parser in parsers()]
    assert "headwater wait NAME [TOKEN] [OPTIONS]" in usages
    assert "headwater pipeline run [NAME...] [OPTIONS]" in usages
    for parser in parsers():
        for action in parser._actions:
            if not action.option_strings and action.nargs in ("?", "*"):
                assert f" {action.metavar}" not in parser.usage, parser.usage


def test_a_wrong_value_is_reported_in_words_and_not_by_the_name_of_a_function():
    """argparse shows that of a type that raises anything else."""
    for parser in parsers():
        for action in parser._actions:
            if action.type is not None:
                with suppress(argparse.ArgumentTypeError):
                    action.type("no such value")


def test_the_reference_is_current():
    generator = ROOT / "tools" / "generate_cli_docs.py"
    checked = subprocess.run(
        [sys.executable, generator, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
