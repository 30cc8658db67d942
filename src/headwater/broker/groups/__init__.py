"""Consumer and share groups: who reads which partition, and how far each group has come.

    coordinator                    one door for all requests; expiry (loading: `loading`)
    ├── classic                    groups that rebalance by JoinGroup and SyncGroup
    │   ├── rebalance              their state machine
    │   └── roster                 their members
    ├── consumer                   groups of KIP-848, assigned by the broker
    │   ├── consumer_protocol      heartbeats and timers
    │   ├── consumer_change        what a heartbeat changes
    │   ├── reconciliation         from what a member owns to what it should own
    │   ├── assignors              uniform and range; simple, for share groups
    │   └── subscriptions          names and patterns (`topic_regex`) to topics
    ├── share                      groups of KIP-932, whose members read partitions together
    │   └── share_protocol         heartbeats, timers, and where the queues begin
    ├── modern, modern_protocol    what `consumer` and `share` have in common
    ├── offsets                    committed offsets
    │   └── pending                those of transactions that have not ended
    └── journal                    write first, then change memory, then answer
        └── records, consumer_records, share_records    the format of `__consumer_offsets`

The broker gives a log, the topics, the queues of share groups and a clock (`ports`); nothing here
knows of sockets or files.
"""

from headwater.broker.groups.coordinator import GroupCoordinator, GroupCounts
from headwater.broker.groups.ports import (
    GroupLog,
    Queues,
    StoredMarker,
    StoredRecord,
    Topics,
)
from headwater.broker.groups.records import partition_for
from headwater.broker.groups.settings import GroupSettings

__all__ = [
    "GroupCoordinator",
    "GroupCounts",
    "GroupLog",
    "GroupSettings",
    "Queues",
    "StoredMarker",
    "StoredRecord",
    "Topics",
    "partition_for",
]
