"""Definitions in a topic, as JSON by their id: stored searches and stored patterns.

The topic that is created retains all versions of a definition, so that a replay meets the
definitions as they were. A tombstone removes one.
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson

from headwater.client.cluster import Cluster
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import Fenced, NotReady, RequestRefused, UsageError
from headwater.settings import ClientSettings
from headwater.spelling import nearest

_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}")
_PLURALS: Final = {"search": "searches"}
_ATTEMPTS: Final = 5
_PATIENCE_S: Final = 20.0

_Definition = TypeVar("_Definition")


class DefinitionsTopic:
    """All methods raise BrokerUnreachable and RequestRefused."""

    def __init__(self, bootstrap: str, login: ClientSettings, topic: str, kind: str) -> None:
        """`kind`: what a definition is, for errors and as the command that has them."""
        self._bootstrap = bootstrap
        self._login = login
        self._topic = topic
        self._kind = kind
        self._kinds = _PLURALS.get(kind, f"{kind}s")

    def values(self) -> list[bytes]:
        return list(self._latest().values())

    def check_id(self, id_: str) -> None:
        """Raises UsageError."""
        if _ID.fullmatch(id_) is None:
            raise UsageError(
                f"the id of a {self._kind} has letters, digits, -, _ and ., 100 at most",
                detail=id_[:120],
            )

    def existing(self, id_: str, present: Mapping[str, _Definition]) -> _Definition:
        if id_ in present:
            return present[id_]
        meant = nearest(id_, list(present))
        raise RequestRefused(
            f"there is no {self._kind} {id_} in {self._topic}",
            hint=f"did you mean {meant}?"
            if meant
            else f"headwater {self._kind} list shows what there is",
        )

    def put(self, id_: str, value: bytes) -> bool:
        """Returns whether it is new. Raises NotReady."""
        self._create_if_missing()
        keys = self._keys_of(id_)
        self._write(keys or [orjson.dumps({"id": id_})], value)
        return not keys

    def drop(self, id_: str) -> None:
        """By a tombstone. Raises NotReady."""
        self._write(self._keys_of(id_), None)

    def _latest(self) -> dict[bytes, bytes]:
        return read_committed_latest(
            self._bootstrap, self._login, self._topic, patience_s=_PATIENCE_S
        )

    def _keys_of(self, id_: str) -> list[bytes]:
        """Other producers may write the same JSON in other bytes; a tombstone needs the same."""
        return [key for key, value in self._latest().items() if _id_of(value) == id_]

    def _create_if_missing(self) -> None:
        """Who may write to it need not have the right to create it."""
        cluster = Cluster(self._bootstrap, self._login, patience_s=_PATIENCE_S)
        try:
            exists = cluster.find_partitions(self._topic) is not None
        finally:
            cluster.close()
        if not exists:
            ensure_topics(self._bootstrap, self._login, [NewTopic(self._topic, 1, _CONFIGS)])

    def _write(self, keys: Sequence[bytes], value: bytes | None) -> None:
        for _ in range(_ATTEMPTS):
            with TransactionalProducer(
                self._bootstrap, f"headwater-{self._kinds}-{self._topic}", login=self._login
            ) as producer:
                try:
                    producer.fence()
                    batches: dict[tuple[str, int], list[BatchBuilder]] = {}
                    for key in keys:
                        batch = BatchBuilder()
                        batch.append(key, value, (), time.time_ns() // 1_000_000)
                        partition = partition_of(key, producer.partitions(self._topic))
                        batches.setdefault((self._topic, partition), []).append(batch)
                    producer.send(batches)
                    producer.commit()
                except Fenced:
                    continue
                return
        raise NotReady(f"others change {self._kinds} at the same time", hint="try again")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _id_of(value: bytes) -> Any:
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return fields.get("id") if isinstance(fields, dict) else None
