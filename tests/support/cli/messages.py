"""A consumed record as confluent_kafka hands it out."""


class FakeMessage:
    def __init__(
        self, topic="t", partition=0, offset=0, key=None, value=b"", headers=None, timestamp_ms=0
    ):
        self._fields = (topic, partition, offset, key, value, headers, (1, timestamp_ms))

    def topic(self):
        return self._fields[0]

    def partition(self):
        return self._fields[1]

    def offset(self):
        return self._fields[2]

    def key(self):
        return self._fields[3]

    def value(self):
        return self._fields[4]

    def headers(self):
        return self._fields[5]

    def timestamp(self):
        return self._fields[6]
