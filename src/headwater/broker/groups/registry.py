"""The registry of groups: every group by its id, and whether groups can be served yet."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from headwater.broker.groups.classic.group import ClassicGroup
from headwater.broker.groups.group import Group
from headwater.protocol.error_codes import ApiError, ErrorCode

G = TypeVar("G", bound=Group)


class GroupRegistry:
    """All groups of the broker. `refusal` is the answer to every request while it is set."""

    def __init__(self, new_classic: Callable[[str], ClassicGroup]) -> None:
        self.new_classic = new_classic
        self.refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._groups: dict[str, Group] = {}

    def verify_ready(self, group_id: str | None = None) -> None:
        """Raises what every API answers while loading or closing, or without a group id."""
        if self.refusal is not None:
            raise ApiError(self.refusal)
        if group_id == "":
            raise ApiError(ErrorCode.INVALID_GROUP_ID)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        yield from self._groups.values()

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def find(self, kind: type[G], group_id: str) -> G | None:
        """The group, if it is of this kind."""
        group = self._groups.get(group_id)
        return group if isinstance(group, kind) else None

    def of_kind(self, kind: type[G]) -> list[G]:
        return [group for group in self._groups.values() if isinstance(group, kind)]

    def put(self, group: Group) -> None:
        """Registers the group, in place of one of the same id."""
        self._groups[group.group_id] = group

    def remove(self, group_id: str) -> None:
        del self._groups[group_id]

    def ensure(self, group_id: str) -> None:
        """Registers a classic group for offsets that a client without a group has committed."""
        if group_id not in self._groups:
            self.put(self.new_classic(group_id))
