"""What can be set: the [broker] and [client] sections, and what each value may be.

Every field of a section says what it is (`setting`, `table`); docs/configuration.md lists them, and
a test compares the two. How values are read, and from where, is config.py's. Sections of which
there may be several have their fields beside what they are for: capture/settings.py.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from headwater.errors import ConfigError

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
    return _finite(float(match[1]) * _SIZE_UNITS[match[2]])


def parse_duration_ms(text: str) -> int:
    """Reads "250ms", "90s", "1h30m", "7d". Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError('a duration such as "90s" or "1h30m"')
    return _finite(sum(float(number) * _DURATION_UNITS_MS[unit] for number, unit in parts))


def _finite(number: float) -> int:
    if math.isinf(number):
        raise ValueError("a smaller number")
    return int(number)


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


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it. A name is taken for one that others reach."""
    host, _ = split_address(address)
    return is_loopback_host(host)


def is_loopback_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def url_with_password(url: Secret, password_file: str, where: str, name: str) -> Secret:
    """The address with the password that the file holds. `where` and `name` say which setting the
    address is. Raises ConfigError.
    """
    try:
        password = Path(password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8"
        raise ConfigError(
            f"{where}.password_file cannot be read", detail=f"{password_file}: {reason}"
        ) from error
    made, count = re.subn(
        r"^([a-z+]+://[^:@/?#]+)@",
        lambda user: f"{user[1]}:{quote(password, safe='')}@",
        url.reveal(),
    )
    if not count:
        raise ConfigError(
            f"{where}.password_file is set, but {where}.{name} has a password or no user",
            hint=f'{name} = "postgresql://user@host/database", without a password',
        )
    return Secret(made)


# A kind turns what was read (TOML value, or text from flag and environment) into the value, or
# raises ValueError that says what was expected.
Kind = Callable[[Any], Any]
EntryKind = Callable[[str, Any], Any]  # the same for one entry of a table: its name, and the value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def address(value: Any) -> str:
    split_address(str(value))
    return str(value)


def addresses(value: Any) -> str:
    for part in str(value).split(","):
        address(part)
    return str(value)


def size(value: Any) -> int:
    size_bytes = parse_size_bytes(str(value))
    if size_bytes <= 0:
        raise ValueError("a size above 0")
    return size_bytes


def boolean(value: Any) -> bool:
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


def integer(first: int, last: int) -> Kind:
    def read(value: Any) -> int:
        expected = f"a whole number from {first} to {last}"
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value)):
            raise ValueError(expected)
        if not first <= int(value) <= last:
            raise ValueError(expected)
        return int(value)

    return read


def one_of(*choices: str) -> Kind:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(" or ".join(f'"{choice}"' for choice in choices))
        return str(value)

    return read


def url(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise ValueError("an address that begins with http:// or https://")
    return value


class SecretKind:
    """A kind whose value is never shown, whether it is right or wrong."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __call__(self, value: Any) -> Secret:
        return Secret(self._kind(value))


def list_of(separator: str, item: Kind) -> Kind:
    """A list in the file; elsewhere a text with `separator` between the elements."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(separator) if part.strip()]
        if not isinstance(value, list):
            raise ValueError("a list")  # noqa: TRY004 (what was read is data, not an argument)
        return tuple(item(part) for part in value)

    return read


def _principal(value: Any) -> str:
    """Takes admin for User:admin, for User is the only kind there is."""
    name = text(value).removeprefix("User:")
    if not name:
        raise ValueError("the name of a user")
    return f"User:{name}"


def topic_config_text(name: str, value: Any) -> str:
    return topic_config(name, option_text(name, value))


def option_text(name: str, value: Any) -> str:
    """An entry of a table that somebody else understands."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a text or a number")


def setting(default: Any, kind: Kind, doc: str) -> Any:
    """A field of a section. `default` may be dataclasses.MISSING: then it has to be set."""
    return field(default=default, metadata={"kind": kind, "doc": doc})


