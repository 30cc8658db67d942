"""Webhooks that are registered, in the compacted topic `__headwater_webhooks`.

    key      value (JSON)
    NAME     {"url", "topics", "filter": [["where", "$.total>=100"]], "secrets", "max_in_flight",
              "timeout_s", "retry_for_s", "paused": "" | why, "begins": {"orders": {"0": 17}},
              "redeliver_until", "owner", "created_ms"}

A change reads what is there and writes in one transaction: who changes fences others first, so of
two changes at once one is made after the other. The secret is stored in clear, for it signs: who
may read this topic can sign in the gateway's name, a right for administrators.
"""

import base64
import re
import secrets as random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson
from starlette.datastructures import QueryParams

from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import Fenced, HeadwaterError, NotReady, UsageError
from headwater.gateway.reading import filters
from headwater.gateway.webhooks.targets import parse_target
from headwater.settings import ClientSettings
from headwater.sinks.notifications.standard_webhooks import PREFIX, secret_bytes

TOPIC: Final = "__headwater_webhooks"
SHARDS: Final = 8  # that gateways share among them
CONFIGS: Final = {"cleanup.policy": "compact"}
MAX_WEBHOOKS: Final = 1000
MAX_IN_FLIGHT: Final = 100
MAX_TOPICS: Final = 20
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}")
_TRANSACTIONAL_ID: Final = "headwater-webhooks"
_ATTEMPTS: Final = 5
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    url: str
    topics: tuple[str, ...]
    filter: tuple[tuple[str, str], ...] = ()  # names and values, as in a query of GET /topics/T
    secrets: tuple[str, ...] = ()
    max_in_flight: int = 1
    timeout_s: float = 10.0
    retry_for_s: float = 86_400.0
    paused: str = ""  # why; "": it is not
    begins: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    redeliver_until: int = 0  # dead letters before this offset are sent again
    owner: str = ""
    created_ms: int = 0

    @property
    def group(self) -> str:
        """Whose committed offsets are the position."""
        return f"headwater-webhook-{self.name}"

    @property
    def dead_letter_topic(self) -> str:
        return f"webhook.{self.name}.dlq"

    @property
    def shown_url(self) -> str:
        return f"{parse_target(self.url).shown}/…"

    def parsed_filter(self) -> filters.Filter:
        """Raises Refusal."""
        return filters.parse(QueryParams(list(self.filter)))

    def to_json(self) -> bytes:
        fields = asdict(self)
        del fields["name"]
        return orjson.dumps(fields)


def new_secret() -> str:
    return PREFIX + base64.b64encode(random.token_bytes(_SECRET_BYTES)).decode()


def check(webhook: Webhook) -> None:
    """Raises UsageError, Refusal, ConfigError."""
    if _NAME.fullmatch(webhook.name) is None:
        raise UsageError(
            "a webhook's name has letters, digits, - and _, 64 at most", detail=webhook.name[:100]
        )
    parse_target(webhook.url)
    webhook.parsed_filter()
    if not 1 <= len(webhook.topics) <= MAX_TOPICS or len(set(webhook.topics)) < len(webhook.topics):
        raise UsageError(f"a webhook is for 1 to {MAX_TOPICS} different topics")
    if any(topic.startswith("__") for topic in webhook.topics):
        raise UsageError("internal topics are not sent", hint="their names begin with __")
    if not 1 <= webhook.max_in_flight <= MAX_IN_FLIGHT:
        raise UsageError(f"1 to {MAX_IN_FLIGHT} requests are in flight")
    if not 0.1 <= webhook.timeout_s <= 60:
        raise UsageError("the time limit of a request is 0.1 to 60 seconds")
    if not 1 <= webhook.retry_for_s <= 30 * 86_400:
        raise UsageError("a record is retried for a second to 30 days")
    for secret in webhook.secrets:
        if len(secret_bytes(secret)) < 16:
            raise UsageError("a secret has 16 bytes or more", hint="without one, one is made")


def decoded(latest: Mapping[bytes, bytes]) -> dict[str, Webhook]:
    """What is no webhook is left out."""
    found = {}
    for key, value in latest.items():
        try:
            stored: dict[str, Any] = orjson.loads(value)
            webhook = Webhook(
                **{
                    **stored,
                    "name": key.decode(),
                    "topics": tuple(stored["topics"]),
                    "filter": tuple((name, text) for name, text in stored["filter"]),
                    "secrets": tuple(stored["secrets"]),
                }
            )
            check(webhook)
        except (ValueError, LookupError, TypeError, HeadwaterError):
            continue
        found[webhook.name] = webhook
    return found


def read_all(bootstrap: str, login: ClientSettings, *, patience_s: float) -> dict[str, Webhook]:
    """By name. Raises BrokerUnreachable, RequestRefused."""
    return decoded(read_committed_latest(bootstrap, login, TOPIC, patience_s=patience_s))


Change = Callable[[Mapping[str, Webhook]], Webhook | None]


def change(bootstrap: str, login: ClientSettings, name: str, change_: Change) -> Webhook | None:
    """Stores what `change_` makes of all that there are; None removes it. Raises what it raises,
    RequestRefused, BrokerUnreachable, NotReady.
    """
    ensure_topics(bootstrap, login, [NewTopic(TOPIC, SHARDS, CONFIGS)])
    for _ in range(_ATTEMPTS):
        with TransactionalProducer(bootstrap, _TRANSACTIONAL_ID, login=login) as producer:
            try:
                producer.fence()
                changed = change_(read_all(bootstrap, login, patience_s=30.0))
                batch = BatchBuilder()
                value = None if changed is None else changed.to_json()
                batch.append(name.encode(), value, (), time.time_ns() // 1_000_000)
                shard = partition_of(name.encode(), producer.partitions(TOPIC))
                producer.send({(TOPIC, shard): [batch]})
                producer.commit()
            except Fenced:
                continue
            return changed
    raise NotReady("others change webhooks at the same time", hint="try again")
