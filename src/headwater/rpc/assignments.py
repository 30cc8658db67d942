"""The partitions that a server has at the moment, and how far each is done.

Requests of a partition are done in any order. What is committed is the offset of the first that is
not: after a crash, it and those behind it are taken by another server, done or not.
"""

import threading


class Assigned:
    """One partition, from its assignment to its end."""

    def __init__(self) -> None:
        self.is_current = True
        self._open: dict[int, None] = {}  # offsets that are not done, in their order
        self._next = -1  # behind the last one that came
        self._committed = -1

    def begin(self, offset: int) -> None:
        self._open[offset] = None
        self._next = offset + 1

    def done(self, offset: int) -> None:
        self._open.pop(offset, None)

    def to_commit(self) -> int | None:
        """The offset to be committed; None if it has been already."""
        found = next(iter(self._open), self._next)
        if found < 0 or found == self._committed:
            return None
        self._committed = found
        return found


class Assignments:
    """Thread-safe."""

    def __init__(self) -> None:
        self._by_partition: dict[int, Assigned] = {}
        self._lock = threading.Lock()

    def assign(self, partition: int) -> None:
        with self._lock:
            self._by_partition[partition] = Assigned()

    def revoke(self, partition: int) -> int | None:
        """What was done of it, to be committed."""
        with self._lock:
            found = self._by_partition.pop(partition, None)
            if found is None:
                return None
            found.is_current = False
            return found.to_commit()

    def lose(self, partition: int) -> None:
        with self._lock:
            found = self._by_partition.pop(partition, None)
            if found is not None:
                found.is_current = False

    def begin(self, partition: int, offset: int) -> Assigned:
        with self._lock:
            found = self._by_partition.setdefault(partition, Assigned())
            found.begin(offset)
            return found

    def done(self, assigned: Assigned, offset: int) -> None:
        with self._lock:
            assigned.done(offset)

    def to_commit(self) -> dict[int, int]:
        with self._lock:
            found = {
                partition: assigned.to_commit()
                for partition, assigned in self._by_partition.items()
            }
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def partitions(self) -> list[int]:
        with self._lock:
            return sorted(self._by_partition)
