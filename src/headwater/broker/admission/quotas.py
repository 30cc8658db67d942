"""Client quotas: bytes sent and fetched, and request time, by user and client id.

A quota is set for an entity: a user, a client id, both, or the default of either (None). Which one
holds for a client is decided as in Kafka, the most specific first:

    user + client id, user + default client id, user,
    default user + client id, default user + default client id, default user,
    client id, default client id

Each client that a quota holds for has a balance that fills at the quota's rate, up to one second's
worth. What it uses is taken off. Below zero its answers report how long it takes to fill up again,
and nothing is read from its connection for as long (`RequestContext.throttle_ms`). Nothing is ever
refused: the long-run rate is the quota's, whatever the size of the requests.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import orjson

from headwater.clock import Clock

if TYPE_CHECKING:
    from headwater.broker.api.registry import RequestContext
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

USER, CLIENT_ID = "user", "client-id"
PRODUCER_BYTES, CONSUMER_BYTES, REQUEST_PERCENTAGE = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
)
QUOTAS: Final = (PRODUCER_BYTES, CONSUMER_BYTES, REQUEST_PERCENTAGE)
DOCUMENTS = "quota"
# An answer never asks for a longer pause, lest the client's next request times out; what is owed
# beyond it stays owed.
MAX_THROTTLE_MS = 10_000
MAX_BALANCES = 100_000  # of clients; the longest unused goes first
MAX_CLIENT_ID_CHARS = 256  # those who agree in so many share a balance
_UNSET = "\0"  # no name of a client: the entity does not speak of this part

# (user, client id); None is the default, _UNSET: whichever.
Entity = tuple[str | None, str | None]


class Quotas:
    """The quotas that are set, and what every client has used of them."""

    def __init__(self, store: "LogStore", clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_entity: dict[Entity, dict[str, float]] = {}
        # (quota, entity that it holds for) → (balance, as of)
        self._balances: OrderedDict[tuple[str, Entity], tuple[float, float]] = OrderedDict()
        self.throttled_ms: dict[str, int] = dict.fromkeys(QUOTAS, 0)

    @property
    def is_any(self) -> bool:
        return bool(self._by_entity)

    def load(self) -> None:
        """To be called when the log is open."""
        documents = self._store.catalog.documents.get(DOCUMENTS, {})
        self._by_entity = {_entity(orjson.loads(key)): quota for key, quota in documents.items()}

    async def alter(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Sets quotas of several entities, None removes; durable and in force on return."""
        documents: dict[str, dict[str, float] | None] = {}
        for entity, quotas in changes.items():
            new = {**self._by_entity.get(entity, {}), **quotas}
            remaining = {name: value for name, value in new.items() if value is not None}
            documents[_key(entity)] = remaining or None
        await self._store.put_documents(DOCUMENTS, documents)
        self.load()

    def all(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        yield from self._by_entity.items()

    def charge_bytes(self, context: "RequestContext", quota: str, size_bytes: int) -> None:
        """Counts bytes against a client's quota; sets in `context` how long it has to pause."""
        if self._by_entity:
            self._charge(context, quota, size_bytes, 1.0)

    def charge_time(self, context: "RequestContext", seconds: float) -> None:
        """Counts time of the broker's event loop; 100 % is all of it."""
        self._charge(context, REQUEST_PERCENTAGE, seconds, 0.01)

    def _charge(self, context: "RequestContext", quota: str, used: float, unit: float) -> None:
        client_id = (context.client_id or "")[:MAX_CLIENT_ID_CHARS]
        found = self._quota_of(context.principal.name, client_id, quota)
        if found is None:
            return
        entity, limit = found
        rate = max(limit * unit, 1e-9)
        now_s = self._clock.monotonic_s()
        balance, as_of_s = self._balances.pop((quota, entity), (rate, now_s))
        balance = min(balance + (now_s - as_of_s) * rate, rate) - used
        self._balances[quota, entity] = (balance, now_s)
        if len(self._balances) > MAX_BALANCES:
            self._balances.popitem(last=False)
        if balance < 0:
            pause_ms = min(int(-balance / rate * 1000) + 1, MAX_THROTTLE_MS)
            self.throttled_ms[quota] += pause_ms
            context.throttle_ms = max(context.throttle_ms, pause_ms)

    def _quota_of(self, user: str, client_id: str, quota: str) -> tuple[Entity, float] | None:
        """The quota that holds, and whose balance it is: a default gives every client its own."""
        for named_user, named_client in (
            (user, client_id), (user, None), (user, _UNSET),
            (None, client_id), (None, None), (None, _UNSET),
            (_UNSET, client_id), (_UNSET, None),
        ):  # fmt: skip
            limit = self._by_entity.get((named_user, named_client), {}).get(quota)
            if limit is not None:
                whose_user = _UNSET if named_user == _UNSET else user
                whose_client = _UNSET if named_client == _UNSET else client_id
                return (whose_user, whose_client), limit
        return None


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """The entity that a request names by its parts ("user", "client-id"); None: the default."""
    return parts.get(USER, _UNSET), parts.get(CLIENT_ID, _UNSET)


def parts_of(entity: Entity) -> dict[str, str | None]:
    named = zip((USER, CLIENT_ID), entity, strict=True)
    return {part: name for part, name in named if name != _UNSET}


def _key(entity: Entity) -> str:
    return orjson.dumps(parts_of(entity)).decode()


def _entity(parts: dict[str, str | None]) -> Entity:
    return entity_of(parts)
