"""What conditions are about, as numbers. All of it blocks, and raises HeadwaterError if a value
cannot be read.
"""

import shutil
import time
from pathlib import Path
from typing import Self

from headwater.alert_settings import MAX_COUNTED, Condition, parse_select
from headwater.capture import positions
from headwater.client.login import properties_of
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.config import Config
from headwater.errors import ConfigError, NotReady, RequestRefused
from headwater.gateway.alerts.record_counts import RecordCounts
from headwater.gateway.tables import derived
from headwater.gateway.tables.queries import Condition as RowCondition
from headwater.gateway.tables.queries import Query
from headwater.inspect import groups
from headwater.inspect.captures import CaptureState, capture_states
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.inspect.pipelines import PipelineState, pipeline_states

_DLQ = ".dlq"
_RATE_S = 60


class Measures:
    """Of the alerts of a configuration. To be used by one thread at a time; to be closed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._counts = RecordCounts(config)

    def close(self) -> None:
        self._counts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def value(self, condition: Condition) -> float:
        """Of the condition's measure, now."""
        if condition.within_s:
            return self._counts.count(condition)
        return _measured(self._config, condition)


def _measured(config: Config, condition: Condition) -> float:
    name = condition.argument
    match condition.measure:
        case "lag":
            return _lag(config, name)
        case "lag_s":
            return _capture_lag_s(config, name)
        case "rate":
            return _rate(config, name)
        case "late_rows":
            return float(sum(_pipeline(config, name).late_rows.values()))
        case "dead_letters":
            return _records_in(config, name if name.endswith(_DLQ) else name + _DLQ)
        case "failing":
            return float(not _is_well(config, name))
        case "disk_free":
            return float(shutil.disk_usage(_data_dir(config)).free)
        case "disk_free_percent":
            usage = shutil.disk_usage(_data_dir(config))
            return 100 * usage.free / usage.total
        case "certificate_days":
            return _certificate_days(config)
        case _:
            return _count(config, condition)


def _lag(config: Config, name: str) -> float:
    """Of a pipeline or view, else of a group, else the largest of those that read a topic."""
    if name in config.pipelines:
        lags = [write.lag for write in _pipeline(config, name).writes]
        if not lags or None in lags:
            raise NotReady(f"the lag of {name} cannot be read now")
        return float(max(lag or 0 for lag in lags))
    cluster = KafkaCluster(config.bootstrap(), properties_of(config.client))
    cluster.require_listener()
    names = [str(row["group"]) for row in groups.listed(cluster) if row["type"] != "share"]
    if name in names:
        return float(groups.total_lag(groups.committed(cluster, [name])[name]))
    by_topic = [
        sum(commit.lag or 0 for commit in commits if commit.partition.topic == name)
        for commits in groups.committed(cluster, names).values()
        if any(commit.partition.topic == name for commit in commits)
    ]
    if not by_topic:
        raise NotReady(f"there is no pipeline or group {name}, and no group reads such a topic")
    return float(max(by_topic))


def _pipeline(config: Config, name: str) -> PipelineState:
    if name not in config.pipelines:
        raise ConfigError(f"there is no pipeline or view {name}")
    (found,) = pipeline_states(config, [name])
    return found


def _capture(config: Config, name: str) -> CaptureState:
    if name not in config.captures:
        raise ConfigError(f"there is no capture {name}")
    records = read_committed_latest(config.bootstrap(), config.client, positions.TOPIC)
    stored = {name: positions.decode(name, records)}
    (found,) = capture_states({name: config.captures[name]}, stored)
    return found


def _capture_lag_s(config: Config, name: str) -> float:
    """One that does not run is behind by as long as it has been silent."""
    state = _capture(config, name)
    if state.lag_s is None:
        raise NotReady(f"capture {name} has never run")
    return state.lag_s if state.is_well else max(state.lag_s, state.silent_s or 0.0)


def _is_well(config: Config, name: str) -> bool:
    if name in config.pipelines:
        return _pipeline(config, name).is_well
    return _capture(config, name).is_well


def _records_in(config: Config, topic: str) -> float:
    with Fetcher(config.bootstrap(), config.client, patience_s=10.0) as fetcher:
        if not fetcher.exists(topic):
            return 0.0
        places = [(topic, number) for number in range(fetcher.partitions(topic))]
        starts, ends = fetcher.offsets(places, EARLIEST), fetcher.offsets(places, LATEST)
    return float(sum(ends[place] - starts[place] for place in places))


def _rate(config: Config, topic: str) -> float:
    """Two look-ups in the log's index: no record is read, and nothing has to be remembered."""
    with Fetcher(config.bootstrap(), config.client, patience_s=10.0) as fetcher:
        if not fetcher.exists(topic):
            raise NotReady(f"there is no topic {topic}")
        places = [(topic, number) for number in range(fetcher.partitions(topic))]
        ends = fetcher.offsets(places, LATEST)
        began = fetcher.offsets(places, time.time_ns() // 1_000_000 - _RATE_S * 1000)
    return sum(max(0, ends[place] - began[place]) for place in places) / _RATE_S


def _data_dir(config: Config) -> Path:
    if config.broker.bootstrap:
        raise ConfigError(
            "the disk of another cluster cannot be measured", hint="its own monitoring can"
        )
    found = (config.base / config.broker.data_dir).resolve()
    if not found.exists():
        raise NotReady(f"{found} does not exist yet")
    return found


def _certificate_days(config: Config) -> float:
    from cryptography import x509

    files = [
        section.tls_cert
        for section in (config.broker, config.console, config.gateway, config.client)
        if section.tls_cert is not None
    ]
    if not files:
        raise ConfigError("no section of this configuration has a tls_cert")
    left_s = []
    for file in files:
        try:
            (first, *_) = x509.load_pem_x509_certificates(Path(file).read_bytes())
        except (OSError, ValueError) as error:
            raise RequestRefused(f"{file} has no certificate", detail=str(error)) from error
        left_s.append(first.not_valid_after_utc.timestamp() - time.time())
    return min(left_s) / 86_400


def _count(config: Config, condition: Condition) -> float:
    """Up to one more than what it is compared with: that decides."""
    select = parse_select(condition.argument)
    table = derived.find(config, select.table, select.sink)
    if table is None:
        raise NotReady(
            f"there is no derived table {select.sink}.{select.table}",
            hint="it is the name of a sink, and of a table that a pipeline or view maintains there",
        )
    conditions = tuple(
        RowCondition(one.column[-1], one.operator, one.value) for one in select.conditions
    )
    limit = min(int(condition.threshold) + 1, MAX_COUNTED)
    return float(len(derived.select(table, Query(conditions, limit=max(limit, 1))).rows))
