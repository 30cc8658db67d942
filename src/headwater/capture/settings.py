"""What can be set in [capture.NAME]."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.settings import Secret


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """One [capture.NAME] section."""

    name: str
    source: Secret  # postgresql://, mysql://, mariadb://, sqlite:///, mongodb://, debezium:
    tables: tuple[str, ...] = ("*.*",)  # patterns as the shell has them, of schema.table
    exclude: tuple[str, ...] = ()
    snapshot: str = "initial"  # or "never"
    chunk_rows: int = 20_000
    partitions: int = 1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    schemas: bool = False  # a Connect schema beside every key and value
    tombstones: bool = True
    transactions: bool = False  # the topic <name>.transaction, and `transaction` in every value
    decimals: str = "string"  # or "double", or "precise" (Connect's bytes)
    times: str = "adaptive"  # Debezium's numbers; or "iso"
    columns: Mapping[str, str] = field(default_factory=dict)  # column pattern: drop, mask, hash, …
    rows: Mapping[str, str] = field(default_factory=dict)  # table pattern: condition
    outbox: str | None = None  # the table whose rows are events
    heartbeat_s: float = 10.0
    metrics_listen: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # of one kind of source: slot, …
