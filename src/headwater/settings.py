"""What can be set: the [broker] and [client] sections, and what each value may be.

Every field of a section says what it is; docs/configuration.md lists them, and a test compares the
two. How values are read, and from where, is config.py's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "kb": 10**3, "kib": 1 << 10,
    "m": 1 << 20, "mb": 10**6, "mib": 1 << 20,
    "g": 1 << 30, "gb": 10**9, "gib": 1 << 30,
    "t": 1 << 40, "tb": 10**12, "tib": 1 << 40,
}  # fmt: skip
_DURATION_UNITS_MS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
}  # fmt: skip


def parse_size_bytes(text: str) -> int:
    """Reads "64MiB", "10 kB", "1.5g" or plain bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError('a size such as "64MiB"')
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def parse_duration_ms(text: str) -> int:
    """Reads "250ms", "90s", "1h30m", "7d". Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError('a duration such as "90s" or "1h30m"')
    return int(sum(float(number) * _DURATION_UNITS_MS[unit] for number, unit in parts))


def topic_config(name: str, value: str) -> str:
    """The value of a Kafka topic config as the broker wants it: *.ms may be written as a duration
    ("7d"), *.bytes as a size ("64MiB"). Raises ValueError.
    """
    if re.fullmatch(r"-?\d+", value):
        return value
    if name.endswith(".ms"):
        return str(parse_duration_ms(value))
    if name.endswith(".bytes"):
        return str(parse_size_bytes(value))
    return value


def join_address(host: str, port: int) -> str:
    """What `split_address` takes apart; IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """("127.0.0.1", 9092) from "127.0.0.1:9092", ("::1", 9092) from "[::1]:9092". ValueError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", address)
    if match is None or int(match[3]) > 65535:
        raise ValueError('an address such as "127.0.0.1:9092"')
    return match[1] or match[2], int(match[3])


class Secret:
    """A text that no output shows: not a log line, not `doctor`, not a traceback."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "(hidden)"


# A kind turns what was read (TOML value, or text from flag and environment) into the value, or
# raises ValueError that says what was expected.
Kind = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def _address(value: Any) -> str:
    split_address(str(value))
    return str(value)


def _addresses(value: Any) -> str:
    for address in str(value).split(","):
        _address(address)
    return str(value)


def _size(value: Any) -> int:
    size_bytes = parse_size_bytes(str(value))
    if size_bytes <= 0:
        raise ValueError("a size above 0")
    return size_bytes


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "1", "yes", "on"):
        return True
    if value in ("false", "0", "no", "off"):
        return False
    raise ValueError("true or false")


def _archive(value: Any) -> str:
    if not re.fullmatch(r"file:///.*|s3://[^/]+(/.*)?", str(value)):
        raise ValueError('"file:///a/directory" or "s3://bucket/prefix"')
    return str(value)


def _integer(first: int, last: int) -> Kind:
    def read(value: Any) -> int:
        expected = f"a whole number from {first} to {last}"
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value)):
            raise ValueError(expected)
        if not first <= int(value) <= last:
            raise ValueError(expected)
        return int(value)

    return read


def _one_of(*choices: str) -> Kind:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(" or ".join(f'"{choice}"' for choice in choices))
        return str(value)

    return read


