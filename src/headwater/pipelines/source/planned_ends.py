"""Ends of micro-batches that the driver plans for all sources of a query together.

Spark asks the sources of a query one after another where the next micro-batch ends. Each answers in
a process of its own, so by themselves they would not end at the same cut (engine/cuts.py). So the
driver writes the ends of all into a file before they are asked (engine/query_batches.py), and each
source finds its own by where it starts. Without the file sources plan by themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headwater.errors import PipelineError
from headwater.log.disk.files import Files
from headwater.pipelines.source.options import SourceOptions


@dataclass(frozen=True)
class PlannedEnd:
    """Where the next micro-batch starts and ends in one source, as the checkpoint has it."""

    source: str
    start: dict[str, Any]
    end: dict[str, Any]


def planned(options: SourceOptions, start: dict[str, Any], end: dict[str, Any]) -> PlannedEnd:
    return PlannedEnd(_source_of(options), start, end)


def write_ends(path: Path, ends: Iterable[PlannedEnd]) -> None:
    """Replaces those of the micro-batch before, at once."""
    Files().write_atomically(str(path), orjson.dumps(list(ends)))


def read_end(options: SourceOptions, start: dict[str, Any]) -> dict[str, Any] | None:
    """None if the source plans by itself. Sources that read the same from the same offsets on have
    the same end.
    """
    if options.ends is None:
        return None
    try:
        found = [PlannedEnd(**given) for given in orjson.loads(Path(options.ends).read_bytes())]
    except FileNotFoundError:
        return None
    own = [planned for planned in found if planned.source == _source_of(options)]
    for planned in own:
        if planned.start == start:
            return planned.end
    if any(planned.end == start for planned in own):
        return start  # nothing is planned behind it
    raise PipelineError(
        "the micro-batch was planned from other offsets",
        detail=f"it starts at {start}, planned were {[planned.start for planned in own]}",
        hint="the write continues from its checkpoint when it starts again",
    )


def _source_of(options: SourceOptions) -> str:
    """What it reads; its other options do not change where a micro-batch ends."""
    return f"{','.join(options.topic)} {options.pattern} {options.progress}"
