"""Delivery of rows as messages, at least once: what webhooks and e-mail have in common.

A sent message cannot be taken back, and the receiver cannot be asked whether it arrived, so there
is no transaction of rows and position. The guarantee is *at least once*:

  - Messages are sent one after the other, in the order of the rows; none is left out.
  - The count of sent messages is committed to the log (`__headwater_positions`,
    transactional_positions.py) with the batch. After a crash delivery continues behind it.
  - Messages sent after the last commit are sent again, with the same idempotency key. The key is a
    digest of owner, query, batch and the message's rows, so a repetition has the same key even if
    Spark delivers the batch in another order; equal messages of a batch have different keys.
  - There is one version. A rebuild would send everything again, and is refused.
  - A zombie is fenced at its next commit; until then it may repeat what the new writer sends.
"""

import hashlib
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import orjson
import pyarrow as pa

from headwater.errors import (
    ConfigError,
    HeadwaterError,
    RowRefused,
    StoreRefused,
    StoreUnreachable,
)
from headwater.settings import is_loopback_host
from headwater.sinks.contract import (
    AT_LEAST_ONCE,
    OP,
    Batch,
    Contents,
    Log,
    Position,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    fields_from_text,
    fields_to_text,
    is_applied,
    offsets_from,
)
from headwater.sinks.rows import json_text
from headwater.sinks.rows.row_validation import validated
from headwater.sinks.settings import SinkSettings
from headwater.sinks.topic.transactional_positions import TransactionalPositions, read_positions

_CHUNK_ROWS: Final = 1024
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_PATIENCE_S: Final = 30.0  # for one message; then the pipeline's own retries take over