def _url(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise ValueError("an address that begins with http:// or https://")
    return value


def _secret(value: Any) -> Secret:
    return Secret(_text(value))


def _secret_url(value: Any) -> Secret:
    """Whoever knows the address of a webhook can post to it."""
    return Secret(_url(value))


SECRET_KINDS: Final = (_secret, _secret_url)  # what is never shown


def _list_of(separator: str, each: Kind) -> Kind:
    """A list in the file; elsewhere a text with `separator` between the elements."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(separator) if part.strip()]
        if not isinstance(value, list):
            raise ValueError("a list")  # noqa: TRY004 (what was read is data, not an argument)
        return tuple(each(part) for part in value)

    return read


def _principal(value: Any) -> str:
    """Takes admin for User:admin, for User is the only kind there is."""
    name = _text(value).removeprefix("User:")
    if not name:
        raise ValueError("the name of a user")
    return f"User:{name}"


def topic_config_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return topic_config(name, str(value))
    raise ValueError("a text or a number")


def _setting(default: Any, kind: Kind, doc: str) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc})


# Settings of [broker] that are tables of Kafka configs.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked about, not bound)
TABLES: Final = ("topic_defaults", "group_defaults")
IN_TABLES: Final = tuple(f"broker.{table}." for table in TABLES)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The [broker] section. `docs/configuration.md` lists it; a test compares the two."""

    listen: str = _setting(
        "127.0.0.1:9092", _address, "Address the embedded broker binds; port 0 takes a free one."
    )
    advertise: str | None = _setting(
        None, _address, "Address told to clients. Default: the address that was bound."
    )
    data_dir: str = _setting(".headwater", _text, "Directory that holds the log.")
    bootstrap: str | None = _setting(
        None,
        _addresses,
        "Addresses of a Kafka cluster, separated by commas. When set, commands talk to it and no"
        " embedded broker is needed.",
    )
    metrics_listen: str | None = _setting(
        None, _address, "Address for Prometheus metrics, readiness and liveness. Default: none."
    )
    authentication: str = _setting(
        "none",
        _one_of("none", "sasl", "tls"),
        "How clients prove who they are: not at all (none), with a password or token (sasl), with"
        " a certificate (tls).",
    )
    sasl_mechanisms: tuple[str, ...] = _setting(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        _list_of(",", _one_of(*SASL_MECHANISMS)),
        "Ways of SASL that clients may choose from: " + ", ".join(SASL_MECHANISMS) + ".",
    )
    super_users: tuple[str, ...] = _setting(
        (),
        _list_of(";", _principal),
        "Users who may do everything. Outside the file: names with `;` between them.",
    )
    tls_cert: str | None = _setting(
        None, _text, "File with the broker's certificate chain (PEM). Set: the listener speaks TLS."
    )
    tls_key: str | None = _setting(None, _text, "File with the key of `tls_cert` (PEM).")
    tls_client_ca: str | None = _setting(
        None,
        _text,
        "File with CA certificates (PEM). Set: a client must show a certificate that one of them"
        " signed.",
    )
    oauth_jwks_file: str | None = _setting(
        None, _text, "File with the public keys (JWKS) that sign the tokens of OAUTHBEARER."
    )
    oauth_issuer: str | None = _setting(None, _text, "Issuer (`iss`) that a token must name.")
    oauth_audience: str | None = _setting(None, _text, "Audience (`aud`) that a token must name.")
    oauth_principal_claim: str = _setting(
        "sub", _text, "Claim of a token that holds the name of the user."
    )
    max_unauthenticated_connections: int = _setting(
        1000,
        _integer(1, 10**6),
        "Connections held at a time that have not yet authenticated; one more ends the oldest.",
    )
    allow_insecure_network: bool = _setting(
        False,
        _boolean,
        "Listen on a network although anybody there can read and write everything, or read"
        " passwords on the way.",
    )
    node_id: int = _setting(1, _integer(0, 2**31 - 1), "Number of this broker in metadata.")
    auto_create_topics: bool = _setting(
        True, _boolean, "Create a topic when a client first asks for it."
    )
    default_partitions: int = _setting(
        1, _integer(1, 100_000), "Partitions of a topic created without a number of its own."
    )
    producer_id_expiration_ms: int = _setting(
        86_400_000,
        _integer(1, 2**31 - 1),
        "How long a partition knows an idempotent producer that sends nothing; one with an open"
        " transaction is never forgotten.",
    )
    group_initial_rebalance_delay_ms: int = _setting(
        0, _integer(0, 3_600_000), "How long a new classic group waits for more members."
    )
    group_min_session_timeout_ms: int = _setting(
        6_000, _integer(1, 1_800_000), "Shortest session timeout that a classic member may ask for."
    )
    transaction_max_timeout_ms: int = _setting(
        900_000,
        _integer(1, 2**31 - 1),
        "Longest timeout that a transactional producer may ask for.",
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000,
        _integer(1, 2**31 - 1),
        "How long a transactional id that nobody uses is kept.",
    )
    archive: str | None = _setting(
        None,
        _archive,
        'Where sealed segments of topics with `remote.storage.enable` are copied: "file:///…" or'
        ' "s3://bucket/prefix". Credentials come from the environment (AWS_ACCESS_KEY_ID, …).'
        " Default: nowhere.",
    )
    archive_endpoint: str | None = _setting(
        None, _text, "URL of an S3-compatible server. Default: that of AWS."
    )
    archive_region: str | None = _setting(
        None, _text, "Region of the bucket. Default: from the environment (AWS_REGION)."
    )
    archive_cache_bytes: int = _setting(
        1 << 30, _size, "Disk space for what is read back from the archive."
    )
    archive_max_bytes_per_s: int = _setting(
        64 << 20, _size, "Bytes per second moved to and from the archive by archiving."
    )
    lag_warning_percent: int = _setting(
        80,
        _integer(1, 100),
        "How much of a topic's retention a group may use up before it counts as falling behind.",
    )
    lag_webhook: Secret | None = _setting(  # noqa: RUF009 (a Secret does not change)
        None, _secret_url, "Address that is told by POST when a group falls behind. Default: none."
    )
    compaction_memory_bytes: int = _setting(
        134_217_728, _size, "Memory for the keys of one compaction; more keys take more passes."
    )
    compaction_bytes_per_s: int = _setting(
        268_435_456, _size, "Bytes that compaction may read and write in a second."
    )
    max_open_files: int = _setting(
        1024, _integer(64, 2**31 - 1), "Segment files held open at the same time."
    )
    max_request_bytes: int = _setting(
        104_857_600, _size, "Largest request; a larger one ends its connection."
    )
    max_buffered_bytes: int = _setting(
        268_435_456, _size, "Request bytes held in memory over all connections."
    )
    max_connections: int = _setting(10_000, _integer(1, 10**6), "Connections held at a time.")
    log_format: str = _setting("text", _one_of("text", "json"), "Form of the log: text or json.")
    log_level: str = _setting(
        "info",
        _one_of("debug", "info", "warning", "error"),
        "Least severe line that is logged: debug, info, warning or error.",
    )
    audit_log: str = _setting(
        "audit.jsonl",
        _text,
        "File that says who changed, and who was refused, what; a relative one begins at"
        " `data_dir`. off: none.",
    )
    topic_defaults: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "doc": "A table of Kafka topic configs for topics that do not set them, for example"
            ' `"retention.ms" = "7d"`.'
        },
    )
    group_defaults: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={
            "doc": "A table of Kafka group configs, and ours for queues, for groups that do not set"
            ' them, for example `"share.auto.offset.reset" = "earliest"`.'
        },
    )

    def reached_at(self, bound: str) -> str:
        """Where clients reach a broker that has bound that address. `advertise` says it, also
        because the certificate is for that name; every address of a machine is none to connect to.
        """
        host, port = split_address(bound)
        return self.advertise or join_address(_LOOPBACK.get(host, host), port)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The [client] section: how commands prove to a broker who they are."""

    tls: bool = _setting(
        False, _boolean, "Talk to the broker over TLS. `tls_ca` and `tls_cert` imply it."
    )
    tls_ca: str | None = _setting(
        None,
        _text,
        "File with CA certificates (PEM) that vouch for the broker. Default: the machine's own.",
    )
    tls_cert: str | None = _setting(
        None, _text, "File with the certificate (PEM) that commands show to the broker."
    )
    tls_key: str | None = _setting(None, _text, "File with the key of `tls_cert` (PEM).")
    sasl_mechanism: str = _setting(
        "SCRAM-SHA-256",
        _one_of(*SASL_MECHANISMS),
        "Way of SASL, once `username` or `token_file` is set: " + ", ".join(SASL_MECHANISMS) + ".",
    )
    username: str | None = _setting(None, _text, "Name to log in with.")
    password: Secret | None = _setting(  # noqa: RUF009 (a Secret does not change)
        None, _secret, "Its password. Best kept in the environment, or in `password_file`."
    )
    password_file: str | None = _setting(
        None, _text, "File that holds the password and nothing else."
    )
    token_file: str | None = _setting(
        None, _text, "File with a token for OAUTHBEARER; read again for each login."
    )
