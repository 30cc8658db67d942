"""The authorizer: every API checks here, for every resource that it touches.

Without authentication every client may do everything, and a check costs nothing. With it no client
may do anything that no ACL allows (`allow.everyone.if.no.acl.found` is false), except super users.

Decisions are remembered until an ACL changes, so that asking again costs one look into a dict. A
change of ACLs is durable before it is in force, and in force before it is answered.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headwater.broker.security.acl_index import AclIndex
from headwater.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    ResourceType,
    plain_address,
)
from headwater.broker.security.audit import AuditLog
from headwater.errors import CorruptLog
from headwater.protocol.error_codes import ApiError, ErrorCode

if TYPE_CHECKING:
    from headwater.broker.api.registry import RequestContext
    from headwater.log.store import LogStore

__all__ = [
    "ANONYMOUS",
    "CLUSTER_NAME",
    "Authorizer",
    "Operation",
    "Principal",
    "ResourceType",
]

DOCUMENTS = "acl"  # kind of the documents in the catalog; the key says it all
MAX_ACLS = 100_000
ACLS_AT_ONCE = 5000
# Remembered at a time. A name that no topic can have is not remembered: it could be of any length.
MAX_DECISIONS = 100_000
MAX_REMEMBERED_CHARS = 249

# The authorized operations that are reported to clients, as in Kafka.
_OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


_REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Principal(NamedTuple):
    """Who a connection speaks for."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")


def unknown_topic_id(topic_id: UUID) -> ApiError:
    """The same for a topic that there is not and for one that the client may not see."""
    return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic with id {topic_id}")


