"""Settings, and where each of them came from.

A value comes from the first of these places that has one:

    a flag                            --listen 127.0.0.1:9092
    the environment                   HEADWATER_BROKER__LISTEN=127.0.0.1:9092
    headwater.toml                    [broker] listen = "127.0.0.1:9092"
    the default

The file is the one that --config names, else HEADWATER_CONFIG, else ./headwater.toml if there is
one. Nothing is guessed and nothing ignored: an unknown name is a mistake, and all mistakes are
reported together, each with its place. [broker] and [client] are checked here; the other sections
belong to the parts that read them, and are kept as they stand.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headwater.errors import ConfigError

FILE_NAME: Final = "headwater.toml"
ENVIRONMENT_PREFIX: Final = "HEADWATER_"
SECTIONS: Final = ("broker", "client", "spark", "console", "capture", "sink", "pipeline", "view")

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


def _topic_config(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return topic_config(name, str(value))
    raise ValueError("a text or a number")


def _setting(default: Any, kind: Kind, doc: str) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc})


# Settings of [broker] that are tables of Kafka configs.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked about, not bound)
_TABLES: Final = ("topic_defaults", "group_defaults")
_IN_TABLES: Final = tuple(f"broker.{table}." for table in _TABLES)


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


_CHECKED: Final[Mapping[str, type]] = {"broker": BrokerSettings, "client": ClientSettings}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong in the configuration, and where."""

    where: str
    read: str
    expected: str

    def __str__(self) -> str:
        return f"{self.where}: {self.read}; expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and where it came from."""

    name: str
    value: Any
    source: str


class _Given(NamedTuple):
    name: str
    raw: Any
    where: str


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was read. With mistakes, the default stands in each wrong place."""

    path: Path | None
    broker: BrokerSettings
    client: ClientSettings
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]

    def bootstrap(self) -> str:
        """Where commands find a broker."""
        return self.broker.bootstrap or self.broker.reached_at(self.broker.listen)


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """The configuration, whole and right. Raises ConfigError that names every mistake in it.

    `flags` has the values given on the command line by setting name ("broker.listen"); None
    stands for a flag that was not given.
    """
    config = read(flags, path=path, environ=environ, cwd=cwd)
    if config.mistakes:
        count = len(config.mistakes)
        raise ConfigError(
            "the configuration is wrong"
            if count == 1
            else f"{count} mistakes in the configuration",
            detail="\n".join(str(mistake) for mistake in config.mistakes),
            hint="docs/configuration.md lists every setting; `headwater doctor` shows what is set",
        )
    return config


def read(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """As `load`, but mistakes are returned instead of raised."""
    environ = os.environ if environ is None else environ
    mistakes: list[Mistake] = []
    file = _find_file(path, environ, cwd or os.getcwd(), mistakes)
    sections, lines = _read_file(file, mistakes) if file else ({}, {})

    given: list[_Given] = []  # weakest first
    if file:
        given += _from_file(file, sections, lines, mistakes)
    given += _from_environment(environ, mistakes)
    for name, value in (flags or {}).items():
        if value is not None:
            flag = name.split(".")[1].replace("_", "-")
            given.append(_Given(name, value, f"flag --{flag}"))

    kinds = {
        f"{section}.{each.name}": each
        for section, schema in _CHECKED.items()
        for each in dataclasses.fields(schema)
    }
    settings = {
        name: Setting(name, each.default, "default")
        for name, each in kinds.items()
        if name.removeprefix("broker.") not in _TABLES
    }
    for name, raw, where in given:
        _, table, config = name.split(".", 2) if name.startswith(_IN_TABLES) else ("", "", name)
        try:
            # Also what a stronger source overrides is checked: it would fail the day after.
            value = _topic_config(config, raw) if table else kinds[name].metadata["kind"](raw)
            settings[name] = Setting(name, value, where)
        except ValueError as error:
            shown = _secret_shown(kinds.get(name), raw)
            mistakes.append(Mistake(where, f"{name} = {shown}", str(error)))

    values: dict[str, dict[str, Any]] = {
        section: {
            each.name: settings[f"{section}.{each.name}"].value
            for each in dataclasses.fields(schema)
            if f"{section}.{each.name}" in settings
        }
        for section, schema in _CHECKED.items()
    }
    for table in _TABLES:
        prefix = f"broker.{table}."
        values["broker"][table] = MappingProxyType(
            {
                name.removeprefix(prefix): setting.value
                for name, setting in settings.items()
                if name.startswith(prefix)
            }
        )
    return Config(
        file,
        BrokerSettings(**values["broker"]),
        ClientSettings(**values["client"]),
        tuple(settings.values()),
        sections,
        tuple(mistakes),
    )


def _secret_shown(setting: "dataclasses.Field[Any] | None", raw: Any) -> str:
    is_secret = setting is not None and setting.metadata.get("kind") in (_secret, _secret_url)
    return "(hidden)" if is_secret else repr(raw)


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, or ""."""
    import difflib

    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return matches[0] if matches else ""


