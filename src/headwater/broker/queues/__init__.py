"""Share groups (KIP-932, "queues"): records go to one consumer at a time, each on its own.

queues                      serves acknowledgements, locks, admin requests
├── window                  the state machine of one group on one partition
├── share_partition         that, with what hangs on it in this process
├── sessions                what a member fetches, and its turn
├── fetching                one ShareFetch: waiting and taking
│   ├── waiting             whose turn it is to look
│   ├── delivering          which records a fetch gets
│   ├── read_ahead          where the next batches lie
│   └── ordering            one record of a key at a time
├── dead_letters            to `<topic>.dlq`, exactly once
└── state_log               `__share_group_state`
"""

from headwater.broker.queues.queues import PartitionStatus, Queues
from headwater.broker.queues.state_log import STATE_TOPIC

__all__ = ["STATE_TOPIC", "PartitionStatus", "Queues"]
