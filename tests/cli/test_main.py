"""What all commands have in common: dispatch, errors, exit codes, a fast start."""

import json
import re
import subprocess
import sys

import pytest

from headwater import __version__
from headwater.cli.main import COMMANDS

from .conftest import environment


def test_version(offline):
    assert offline("--version") == f"headwater {__version__}\n"


def test_help_lists_every_command(offline):
    shown = offline("--help")
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", [[], ["topic"], ["group"]])
def test_without_a_command_the_commands_are_listed_and_usage_is_wrong(offline, command):
    assert offline(*command, code=2).startswith("usage: headwater")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(offline, name):
    assert f"usage: headwater {name}" in offline(name, "--help")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["topc"], "error: headwater has no command topc\nhint: did you mean `headwater topic`?\n"),
        (
            ["topic", "creat"],
            (
                "error: headwater topic has no command creat\n"
                "hint: did you mean `headwater topic create`?\n"
            ),
        ),
        (
            ["topic", "list", "--bootstrp", "x"],
            "error: unknown option --bootstrp\nhint: did you mean --bootstrap?\n",
        ),
        (
            ["--json", "--partitions", "topic", "list"],
            (
                '{"error": "unknown option --partitions",'
                ' "hint": "before the command: --bootstrap, --config, --json, --verbose, -X, -b,'
                ' -v; all others after it"}\n'
            ),
        ),
        (
            ["consume"],
            (
                "error: the following arguments are required: TOPIC\n"
                "hint: `headwater consume --help` lists the options\n"
            ),
        ),
        (
            ["topic", "list", "extra"],
            (
                "error: one argument too many: extra\n"
                "hint: `headwater topic list --help` shows how it is called\n"
            ),
        ),
    ],
)
def test_wrong_usage_suggests_what_was_meant(offline, argv, error):
    assert offline.error(*argv, code=2) == error


@pytest.mark.parametrize(
    "argv",
    [
        ["--json", "--bootstrap", "127.0.0.1:1", "topic", "list"],
        ["--json", "--bootstrap=127.0.0.1:1", "topic", "list"],
        ["-b", "127.0.0.1:1", "topic", "--json", "list"],
        ["topic", "-b127.0.0.1:1", "list", "--json"],
    ],
)
def test_global_options_stand_before_or_after_the_command(offline, argv):
    error = json.loads(offline.error(*argv))
    assert error["error"] == "no broker answers at 127.0.0.1:1"


def test_a_configuration_is_named_before_the_command(offline):
    (offline.cwd / "other.toml").write_text('[broker]\nbootstrap = "127.0.0.1:2"\n')
    assert "127.0.0.1:2" in offline.error("--config", "other.toml", "topic", "list")
    after = ("topic", "list", "-b", "127.0.0.1:1")
    assert "127.0.0.1:1" in offline.error("-b", "127.0.0.1:3", *after), "the last one counts"
    assert "unknown option --bootstrap" in offline.error("--bootstrap", "x", "init", code=2)
    assert offline("--json", "--version") == f"headwater {__version__}\n"


def test_a_locale_without_our_characters(offline):
    assert "headwater COMMAND \\u2026" in offline("--help", PYTHONIOENCODING="ascii")


def test_no_broker_there(offline):
    expected = (
        "error: no broker answers at 127.0.0.1:1\n  127.0.0.1:1: connection refused\n"
        "hint: start one with `headwater broker`, or name another with --bootstrap HOST:PORT\n"
    )
    assert offline.error("topic", "list", "-b", "127.0.0.1:1") == expected


def test_an_error_as_json_is_one_line_on_stderr(offline):
    error = json.loads(offline.error("topic", "list", "-b", "127.0.0.1:1", "--json"))
    assert error["error"] == "no broker answers at 127.0.0.1:1"
    assert error["detail"] == "127.0.0.1:1: connection refused"
    assert "headwater broker" in error["hint"]


def test_the_traceback_is_only_shown_with_v(offline):
    assert "Traceback" not in offline.error("topic", "list", "-b", "127.0.0.1:1")
    assert "Traceback" in offline.error("topic", "list", "-b", "127.0.0.1:1", "-v")


def test_mistakes_in_the_configuration_are_wrong_usage(offline):
    (offline.cwd / "headwater.toml").write_text("[broker]\nlisten = 1\nport = 2\n")
    error = offline.error("topic", "list", code=2)
    assert error.startswith("error: 2 mistakes in the configuration\n  headwater.toml:3: unknown")


def test_a_librdkafka_property_that_does_not_exist(cli):
    assert "No such configuration property" in cli.error(
        "consume", "any", "-e", "-X", "no.such.thing=1", code=2
    )
    assert "librdkafka refuses a property" in cli.error(
        "group", "list", "-X", "no.such.thing=1", code=2
    )


@pytest.mark.parametrize("argv", [["--version"], ["broker", "--help"]])
def test_a_fast_start_imports_nothing_heavy(argv):
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headwater.cli.main", *argv],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    imported = set(re.findall(r"\| +([\w.]+)$", result.stderr, re.MULTILINE))
    assert "headwater.errors" in imported
    assert not imported & {"rich", "confluent_kafka", "cyclopts", "asyncio", "tomllib", "msgspec"}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(closed):
    """A service manager may start us so."""
    command = f'"{sys.executable}" -m headwater.cli.main --version {closed}'
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=environment()
    )
    assert (result.returncode, result.stderr) == (0, "")
