"""The topics that a capture writes to: created when first needed, as its settings configure."""

from collections.abc import Mapping
from typing import Final

from headwater.capture import positions
from headwater.capture.publishing import cuts
from headwater.capture.publishing.writer import BATCH_BYTES
from headwater.capture.records.outbox import EVENT_TABLE, TOPICS
from headwater.capture.settings import CaptureSettings
from headwater.client.cluster import Cluster
from headwater.client.positions_topic import POSITIONS_CONFIG
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import RequestRefused, TableRefused
from headwater.protocol.records import HEADER_BYTES
from headwater.settings import ClientSettings

# A captured table is retained whole: from its topic every derived store can be rebuilt at any time.
_CONFIG: Final = {"retention.ms": "-1", "max.message.bytes": str(16 << 20)}
# Events are facts for ever: they are archived wherever the broker has an archive.
_ARCHIVED: Final = {"remote.storage.enable": "true"}
_INTERNAL: Final = (
    NewTopic(positions.TOPIC, 1, POSITIONS_CONFIG),
    NewTopic(positions.SIGNALS_TOPIC, 1),
    cuts.NEW_TOPIC,
)


class Topics:
    """Which exist, and with how many partitions."""

    def __init__(self, settings: CaptureSettings, bootstrap: str, login: ClientSettings) -> None:
        self._settings = settings
        self._bootstrap = bootstrap
        self._login = login
        self._cluster = Cluster(bootstrap, login)
        name = settings.name
        self.of_all_tables = {f"{name}.schema", f"{name}.transaction", f"{name}.message"}
        limit = settings.topic_config.get("max.message.bytes", "")
        # Of a batch before compression; what is around the records counts, too.
        self.batch_bytes = min(
            BATCH_BYTES, max(1, int(limit) - HEADER_BYTES) if limit.isdigit() else BATCH_BYTES
        )
        self.partitions = _Partitions(self)

    def ensure_internal(self) -> None:
        """Positions, signals and cuts."""
        ensure_topics(self._bootstrap, self._login, _INTERNAL)

    def ensure(self, topic: str) -> bool:
        """Creates the topic if there is none. True if there was none."""
        count = self._cluster.find_partitions(topic)
        if count is not None:
            self.partitions[topic] = count
            return False
        config = {**_CONFIG, **self._settings.topic_config}
        if not self._is_archived(topic, config):
            self._create(topic, config)
        self.partitions[topic] = self._cluster.partitions(topic)  # Kafka may report it late
        return True

    def _is_archived(self, topic: str, config: Mapping[str, str]) -> bool:
        """Creates the topic with an archive, if it has events and the broker has an archive."""
        outbox = self._settings.outbox or ""
        if not topic.startswith(TOPICS) or not outbox.endswith(EVENT_TABLE):
            return False
        try:
            self._create(topic, {**_ARCHIVED, **config})
        except RequestRefused:
            return False
        return True

    def _create(self, topic: str, config: Mapping[str, str]) -> None:
        wanted = NewTopic(topic, self._settings.partitions, config)
        ensure_topics(self._bootstrap, self._login, [wanted])

    def close(self) -> None:
        self._cluster.close()


class _Partitions(dict[str, int]):
    """Topic to number of partitions; one that is asked for the first time is created."""

    def __init__(self, topics: Topics) -> None:
        super().__init__()
        self._topics = topics

    def __missing__(self, topic: str) -> int:
        """Raises TableRefused if it is refused, for the table whose record it would be."""
        try:
            self._topics.ensure(topic)
        except RequestRefused as error:
            if topic in self._topics.of_all_tables:
                raise
            raise TableRefused(error.what, detail=error.detail, hint=error.hint) from error
        return self[topic]
