"""A consumer of a share group that chooses every request, over a real connection."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
)
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareAcknowledgeRequestAcknowledgePartition,
    ShareAcknowledgeRequestAcknowledgeTopic,
)
from headwater.protocol.messages.share_fetch import (
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
    ShareFetchRequestForgottenTopic,
)
from headwater.testing.broker import InProcessBroker
from headwater.testing.clock import FakeClock
from support.wire import Wire, batch_of, records_in

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP = "workers"
GROUP_RESOURCE = 32


class Consumer:
    """A member with one connection and one session."""

    def __init__(self, bootstrap: str, topic_id: UUID, *, group=GROUP, partitions=(0,), version=2):
        self.wire = Wire(bootstrap)
        self.topic_id = topic_id
        self.group = group
        self.member_id = str(uuid4())
        self.partitions = tuple(partitions)
        self.version = version
        self.epoch = 0
        self.last = None  # the last answer to a fetch

    def close(self) -> None:
        self.wire.close()

    def send_fetch(self, *, acknowledge=(), epoch=None, **fields) -> None:
        """`acknowledge`: (partition, first, last, kinds)."""
        epoch = self.epoch if epoch is None else epoch
        wanted = {
            index: ShareFetchRequestFetchPartition(partition_index=index)
            for index in (self.partitions if epoch == 0 else ())
        }
        for index, first, last, kinds in acknowledge:
            part = wanted.setdefault(index, ShareFetchRequestFetchPartition(partition_index=index))
            batch = ShareFetchRequestAcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=_kinds(kinds)
            )
            part.acknowledgement_batches = [*part.acknowledgement_batches, batch]
        topic = ShareFetchRequestFetchTopic(
            topic_id=self.topic_id, partitions=list(wanted.values())
        )
        defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500}
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=[topic] if wanted else [],
            **{**defaults, "batch_size": 500, **fields},
        )
        self.wire.send(request, self.version)

    def receive_fetch(self):
        self.last = self.wire.receive()
        if self.last.error_code == 0:
            self.epoch += 1
        return self.last

    def fetch(self, **fields):
        """The answer as it came."""
        self.send_fetch(**fields)
        return self.receive_fetch()

    def take(self, **fields) -> list[int]:
        """Offsets that the consumer got, of partition 0 unless there are more."""
        return acquired(self.fetch(**fields))

    def values(self, **fields) -> list[bytes]:
        """What those records hold."""
        answer = self.fetch(**fields)
        mine = set(acquired(answer))
        return [
            record.value
            for topic in answer.responses
            for part in topic.partitions
            for record in records_in(part.records)
            if record.offset in mine
        ]

    def forget(self, *partitions: int):
        forgotten = ShareFetchRequestForgottenTopic(
            topic_id=self.topic_id, partitions=list(partitions)
        )
        return self.fetch(forgotten_topics_data=[forgotten])

    def acknowledge(self, *acknowledgements, epoch=None, is_renew_ack=False) -> int:
        """(first, last, kinds) of partition 0; the error code, of the request or the partition."""
        batches = [
            ShareAcknowledgeRequestAcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=_kinds(kinds)
            )
            for first, last, kinds in acknowledgements
        ]
        part = ShareAcknowledgeRequestAcknowledgePartition(
            partition_index=0, acknowledgement_batches=batches
        )
        topic = ShareAcknowledgeRequestAcknowledgeTopic(topic_id=self.topic_id, partitions=[part])
        answer = self.wire.ask(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=self.epoch if epoch is None else epoch,
                is_renew_ack=is_renew_ack,
                topics=[topic] if batches else [],
            ),
            self.version,
        )
        if answer.error_code:
            return answer.error_code
        self.epoch += 1
        return answer.responses[0].partitions[0].error_code if answer.responses else 0


def _kinds(kinds) -> list[int]:
    return [kinds] if isinstance(kinds, int) else list(kinds)


def acquired(answer) -> list[int]:
    assert answer.error_code == 0, answer
    return [offset for span in acquired_spans(answer) for offset in range(span[0], span[1] + 1)]


def acquired_spans(answer) -> list[tuple[int, int, int]]:
    return [
        (record.first_offset, record.last_offset, record.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for record in part.acquired_records
    ]


class QueueBroker:
    """A broker with a clock to turn, and consumers on it."""

    def __init__(self, data_dir: str, files=None) -> None:
        self.clock = FakeClock(time.time_ns() // 1_000_000)
        self.broker = InProcessBroker(str(data_dir), clock=self.clock, files=files)
        self.broker.start()
        self.wire = Wire(self.broker.bootstrap)
        self.consumers: list[Consumer] = []

    def close(self) -> None:
        self.disconnect()
        self.broker.stop()

    def disconnect(self) -> None:
        for client in (self.wire, *self.consumers):
            client.close()
        self.consumers.clear()

    def restart(self, *, crash: bool) -> None:
        self.disconnect()
        self.broker.restart(crash=crash)
        self.wire = Wire(self.broker.bootstrap)

    def crash(self) -> None:
        self.disconnect()
        self.broker.crash()

    def start(self) -> None:
        self.broker.start()
        self.wire = Wire(self.broker.bootstrap)

    def topic(self, name: str = "jobs", partitions: int = 1, **group) -> UUID:
        """A new topic, read by GROUP from its start."""
        topic = CreateTopicsRequestCreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1
        )
        answer = self.wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == 0, answer
        self.set({"share.auto.offset.reset": "earliest", **group})
        return answer.topics[0].topic_id

    def topic_id(self, name: str) -> UUID:
        answer = self.wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
        return answer.topics[0].topic_id

    def set(self, configs: dict[str, str], group: str = GROUP) -> None:
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig(
                name=name, config_operation=0, value=str(value)
            )
            for name, value in configs.items()
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=changes
        )
        answer = self.wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer

    def produce(self, *values: bytes, topic: str = "jobs", partition: int = 0, **fields) -> None:
        """One batch."""
        answer = self.wire.produce(topic, batch_of(*values, **fields), partition=partition)
        assert answer.error_code == 0

    def produce_keyed(self, pairs: Iterable[tuple[bytes, bytes]], topic: str = "jobs") -> None:
        from headwater.protocol import records
        from headwater.protocol.records import Record

        batch = records.build_batch([Record(0, 1, key, value) for key, value in pairs])
        assert self.wire.produce(topic, batch).error_code == 0

    def consumer(self, topic_id: UUID, **options) -> Consumer:
        consumer = Consumer(self.broker.bootstrap, topic_id, **options)
        self.consumers.append(consumer)
        return consumer

    def letters(self, topic: str = "jobs.dlq"):
        """The dead letters that are there now."""
        answer = self.wire.fetch(topic, 0)
        return records_in(answer.records) if answer.error_code == 0 else []


@contextmanager
def queue_broker(data_dir) -> Iterator[QueueBroker]:
    broker = QueueBroker(data_dir)
    try:
        yield broker
    finally:
        broker.close()
