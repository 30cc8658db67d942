"""Errors for users, without the traceback of a Spark worker around them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.errors import HeadwaterError

_OF_WORKERS: Final = "PYTHON_WORKER_FACTORY_"  # how variables of Spark's Python processes begin


@contextmanager
def plain_errors() -> Iterator[None]:
    """Within it a HeadwaterError reaches the driver as its message only, with the hint.

    Spark's worker sends a traceback unless this variable is set. It ends after the error, so the
    variable has no effect on anything that comes later. The driver does not set it: it goes on, and
    a Spark that it starts later would hide the tracebacks of users' functions.
    """
    try:
        yield
    except HeadwaterError as error:
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if error.hint:
            error.detail = f"{error.detail} ({error.hint})" if error.detail else error.hint
        raise