def _unknown(where: str, what: str, name: str, known: tuple[str, ...]) -> Mistake:
    meant = nearest(name, known)
    expected = f"{meant} (the nearest name)" if meant else "one of " + ", ".join(known)
    return Mistake(where, f"unknown {what} {name}", expected)


def _find_file(
    path: str | None, environ: Mapping[str, str], cwd: str, mistakes: list[Mistake]
) -> Path | None:
    named_by = "--config" if path else "HEADWATER_CONFIG"
    named = path or environ.get("HEADWATER_CONFIG")
    if not named:
        default = Path(cwd, FILE_NAME)
        return default if default.is_file() else None
    if Path(cwd, named).is_file():
        return Path(cwd, named)
    mistakes.append(Mistake(named_by, f"no file {named}", "a file that exists"))
    return None


def _read_file(
    file: Path, mistakes: list[Mistake]
) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    import tomllib

    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), _line_numbers(text)
    except (OSError, UnicodeDecodeError) as error:
        mistakes.append(Mistake(str(file), f"cannot be read ({error})", "a readable UTF-8 file"))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = line[1] if line else len(text.splitlines())  # "at end of document"
        mistakes.append(
            Mistake(f"{file.name}:{number}", f"not TOML: {error}", "TOML (https://toml.io)")
        )
    return {}, {}


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each key of a valid TOML file stands. tomllib keeps no positions, so the
    file is parsed statement by statement: a statement is as many lines as it takes to parse.
    """
    import tomllib

    lines = text.splitlines()
    numbers: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    first = 0
    while first < len(lines):
        for last in range(first, len(lines)):
            try:
                statement = tomllib.loads("\n".join(lines[first : last + 1]))
                break
            except tomllib.TOMLDecodeError:
                continue
        else:  # unreachable for a file that parses as a whole
            break
        if lines[first].lstrip().startswith("["):
            table = _innermost(statement)
            numbers.setdefault(table, first + 1)
        else:
            for path in _paths(statement):
                numbers.setdefault(table + path, first + 1)
        first = last + 1
    return numbers


def _innermost(statement: Any) -> tuple[str, ...]:
    path: tuple[str, ...] = ()
    while statement:
        if isinstance(statement, list):
            statement = statement[0]
            continue
        ((name, statement),) = statement.items()
        path += (name,)
    return path


def _paths(statement: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in statement.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (((name, *path), leaf) for path, leaf in _leaves(value))
        else:
            yield (name,), value


def _from_file(
    file: Path,
    sections: Mapping[str, Any],
    lines: Mapping[tuple[str, ...], int],
    mistakes: list[Mistake],
) -> Iterator[_Given]:
    def where(*path: str) -> str:
        return f"{file.name}:{lines.get(path, 1)}"

    for section, content in sections.items():
        if section not in SECTIONS:
            known = tuple(f"[{name}]" for name in SECTIONS)
            mistakes.append(_unknown(where(section), "section", f"[{section}]", known))
        elif not isinstance(content, Mapping):
            mistakes.append(Mistake(where(section), f"{section} = {content!r}", f"[{section}]"))
    for section, schema in _CHECKED.items():
        keys = tuple(each.name for each in dataclasses.fields(schema))
        content = sections.get(section, {})
        for key, value in content.items() if isinstance(content, Mapping) else ():
            place = where(section, key)
            if key not in keys:
                mistakes.append(_unknown(place, f"setting in [{section}]:", key, keys))
            elif key not in _TABLES:
                yield _Given(f"{section}.{key}", value, place)
            elif isinstance(value, Mapping):
                for path, each in _leaves(value):
                    config = ".".join(path)  # "retention.ms" is the same with and without quotes
                    place = where(section, key, *path)
                    yield _Given(f"broker.{key}.{config}", each, place)
            else:
                expected = f"a table [broker.{key}]"
                mistakes.append(Mistake(place, f"{key} = {value!r}", expected))


def _from_environment(environ: Mapping[str, str], mistakes: list[Mistake]) -> Iterator[_Given]:
    known = tuple(section.upper() for section in SECTIONS)
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
        where = f"environment {variable}"
        if section not in known:
            mistakes.append(_unknown(where, "section", section, known))
            continue
        schema = _CHECKED.get(section.lower())
        if schema is None:
            continue  # belongs to the part that reads that section
        keys = tuple(each.name.upper() for each in dataclasses.fields(schema))
        table, _, config = key.lower().partition("__")
        if section == "BROKER" and table in _TABLES and config:
            yield _Given(f"broker.{table}.{config.replace('_', '.')}", value, where)
        elif key not in keys or table in _TABLES:
            mistakes.append(_unknown(where, "setting", key, keys))
        else:
            yield _Given(f"{section.lower()}.{key.lower()}", value, where)
