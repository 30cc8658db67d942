"""The options of `format("headwater")`, read and checked."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from headwater.client.reading.fetching import EARLIEST, LATEST, Isolation
from headwater.client.writing.sending import TopicPartition
from headwater.errors import ConfigError
from headwater.settings import (
    ClientSettings,
    addresses,
    boolean,
    integer,
    list_of,
    one_of,
    setting,
    size,
    text,
)

CLIENT: Final = "client."
VALUES: Final = ("bytes", "json", "debezium", "avro", "protobuf")

# Where to begin or to end: EARLIEST, LATEST, a time in milliseconds, or offsets.
OffsetSpec = int | Mapping[TopicPartition, int]


def _offset_spec(value: Any) -> OffsetSpec:
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if value.startswith("@"):
        try:
            moment = datetime.fromisoformat(value[1:])
        except ValueError:
            raise ValueError('a time such as "@2026-03-01T12:00:00Z"') from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(int(moment.timestamp() * 1000), 0)
    try:
        return offsets_from_json(json.loads(value))
    except (ValueError, AttributeError, TypeError):
        raise ValueError(
            'earliest, latest, @TIME, or offsets such as {"orders": {"0": 5}}'
        ) from None


def offsets_from_json(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _pattern(value: Any) -> str:
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return str(value)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, read and checked. `client` are those that begin with `client.`; `decoding`
    those that begin with the kind of value (`avro.…`), for its decoder.
    """

    client: ClientSettings
    decoding: Mapping[str, str]
    bootstrap: str = setting("127.0.0.1:9092", addresses, "Brokers, with a comma between them.")
    topic: tuple[str, ...] = setting((), list_of(",", text), "Topics, with a comma between them.")
    pattern: str | None = setting(
        None,
        _pattern,
        "Instead of `topic`: a regular expression for whole names. Topics that appear later are"
        " read from their first record.",
    )
    start: OffsetSpec = setting(  # noqa: RUF009 (as all of them)
        EARLIEST,
        _offset_spec,
        "Where to begin: `earliest`, `latest`, `@2026-03-01T12:00:00Z` or offsets"
        ' `{"orders": {"0": 5}}` (partitions that are not named: earliest). A stream that has a'
        " checkpoint goes on from there.",
    )
    end: OffsetSpec = setting(  # noqa: RUF009
        LATEST,
        _offset_spec,
        "Batch reads: where to end, in the same words; the record there is left out. Partitions"
        " that offsets do not name are not read.",
    )
    isolation: Isolation = setting(  # noqa: RUF009
        "read_committed",
        one_of("read_committed", "read_uncommitted"),
        "`read_uncommitted` has records of open and aborted transactions, too.",
    )
    max_rows: int = setting(
        1_000_000, integer(1, 1 << 40), "Most records of a micro-batch (by their offsets)."
    )
    max_bytes: int = setting(
        64 << 20, size, "Most bytes of a micro-batch in memory, by samples along the way."
    )
    group: str | None = setting(
        None,
        text,
        "Group to which offsets are committed after each micro-batch, for others to see the lag."
        " The stream itself goes by its checkpoint.",
    )
    on_lost: str = setting(
        "fail",
        one_of("fail", "skip"),
        "When records were deleted before they were read, or a topic was recreated: `fail`, or"
        " go on with what is there.",
    )
    value: str = setting(
        "bytes", one_of(*VALUES), "How values are decoded: `" + "`, `".join(VALUES) + "`."
    )
    on_bad: str = setting(
        "fail",
        one_of("fail", "skip", "dead-letter"),
        "When a value cannot be decoded: `fail`, leave it out, or write it to `<topic>.dlq` (once,"
        " however often it is read) and go on.",
    )
    name: str | None = setting(
        None, text, "Whose dead letters they are; a stream that writes them has to have a name."
    )
    schema: str | None = setting(
        None,
        text,
        "Columns of decoded values, as Spark's JSON of a schema; `_op`, `_at` and `_position` are"
        " added. Or give exactly the columns you want by `.schema(…)`.",
    )
    decrypt: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "Kinds of subjects ([subject.NAME]) whose personal fields are decrypted, with a comma"
        " between them. Fields that were erased are null.",
    )
    keys: str | None = setting(
        None, text, "Where the keys for `decrypt` are, as JSON; pipelines set it."
    )
    ends: str | None = setting(
        None,
        text,
        "Streams: a file with the ends of micro-batches that were planned for all sources of a"
        " query together; pipelines set it.",
    )
    headers: bool = setting(False, boolean, "With values as bytes: a column with the headers, too.")
    progress: bool = setting(
        False,
        boolean,
        "Streams of decoded values: a row without values behind the records of each partition,"
        " whose `_op` says how far it was read. `hw.enrich` sets it.",
    )

    def __post_init__(self) -> None:
        if self.on_bad == "dead-letter" and self.name is None:
            raise ConfigError(
                "dead letters need a name",
                hint='set the option "name": it identifies them, so that they are written once',
            )
        if self.decrypt and (self.keys is None or self.value not in ("json", "debezium")):
            raise ConfigError(
                "personal fields cannot be decrypted",
                detail="the option keys is missing"
                if self.keys is None
                else f"values are {self.value}, and only those of JSON have personal fields",
                hint='[pipeline.NAME] decrypt = ["customer"] sets both options',
            )
        if bool(self.topic) == (self.pattern is not None):
            raise ConfigError(
                "which topics to read is not clear",
                detail="both topic and pattern are set" if self.topic else "none is named",
                hint='set the option "topic" ("orders" or "orders,customers") or "pattern"',
            )


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises ConfigError for the first mistake, naming the option."""
    options = {field.name: field for field in fields(SourceOptions) if "kind" in field.metadata}
    kind = given.get("value", "bytes")
    values: dict[str, Any] = {}
    client: dict[str, str] = {}
    decoding: dict[str, str] = {}
    for name, value in given.items():
        if name.startswith(CLIENT):
            client[name.removeprefix(CLIENT)] = value
        elif name.startswith(f"{kind}."):
            decoding[name.removeprefix(f"{kind}.")] = value
        elif name in options:
            values[name] = _read(name, options[name].metadata["kind"], value)
        else:
            raise ConfigError(
                f'the source has no option "{name}"',
                hint=f"options are {', '.join(options)}, and client.*",
            )
    return SourceOptions(client=_client(client), decoding=decoding, **values)


def client_of(given: Mapping[str, str]) -> ClientSettings:
    """The settings of the client among all options."""
    named = [name for name in given if name.startswith(CLIENT)]
    return _client({name.removeprefix(CLIENT): given[name] for name in named})


def _client(given: Mapping[str, str]) -> ClientSettings:
    kinds = {field.name: field.metadata["kind"] for field in fields(ClientSettings)}
    values = {}
    for name, value in given.items():
        if name not in kinds:
            raise ConfigError(
                f'the source has no option "{CLIENT}{name}"',
                hint="options are " + ", ".join(CLIENT + kind for kind in kinds),
            )
        values[name] = _read(CLIENT + name, kinds[name], value)
    return ClientSettings(**values)


def _read(name: str, kind: Any, value: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        shown = "" if "password" in name else value
        raise ConfigError(
            f'option "{name}" is wrong', detail=shown, hint=f"expected: {error}"
        ) from None
