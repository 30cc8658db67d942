"""Waits until a capture has written to the log what a reader of the database has seen."""

import math
import time
from typing import TYPE_CHECKING, Final

from headwater.errors import NotReady
from headwater.sinks.contract import Log

if TYPE_CHECKING:
    from headwater.capture.contract import Chunk

_POLL_S: Final = 0.05
_ASK_EVERY_S: Final = 1.0  # as long as a capture that was asked is attentive


def await_capture(log: Log, capture: str, seen: "Chunk", ends_s: float) -> None:
    """Until all that the chunk has seen is in the log. Raises NotReady."""
    from headwater.capture import positions
    from headwater.capture.signals import ask_for_position
    from headwater.client.reading.compacted import read_committed_latest

    asked_s = -math.inf
    while True:
        records = read_committed_latest(log.bootstrap, log.login, positions.TOPIC)
        stored = positions.decode(capture, records).capture
        if stored is not None and seen.is_passed(stored.position.at):
            return
        if time.monotonic() > ends_s:
            raise NotReady(
                f"capture {capture} has not caught up with the database",
                hint=f"`headwater capture status {capture}` shows its position",
            )
        if stored is not None and time.monotonic() - asked_s > _ASK_EVERY_S:
            ask_for_position(capture, log.bootstrap, log.login)
            asked_s = time.monotonic()
        time.sleep(_POLL_S)
