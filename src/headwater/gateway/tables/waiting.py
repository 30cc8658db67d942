"""Headwater-Position: an answer that contains what a client has written before (read your writes).

A client sends the position that it got for its records (`orders:0:41`); the answer waits until the
table has them, or says with 504 how far it is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from headwater.errors import StoreUnreachable, UsageError
from headwater.gateway.answers import Refusal
from headwater.inspect.waiting import offsets_of
from headwater.sinks.contract import Offsets

_POLL_S: Final = 0.05
_MAX_CHARACTERS: Final = 10_000


def parse(text: str, topics: tuple[str, ...]) -> Offsets:
    """What has to be reached: next offsets. Raises Refusal."""
    try:
        wanted = offsets_of(text[:_MAX_CHARACTERS])
    except UsageError as error:
        raise Refusal(400, error.what, hint=error.hint) from None
    for topic in wanted:
        if topic not in topics:
            raise Refusal(
                400, f"this table is not derived from topic {topic[:300]}",
                detail=f"it is derived from {', '.join(topics)}",
            )  # fmt: skip
    return wanted


async def reached(
    wanted: Offsets, position: Callable[[], Awaitable[Offsets]], timeout_s: float
) -> None:
    """Raises Refusal (504) if it takes longer."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            found = await position()
        except StoreUnreachable:  # it may come back in time
            if time.monotonic() > until_s:
                raise
            found = {}
        if _has(found, wanted):
            return
        if time.monotonic() > until_s:
            raise Refusal(
                504,
                f"the table has not reached the position in {timeout_s:g} s",
                detail=f"it is at {token_of(found) or 'its start'}",
                hint="?wait_s=N waits longer; `headwater status` shows whether its pipeline runs",
                fields={"reached": token_of(found)},
            )
        await asyncio.sleep(_POLL_S)


def _has(found: Offsets, wanted: Offsets) -> bool:
    return all(
        found.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
    )


def token_of(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """The last record of each partition that is in the table."""
    return ",".join(
        f"{topic}:{partition}:{offset - 1}"
        for topic, partitions in sorted(offsets.items())
        for partition, offset in sorted(partitions.items())
        if offset > 0
    )
