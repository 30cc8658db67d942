"""`headwater status`: one screen about the processes, the broker, captures and pipelines.

Exit code 3 if one of them does not run or is not well.
"""

import argparse
import os
import re
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Final, NamedTuple

from headwater import config
from headwater.cli.arguments import cluster_of
from headwater.cli.commands.log.group import listed
from headwater.cli.parser import Command, Parser, client_options
from headwater.cli.status_sections import (
    broker_address_of,
    captures_state,
    pipelines_state,
    show_captures,
    show_pipelines,
    show_supervisor,
    supervisor_of,
    supervisor_state,
)
from headwater.client import broker_request, login
from headwater.errors import BrokerUnreachable, HeadwaterError, NotReady, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster, Partition, address_of, all_partitions
from headwater.supervisor.log_file import last_error
from headwater.supervisor.plan import data_dir_of
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import (
    count,
    duration,
    note,
    plural,
    print_json,
    say,
    size,
    styled,
    table,
    terminal,
)

_SHOWN_GROUPS: Final = 10
_LOOK_S: Final = 0.05
_WATCH_S: Final = 2.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_METRICS_TIMEOUT_S: Final = 5.0
_YEAR_S: Final = 365 * 86_400
_SAMPLE: Final = re.compile(r"^(headwater_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="metrics address (broker.metrics_listen)"
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help=f"again every {_WATCH_S:g} s, until Ctrl-C"
    )
    client_options(parser)


def _run(args: argparse.Namespace) -> int:
    return _watch(args) if args.watch else _once(args)


def _watch(args: argparse.Namespace) -> int:
    """What cannot be reached now may come back: an error is shown, and it goes on.

    A signal sets a flag: raised as an exception, it could end in a callback of librdkafka, which
    ignores it.
    """
    client = login.with_password(config.load(path=args.config).client)  # asked for once
    if client.password is not None:
        os.environ["HEADWATER_CLIENT__PASSWORD"] = client.password.reveal()
    interrupt = Interrupt()
    bootstrap = args.bootstrap
    while not interrupt:
        args.bootstrap = bootstrap
        try:
            _once(args, begin=_CLEAR if terminal() and not args.json else "")
        except HeadwaterError as error:
            if error.exit_code == UsageError.exit_code:
                raise
            note(str(error))
        sys.stdout.flush()
        again_s = time.monotonic() + _WATCH_S
        while not interrupt and time.monotonic() < again_s:
            time.sleep(_LOOK_S)
    return 0


def _once(args: argparse.Namespace, *, begin: str = "") -> int:
    """`begin` is written when all is known, just before it is shown."""
    loaded = config.load({"broker.bootstrap": args.bootstrap}, path=args.config)
    supervisor = supervisor_of(loaded)
    if loaded.broker.bootstrap is None:
        args.bootstrap = broker_address_of(supervisor)
        loaded = config.load({"broker.bootstrap": args.bootstrap}, path=args.config)
    up = supervisor_state(supervisor)
    try:
        state = _state(args, loaded, up)
    except BrokerUnreachable as error:
        if up is None:
            failed = last_error(data_dir_of(loaded)) if args.bootstrap is None else None
            hint = f"the last `headwater up -d` has failed: {failed}" if failed else error.hint
            raise NotReady(error.what, detail=error.detail, hint=hint) from error
        state = {"ready": False, "up": up, "broker_error": str(error)}
    sys.stdout.write(begin)
    if args.json:
        print_json(state)
    else:
        show_supervisor(up)
        _show(state)
    return 0 if state["ready"] else 3


