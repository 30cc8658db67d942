"""Which manifest of its state each bucket has to find, by the driver.

    <directory>/<batch>.json       {"tumbling-1": [4, 3, -1, …]}: of each bucket, the batch of the
                                   manifest that has its state after <batch>; -1: there is none yet

A batch that changes nothing writes no manifest, so a bucket cannot tell by itself whether the
newest one that it sees is the newest one there was: one that was deleted, or that another machine
does not see yet, would look like a batch that changed nothing, and older state would go on as if
nothing had happened. So tasks report what they committed (an accumulator of Spark's), the driver
writes it down before the batch reaches its store, and the tasks of the next batch read it there.
What is not there then is lost.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from pyspark.accumulators import AccumulatorParam

from headwater.errors import PipelineError, StateLost
from headwater.log.files import Files
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import NO_MANIFEST, batches_of

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_REPORTS: Final = "_headwater_manifests"

Reports = dict[tuple[str, int], tuple[int, int]]  # directory and bucket to batch and manifest
_Taken = TypeVar("_Taken")
Manifests = dict[str, list[int]]  # of each operator, by bucket


class _Latest(AccumulatorParam[Reports]):
    def zero(self, _: Reports) -> Reports:
        return {}

    def addInPlace(self, known: Reports, added: Reports) -> Reports:  # noqa: N802
        known.update(added)
        return known


def reports_of(context: "SparkContext") -> "Accumulator[Reports]":
    """To which tasks add what they committed; one for all operators of a session."""
    found: Accumulator[Reports] | None = getattr(context, _REPORTS, None)
    if found is None:
        found = context.accumulator({}, _Latest())
        setattr(context, _REPORTS, found)
    return found


def required_manifest(directory: Path, batch: int, operator: str, bucket: int) -> int:
    """In a task: the batch whose manifest has the state of the bucket before `batch`. Raises
    StateLost if it is not known.
    """
    if batch == 0:
        return NO_MANIFEST
    return _read(Files(), _path(directory, batch - 1), lambda found: int(found[operator][bucket]))


class CommittedManifests:
    """Of all operators of one version of one write, in its driver."""

    def __init__(
        self, operators: tuple[Built, ...], directory: Path, *, files: Files | None = None
    ) -> None:
        self._operators = operators
        self._directory = directory
        self._files = files or Files()
        self._last: tuple[int, Manifests] | None = None  # that this process has written

    @contextmanager
    def computing(self, context: "SparkContext", batch: int) -> Iterator[None]:
        """Around the job that computes the batch."""
        yield
        self.computed(batch, reports_of(context).value)

    def after(self, batch: int) -> Manifests:
        """Raises StateLost if it is not known."""
        if batch < 0:
            return {each.name: [NO_MANIFEST] * each.buckets for each in self._operators}
        if self._last is not None and self._last[0] == batch:
            return self._last[1]
        return _read(
            self._files,
            _path(self._directory, batch),
            lambda found: {each.name: _checked(found[each.name], each) for each in self._operators},
        )

    def computed(self, batch: int, reports: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Durable when it returns. Buckets that had nothing to do have the state that they had."""
        manifests = {name: list(each) for name, each in self.after(batch - 1).items()}
        for operator in self._operators:
            place = self._directory / operator.name
            of_operator = manifests[operator.name]
            for bucket in range(operator.buckets):
                # Spark does not promise that a report arrives; what is here to be seen counts, too.
                seen = [each for each in batches_of(place / str(bucket)) if each <= batch]
                of_batch, manifest = reports.get((str(place), bucket), (-1, NO_MANIFEST))
                reported = manifest if of_batch == batch else NO_MANIFEST
                if reported == batch and batch not in seen:
                    raise StateLost(
                        "the state of an operator is gone",
                        detail=f"{place / str(bucket)}: nothing of batch {batch}, which wrote it",
                    )
                of_operator[bucket] = max(of_operator[bucket], reported, *seen)
        self._write(batch, orjson.dumps(manifests))
        self._last = batch, manifests

    def _write(self, batch: int, content: bytes) -> None:
        path = _path(self._directory, batch)
        try:
            temporary = f"{path}.{secrets.token_hex(4)}.tmp"
            self._files.write_atomically(path, content, temporary=temporary)
            for name in self._files.listdir(str(self._directory)):
                number, dot, _ = name.partition(".")  # an operator may be called by a number
                is_ours = dot and number.isdigit()
                if is_ours and int(number) < batch - 1:  # the batch may run again
                    self._files.unlink(str(self._directory / name))
        except OSError as error:
            raise PipelineError(
                "the state of an operator cannot be written",
                detail=f"{path}: {error}",
                hint="is the disk full? The batch runs again",
            ) from error


def _path(directory: Path, batch: int) -> str:
    return str(directory / f"{batch}.json")


def _read(files: Files, path: str, taken: Callable[[dict[str, Any]], _Taken]) -> _Taken:
    try:
        return taken(orjson.loads(files.read(path)))
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise StateLost(
            "which state operators had is not known", detail=f"{path}: {error}"
        ) from error
    except OSError as error:
        raise PipelineError(
            "the state of an operator cannot be read",
            detail=str(error),
            hint="the batch runs again",
        ) from error


def _checked(manifests: Any, operator: Built) -> list[int]:
    found = [int(each) for each in manifests]
    if len(found) != operator.buckets:
        raise ValueError(f"{len(found)} buckets of {operator.name}, not {operator.buckets}")
    return found
