"""Changes of topics, one after the other, each to its end.

A change looks at a topic, decides, and waits for the disk. Two of them at once could both decide
on what they saw before the other one was done (two increases of the same topic, two changes of
its settings). And a client that goes away in the middle must not leave half a change behind. So
the admin APIs run their changes through `to_the_end`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from headwater.broker.broker import Broker
from headwater.errors import ApiError, ConfigError, HeadwaterError
from headwater.protocol.error_codes import ErrorCode

T = TypeVar("T")

# A request may ask for no more partitions than this, so that none can exhaust the broker.
MAX_PARTITIONS_PER_REQUEST = 100_000
_MESSAGE_CHARS = 1000  # a message may quote the client; a classic string ends at 32 KiB

_turns: WeakKeyDictionary[Broker, asyncio.Lock] = WeakKeyDictionary()
_running: set[asyncio.Task[Any]] = set()


async def to_the_end(broker: Broker, change: Coroutine[Any, Any, T]) -> T:
    """What `change` returns. It runs alone, and goes on if the caller is cancelled."""
    task = asyncio.create_task(_in_turn(broker, change))
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)


async def _in_turn(broker: Broker, change: Coroutine[Any, Any, T]) -> T:
    async with _turns.setdefault(broker, asyncio.Lock()):
        return await change


def check_replicas(broker: Broker, partition: int, broker_ids: list[int]) -> None:
    """Raises the error code unless the replicas asked for are the one that there is."""
    if broker_ids != [broker.node_id]:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partition {partition} can only be placed on [{broker.node_id}], the one broker",
            detail=str(broker_ids[:10]),
        )


def check_partition_count(wanted: int) -> None:
    """Raises the error code for more partitions than one request may ask for."""
    if wanted > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"one request may create {MAX_PARTITIONS_PER_REQUEST} partitions",
            detail=f"{wanted} were asked for",
        )


# What a change of one topic may fail with; each has its code in the answer.
CHANGE_ERRORS = (HeadwaterError, OSError)


def refusal(error: HeadwaterError | OSError) -> tuple[ErrorCode, str]:
    """The code and the message that tell a client why a change was refused."""
    message = str(error)[:_MESSAGE_CHARS]
    match error:
        case ApiError():
            return error.code, message
        case ConfigError():
            return ErrorCode.INVALID_CONFIG, message
        case _:  # the disk: full, or failing
            return ErrorCode.KAFKA_STORAGE_ERROR, message
