"""What an erasure cannot reach, by name: readers' own copies, and backups."""

import json
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headwater.client.cluster import Cluster
from headwater.client.groups import committed_offsets, list_groups
from headwater.errors import HeadwaterError
from headwater.settings import ClientSettings

BACKUPS: Final = "backups.jsonl"  # in the data directory


def groups_that_read(
    bootstrap: str, login: ClientSettings, topics: Collection[str]
) -> list[str] | None:
    """Consumer groups that have committed offsets of these topics; None if they cannot be listed.
    Who reads without a group leaves no trace.
    """
    cluster = Cluster(bootstrap, login)
    try:
        committed = committed_offsets(cluster, list_groups(cluster))
    except HeadwaterError:
        return None
    finally:
        cluster.close()
    return sorted(
        group
        for group, offsets in committed.items()
        if any(topic in topics for topic, _ in offsets)
    )


def record_backup(data_dir: Path, target: Path) -> None:
    """Notes that a backup was taken, so that an erasure can name it."""
    line = json.dumps({"at_ms": time.time_ns() // 1_000_000, "path": str(target.resolve())})
    with (data_dir / BACKUPS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def recorded_backups(data_dir: Path) -> list[dict[str, Any]]:
    """The backups that `headwater backup` has taken of this data directory."""
    found = []
    with suppress(OSError):
        for line in (data_dir / BACKUPS).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(dict(json.loads(line)))
    return found
