"""The broker's log lines."""

import json
import logging

import pytest

from headwater.broker.monitoring.logs import JsonFormatter, TextFormatter

HOSTILE = "group \x1b[2J\x9b0m\x07"


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("headwater", logging.WARNING, "", 0, "%s", (message,), None)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_what_clients_chose_gives_a_terminal_nothing_to_act_upon(formatter):
    line = formatter.format(record(HOSTILE))
    assert not set(line) & {"\x1b", "\x9b", "\x07"}
    assert "group" in line


def test_json_says_the_same():
    assert json.loads(JsonFormatter().format(record(HOSTILE)))["message"] == HOSTILE
