"""The broker process: opens the log, listens, reports that it is ready, and stops in order."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from headwater.broker.api import load_all
from headwater.broker.broker import Broker, BrokerOptions
from headwater.broker.control import Control
from headwater.broker.groups import GroupSettings
from headwater.broker.monitoring.http import HttpEndpoint
from headwater.broker.network.server import Server, raise_open_files_limit
from headwater.broker.security import rules
from headwater.broker.security.audit import AuditLog
from headwater.broker.security.authentication import Authentication
from headwater.broker.transactions import TransactionSettings
from headwater.clock import Clock, SystemClock
from headwater.log.archive.options import ArchiveOptions
from headwater.log.compaction.compactor import CompactionLimits
from headwater.log.disk.files import Files
from headwater.log.store import LogStore
from headwater.settings import BrokerSettings, join_address, split_address

log = logging.getLogger(__name__)


class RunningBroker:
    """A broker with its listeners, inside a running event loop."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        clock = clock or SystemClock()
        self._settings = settings
        self.store = LogStore(
            settings.data_dir,
            clock,
            files=files,
            max_open_files=settings.max_open_files,
            topic_defaults=dict(settings.topic_defaults),
            archive=_archive(settings),
        )
        self.broker = Broker(
            self.store,
            clock,
            BrokerOptions(
                node_id=settings.node_id,
                auto_create_topics=settings.auto_create_topics,
                default_partitions=settings.default_partitions,
                group_defaults=dict(settings.group_defaults),
                producer_id_expiration_ms=settings.producer_id_expiration_ms,
                compaction=CompactionLimits(
                    memory_bytes=settings.compaction_memory_bytes,
                    bytes_per_s=settings.compaction_bytes_per_s,
                ),
                max_decompressed_bytes=settings.max_buffered_bytes // 4,
                lag_warning_percent=settings.lag_warning_percent,
                lag_webhook=settings.lag_webhook.reveal() if settings.lag_webhook else None,
                groups=GroupSettings(
                    initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
                    min_session_timeout_ms=settings.group_min_session_timeout_ms,
                ),
                transactions=TransactionSettings(
                    max_timeout_ms=settings.transaction_max_timeout_ms,
                    id_expiration_ms=settings.transactional_id_expiration_ms,
                ),
                authorization=settings.authentication != "none",
                super_users=frozenset(settings.super_users),
            ),
            AuditLog(_audit_path(settings), clock),
        )
        self.server = Server(
            self.broker,
            max_connections=settings.max_connections,
            max_request_bytes=settings.max_request_bytes,
            max_buffered_bytes=settings.max_buffered_bytes,
            max_unauthenticated=settings.max_unauthenticated_connections,
        )
        self.broker.when_users_removed = self.server.end_former_users
        self.http: HttpEndpoint | None = None
        self.control = Control(self.store)
        self.address = ""
        self.metrics_address: str | None = None

    async def start(self) -> None:
        """Ready for clients when this returns. Raises ConfigError for what cannot be secure."""
        rules.check(self._settings)
        self._secure()
        load_all()
        raise_open_files_limit(self._settings.max_open_files + self._settings.max_connections + 64)
        self.store.open()
        try:
            await self._listen()
        except BaseException:  # for example an address in use: the log has to be closed
            await self.stop()
            raise

    def _secure(self) -> None:
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            from headwater.broker.security.tls import TlsContext

            self.server.tls = TlsContext(
                settings.tls_cert, settings.tls_key, settings.tls_client_ca
            )
        self.broker.authentication = Authentication(
            self.broker.clock,
            self.broker.users,
            mode=settings.authentication,
            mechanisms=settings.sasl_mechanisms,
            verifier=rules.token_verifier(settings),
            uses_tls=self.server.tls is not None,
        )

    async def _listen(self) -> None:
        if self._settings.metrics_listen is not None:
            self.http = HttpEndpoint(self.broker, self.server)
            host, port = await self.http.listen(*split_address(self._settings.metrics_listen))
            self.metrics_address = join_address(host, port)
        await self.broker.start()
        host, port = split_address(self._settings.listen)
        bound_host, bound_port = await self.server.bind(host, port)
        self.broker.advertised = (bound_host, bound_port)
        if self._settings.advertise is not None:
            self.broker.advertised = split_address(self._settings.advertise)
        self.address = join_address(bound_host, bound_port)
        await self.control.listen()
        await self.server.serve()  # not before: the first client asks for that address
        if self.http is not None:
            self.http.is_ready = True

    async def stop(self) -> None:
        """Ends the connections, commits what was taken in, and closes the log."""
        if self.http is not None:
            self.http.is_ready = False
        await self.control.close()
        await self.server.close()
        await self.broker.close()
        if self.http is not None:
            await self.http.close()


def _audit_path(settings: BrokerSettings) -> str | None:
    if settings.audit_log == "off":
        return None
    return os.path.join(settings.data_dir, settings.audit_log)


def _archive(settings: BrokerSettings) -> ArchiveOptions | None:
    if settings.archive is None:
        return None
    return ArchiveOptions(
        settings.archive,
        endpoint=settings.archive_endpoint,
        region=settings.archive_region,
        cache_bytes=settings.archive_cache_bytes,
        max_bytes_per_s=settings.archive_max_bytes_per_s,
    )


def run(settings: BrokerSettings, ready: Callable[[RunningBroker], None]) -> None:
    """Runs a broker until SIGTERM or SIGINT; calls `ready` when clients can connect."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ready))


async def _serve(settings: BrokerSettings, ready: Callable[[RunningBroker], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = RunningBroker(settings)
    await running.start()
    ready(running)
    await stop.wait()
    log.info("stopping")
    await running.stop()
