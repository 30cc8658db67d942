"""`headwater broker …` with everything that runs in the background coming all the time.

So that a kill at any moment falls into some of it: checkpoints, retention, passes of compaction
(also of the coordinators' own topics, whose segments are small), new beginnings of queues' state.
"""

from headwater.broker import broker
from headwater.broker.queues import state_log
from headwater.cli.main import main

SMALL = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.1"}


def hurry() -> None:
    broker.CHECKPOINT_S = 0.4
    broker.COMPACTION_S = 0.2
    broker.RETENTION_S = 0.3
    broker.OFFSETS_CONFIGS |= SMALL
    broker.TRANSACTIONS_CONFIGS |= SMALL
    state_log.UPDATES_KEPT = 60


if __name__ == "__main__":
    hurry()
    main()
