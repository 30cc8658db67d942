"""Admission: how many records go into one micro-batch, by rows and estimated bytes."""

from collections.abc import Callable, Mapping

from headwater.client.writing.sending import TopicPartition

Offsets = Mapping[TopicPartition, int]


def admit(
    start: Offsets,
    end: Offsets,
    max_rows: int,
    max_bytes: int,
    bytes_per_offset: Callable[[str], float],
) -> dict[TopicPartition, int]:
    """Ends of a micro-batch from `start` on, none behind `end`. Partitions get their share by how
    much they have, and every one that has something gets something, so none is starved.
    """
    behind = {
        partition: end[partition] - start[partition]
        for partition in end
        if end[partition] > start[partition]
    }
    rows = sum(behind.values())
    if not rows:
        return dict(end)
    share = min(1.0, max_rows / rows)
    # Sizes are requested only of topics that have records.
    per_topic: dict[str, int] = {}
    for (topic, _), count in behind.items():
        per_topic[topic] = per_topic.get(topic, 0) + count
    size_bytes = sum(count * bytes_per_offset(topic) for topic, count in per_topic.items())
    share = min(share, max_bytes / max(size_bytes, 1))
    if share >= 1:
        return dict(end)
    return {
        partition: start[partition] + max(1, int(behind[partition] * share))
        if partition in behind
        else end[partition]
        for partition in end
    }
