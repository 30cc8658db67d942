"""Records of a topic as they come, and waiting for what shall become true."""

import time

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_S = 60.0


class Reading:
    """The committed records of partition 0 of a topic, as they come."""

    def __init__(self, broker, topic):
        self.records = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": "direct-tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    @property
    def values(self):
        return [record.value() for record in self.records]

    def until(self, condition):
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition(self):
            assert time.monotonic() < deadline_s, self.values
            self.records += [
                record for record in self._consumer.consume(1000, 0.05) if record.error() is None
            ]
        return self

    def await_count(self, number):
        return self.until(lambda reading: len(reading.records) >= number)

    def close(self):
        self._consumer.close()


def wait_until(condition):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.01)