class TryAgain(Exception):
    """A transient failure: the message is to be retried."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s  # requested by the receiver


@dataclass(frozen=True, slots=True)
class Message:
    key: str  # the same for a repetition, and for nothing else
    texts: Sequence[bytes]  # each row as JSON
    rows: pa.Table


class Sender(ABC):
    """Sends messages of some rows each."""

    rows_per_message: int = 1
    commit_every_s: float = 0.0  # 0: committed after every message

    def wanted(self, rows: pa.Table) -> pa.Table:
        """The rows to send messages for."""
        return rows

    @abstractmethod
    def send(self, message: Message) -> list[RowRefused]:
        """Returns when the receiver has it, with the rows that it permanently refuses. Raises
        TryAgain, StoreRefused.
        """

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _DeliveryState:
    """The stored state of a target: its position, and how much of the next batch was sent."""

    owner: str
    fields: pa.Schema
    position: Position | None = None
    # How far the batch behind `position` is: its query and id, messages that are sent, and a digest
    # of their rows.
    query: str = ""
    batch: int = -1
    sent: int = 0
    digest: str = ""

    def to_json(self) -> bytes:
        position = self.position and orjson.loads(self.position.to_json())
        return orjson.dumps(
            {
                "owner": self.owner,
                "fields": fields_to_text(self.fields),
                "position": position,
                "query": self.query,
                "batch": self.batch,
                "sent": self.sent,
                "digest": self.digest,
            }
        )

    @classmethod
    def from_json(cls, stored: bytes) -> "_DeliveryState":
        read: dict[str, Any] = orjson.loads(stored)
        at = read.pop("position")
        position = at and Position(at["query"], at["batch"], offsets_from(at["offsets"]))
        return cls(**{**read, "fields": fields_from_text(read["fields"]), "position": position})


class DeliveryStore(Store):
    """One target of a store that receives messages."""

    guarantee = AT_LEAST_ONCE
    kind: str

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self.settings = settings
        self.target = target
        self.log = log
        self._name = f"{self.kind}/{settings.name}/{target.name}"

    @abstractmethod
    def sender(self, fields: pa.Schema | None) -> Sender:
        """Ready to send rows with these columns. ConfigError if they do not suffice."""

    def versions(self) -> list[Version]:
        state = self._state()
        if state is None or state.owner != self.target.owner:
            return []
        return [Version(1, True, state.position, state.fields)]

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        self._check_version(version)
        self._check_owner(self._state())
        return _DeliveryWriter(
            self.sender(fields),
            TransactionalPositions(self.log, f"headwater-{self._name}", self._key()),
            self.target.owner,
            fields.remove_metadata(),
        )

    def promote(self, version: int) -> None:
        self._check_version(version)

    def drop(self, version: int) -> None:
        self._check_version(version)
        raise StoreRefused(
            f"{self.target.name} is live", detail="sent messages cannot be taken back"
        )

    def read(self, version: int) -> AbstractContextManager[Contents]:
        raise StoreRefused(f"what was sent to {self.settings.name} cannot be read back")

    def check(self) -> None:
        self._check_owner(self._state())

    def _key(self) -> bytes:
        return f"/{self._name}".encode()

    def _state(self) -> _DeliveryState | None:
        stored = read_positions(self.log).get(self._key())
        return None if stored is None else _DeliveryState.from_json(stored)

    def _check_owner(self, state: _DeliveryState | None) -> None:
        if state is not None and state.owner != self.target.owner:
            raise StoreRefused(
                f"{self.target.name} of {self.settings.name} belongs to {state.owner}",
                hint="choose another name",
            )

    def _check_version(self, version: int) -> None:
        if version != 1:
            raise StoreRefused(
                f"{self.settings.name} has no version {version} of {self.target.name}",
                detail="a rebuild would send everything again",
                hint="a target with another name starts from the beginning",
            )


class _DeliveryWriter(Writer):
    def __init__(
        self, sender: Sender, positions: TransactionalPositions, owner: str, fields: pa.Schema
    ) -> None:
        self._sender = sender
        self._positions = positions
        stored = positions.position
        self._state = (
            _DeliveryState(owner, fields) if stored is None else _DeliveryState.from_json(stored)
        )
        self.position = self._state.position
        if stored is None:
            try:
                self._put(self._state)
            except HeadwaterError:
                self.close()
                raise

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        if is_applied(self.position, batch):
            return
        unreadable: list[RowRefused] | None = None if refuse is None else []
        batch = replace(batch, rows=validated(batch.rows, None, unreadable))
        if refuse is not None:
            refuse(unreadable or ())
        sent = self._sent_of(batch)
        digest = hashlib.sha256()
        committed_s = time.monotonic()
        number = 0
        for number, message in enumerate(self._messages(batch), 1):
            digest.update(b"\n".join(message.texts))
            refused = [] if number <= sent else self._send(message, number - 1)
            if refused and refuse is None:
                raise refused[0]
            if refuse is not None:  # of each message: calls are counted to skip repetitions
                refuse(refused)
            if number <= sent:
                continue
            here = replace(
                self._state,
                query=batch.query,
                batch=batch.id,
                sent=number,
                digest=digest.hexdigest(),
            )
            self._state = here
            if time.monotonic() - committed_s >= self._sender.commit_every_s:
                self._put(here)
                committed_s = time.monotonic()
        fields = batch.rows.schema.remove_metadata()
        if OP in fields.names:
            fields = fields.remove(fields.get_field_index(OP))
        self._put(_DeliveryState(self._state.owner, fields, batch.position()))
        self.position = batch.position()

    def close(self) -> None:
        self._sender.close()
        self._positions.close()

    def _send(self, message: Message, sent: int) -> list[RowRefused]:
        """Retries with backoff, for half a minute."""
        until_s = time.monotonic() + _PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._sender.send(message)
            except TryAgain as error:
                wait_s = max(pause_s, error.after_s)
                until_s += error.after_s
                if time.monotonic() + wait_s > until_s:
                    self._put_if_behind(sent)
                    raise StoreUnreachable(
                        "a message does not arrive", detail=str(error)
                    ) from error
                time.sleep(wait_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except HeadwaterError:
                self._put_if_behind(sent)
                raise

    def _messages(self, batch: Batch) -> Iterator[Message]:
        rows = self._sender.wanted(batch.rows)
        seen: Counter[bytes] = Counter()
        size = self._sender.rows_per_message
        step = max(1, _CHUNK_ROWS // size) * size
        for begin in range(0, len(rows), step):
            chunk = rows.slice(begin, step)
            texts = _as_json(chunk)
            for at in range(0, len(texts), size):
                of_it = texts[at : at + size]
                contents = hashlib.sha256(b"\n".join(of_it)).digest()
                seen[contents] += 1
                identity = orjson.dumps(
                    [self._state.owner, batch.query, batch.id, contents.hex(), seen[contents]]
                )
                key = hashlib.sha256(identity).hexdigest()[:32]
                yield Message(key, of_it, chunk.slice(at, size))

    def _sent_of(self, batch: Batch) -> int:
        """How many messages of the batch were sent, if it has the same rows in the same order."""
        state = self._state
        if (state.query, state.batch) != (batch.query, batch.id):
            return 0
        digest = hashlib.sha256()
        for number, message in enumerate(self._messages(batch), 1):
            digest.update(b"\n".join(message.texts))
            if number == state.sent:
                return number if digest.hexdigest() == state.digest else 0
        return 0

    def _put_if_behind(self, sent: int) -> None:
        """So that the next writer continues from here."""
        if sent and self._positions.position != self._state.to_json():
            self._put(self._state)

    def _put(self, state: _DeliveryState) -> None:
        self._positions.commit({}, lambda _: state.to_json())
        self._state = state


def _as_json(rows: pa.Table) -> list[bytes]:
    if not len(rows):
        return []
    whole = rows.combine_chunks()
    columns = [whole[name].combine_chunks() for name in whole.column_names]
    plain = [
        column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns
    ]
    return json_text.objects(plain, whole.column_names).to_pylist()  # type: ignore[no-any-return]


def split_address(whose: str, url: str, schemes: Collection[str], hint: str) -> SplitResult:
    """Raises ConfigError, which shows nothing of the address: a password may be anywhere in one
    that is wrong.
    """
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise ConfigError(
            f"{whose}: url is not one that it can use",
            hint=f"{hint}; in a password, special characters are %-encoded",
        )
    return parts


def refuse_clear_credentials(whose: str, host: str, hint: str) -> None:
    """Raises ConfigError unless `host` is this machine: the connection is not encrypted, and a
    password or token could be read on the way. A host name counts as another machine.
    """
    if not is_loopback_host(host):
        raise ConfigError(
            f"{whose}: the password or token would go over the network in clear", hint=hint
        )


def password_of(settings: SinkSettings, in_url: str | None) -> str:
    """Of the user in `url`: from there, or from `password_file`."""
    if settings.password_file is None:
        return unquote(in_url or "")
    try:
        with open(settings.password_file, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"sink {settings.name}: password_file cannot be read", detail=str(error)
        ) from error


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca: {ca_file} has no certificates", detail=str(error)) from error


def untrusted(address: str, error: ssl.SSLCertVerificationError) -> StoreRefused:
    return StoreRefused(
        f"the certificate of {address} is not trusted",
        detail=error.verify_message,
        hint="tls_ca names a file with the certificates of its authority",
    )


def number_of(options: Any, name: str, default: str, least: float = 0) -> float:
    try:
        number = float(options.get(name, default))
    except ValueError:
        number = -1
    if number < least:
        raise ConfigError(f"{name} is a number from {least:g} on, not {options[name]}")
    return number
