"""Tokens: how machines authenticate to the gateway, stored in the topic `__headwater_tokens`.

    key          value (JSON)
    3f9a…        {"name", "secret_sha256", "topics": ["orders", "shop.*"],
                  "operations": ["read", "write"], "created_ms", "expires_ms" | null}

A token is `hw_<id>_<secret>`. It is shown once, when it is created; the topic has a hash of its
secret (256 random bits, so a plain hash will do). A revoked token is a tombstone.

What a token may do is stored with it and checked by the gateway: the operations, on the topics that
it names. Towards the broker the gateway acts with its own login ([client]), so a token can never do
more than that login. Who may write to the topic can make tokens: a right for administrators.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import RequestRefused, UsageError
from headwater.settings import ClientSettings

TOPIC: Final = "__headwater_tokens"
CONFIGS: Final = {"cleanup.policy": "compact"}
OPERATIONS: Final = ("read", "write")
MAX_TOKENS: Final = 10_000  # each gateway holds all of them
_MAX_NAME_CHARACTERS: Final = 100
_MAX_PATTERNS: Final = 100
_TRANSACTIONAL_ID: Final = "headwater-tokens"
_PATTERN: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\*?|\*")
_TOKEN: Final = re.compile(r"hw_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    """What is stored of a token."""

    id: str
    name: str
    secret_sha256: str
    topics: tuple[str, ...]  # names; with * at the end: all that begin so
    operations: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None

    def allows(self, operation: str, topic: str) -> bool:
        """Internal topics ("__…") are in no pattern with *."""
        return operation in self.operations and any(
            topic == pattern
            or (
                pattern.endswith("*")
                and topic.startswith(pattern[:-1])
                and not topic.startswith("__")
            )
            for pattern in self.topics
        )

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "name": self.name,
                "secret_sha256": self.secret_sha256,
                "topics": self.topics,
                "operations": self.operations,
                "created_ms": self.created_ms,
                "expires_ms": self.expires_ms,
            }
        )


def new_token(
    name: str, topics: Iterable[str], operations: Iterable[str], expires_ms: int | None
) -> tuple[Token, str]:
    """A token, and the text that authenticates with it. Raises UsageError."""
    topics, operations = tuple(topics), tuple(operations)
    if not 1 <= len(name) <= _MAX_NAME_CHARACTERS or not name.isprintable():
        raise UsageError(f"a name has 1 to {_MAX_NAME_CHARACTERS} characters that can be shown")
    if not 1 <= len(topics) <= _MAX_PATTERNS:
        raise UsageError(f"a token is for 1 to {_MAX_PATTERNS} topics")
    for topic in topics:
        if _PATTERN.fullmatch(topic) is None:
            raise UsageError(
                f"{topic!r} is no topic",
                hint="orders is one topic, shop.* are all that begin with shop., * are all",
            )
    id_, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    token = Token(
        id_, name, _hash(secret), topics, operations, time.time_ns() // 1_000_000, expires_ms
    )
    return token, f"hw_{id_}_{secret}"


def matching(tokens: Mapping[str, Token], text: str) -> Token | None:
    """The token that the text authenticates; None if there is none, or it has expired."""
    match = _TOKEN.fullmatch(text)
    token = tokens.get(match[1]) if match else None
    if match is None or token is None:
        return None
    if not hmac.compare_digest(_hash(match[2]), token.secret_sha256):
        return None
    return None if token.has_expired(time.time_ns() // 1_000_000) else token


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def read_tokens(bootstrap: str, login: ClientSettings, *, patience_s: float) -> dict[str, Token]:
    """All of them, by id. Raises BrokerUnreachable, RequestRefused."""
    return decoded(read_committed_latest(bootstrap, login, TOPIC, patience_s=patience_s))


def decoded(latest: Mapping[bytes, bytes]) -> dict[str, Token]:
    """What is no token is left out: it authenticates nobody."""
    tokens = {}
    for key, value in latest.items():
        try:
            stored = orjson.loads(value)
            token = Token(
                key.decode(),
                str(stored["name"]),
                str(stored["secret_sha256"]),
                tuple(map(str, stored["topics"])),
                tuple(map(str, stored["operations"])),
                int(stored["created_ms"]),
                None if stored["expires_ms"] is None else int(stored["expires_ms"]),
            )
        except (ValueError, LookupError, TypeError):
            continue
        tokens[token.id] = token
    return tokens


def store(bootstrap: str, login: ClientSettings, token: Token) -> None:
    """Raises RequestRefused, BrokerUnreachable."""
    ensure_topics(bootstrap, login, [NewTopic(TOPIC, 1, CONFIGS)])
    if len(read_tokens(bootstrap, login, patience_s=30.0)) >= MAX_TOKENS:
        raise RequestRefused(
            f"there are {MAX_TOKENS:,} tokens, and no more are stored",
            hint="`headwater token revoke ID` removes one",
        )
    _write(bootstrap, login, token.id, token.to_json())


def revoke(bootstrap: str, login: ClientSettings, id_: str) -> None:
    _write(bootstrap, login, id_, None)


def _write(bootstrap: str, login: ClientSettings, id_: str, value: bytes | None) -> None:
    batch = BatchBuilder()
    batch.append(id_.encode(), value, (), time.time_ns() // 1_000_000)
    with TransactionalProducer(bootstrap, _TRANSACTIONAL_ID, login=login) as producer:
        producer.fence()
        producer.send({(TOPIC, 0): [batch]})
        producer.commit()