def _state(
    args: argparse.Namespace, loaded: config.Config, up: dict[str, Any] | None
) -> dict[str, Any]:
    cluster = cluster_of(args)
    settings = loaded.broker
    metadata = cluster.metadata()
    brokers = [address_of(broker) for broker in metadata.brokers.values()]
    topics = {name: topic for name, topic in metadata.topics.items() if not name.startswith("__")}
    partitions = all_partitions(topics)
    bounds = cluster.bounds(partitions)
    sizes = cluster.sizes_bytes(brokers)
    metrics, samples, metrics_error = _metrics(args.metrics or settings.metrics_listen)
    groups = sorted(listed(cluster), key=lambda group: -group["lag"])
    without_leader = [
        str(Partition(name, number))
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader < 0
    ]
    failed = int(metrics.get("headwater_storage_failed_partitions", 0))
    disk = _disk(cluster, brokers, metrics)
    captures, pipelines = captures_state(loaded), pipelines_state(loaded)
    is_broker_ready = not without_leader and not failed and disk["free_bytes"] != 0
    return {
        "ready": is_broker_ready
        and (up is None or up["ready"])
        and all(part["ready"] for part in (*captures, *pipelines)),
        "broker_ready": is_broker_ready,
        "up": up,
        "captures": captures,
        "pipelines": pipelines,
        "bootstrap": cluster.bootstrap,
        "brokers": brokers,
        "cluster_id": metadata.cluster_id,
        "topics": len(topics),
        "partitions": len(partitions),
        "records": sum(high - low for low, high in bounds.values()),
        "size_bytes": sum(sizes.values()) if sizes else None,
        "groups": groups,
        "falling_behind": _falling_behind(samples, settings.lag_warning_percent),
        "dropped_records": _dropped(samples),
        "disk": disk,
        "partitions_without_leader": without_leader,
        "storage_failed_partitions": failed if metrics else None,
        "corrupt_segments": int(metrics.get("headwater_corrupt_segments", 0)) if metrics else None,
        "archive": _archive(metrics),
        "metrics_error": metrics_error,
    }


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def _metrics(address: str | None) -> tuple[dict[str, float], list[_Sample], str]:
    """The broker's own metrics by name (labels summed up), one by one, and why there are none."""
    if address is None:
        return (
            {},
            [],
            (
                "failed writes and how long the disk lasts are in the broker's metrics:"
                " broker --metrics-listen, status --metrics HOST:PORT"
            ),
        )
    try:
        with urllib.request.urlopen(
            f"http://{address}/metrics", timeout=_METRICS_TIMEOUT_S
        ) as answer:
            text = answer.read().decode()
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, OSError) and reason.strerror:
            reason = reason.strerror.lower()
        return {}, [], f"no metrics from {address}: {reason}"
    samples = [
        _Sample(name, dict(_LABEL.findall(labels)), float(value))
        for name, labels, value in _SAMPLE.findall(text)
    ]
    metrics: dict[str, float] = {}
    for sample in samples:
        metrics[sample.name] = metrics.get(sample.name, 0.0) + sample.value
    return metrics, samples, ""


def _falling_behind(samples: list[_Sample], warning_percent: int) -> list[dict[str, Any]]:
    """The groups that retention is about to pass, the worst partition of each topic."""
    lags = {
        (sample.name, *sample.labels.values()): sample.value
        for sample in samples
        if sample.name.startswith("headwater_group_lag_")
    }
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for sample in samples:
        if sample.name != "headwater_group_retention_used_ratio":
            continue
        if sample.value * 100 < warning_percent:
            continue
        where = tuple(sample.labels.values())
        before = worst.get((sample.labels["group"], sample.labels["topic"]))
        if before is None or before["retention_used"] < sample.value:
            worst[sample.labels["group"], sample.labels["topic"]] = {
                **sample.labels,
                "retention_used": sample.value,
                "lag_bytes": lags.get(("headwater_group_lag_bytes", *where)),
                "lag_seconds": lags.get(("headwater_group_lag_seconds", *where)),
            }
    return sorted(worst.values(), key=lambda reader: -reader["retention_used"])


def _dropped(samples: list[_Sample]) -> dict[str, int]:
    """How many records overload policies did not take since the broker's start, by topic."""
    dropped: dict[str, int] = {}
    for sample in samples:
        if sample.name == "headwater_overload_dropped_records_total":
            topic = sample.labels["topic"]
            dropped[topic] = dropped.get(topic, 0) + int(sample.value)
    return dict(sorted(dropped.items(), key=lambda item: -item[1]))


