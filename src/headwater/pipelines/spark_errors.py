"""Errors of Spark as one line: the cause, and the line in the user's file."""

import logging
import re
from pathlib import Path
from typing import Final

from headwater.errors import HeadwaterError, PipelineError, StateLost

_log = logging.getLogger(__name__)
# An error of ours that was raised in a process of Spark's arrives as text.
_OWN: Final = re.compile(r"headwater\.errors\.(\w+): (.+)")
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_CALLED: Final = re.compile(r"was called from\s+(\S+):(\d+)")
_AROUND: Final = re.compile(
    r"^\[STREAM_FAILED\].*?terminated with exception: |^An error occurred while calling \S+\s*:?\s*"
    r"|^: |^Job aborted due to stage failure: |^([\w$]+\.)+[\w$]*(Exception|Error): "
)
_BEHIND: Final = re.compile(r"( SQLSTATE: \w+)?(; line \d+ pos \d+)?;?$")
# An expression has no result for a value (ANSI mode), and where Spark marks it in a query.
_NO_RESULT: Final = re.compile(
    r"\[(DIVIDE_BY_ZERO|REMAINDER_BY_ZERO|(BINARY_)?ARITHMETIC_OVERFLOW|CAST_(OVERFLOW|INVALID_INPUT)"
    r"|NUMERIC_VALUE_OUT_OF_RANGE|INVALID_ARRAY_INDEX|CANNOT_PARSE_TIMESTAMP)\b"
)
_MARKED: Final = re.compile(r"^== SQL[^\n]*==\n([^\n]*)\n( *\^+)$", re.MULTILINE)
_ADVICE: Final = re.compile(r" If necessary set \S+ to \S+ to bypass this error\.")
_LONGEST: Final = 500
_SHARED: Final = (
    "on a cluster state_dir of [spark] has to be a directory that all machines share, or state_url"
    " an object store"
)
_PACKAGE: Final = str(Path(__file__).parents[1])


def explained(pipeline: str, failed: BaseException) -> HeadwaterError:
    """Why a query has ended."""
    text = str(failed)
    _log.debug("%s", text)
    if isinstance(failed, HeadwaterError):
        return failed
    found = _OWN.findall(text)
    if found:
        name, what = found[-1]
        if name == StateLost.__name__:
            return StateLost(f"pipeline {pipeline}: {what}", hint=_SHARED)
        return PipelineError(f"pipeline {pipeline}: {what}")
    if "Python worker failed to connect back" in text:
        return PipelineError(
            f"pipeline {pipeline}: Spark's Python did not start within 10 s",
            hint="the machine is very busy",
        )
    if "spark.driver.maxResultSize" in text:
        return PipelineError(
            f"pipeline {pipeline}: the rows of one batch are too many for the driver",
            detail=first_line(text),
            hint=f"smaller batches: batch_rows and batch_bytes of [pipeline.{pipeline}]",
        )
    if no_result := _NO_RESULT.search(text):
        spark_says = without_advice(first_line(text[no_result.start() :]))
        return PipelineError(
            f"pipeline {pipeline}: a value has no result{_marked(text)}",
            detail=f"{_where(text)}{spark_says}",
            hint="its batch is not stored; try_divide, try_cast and nullif give null instead",
        )
    return PipelineError(
        f"pipeline {pipeline} failed in Spark",
        detail=f"{_where(text)}{_raised(text) or first_line(text) or type(failed).__name__}",
        hint="`headwater pipeline run -v` shows all of it; if the function has changed, its"
        f" checkpoint may not fit any more: `headwater pipeline rebuild {pipeline}` derives"
        " everything again",
    )


def first_line(text: str) -> str:
    """The first line of Spark's message, without its wrapping. The plan follows it."""
    for line in map(str.strip, text.splitlines()):
        text_left = line
        while (cut := _AROUND.sub("", text_left)) != text_left:
            text_left = cut
        if text_left:
            return _BEHIND.sub("", text_left)[:_LONGEST]
    return ""


def without_advice(spark_says: str) -> str:
    """To set what a pipeline relies on, and a view cannot set."""
    return _ADVICE.sub("", spark_says)


def is_own(file: str) -> bool:
    """Whether it is the user's."""
    return not file.startswith((_PACKAGE, "<")) and "site-packages" not in file


def _marked(text: str) -> str:
    """The part of a query that Spark marks."""
    found = _MARKED.search(text)
    if found is None:
        return ""
    line, marks = found.groups()
    return f" in {line[marks.find('^') : len(marks)]}"


def _where(text: str) -> str:
    own = [frame for frame in [*_CALLED.findall(text), *_FRAME.findall(text)] if is_own(frame[0])]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}: " if own else ""


def _raised(text: str) -> str:
    """The error at the end of a Python traceback: its first line that is not indented."""
    _, _, trace = text.rpartition(_TRACEBACK) if _TRACEBACK in text else ("", "", "")
    return next((line for line in trace.splitlines() if line[:1].strip()), "")[:_LONGEST]
