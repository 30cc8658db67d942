"""The events of the latency benchmark: about 140 bytes of JSON, two partitions, skewless keys."""

PARTITIONS = 2
_PAD = b"x" * 80


def key_of(event: int, keys: int) -> int:
    """Spread over the keys, and the same for an event at each run."""
    return event * 2_654_435_761 % 1_000_003 % keys


def event_record(event: int, key: int, at_ms: int, value: int) -> tuple[bytes, bytes, int]:
    """Key, value and partition. `at` is the time of the event, which is also the record's."""
    text = b'{"eid":%d,"k":%d,"v":%d,"at":%d,"pad":"%s"}' % (event, key, value, at_ms, _PAD)
    return b'{"k":%d}' % key, text, key % PARTITIONS


def customer_record(key: int) -> tuple[bytes, bytes, int]:
    """Of the table that events are joined with."""
    text = b'{"k":%d,"name":"customer %d","tier":%d}' % (key, key, key % 10)
    return b'{"k":%d}' % key, text, key % PARTITIONS
