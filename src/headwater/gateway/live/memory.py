"""The memory of all tables of a gateway, in bytes: what does not fit is refused."""

import threading

from headwater.gateway.answers import Refusal


class Memory:
    """Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def change(self, size_bytes: int) -> bool:
        """Adds to what is used. False if it is too much now; it is counted all the same."""
        with self._lock:
            self._used_bytes += size_bytes
            return self._used_bytes <= self.most_bytes


def too_large(topic: str, memory: Memory) -> Refusal:
    return Refusal(
        413,
        f"table {topic} does not fit into the memory of the gateway",
        detail=f"all tables of live queries together have at most {memory.most_bytes:,} bytes",
        hint="gateway.max_table_bytes allows more; GET /topics/ follows a topic of any size",
    )