def _disk(cluster: KafkaCluster, brokers: list[str], metrics: dict[str, float]) -> dict[str, Any]:
    """Free space, the rate of writing, and how long it lasts; None where not reported."""
    total = free = None
    for address in brokers:
        try:
            directories = broker_request.log_dirs(address, cluster.properties).results
        except HeadwaterError:
            continue
        reporting = [directory for directory in directories if directory.total_bytes >= 0]
        if reporting:
            # Each directory may be a disk of its own; the one that fills first matters.
            least = min(reporting, key=lambda directory: directory.usable_bytes)
            if free is None or least.usable_bytes < free:
                total, free = least.total_bytes, least.usable_bytes
    if "headwater_disk_free_bytes" in metrics:
        free = int(metrics["headwater_disk_free_bytes"])
    return {
        "free_bytes": free,
        "total_bytes": total,
        "write_bytes_per_second": metrics.get("headwater_disk_write_bytes_per_second"),
        "seconds_left": _finite(metrics.get("headwater_disk_seconds_left")),
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and 0 <= number < float("inf") else None


def _show(state: dict[str, Any]) -> None:
    if "broker_error" in state:
        say(f"broker  {styled('not ready', 'bold red')}  {state['broker_error']}")
        return
    is_ready = state["broker_ready"]
    ready = styled("ready", "bold green") if is_ready else styled("not ready", "bold red")
    say(
        f"broker  {state['bootstrap']}  {ready}  cluster {state['cluster_id']},"
        f" {plural(len(state['brokers']), 'broker')}"
    )
    say(
        f"topics  {count(state['topics'])} with {plural(state['partitions'], 'partition')},"
        f" {plural(state['records'], 'record')}, {size(state['size_bytes'])} on disk"
    )
    say(f"disk    {_disk_line(state['disk'])}")
    for partition in state["partitions_without_leader"][:10]:
        say(styled(f"fault   {partition} has no leader", "red"))
    if state["storage_failed_partitions"]:
        failed = plural(state["storage_failed_partitions"], "partition")
        say(styled(f"fault   the disk refuses writes to {failed}", "red"))
    if state["corrupt_segments"]:
        corrupt = plural(state["corrupt_segments"], "segment")
        say(styled(f"fault   {corrupt} out of service: corrupt on disk", "red"))
    if state["archive"]:
        _show_archive(state["archive"])
    for behind in state["falling_behind"][:_SHOWN_GROUPS]:
        say(styled(f"behind  {_behind_line(behind)}", "yellow"))
    for topic, records in list(state["dropped_records"].items())[:_SHOWN_GROUPS]:
        say(styled(f"dropped {plural(records, 'record')} of {topic}: overload policy", "yellow"))
    if state["metrics_error"]:
        say(styled(f"note    {state['metrics_error']}", "dim"))
    groups = state["groups"]
    lag = sum(group["lag"] for group in groups)
    say(f"groups  {count(len(groups))}" + (f", lag {count(lag)} in all" if groups else ""))
    if groups:
        rows = [
            (group["group"], group["state"], group["members"], count(group["lag"]))
            for group in groups[:_SHOWN_GROUPS]
        ]
        say("\n" + table(("group", "state", ">members", ">lag"), rows))
    if len(groups) > _SHOWN_GROUPS:
        say(f"… and {len(groups) - _SHOWN_GROUPS} with less lag; `headwater group list` shows all")
    show_captures(state["captures"])
    show_pipelines(state["pipelines"])


def _archive(metrics: dict[str, float]) -> dict[str, Any] | None:
    """How archiving goes; None if the broker does not report it, or has no archive."""
    if "headwater_archive_failing" not in metrics:
        return None
    return {
        "size_bytes": int(metrics.get("headwater_archive_bytes", 0)),
        "pending_bytes": int(metrics.get("headwater_archive_pending_bytes", 0)),
        "is_failing": bool(metrics["headwater_archive_failing"]),
        "retention_waiting_bytes": int(metrics["headwater_archive_retention_waiting_bytes"]),
        "corrupt_objects": int(metrics["headwater_archive_corrupt_objects"]),
    }


def _show_archive(archive: dict[str, Any]) -> None:
    pending = archive["pending_bytes"]
    say(
        f"archive {size(archive['size_bytes'])} archived"
        + (f", {size(pending)} to be archived" if pending else "")
    )
    if archive["is_failing"]:
        waiting = size(archive["retention_waiting_bytes"])
        say(styled(f"fault   the archive fails; {waiting} past retention stay on this disk", "red"))
    if archive["corrupt_objects"]:
        corrupt = plural(archive["corrupt_objects"], "object")
        say(styled(f"fault   {corrupt} in the archive: corrupt", "red"))


def _behind_line(behind: dict[str, Any]) -> str:
    line = (
        f"group {behind['group']} has used {behind['retention_used']:.0%} of the retention of"
        f" {behind['topic']}-{behind['partition']}"
    )
    if behind["lag_seconds"] is not None:
        line += f", {duration(behind['lag_seconds'])} behind"
    return line + "; read faster, or retain more (retention.ms, retention.bytes)"


def _disk_line(disk: dict[str, Any]) -> str:
    if disk["free_bytes"] is None:
        return "unknown"
    line = f"{size(disk['free_bytes'])} free"
    if not disk["free_bytes"]:
        line = "full: " + line
    if disk["total_bytes"]:
        line += f" of {size(disk['total_bytes'])}"
    if disk["write_bytes_per_second"] is None or not disk["free_bytes"]:
        return line
    line += f", writing {size(disk['write_bytes_per_second'])}/s"
    left = disk["seconds_left"]
    if left is None:
        return line + ": not filling"
    return line + ": lasts " + (duration(left) if left < _YEAR_S else "more than a year")


COMMANDS = {
    "": Command(
        "show the state of everything on one screen",
        _configure,
        _run,
        "  headwater status\n  headwater status --watch\n  headwater status --json | jq .ready",
    )
}
