"""Rescaling of operator state: the same keys in another number of buckets, without the log.

`LocalState.load` does it before the first batch of a run whose number of buckets is not that of the
stored state. Each new bucket is written to a file of its own, so that one of them at a time is in
memory. Then the driver's record of the last committed batch is replaced by one with the new
buckets: until then the old ones count, from then on the new ones. `begun` and the directories of
tasks follow the record.
"""

import contextlib
from collections.abc import Sequence

import orjson

from headwater.errors import StateLost
from headwater.pipelines.operators.runtime.contract import Rescalable, State
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.state_files import NO_MANIFEST
from headwater.pipelines.operators.state.state_store import StateDirectory


def fill_bucket(operator: Built, before: Sequence[State], after: State, share: Share) -> None:
    """Puts the state of the share's keys into `after`, which is empty. `before` are the states of
    all buckets. Raises StateLost if the operator cannot split its state.
    """
    if not any(state.document for state in before):
        return  # it has not had any rows
    if not isinstance(operator.operator, Rescalable):
        raise StateLost(
            f"the state of {operator.name} has {len(before)} buckets, "
            f"and {share.buckets} are asked for",
            detail="it cannot be split by key groups",
        )
    old = [Share(bucket, len(before)) for bucket in range(len(before))]
    overlapping = [state for state, other in zip(before, old, strict=True) if share.overlaps(other)]
    after.document |= orjson.loads(orjson.dumps(before[0].document))
    if share.bucket == 0:  # metrics are summed over the buckets
        for state in before:
            for name, count in state.counters.items():
                after.counters[name] = after.counters.get(name, 0) + count
    operator.operator.rescale(overlapping, after, share)


def remove_leftovers(directory: StateDirectory, manifests: Sequence[int]) -> None:
    """Removes what buckets before a rescaling have left in an operator's directory. `manifests` are
    those of tasks that the driver's records may refer to, one for each bucket.
    """
    for name in directory.directories():
        if not name.isdigit():
            continue
        bucket = directory / name
        if int(name) >= len(manifests):
            bucket.remove_all()
        elif manifests[int(name)] == NO_MANIFEST:
            with contextlib.suppress(FileNotFoundError):  # a task of a killed driver may live
                bucket.remove(bucket.names())
