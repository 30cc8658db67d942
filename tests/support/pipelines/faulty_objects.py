"""An object store in memory that fails on demand, before or behind what was asked of it."""

from pathlib import Path

from obstore.store import MemoryStore

from headwater.pipelines.operators.state.object_state import (
    FileCache,
    ObjectDirectory,
    ObjectStore,
    ObjectUnavailable,
)
from headwater.pipelines.state_url import StateUrl

URL = StateUrl("bucket", "some/prefix")


class FaultyObjects(ObjectStore):
    """`objects`: of another one, which stands for another process on the same store."""

    def __init__(self, cache: Path, objects: MemoryStore | None = None) -> None:
        self.objects = objects or MemoryStore()
        super().__init__(self.objects, FileCache(cache, "bucket"))
        self.requests: list[str] = []
        self._fails_at: int | None = None
        self._is_done = False
        self.has_failed = False

    @property
    def directory(self) -> ObjectDirectory:
        return ObjectDirectory(self, URL)

    def fail(self, after: int, *, is_done: bool) -> None:
        """The request behind `after` others fails, once. `is_done`: only the response is lost."""
        self._fails_at = len(self.requests) + after
        self._is_done = is_done

    def _request(self, call, *args):
        is_now = len(self.requests) == self._fails_at
        self.requests.append(getattr(call, "__name__", "") + f" {args[0]}")
        if is_now and not self._is_done:
            self.has_failed = True
            raise ObjectUnavailable("503 Service Unavailable: SlowDown")
        result = super()._request(call, *args)
        if is_now:
            self.has_failed = True
            raise ObjectUnavailable("operation timed out")
        return result
