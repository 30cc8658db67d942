"""What became of each webhook, for people, in the compacted topic `__headwater_webhook_states`.

The position is elsewhere, in the offsets of the webhook's group: what is here may be some seconds
old. Only `failing_since_ms` matters, for a receiver that was dead before a restart is not given
another day by it.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

import orjson

TOPIC: Final = "__headwater_webhook_states"
CONFIGS: Final = {"cleanup.policy": "compact"}
DELIVERING, FAILING = "delivering", "failing"


@dataclass(slots=True)
class State:
    """`delivered`, `failed` and `dead_lettered` count since `since_ms`, when a gateway took it."""

    state: str = DELIVERING
    since_ms: int = 0
    delivered: int = 0
    failed: int = 0
    dead_lettered: int = 0
    lost: int = 0  # records that retention deleted before they were read
    failing_since_ms: int = 0  # 0: the last request was successful
    last_delivered_ms: int = 0
    last_error: str = ""
    last_error_ms: int = 0

    def succeeded(self) -> None:
        self.state = DELIVERING
        self.failing_since_ms = 0
        self.delivered += 1
        self.last_delivered_ms = now_ms()

    def has_failed(self, error: str) -> None:
        self.state = FAILING
        self.failed += 1
        self.last_error = error[:500]
        self.last_error_ms = now_ms()
        self.failing_since_ms = self.failing_since_ms or self.last_error_ms

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))


def decoded(latest: Mapping[bytes, bytes]) -> dict[str, State]:
    names = {field.name for field in fields(State)}
    found = {}
    for key, value in latest.items():
        try:
            stored = orjson.loads(value)
            found[key.decode()] = State(**{name: stored[name] for name in names if name in stored})
        except (ValueError, TypeError):
            continue
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000
