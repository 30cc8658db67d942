"""Questions to the process that runs a pipeline, by files, so that no second Spark is started.

    <state_dir>/<pipeline>/questions/<id>.question   {"write": …, "key": {…}, "limit": …}
    <state_dir>/<pipeline>/questions/<id>.taken      the same file, once the process has seen it
    <state_dir>/<pipeline>/questions/<id>.answer     {"trace": …} or {"error": {…}}

Users who may read the checkpoints may ask; the directory is private to them. Answers are written
under another name and renamed, so that none is read in part. The client removes its files; the
process removes those of killed clients when it starts.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater import errors
from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.running import status

if TYPE_CHECKING:
    from headwater.pipelines.running.loaded_pipeline import Pipeline

_TAKEN_WITHIN_S = 5.0  # else the process is busy with another one, or does not support questions
_ROUND_S: Final = 0.05
_log = logging.getLogger(__name__)


def ask(state_dir: Path, pipeline: str, question: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trace (`Trace.as_json`). None if no process runs the pipeline, or it does not answer.
    Raises what the process answers with.
    """
    if not status.read(state_dir, pipeline).is_running:
        return None
    directory = state_dir / pipeline / "questions"
    name = directory / secrets.token_hex(8)
    taken, answer = name.with_suffix(".taken"), name.with_suffix(".answer")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        _put(name.with_suffix(".question"), question)
        until_s = time.monotonic() + _TAKEN_WITHIN_S
        while not answer.exists():
            is_taken = taken.exists()
            if not is_taken and time.monotonic() > until_s and not answer.exists():
                return None
            if is_taken and not status.read(state_dir, pipeline).is_running:
                return None
            time.sleep(_ROUND_S)
        return _read(answer)
    except OSError:
        return None
    finally:
        for suffix in (".question", ".taken", ".answer"):
            with contextlib.suppress(OSError):
                name.with_suffix(suffix).unlink(missing_ok=True)


def _read(answer: Path) -> dict[str, Any]:
    content = orjson.loads(answer.read_bytes())
    if "error" not in content:
        trace: dict[str, Any] = content["trace"]
        return trace
    error = content["error"]
    kind = getattr(errors, error["kind"], PipelineError)
    is_plain = kind.__init__ is HeadwaterError.__init__
    raise (kind if is_plain else PipelineError)(
        error["what"], detail=error["detail"], hint=error["hint"]
    )


class Questions:
    """The questions to the pipelines of this process, answered one at a time, in a thread: the
    queries continue. One whose client has left is cancelled: it may take long, and others wait.
    """

    def __init__(self, pipelines: Sequence["Pipeline"]) -> None:
        self._directories = [
            (pipeline, pipeline.environment.state_dir / pipeline.name / "questions")
            for pipeline in pipelines
        ]
        self._thread: threading.Thread | None = None
        self._taken: tuple[Pipeline, Path] | None = None  # by the thread
        for _, directory in self._directories:
            for left in _files(directory):
                with contextlib.suppress(OSError):
                    left.unlink()

    def look(self) -> None:
        """Takes one, if there is one and none is being answered."""
        if self._thread is not None and self._thread.is_alive():
            self._cancel_if_left()
            return
        for pipeline, directory in self._directories:
            for question in _files(directory, ".question"):
                taken = question.with_suffix(".taken")
                try:
                    question.rename(taken)
                except OSError:  # the client has given up
                    continue
                self._thread = threading.Thread(
                    target=_answer, args=(pipeline, taken), name="questions", daemon=True
                )
                self._taken = pipeline, taken
                self._thread.start()
                return

    def _cancel_if_left(self) -> None:
        """Called repeatedly: a job may have begun since."""
        assert self._taken is not None
        pipeline, taken = self._taken
        if not taken.exists():
            pipeline.spark.sparkContext.cancelJobGroup(taken.stem)


def _files(directory: Path, suffix: str = "") -> list[Path]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [directory / name for name in sorted(names) if name.endswith(suffix)]


def _answer(pipeline: "Pipeline", taken: Path) -> None:
    from headwater.pipelines.lineage.tracing import why
    from headwater.pipelines.pipeline import failed

    try:
        pipeline.spark.sparkContext.setJobGroup(taken.stem, "headwater why", interruptOnCancel=True)
        question = orjson.loads(taken.read_bytes())
        trace = why(pipeline, question["write"], question["key"], limit=question["limit"])
        content: dict[str, Any] = {"trace": trace.as_json()}
    except Exception as raised:
        error = failed(pipeline.name, raised)
        about = {"kind": type(error).__name__, "what": error.what}
        content = {"error": {**about, "detail": error.detail, "hint": error.hint}}
    try:
        if taken.exists():  # else the client has left
            _put(taken.with_suffix(".answer"), content)
    except OSError as error:
        _log.warning("a question about %s cannot be answered: %s", pipeline.name, error)


def _put(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS))
    temporary.replace(path)
