"""/cluster: the brokers, what they store and do; /cluster/transactions: transactional producers."""

import shutil
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from headwater.config import Config
from headwater.console.history.plots import Plot
from headwater.console.history.samples import (
    ALL_BYTES,
    ALL_RECORDS,
    CONNECTIONS,
    DISK_FREE,
    SHOWN_APIS,
)
from headwater.console.pages.cluster.processes import plots_of_processes
from headwater.console.project.operators import is_operator
from headwater.console.project.overview import overview_of
from headwater.console.project.processes import data_dir_of, read_processes
from headwater.console.project.transactions import read_transactions
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import both, shown
from headwater.supervisor.plan import BROKER

NAVIGATION_ENTRY: Final = NavigationEntry("Cluster", "/cluster")
_AGE_S: Final = 3.0

_COLUMNS: Final = {
    "id": lambda row: row["transactional_id"],
    "state": lambda row: row["state"],
    "open": lambda row: row["open_s"],
    "producer": lambda row: row["producer_id"],
}

_PLOTS: Final = (
    Plot("Records written per second", "/s", [("records/s", ALL_RECORDS)]),
    Plot("Size of all topics", "B", [("size", ALL_BYTES)]),
    Plot("Free disk", "B", [("free", DISK_FREE)]),
    *plots_of_processes(["broker"]),
    Plot(
        "Requests per second",
        "/s",
        [(api, f"requests.rate/{api}") for api in SHOWN_APIS],
    ),
    Plot(
        "Time to answer Produce: half, and 99 of 100",
        "ms",
        [("p50", "requests.p50/Produce"), ("p99", "requests.p99/Produce")],
    ),
    Plot(
        "Time to answer other requests, 99 of 100",
        "ms",
        [(api, f"requests.p99/{api}") for api in SHOWN_APIS if api != "Produce"],
    ),
    Plot("Open connections", "", [("connections", CONNECTIONS)]),
)


async def _cluster(request: Request) -> Response:
    overview = overview_of(request)
    reading = await overview.access.topics()
    brokers: dict[int, dict[str, Any]] = {
        number: {
            "broker": number, "address": address, "leads": 0, "stores": 0, "size_bytes": 0,
            "under_replicated": 0,
        }
        for number, address in sorted(reading.brokers.items())
    }  # fmt: skip
    partitions = without_leader = 0
    for topic in reading.topics.values():
        for partition in topic.partitions:
            partitions += 1
            without_leader += partition.leader is None
            if partition.leader in brokers:
                brokers[partition.leader]["leads"] += 1
                brokers[partition.leader]["size_bytes"] += partition.size_bytes or 0
                is_behind = len(partition.in_sync) < len(partition.replicas)
                brokers[partition.leader]["under_replicated"] += is_behind
            for number in partition.replicas:
                if number in brokers:
                    brokers[number]["stores"] += 1
    topics = reading.topics.values()
    rates = [topic.records_per_s for topic in topics if topic.records_per_s is not None]
    data: dict[str, Any] = {
        "cluster_id": reading.cluster_id,
        "topics": len(reading.topics),
        "partitions": partitions,
        "without_leader": without_leader,
        "size_bytes": sum(topic.size_bytes or 0 for topic in topics),
        "records_per_s": sum(rates) if rates else None,
        "disk": await overview.access.call(_disk, overview.config),
        "brokers": list(brokers.values()),
        # Of all topics, whoever may see them: for operators.
        "plots": await overview.plots(request, *_PLOTS)
        if await is_operator(overview.access)
        else None,
    }
    return shown(request, "cluster.html", data, tab="cluster")


def _disk(config: Config) -> dict[str, int] | None:
    """Of a broker of this project; None of one elsewhere."""
    is_supervised = any(child["kind"] == BROKER for child in read_processes(config))
    if config.broker.bootstrap is not None and not is_supervised:
        return None
    try:
        usage = shutil.disk_usage(data_dir_of(config))
    except OSError:
        return None
    return {"total_bytes": usage.total, "free_bytes": usage.free}


async def _transactions(request: Request) -> Response:
    overview = overview_of(request)
    brokers = (await overview.access.topics()).brokers
    found = await overview.access.shared.get(
        "transactions",
        lambda: overview.access.ask(lambda cluster: read_transactions(cluster, brokers.values())),
        _AGE_S,
    )
    page = page_of(
        request,
        found,
        columns=_COLUMNS,
        default_sort="-open",
        text=lambda row: (
            f"{row['transactional_id']} {row['producer_id']} {' '.join(row['topics'])}"
        ),
    )
    data = {
        **page.as_json(),
        "open": sum(row["open_s"] is not None for row in found),
        "transactions": page.rows,
    }
    return shown(request, "transactions.html", data, tab="transactions", listing=page)


ROUTES: Final = [*both("/cluster", _cluster), *both("/cluster/transactions", _transactions)]
