"""Copies a topic to another exactly once, until it is killed: BOOTSTRAP SOURCE TARGET GROUP ID.

Prints the number of records copied so far after each committed transaction. A second copier with
the same transactional id fences the first.
"""

import sys

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, Producer, TopicPartition

PER_TRANSACTION = 10
PARTITIONS = 2
COMMON = {
    "reconnect.backoff.max.ms": 200,
    # While the only broker is down librdkafka starts over from the bootstrap addresses and gives
    # its brokers up; send_offsets_to_transaction may then wait for one of them indefinitely.
    "metadata.recovery.strategy": "none",
}


def main(bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
            **COMMON,
        }
    )
    retried(lambda: producer.init_transactions(10))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **COMMON,
        }
    )
    from_committed = [TopicPartition(source, p, OFFSET_STORED) for p in range(PARTITIONS)]
    consumer.assign(from_committed)
    copied = 0
    while True:
        taken = consumer.consume(PER_TRANSACTION, timeout=0.2)
        taken = [message for message in taken if message.error() is None]
        if not taken:
            continue
        producer.begin_transaction()
        try:
            for message in taken:
                producer.produce(
                    target, message.value(), message.key(), partition=message.partition()
                )
            after = {m.partition(): m.offset() + 1 for m in taken}
            offsets = [TopicPartition(source, p, offset) for p, offset in after.items()]
            retried(
                lambda offsets=offsets: producer.send_offsets_to_transaction(
                    offsets, consumer.consumer_group_metadata(), 10
                )
            )
            retried(lambda: producer.commit_transaction(10))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            retried(lambda: producer.abort_transaction(10))
            consumer.assign(from_committed)
            continue
        copied += len(taken)
        print(copied, flush=True)


def retried(action) -> None:
    while True:
        try:
            return action()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
