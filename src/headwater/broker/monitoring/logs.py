"""The broker's log lines: for people (`text`) or for machines (`json`), on standard error."""

import logging
import sys
import time

import orjson

from headwater.printable import printable, printable_json


class TextFormatter(logging.Formatter):
    """12:30:59.123 warning  a torn tail is cut: …"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = printable(record.getMessage())
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower():<8} {message}"
        if record.exc_info:
            return f"{line}\n{printable(self.formatException(record.exc_info))}"
        return line


class JsonFormatter(logging.Formatter):
    """One object per line: at, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return printable_json(orjson.dumps(fields).decode())


def set_up(log_format: str, log_level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
