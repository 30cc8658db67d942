"""The broker's metrics in Prometheus' text format, collected at each scrape."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headwater import __version__
from headwater.broker.api.registry import APIS
from headwater.broker.monitoring.lag_alerts import FALLING_BEHIND, LOST
from headwater.broker.monitoring.metrics import LATENCY_BOUNDS_S
from headwater.broker.queues.window import KINDS
from headwater.prometheus_text import Sample, family, histogram, memory_peak_bytes

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.network.server import Server


def exposition(broker: "Broker", server: "Server") -> str:
    return "".join(_lines(broker, server))


def requests_exposition(broker: "Broker", server: "Server") -> str:
    """Of requests, connections and the disk only: cheap, however many topics there are."""
    gauges = (
        ("headwater_connections", "Open connections.", len(server.connections)),
        (
            "headwater_disk_free_bytes",
            "Free space on the log's disk.",
            broker.metrics.disk.free_bytes,
        ),
    )
    lines = [*_request_lines(broker)]
    for name, text, value in gauges:
        lines += family(name, "gauge", text, [({}, value)])
    return "".join(lines)


def _request_lines(broker: "Broker") -> Iterator[str]:
    metrics = broker.metrics
    yield from family("headwater_requests_total", "counter", "Requests by API.", (
        ({"api": APIS[key].name}, count) for key, count in metrics.requests.items()
    ))  # fmt: skip
    yield from histogram(
        "headwater_request_seconds",
        "Time from a request to its answer, by API; a fetch waits for records.",
        LATENCY_BOUNDS_S,
        (
            ({"api": APIS[key].name}, latency.counts, latency.sum_s)
            for key, latency in metrics.latency.items()
        ),
    )


def _lines(broker: "Broker", server: "Server") -> Iterator[str]:
    metrics, store, compaction = broker.metrics, broker.store, broker.compactor.numbers
    yield from family(
        "headwater_build_info", "gauge", "The version that runs.", [({"version": __version__}, 1)]
    )
    yield from _request_lines(broker)
    for name, text, by_topic in (
        ("headwater_produced_records_total", "Records taken in.", metrics.produced_records),
        ("headwater_produced_bytes_total", "Bytes taken in.", metrics.produced_bytes),
        ("headwater_fetched_bytes_total", "Bytes sent to consumers.", metrics.fetched_bytes),
        ("headwater_refused_batches_total", "Batches not taken.", metrics.refused_batches),
        (
            "headwater_missed_records_total",
            "Records that were deleted before a consumer read them.",
            metrics.missed_records,
        ),
        (
            "headwater_overload_held_back_total",
            "Times that a produce request had to wait for consumers, looked at once a second.",
            metrics.held_back_looks,
        ),
    ):
        yield from family(name, "counter", text, _by_topic(by_topic))
    yield from family("headwater_overload_dropped_records_total", "counter",
        "Records that an overload policy did not take.", (
            ({"topic": topic, "reply": reply}, count)
            for (topic, reply), count in metrics.dropped_records.items()
    ))  # fmt: skip
    yield from family("headwater_throttled_milliseconds_total", "counter",
        "Throttle time that quotas have imposed on clients.", (
            ({"quota": quota}, count) for quota, count in broker.quotas.throttled_ms.items()
    ))  # fmt: skip
    for name, text, value in (
        ("headwater_connections", "Open connections.", len(server.connections)),
        (
            "headwater_buffered_bytes",
            "Request bytes in memory.",
            server.buffered_bytes + server.unauthenticated_bytes,
        ),
        ("headwater_fetch_sessions", "Incremental fetch sessions.", len(broker.fetch_sessions)),
        ("headwater_acls", "ACLs.", broker.authorizer.acl_count),
        ("headwater_topics", "Topics.", len(store.catalog.topics)),
        ("headwater_partitions", "Partitions.", len(store.partitions)),
        ("headwater_open_files", "Segment files held open.", len(store.storage.open_files)),
        ("headwater_disk_free_bytes", "Free space on the log's disk.", metrics.disk.free_bytes),
        (
            "headwater_disk_write_bytes_per_second",
            "Rate at which the log grew in the last minute.",
            metrics.disk.write_bytes_per_s,
        ),
        (
            "headwater_disk_seconds_left",
            "How long the free space lasts at that rate.",
            metrics.disk.seconds_left,
        ),
        (
            "headwater_storage_failed_partitions",
            "Partitions whose last write the disk refused.",
            len(store.failed),
        ),
        (
            "headwater_retention_waiting_bytes",
            "Bytes that retention retains only because groups have not read them.",
            sum(store.retention_waits.values()),
        ),
        ("headwater_corrupt_segments", "Segments out of service.", len(store.corrupt)),
        (
            "headwater_recovery_scanned_bytes",
            "Bytes scanned when the log was opened.",
            store.scanned_bytes,
        ),
        (
            "headwater_erasures_waiting",
            "Erasures that have not ended.",
            broker.eraser.waiting,
        ),
        (
            "headwater_compaction_dirty_ratio_max",
            "Largest part of a compacted partition that is not clean yet.",
            compaction.max_dirty_ratio,
        ),
        ("headwater_memory_peak_bytes", "Largest resident size so far.", memory_peak_bytes()),
    ):
        yield from family(name, "gauge", text, [({}, value)])
    for name, text, count in (
        (
            "headwater_connections_opened_total",
            "Connections accepted.",
            metrics.connections_opened,
        ),
        ("headwater_compaction_passes_total", "Passes done.", compaction.passes),
        ("headwater_compaction_failures_total", "Passes given up.", compaction.failures),
        ("headwater_compaction_read_bytes_total", "Bytes read.", compaction.bytes_read),
        ("headwater_compaction_written_bytes_total", "Bytes written.", compaction.bytes_written),
        ("headwater_erased_records_total", "Records erased.", broker.eraser.erased_records),
        (
            "headwater_connections_refused_total",
            "Connections ended for bad input or a limit.",
            metrics.connections_refused,
        ),
        (
            "headwater_logins_failed_total",
            "Clients that did not prove who they are.",
            metrics.logins_failed,
        ),
        ("headwater_audit_dropped_total", "Lines the audit log lacks.", broker.audit.dropped),
    ):
        yield from family(name, "counter", text, [({}, count)])
    yield from family(
        "headwater_authorization_denials_total", "counter", "What clients may not do, and asked.", (
            ({"operation": operation.name, "resource_type": kind.name}, count)
            for (operation, kind), count in broker.authorizer.denials.items()
        )
    )  # fmt: skip
    yield from _group_lines(broker)
    yield from _archive_lines(broker)
    yield from _transaction_lines(broker)
    yield from _queue_lines(broker)


def _archive_lines(broker: "Broker") -> Iterator[str]:
    """Nothing, without an archive."""
    archive, partitions = broker.store.archive, broker.store.partitions.values()
    if archive is None:
        return
    uploads, chunks, deletions = archive.uploads, archive.chunks, archive.deletions
    archived_bytes: defaultdict[str, int] = defaultdict(int)
    to_archive_bytes: defaultdict[str, int] = defaultdict(int)
    for partition in partitions:
        if partition.config.remote_storage:
            archived_bytes[partition.topic] += sum(
                segment.size_bytes for segment in partition.archived
            )
            to_archive_bytes[partition.topic] += archive.not_archived_bytes(partition)
    for name, text, by_topic in (
        ("headwater_archive_bytes", "Log bytes in the archive.", archived_bytes),
        (
            "headwater_archive_pending_bytes",
            "Bytes of sealed segments that are not archived yet.",
            to_archive_bytes,
        ),
    ):
        yield from family(name, "gauge", text, _by_topic(by_topic))
    for name, text, value in (
        ("headwater_archive_failing", "1 if the last upload failed.", bool(uploads.last_error)),
        (
            "headwater_archive_retention_waiting_bytes",
            "Local bytes that retention would delete if they were archived.",
            sum(archive.waiting_bytes.values()),
        ),
        (
            "headwater_archive_pending_deletions",
            "Segments and topics still to be deleted in the archive.",
            deletions.pending,
        ),
        (
            "headwater_archive_cache_bytes",
            "Archived chunks in the local cache.",
            archive.cache.size_bytes,
        ),
        ("headwater_archive_reads_waiting", "Chunks being fetched.", chunks.waiting),
        ("headwater_archive_corrupt_objects", "Damaged objects.", len(chunks.corrupt)),
    ):
        yield from family(name, "gauge", text, [({}, value)])
    for name, text, count in (
        ("headwater_archive_uploaded_bytes_total", "Log bytes uploaded.", uploads.uploaded_bytes),
        ("headwater_archive_upload_failures_total", "Uploads that failed.", uploads.failures),
        ("headwater_archive_fetched_bytes_total", "Bytes read back.", chunks.fetched_bytes),
        ("headwater_archive_fetch_failures_total", "Reads that failed.", chunks.failures),
        ("headwater_archive_cache_hits_total", "Chunks found in the cache.", archive.cache.hits),
    ):
        yield from family(name, "counter", text, [({}, count)])


def _group_lines(broker: "Broker") -> Iterator[str]:
    records: list[Sample] = []
    sizes: list[Sample] = []
    times: list[Sample] = []
    used: list[Sample] = []
    for lag in broker.lag.lags():
        labels = {
            "group": lag.group,
            "topic": lag.partition.topic,
            "partition": str(lag.partition.index),
        }
        records.append((labels, lag.records))
        if lag.size_bytes is not None:
            sizes.append((labels, lag.size_bytes))
        if lag.seconds is not None:
            times.append((labels, lag.seconds))
        if lag.retention_used is not None:
            used.append((labels, lag.retention_used))
    for name, text, samples in (
        ("headwater_group_lag_records", "Records a group is behind.", records),
        ("headwater_group_lag_bytes", "Bytes a group is behind.", sizes),
        ("headwater_group_lag_seconds", "Age of the next record of a group.", times),
        (
            "headwater_group_retention_used_ratio",
            "How much of what retention grants a group's next record is used up.",
            used,
        ),
    ):
        yield from family(name, "gauge", text, samples)
    states = broker.lag_alerts.states
    for name, text, state in (
        ("headwater_groups_falling_behind", "Group partitions that fall behind.", FALLING_BEHIND),
        ("headwater_groups_lost", "Group partitions that retention has passed.", LOST),
    ):
        count = sum(other == state for other in states.values())
        yield from family(name, "gauge", text, [({}, count)])
    yield from family(
        "headwater_lag_webhook_failed_total",
        "counter",
        "Messages to lag_webhook that were given up.",
        [({}, broker.lag_alerts.posts_failed)],
    )


def _transaction_lines(broker: "Broker") -> Iterator[str]:
    states = broker.transactions.counts().items()
    yield from family("headwater_transactional_ids", "gauge", "Transactional ids by state.", (
        ({"state": state.kafka_name}, count) for state, count in states
    ))  # fmt: skip
    yield from family(
        "headwater_transactions_timed_out_total",
        "counter",
        "Transactions aborted because their producer did not end them in time.",
        [({}, broker.transactions.timed_out)],
    )


def _queue_lines(broker: "Broker") -> Iterator[str]:
    metrics = broker.metrics
    for name, text, by_group in (
        (
            "headwater_queue_deliveries_total",
            "Records given to consumers, each time.",
            metrics.share_deliveries,
        ),
        (
            "headwater_queue_locks_expired_total",
            "Records that consumers held longer than their lock.",
            metrics.share_locks_expired,
        ),
    ):
        samples: Iterable[Sample] = (({"group": group}, n) for group, n in by_group.items())
        yield from family(name, "counter", text, samples)
    yield from family(
        "headwater_queue_acknowledgements_total",
        "counter",
        "Acknowledgements of records by consumers.",
        (
            ({"group": group, "kind": KINDS[kind]}, count)
            for (group, kind), count in metrics.share_acknowledgements.items()
        ),
    )
    yield from family(
        "headwater_queue_dead_letters_total",
        "counter",
        "Records given up on.",
        (
            ({"group": group, "topic": topic}, count)
            for (group, topic), count in metrics.dead_letters.items()
        ),
    )
    yield from family(
        "headwater_queue_in_flight_records",
        "gauge",
        "Records with consumers.",
        (({"group": group}, count) for group, count in broker.queues.in_flight().items()),
    )


def _by_topic(counts: Mapping[str, int]) -> Iterable[Sample]:
    return (({"topic": topic}, count) for topic, count in counts.items())
