"""Groups: who reads which partition, and the committed offsets of each group.

    coordinator                loads the groups, and wires the parts below together
    ├── registry               every group by id; `group` is what the kinds have in common
    ├── membership             joins, heartbeats and leaves, of all kinds; `founding` of new groups
    │   ├── classic/           groups that rebalance by JoinGroup and SyncGroup
    │   ├── consumer/          groups of KIP-848, assigned by the broker
    │   ├── share/             groups of KIP-932, whose members read partitions together
    │   └── consumer_protocol/ what `consumer` and `share` have in common: epochs, assignors
    ├── offsets/               commits, plain and in transactions
    ├── deletion               on request, and by expiry
    └── loading                from `__consumer_offsets` to groups

Writes go through the journal of `internal_topics`: write first, then change memory, then answer.
The broker gives a log, the topics, the queues of share groups and a clock (`ports`); this package
uses no sockets and no files.
"""

from headwater.broker.groups.coordinator import GroupCoordinator, GroupCounts
from headwater.broker.groups.ports import Queues, Topics
from headwater.broker.groups.settings import GroupSettings

__all__ = [
    "GroupCoordinator",
    "GroupCounts",
    "GroupSettings",
    "Queues",
    "Topics",
]
