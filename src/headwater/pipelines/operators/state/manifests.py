"""Committed manifests: the driver's record of which manifest holds each bucket's state.

    <directory>/<batch>.json       {"tumbling-1": [4, 3, -1, …]}: of each bucket, the batch of the
                                   manifest that has its state after <batch>; -1: there is none yet

A batch that changes nothing writes no manifest, so a bucket cannot decide by itself whether the
newest manifest that it sees is the newest that was committed: a deleted one, or one that another
machine does not see yet, would look like a batch that changed nothing, and the pipeline would go on
with older state. So tasks report what they committed (by an accumulator of Spark's), the driver
records it durably before the batch reaches its store, and the tasks of the next batch read it. A
manifest that is missing then is lost state.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from pyspark.accumulators import AccumulatorParam

from headwater.errors import PipelineError, StateLost
from headwater.log.disk.files import Files
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import NO_MANIFEST, batches_of, unwritable
from headwater.pipelines.operators.state.state_store import (
    Location,
    StateDirectory,
    state_directory,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_REPORTS: Final = "_headwater_manifests"

Reports = dict[tuple[str, int], tuple[int, int]]  # directory and bucket to batch and manifest
_Value = TypeVar("_Value")
Manifests = dict[str, list[int]]  # of each operator, by bucket


class _Latest(AccumulatorParam[Reports]):
    def zero(self, _: Reports) -> Reports:
        return {}

    def addInPlace(self, latest: Reports, added: Reports) -> Reports:  # noqa: N802
        latest.update(added)
        return latest


def reports_of(context: "SparkContext") -> "Accumulator[Reports]":
    """The accumulator of committed manifests; one for all operators of a Spark session."""
    found: Accumulator[Reports] | None = getattr(context, _REPORTS, None)
    if found is None:
        found = context.accumulator({}, _Latest())
        setattr(context, _REPORTS, found)
    return found


def required_manifest(directory: Location, batch: int, operator: str, bucket: int) -> int:
    """In a task: the batch whose manifest has the state of the bucket before `batch`. Raises
    StateLost if the driver's record is missing.
    """
    if batch == 0:
        return NO_MANIFEST
    return _read(state_directory(directory), batch - 1, lambda found: int(found[operator][bucket]))


class CommittedManifests:
    """The record for all operators of one version of one write, in its driver."""

    def __init__(
        self, operators: tuple[Built, ...], directory: Location, *, files: Files | None = None
    ) -> None:
        self._operators = operators
        self._files = files or Files()
        self._directory = state_directory(directory, self._files)
        self._last: tuple[int, Manifests] | None = None  # that this process has written

    @contextmanager
    def computing(self, context: "SparkContext", batch: int) -> Iterator[None]:
        """Around the job that computes the batch."""
        yield
        self.computed(batch, reports_of(context).value)

    def after(self, batch: int) -> Manifests:
        """Raises StateLost if the record is missing."""
        if batch < 0:
            return {operator.name: [NO_MANIFEST] * operator.buckets for operator in self._operators}
        if self._last is not None and self._last[0] == batch:
            return self._last[1]
        return _read(
            self._directory,
            batch,
            lambda found: {
                operator.name: _checked(found[operator.name], operator)
                for operator in self._operators
            },
        )

    def computed(self, batch: int, reports: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Durable when it returns. Buckets without changes stay at their manifest."""
        manifests = {name: list(by_bucket) for name, by_bucket in self.after(batch - 1).items()}
        for operator in self._operators:
            path = self._directory / operator.name
            of_operator = manifests[operator.name]
            for bucket in range(operator.buckets):
                # Spark does not promise that a report arrives, so visible manifests count, too.
                seen = [number for number in batches_of(path / str(bucket)) if number <= batch]
                of_batch, manifest = reports.get((str(path), bucket), (-1, NO_MANIFEST))
                committed = manifest if of_batch == batch else NO_MANIFEST
                if committed == batch and batch not in seen:
                    raise StateLost(
                        "the state of an operator is missing",
                        detail=f"{path / str(bucket)}: no manifest of batch {batch}",
                    )
                of_operator[bucket] = max(of_operator[bucket], committed, *seen)
        self._write(batch, orjson.dumps(manifests))
        self._last = batch, manifests

    def _write(self, batch: int, content: bytes) -> None:
        try:
            self._directory.write(f"{batch}.json", content)
            self._directory.sync()
            old = []
            for name in self._directory.names():
                number, dot, _ = name.partition(".")  # an operator may be called by a number
                is_ours = dot and number.isdigit()
                if is_ours and int(number) < batch - 1:  # the batch may run again
                    old.append(name)
            self._directory.remove(old)
        except OSError as error:
            raise unwritable(self._directory, error) from error


def _read(
    directory: StateDirectory, batch: int, read: Callable[[dict[str, Any]], _Value]
) -> _Value:
    try:
        return read(orjson.loads(directory.read(f"{batch}.json")))
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise StateLost(
            "the record of operator state is missing or damaged",
            detail=f"{directory}/{batch}.json: {error}",
        ) from error
    except OSError as error:
        raise PipelineError(
            "the state of an operator cannot be read",
            detail=str(error),
            hint="the batch runs again",
        ) from error


def _checked(manifests: Any, operator: Built) -> list[int]:
    found = [int(manifest) for manifest in manifests]
    if len(found) != operator.buckets:
        raise ValueError(f"{len(found)} buckets of {operator.name}, not {operator.buckets}")
    return found