class Authorizer:
    """See the module. Lives on the event loop. `super_users` are principals: `User:admin`."""

    def __init__(
        self,
        store: "LogStore",
        *,
        enabled: bool = False,
        super_users: frozenset[str] = frozenset(),
        audit: AuditLog | None = None,
    ) -> None:
        self.enabled = enabled
        self.denials: Counter[tuple[Operation, ResourceType]] = Counter()
        self._store = store
        self._super_users = super_users
        self._audit = audit
        self._acls = AclIndex()
        self._decisions: dict[tuple[object, ...], bool] = {}
        self.when_changed: Callable[[], None] = lambda: None  # after ACLs came or went

    def load(self) -> None:
        """Takes the ACLs out of the catalog, which is open.

        Raises CorruptLog if one cannot be read: without it a client might do what it denies.
        """
        for key in self._store.catalog.documents.get(DOCUMENTS, {}):
            try:
                self._acls.add(Acl.of_key(key))
            except (KeyError, ValueError, TypeError):
                raise CorruptLog(
                    "the catalog holds an ACL of a later version", detail=key
                ) from None

    # ── asking ────────────────────────────────────────────────────────────────────────────────

    def allows(
        self,
        context: "RequestContext",
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """Whether the client may do it. If not, that is counted and goes into the audit log."""
        if self.sees(context, operation, resource_type, name):
            return True
        self.denials[operation, resource_type] += 1
        if self._audit is not None:
            self._audit.denied(context, operation, resource_type, name)
        return False

    def sees(
        self,
        context: "RequestContext",
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """As `allows`, for what the client did not ask for by name: it is left out of a list, or
        another right will do. A denial is no event.
        """
        return not self.enabled or self._decide(
            context.principal, context.client_host, operation, resource_type, name
        )

    def topics_seen_by(self, context: "RequestContext") -> Callable[[str], bool] | None:
        """A function for whether the client may see a topic, also later; None: it may see all."""
        if not self.enabled:
            return None
        principal, host = context.principal, context.client_host
        return lambda name: self._decide(
            principal, host, Operation.DESCRIBE, ResourceType.TOPIC, name
        )

    def allows_any(
        self, context: "RequestContext", operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether the client may do it with any resource of the type at all."""
        if not self.enabled:
            return True
        key = (context.principal, context.client_host, operation, resource_type)
        decision = self._decisions.get(key)
        if decision is None:
            who = str(context.principal)
            decision = who in self._super_users or self._acls.allows_any(
                who, plain_address(context.client_host), operation, resource_type
            )
            self._remember(key, decision)
        return decision

    def allows_idempotent_writes(self, context: "RequestContext") -> bool:
        """Who may write to some topic may do so idempotently (KIP-679)."""
        return (
            self.sees(context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
            or self.allows_any(context, Operation.WRITE, ResourceType.TOPIC)
            or self.allows(context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        )

    def allows_credentials_of(self, context: "RequestContext", user: str) -> bool:
        """Whether the client may set or remove passwords of `user`, besides its right to ALTER the
        cluster. Those of super users are for super users: a client that sets one can log in as that
        user.
        """
        if (
            not self.enabled
            or str(context.principal) in self._super_users
            or str(Principal(user)) not in self._super_users
        ):
            return True
        self.denials[Operation.ALTER, ResourceType.USER] += 1
        if self._audit is not None:
            self._audit.denied(context, Operation.ALTER, ResourceType.USER, user)
        return False

    def require(
        self,
        context: "RequestContext",
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        topic_id: UUID | None = None,
    ) -> None:
        """Raises the error code unless `allows`. If the client knows the topic by `topic_id` only
        and may not see it, the code is that of an id that there is not.
        """
        if not self.enabled or self.allows(context, operation, resource_type, name):
            return
        if topic_id is not None and not self.sees(
            context, Operation.DESCRIBE, ResourceType.TOPIC, name
        ):
            raise unknown_topic_id(topic_id)
        raise ApiError(_REFUSALS[resource_type])

    def operations(
        self, context: "RequestContext", resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> int:
        """What the client may do with the resource, as the bits of `*_authorized_operations`."""
        return sum(
            1 << operation
            for operation in _OPERATIONS[resource_type]
            if self.sees(context, operation, resource_type, name)
        )

    def _decide(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        key = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            who = str(principal)
            decision = who in self._super_users or self._acls.allows(
                who, plain_address(host), operation, resource_type, name
            )
            if len(name) <= MAX_REMEMBERED_CHARS:
                self._remember(key, decision)
        return decision

    def _remember(self, key: tuple[object, ...], decision: bool) -> None:
        if len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision

    # ── ACLs ──────────────────────────────────────────────────────────────────────────────────

    @property
    def acl_count(self) -> int:
        return len(self._acls)

    async def matching(self, wanted: AclFilter) -> list[Acl]:
        """The ACLs that a filter means, in the order in which they were created."""
        exact = wanted.exact()  # which is how most ACLs are deleted, many at once
        if exact is not None:
            return [exact] if exact in self._acls else []
        found: list[Acl] = []
        for number, acl in enumerate(list(self._acls), 1):
            if wanted.matches(acl):
                found.append(acl)
            if number % ACLS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn
        return found

    async def add(self, acls: Collection[Acl]) -> None:
        """One after the other with `remove`. Raises the error code if there would be too many,
        OSError if the disk refuses; then none of them is in force.
        """
        new = {acl.key: acl for acl in acls if acl not in self._acls}
        if len(self._acls) + len(new) > MAX_ACLS:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, "there are too many ACLs", detail=f"limit {MAX_ACLS}"
            )
        if new:
            await self._store.put_documents(DOCUMENTS, dict.fromkeys(new, True))
            for acl in new.values():
                self._acls.add(acl)
            self._changed()

    async def remove(self, acls: Collection[Acl]) -> None:
        """Raises OSError if the disk refuses; then all of them are still in force."""
        if acls:
            await self._store.put_documents(DOCUMENTS, dict.fromkeys((a.key for a in acls), None))
            for acl in acls:
                self._acls.remove(acl)
            self._changed()

    def _changed(self) -> None:
        self._decisions.clear()
        self.when_changed()
