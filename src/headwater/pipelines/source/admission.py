"""How much of what is there goes into one micro-batch."""

from collections.abc import Callable, Mapping

from headwater.client.sending import TopicPartition

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
    behind = {place: end[place] - start[place] for place in end if end[place] > start[place]}
    rows = sum(behind.values())
    if not rows:
        return dict(end)
    share = min(1.0, max_rows / rows)
    # The size of records matters, and is asked for, only if there are some.
    per_topic: dict[str, int] = {}
    for (topic, _), count in behind.items():
        per_topic[topic] = per_topic.get(topic, 0) + count
    size_bytes = sum(count * bytes_per_offset(topic) for topic, count in per_topic.items())
    share = min(share, max_bytes / max(size_bytes, 1))
    if share >= 1:
        return dict(end)
    return {
        place: start[place] + max(1, int(behind[place] * share)) if place in behind else end[place]
        for place in end
    }
