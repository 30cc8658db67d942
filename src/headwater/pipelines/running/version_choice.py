"""Which version of its target a write feeds: the live one, or a new one if state was lost."""

import logging
from dataclasses import dataclass

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import Write
from headwater.pipelines.operators.state.state_files import check_begun, unreadable
from headwater.pipelines.running.environment import Environment
from headwater.sinks.contract import Offsets, Version

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VersionChoice:
    """The version that a run feeds."""

    version: int
    overtakes: Offsets | None = None  # promoted as soon as it has reached these offsets


def choose(
    environment: Environment,
    pipeline: str,
    write: Write,
    versions: list[Version],
    *,
    can_promote: bool = True,
) -> VersionChoice:
    """The live version, as long as its checkpoint is at its position. If it is not (the checkpoint
    or an operator's state was lost, or one of the two was restored from an older copy), no state
    matches the store's rows: a new version is derived from the start of the log, and promoted when
    it has reached the live one's offsets. Once: if that version loses its state too, a person
    has to find the cause. Raises StateLost also for a store that cannot promote: a topic has one
    name for ever.
    """
    live = next((version for version in versions if version.is_live), None)
    if live is None or live.position is None:
        return VersionChoice(live.number if live else 1)
    _check_key(pipeline, write, live)
    if _has_state(environment, pipeline, write, live):
        return VersionChoice(live.number)
    if not can_promote:
        raise StateLost(
            f"topic {write.table} cannot be continued: there is no state for what it has",
            detail="the query or function, the type of a column that it reads, or the checkpoint is"
            " another one",
            hint=f'another topic (table = "{write.table}_2") is derived from the start of the log,'
            " and this one stays as it is",
        )
    # Topics that the function no longer reads are not waited for.
    overtakes = {name: ends for name, ends in live.position.offsets.items() if write.reads(name)}
    newer = [version for version in versions if version.number > live.number]
    for version in reversed(newer):  # begun by an earlier run for the same reason
        if _has_state(environment, pipeline, write, version):
            return VersionChoice(version.number, overtakes)
    if any(_checkpoint(environment, pipeline, write, version).is_lost() for version in newer):
        raise StateLost(
            f"the state of {write.name} was lost, and lost again while it was derived again",
            hint=f"find out why; then `headwater pipeline rebuild {pipeline} --promote`",
        )
    _log.warning(
        "%s: the checkpoint of %s is missing or at another position; rebuilding from the log",
        pipeline,
        write.name,
    )
    return VersionChoice(max(version.number for version in versions) + 1, overtakes)


def _check_key(pipeline: str, write: Write, live: Version) -> None:
    key = [field.name for field in live.fields if not field.nullable]  # see `fields_of`
    if key and set(key) != set(write.key):
        raise PipelineError(
            f"pipeline {pipeline}: the key of {write.name} has changed",
            detail=f"it was {', '.join(key)}, now it is {', '.join(write.key) or 'none'}",
            hint=f"`headwater pipeline rebuild {pipeline}` derives the table again",
        )


def _has_state(environment: Environment, pipeline: str, write: Write, version: Version) -> bool:
    """Whether the state on disk matches the version. An empty version matches any: its query starts
    from the beginning.
    """
    if version.position is None:
        return True
    checkpoint = _checkpoint(environment, pipeline, write, version)
    if not checkpoint.is_at(version.position):
        return False
    try:
        check_operators(checkpoint, write)
    except StateLost as error:
        _log.warning("%s: %s", pipeline, error)
        return False
    return True


def _checkpoint(
    environment: Environment, pipeline: str, write: Write, version: Version
) -> Checkpoint:
    return Checkpoint(
        environment.state_dir,
        pipeline,
        write.name,
        version.number,
        state_url=environment.state_url,
    )


def check_operators(checkpoint: Checkpoint, write: Write) -> None:
    """Raises StateLost, also for a new operator: it has not seen the records before it."""
    if not write.operators:
        return
    directory = checkpoint.operators
    try:
        found = directory.directories()
    except OSError as error:
        raise unreadable("the state of operators cannot be read", str(error), error) from error
    for operator in write.operators:
        if operator.name not in found and directory.exists():
            raise StateLost(
                f"{write.name} has no state of {operator.name}",
                detail="it is new, or its settings or inputs were changed; there is state of "
                + (", ".join(sorted(found)) or "none"),
                hint='an operator with name="…" finds its state when its inputs are changed',
            )
        check_begun(directory / operator.name)
