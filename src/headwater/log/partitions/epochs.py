"""Leader epochs: which range of a log was written under which leadership (KIP-101).

There is one broker, so the epoch only says how often it had to recover from a crash. A client that
read records which a crash then took (possible with `headwater.durability = os`) learns from it
that the log has another history now.

The file `leader-epoch-checkpoint` is Kafka's: a version, a count, then `epoch start-offset` lines.
"""

import bisect
import os
from typing import NamedTuple

from headwater.log.disk.files import Files

NAME = "leader-epoch-checkpoint"


class LeaderEpochs(NamedTuple):
    """(epoch, first offset) in ascending order."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> "LeaderEpochs":
        """From `start_offset` on it is `epoch`; entries of offsets behind it are dropped."""
        earlier = tuple(
            entry for entry in self.entries if entry[1] < start_offset and entry[0] < epoch
        )
        return LeaderEpochs((*earlier, (epoch, start_offset)))

    def end_of(self, epoch: int, next_offset: int, current_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above `epoch`; (-1, -1) if there is none."""
        if epoch >= current_epoch:
            return current_epoch, next_offset
        at = bisect.bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        # A crash may have taken the records with which a later epoch began.
        end = min(self.entries[at][1], next_offset) if at < len(self.entries) else next_offset
        if at == 0:  # before the first: it ends where the first begins, as Kafka says
            return (epoch, end) if self.entries else (-1, -1)
        return self.entries[at - 1][0], end

    def save(self, files: Files, directory: str) -> None:
        lines = [f"{epoch} {start}" for epoch, start in self.entries]
        text = "\n".join(["0", str(len(lines)), *lines, ""])
        files.write_atomically(f"{directory}/{NAME}", text.encode())

    @classmethod
    def load(cls, files: Files, directory: str) -> "LeaderEpochs":
        path = f"{directory}/{NAME}"
        if not os.path.exists(path):
            return cls()
        lines = files.read(path).decode("ascii", "replace").splitlines()[2:]
        entries = []
        for line in lines:
            epoch, _, start = line.partition(" ")
            if epoch.isdigit() and start.isdigit():
                entries.append((int(epoch), int(start)))
        return cls(tuple(entries))
