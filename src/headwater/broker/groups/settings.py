"""Limits and times of all groups, each beside Kafka's name for it.

What can be set group by group is in `broker/groups/configs.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's defaults, except where a comment says otherwise."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_size: int = 2**31 - 1  # group.max.size

    # group.initial.rebalance.delay.ms: how long a new group waits for more members. Kafka's 3000
    # saves rebalances in a cluster; on one machine a lone consumer would only wait. Kafka's own
    # quickstart configuration sets 0 too.
    initial_rebalance_delay_ms: int = 0

    # Not configurable in Kafka either: a new member that waits longer than this for its first
    # generation is removed.
    new_member_join_timeout_ms: int = 300_000

    consumer_max_size: int = 2**31 - 1  # group.consumer.max.size
    share_max_size: int = 1_000  # group.share.max.size: the most that Kafka can be set to

    offset_metadata_max_chars: int = 4_096  # offset.metadata.max.bytes (Kafka too counts chars)
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    offsets_retention_check_ms: int = 600_000  # offsets.retention.check.interval.ms
