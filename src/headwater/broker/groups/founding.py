"""The founding of KIP-848 and share groups, which are registered when their records are stored.

Until then nothing has changed, except that the predecessor, an empty classic group of that id,
refuses all requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headwater.broker.background import Background
from headwater.broker.groups.consumer_protocol.group import ConsumerProtocolGroup
from headwater.broker.groups.group import Group
from headwater.broker.groups.registry import GroupRegistry

G = TypeVar("G", bound=ConsumerProtocolGroup)
T = TypeVar("T")


@dataclass(slots=True)
class Founding:
    """A group whose first records are being written to the log."""

    group: ConsumerProtocolGroup
    predecessor: Group | None = None
    pending_requests: int = 0

    def group_of(self, kind: type[G]) -> G | None:
        """The group, if it is of this kind."""
        return self.group if isinstance(self.group, kind) else None


class Foundings:
    """The groups that are being founded, by id."""

    def __init__(self, registry: GroupRegistry, background: Background) -> None:
        self._registry = registry
        self._background = background
        self._pending: dict[str, Founding] = {}

    def get(self, group_id: str) -> Founding | None:
        return self._pending.get(group_id)

    def begin(self, group: ConsumerProtocolGroup, predecessor: Group | None = None) -> Founding:
        """To be followed by `run` at once; the predecessor makes room or survives."""
        founding = self._pending[group.group_id] = Founding(group, predecessor)
        if predecessor is not None:
            predecessor.begin_deletion()
        return founding

    def run(self, founding: Founding, request: Callable[[], T | Awaitable[T]]) -> Awaitable[T]:
        """Runs one of the first requests of the group, in a task that outlives its connection."""
        founding.pending_requests += 1
        return asyncio.shield(self._background.start(self._run(founding, request)))

    async def _run(self, founding: Founding, request: Callable[[], T | Awaitable[T]]) -> T:
        group, predecessor = founding.group, founding.predecessor
        try:
            answer = request()
            return await answer if isinstance(answer, Awaitable) else answer
        finally:
            founding.pending_requests -= 1
            is_pending = self._pending.get(group.group_id) is founding
            if is_pending and (group.epoch or not founding.pending_requests):
                del self._pending[group.group_id]
                if group.epoch:
                    self._registry.put(group)
                    if predecessor is not None:
                        predecessor.close()
                elif predecessor is not None:
                    predecessor.survive()
