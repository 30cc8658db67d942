"""What [gateway.statsd] and [gateway.zeromq.NAME] ask for, run by the gateway's process."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater import extras
from headwater.client import login
from headwater.client.cluster import Cluster
from headwater.client.topics import NewTopic, ensure_topics
from headwater.direct.settings import StatsdSettings, ZeroMqSettings
from headwater.errors import HeadwaterError
from headwater.prometheus_text import family
from headwater.settings import ClientSettings, join_address

if TYPE_CHECKING:
    from headwater.direct.statsd.receiving import StatsdServer
    from headwater.direct.zeromq.inbound import Inbound
    from headwater.direct.zeromq.outbound import Outbound

_LOG = logging.getLogger(__name__)
_STOP_LIMIT_S: Final = 4.0  # of 10 s that `headwater up` gives to the whole process
_RETRY_S: Final = 5.0
_COUNTS: Final = {
    "messages": "Messages received from or sent to ZeroMQ peers.",
    "waits": "Times that nothing was received because the broker was behind.",
    "failed": "Messages that the broker refused.",
    "drops": "Messages that at least one slow subscriber has not got.",
    "disconnects": "Peers that have left; what was under way to or from them may be lost.",
}


class DirectMessaging:
    """Raises ConfigError and HeadwaterError when it is made or started, if something of it cannot
    be: addresses are bound then. A broker that is away is waited for.
    """

    def __init__(
        self,
        bootstrap: str,
        client: ClientSettings,
        statsd: StatsdSettings,
        zeromq: Mapping[str, ZeroMqSettings],
    ) -> None:
        self._bootstrap = bootstrap
        self._client = client
        self._statsd_settings = statsd
        self._zeromq_settings = zeromq
        self.statsd: StatsdServer | None = None
        self.zeromq: dict[str, Inbound | Outbound] = {}
        self._stopping = threading.Event()
        statsd.check()
        for settings in zeromq.values():
            settings.check()
            extras.require(f"[gateway.zeromq.{settings.name}]", "zeromq")

    @property
    def _cluster(self) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrap, **login.properties_of(self._client)}

    def start(self) -> None:
        """All or nothing."""
        from headwater.direct.publishing import TopicWriter

        try:
            if self._statsd_settings.is_on:
                from headwater.direct.statsd.receiving import StatsdServer

                writer = TopicWriter(self._cluster, self._statsd_settings.topic)
                self.statsd = StatsdServer(self._statsd_settings, writer)
            for name, settings in self._zeromq_settings.items():
                self.zeromq[name] = self._zeromq(settings)
        except BaseException:
            self.stop()
            raise
        if self.statsd is not None:
            self.statsd.start()
            address = join_address(*self.statsd.address)
            _LOG.info("statsd at %s, to topic %s", address, self.statsd.topic)
        for name, end in self.zeromq.items():
            _LOG.info("zeromq %s at %s, topic %s", name, end.peer.address, end.peer.settings.topic)
            end.start()
        threading.Thread(target=self._ensure_topics, name="direct-topics", daemon=True).start()

    def stop(self) -> None:
        """What has arrived is written. Takes some seconds at most; may be called twice."""
        self._stopping.set()
        deadline_s = time.monotonic() + _STOP_LIMIT_S
        ends = [*self.zeromq.values(), *([self.statsd] if self.statsd else [])]
        self.zeromq, self.statsd = {}, None

        def stop(end: "StatsdServer | Inbound | Outbound") -> None:
            end.stop(max(0.5, deadline_s - time.monotonic()))

        threads = [threading.Thread(target=stop, args=(end,), daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.5, deadline_s + 1 - time.monotonic()))

    def metrics(self) -> Iterator[str]:
        """Prometheus' text."""
        if self.statsd is not None:
            yield from self.statsd.metrics()
        if not self.zeromq:
            return
        ends = list(self.zeromq.items())
        for name, text in _COUNTS.items():
            samples = [
                ({"name": end_name, "socket": end.peer.settings.socket}, end.counts[name])
                for end_name, end in ends
                if name in end.counts
            ]
            yield from family(f"headwater_zeromq_{name}_total", "counter", text, samples)
        peers = [({"name": name}, end.peer.peers) for name, end in ends]
        yield from family("headwater_zeromq_peers", "gauge", "Peers that are connected.", peers)

    def _zeromq(self, settings: ZeroMqSettings) -> "Inbound | Outbound":
        from headwater.direct.publishing import TopicWriter
        from headwater.direct.zeromq.inbound import Inbound
        from headwater.direct.zeromq.outbound import Outbound

        if settings.is_inbound:
            return Inbound(settings, TopicWriter(self._cluster, settings.topic))
        return Outbound(settings, self._cluster)

    def _ensure_topics(self) -> None:
        """Topics that are written to are created, as soon as there is a broker."""
        wanted = {end.topic for end in self._zeromq_settings.values() if end.is_inbound} | (
            {self._statsd_settings.topic} if self._statsd_settings.is_on else set()
        )
        while wanted:
            try:
                cluster = Cluster(self._bootstrap, self._client, patience_s=_RETRY_S)
                try:
                    missing = [topic for topic in wanted if cluster.find_partitions(topic) is None]
                finally:
                    cluster.close()
                ensure_topics(self._bootstrap, self._client, map(NewTopic, missing))
                return
            except HeadwaterError as error:
                _LOG.warning("topics %s: %s", ", ".join(sorted(wanted)), error)
            if self._stopping.wait(_RETRY_S):
                return