def table(
    entry: EntryKind,
    doc: str,
    *,
    underscore: str = "",
    hides: Callable[[str, Any], bool] = lambda *_: False,
) -> Any:
    """A field of a section that is a table of its own, with names that its users choose. In the
    environment an underscore in such a name stands for `underscore`; without that, the names are
    nothing that a variable can be called. `hides` says of which entries the value is not shown.
    """
    return field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"entry": entry, "doc": doc, "underscore": underscore, "hides": hides},
    )


_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked about, not bound)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The [broker] section. `docs/configuration.md` lists it; a test compares the two."""

    listen: str = setting(
        "127.0.0.1:9092", address, "Address the embedded broker binds; port 0 takes a free one."
    )
    advertise: str | None = setting(
        None, address, "Address that clients connect to. Default: the bound address."
    )
    data_dir: str = setting(".headwater", text, "Directory that holds the log.")
    bootstrap: str | None = setting(
        None,
        addresses,
        "Addresses of a Kafka cluster, separated by commas. When set, commands talk to it and no"
        " embedded broker is needed.",
    )
    metrics_listen: str | None = setting(
        None, address, "Address for Prometheus metrics, readiness and liveness. Default: none."
    )
    authentication: str = setting(
        "none",
        one_of("none", "sasl", "tls"),
        "How clients authenticate: not at all (none), with a password or token (sasl), with"
        " a certificate (tls).",
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        list_of(",", one_of(*SASL_MECHANISMS)),
        "SASL mechanisms that clients may choose from: " + ", ".join(SASL_MECHANISMS) + ".",
    )
    super_users: tuple[str, ...] = setting(
        (),
        list_of(";", _principal),
        "Users who may do everything. Outside the file: names with `;` between them.",
    )
    tls_cert: str | None = setting(
        None, text, "File with the broker's certificate chain (PEM). Set: the listener speaks TLS."
    )
    tls_key: str | None = setting(None, text, "File with the key of `tls_cert` (PEM).")
    tls_client_ca: str | None = setting(
        None,
        text,
        "File with CA certificates (PEM). Set: a client must show a certificate that one of them"
        " signed.",
    )
    oauth_jwks_file: str | None = setting(
        None, text, "File with the public keys (JWKS) that sign the tokens of OAUTHBEARER."
    )
    oauth_issuer: str | None = setting(None, text, "Issuer (`iss`) that a token must name.")
    oauth_audience: str | None = setting(None, text, "Audience (`aud`) that a token must name.")
    oauth_principal_claim: str = setting(
        "sub", text, "Claim of a token that holds the name of the user."
    )
    max_unauthenticated_connections: int = setting(
        1000,
        integer(1, 10**6),
        "Connections held at a time that have not yet authenticated; one more ends the oldest.",
    )
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Listen on a network although any client there can read and write everything, or passwords"
        " are sent in the clear.",
    )
    node_id: int = setting(1, integer(0, 2**31 - 1), "Number of this broker in metadata.")
    auto_create_topics: bool = setting(
        True, boolean, "Create a topic when a client first asks for it."
    )
    default_partitions: int = setting(
        1, integer(1, 100_000), "Partitions of a topic created without a number of its own."
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        integer(1, 2**31 - 1),
        "How long a partition tracks an idempotent producer that sends nothing; one with an open"
        " transaction is never removed.",
    )
    group_initial_rebalance_delay_ms: int = setting(
        0, integer(0, 3_600_000), "How long a new classic group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        6_000, integer(1, 1_800_000), "Shortest session timeout that a classic member may ask for."
    )
    transaction_max_timeout_ms: int = setting(
        900_000,
        integer(1, 2**31 - 1),
        "Longest timeout that a transactional producer may ask for.",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        integer(1, 2**31 - 1),
        "How long an unused transactional id is retained.",
    )
    archive: str | None = setting(
        None,
        _archive,
        'Where sealed segments of topics with `remote.storage.enable` are copied: "file:///…" or'
        ' "s3://bucket/prefix". Credentials come from the environment (AWS_ACCESS_KEY_ID, …).'
        " Default: nowhere.",
    )
    archive_endpoint: str | None = setting(
        None, text, "URL of an S3-compatible server. Default: that of AWS."
    )
    archive_region: str | None = setting(
        None, text, "Region of the bucket. Default: from the environment (AWS_REGION)."
    )
    archive_cache_bytes: int = setting(
        1 << 30, size, "Disk space for what is read back from the archive."
    )
    archive_max_bytes_per_s: int = setting(
        64 << 20, size, "Bytes per second moved to and from the archive by archiving."
    )
    lag_warning_percent: int = setting(
        80,
        integer(1, 100),
        "How much of a topic's retention a group may use up before it counts as falling behind.",
    )
    lag_webhook: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None,
        SecretKind(url),
        "URL that gets a POST when a group falls behind. Default: none.",
    )
    compaction_memory_bytes: int = setting(
        134_217_728, size, "Memory for the keys of one compaction; more keys take more passes."
    )
    compaction_bytes_per_s: int = setting(
        268_435_456, size, "Bytes that compaction may read and write in a second."
    )
    max_open_files: int = setting(
        1024, integer(64, 2**31 - 1), "Segment files held open at the same time."
    )
    max_request_bytes: int = setting(
        104_857_600, size, "Largest request; a larger one ends its connection."
    )
    max_buffered_bytes: int = setting(
        268_435_456, size, "Request bytes held in memory over all connections."
    )
    max_connections: int = setting(10_000, integer(1, 10**6), "Connections held at a time.")
    log_format: str = setting("text", one_of("text", "json"), "Form of the log: text or json.")
    log_level: str = setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "Least severe line that is logged: debug, info, warning or error.",
    )
    audit_log: str = setting(
        "audit.jsonl",
        text,
        "Audit log of changes and denied requests; a relative path begins at `data_dir`."
        " off: none.",
    )
    topic_defaults: Mapping[str, str] = table(
        topic_config_text,
        "A table of Kafka topic configs for topics that do not set them, for example"
        ' `"retention.ms" = "7d"`.',
        underscore=".",
    )
    group_defaults: Mapping[str, str] = table(
        topic_config_text,
        "A table of Kafka group configs, and ours for queues, for groups that do not set them, for"
        ' example `"share.auto.offset.reset" = "earliest"`.',
        underscore=".",
    )

    def reached_at(self, bound: str) -> str:
        """Where clients reach a broker that has bound that address. `advertise` says it, also
        because the certificate is for that name; every address of a machine is none to connect to.
        """
        host, port = split_address(bound)
        return self.advertise or join_address(_LOOPBACK.get(host, host), port)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The [client] section: how commands authenticate to a broker."""

    tls: bool = setting(
        False, boolean, "Talk to the broker over TLS. `tls_ca` and `tls_cert` imply it."
    )
    tls_ca: str | None = setting(
        None,
        text,
        "File with CA certificates (PEM) that vouch for the broker. Default: the machine's own.",
    )
    tls_cert: str | None = setting(
        None, text, "File with the certificate (PEM) that commands show to the broker."
    )
    tls_key: str | None = setting(None, text, "File with the key of `tls_cert` (PEM).")
    sasl_mechanism: str = setting(
        "SCRAM-SHA-256",
        one_of(*SASL_MECHANISMS),
        "SASL mechanism, once `username` or `token_file` is set: "
        + ", ".join(SASL_MECHANISMS)
        + ".",
    )
    username: str | None = setting(None, text, "Name to log in with.")
    password: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None,
        SecretKind(text),
        "Its password. Better set in the environment, or in `password_file`.",
    )
    password_file: str | None = setting(
        None, text, "File that holds the password and nothing else."
    )
    token_file: str | None = setting(
        None, text, "File with a token for OAUTHBEARER; read again for each login."
    )
