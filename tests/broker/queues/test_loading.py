"""Many share partitions: what a start and an idle one cost."""

import asyncio
import time
from uuid import uuid4

from support.wire import wait_until

from headwater.settings import BrokerSettings
from headwater.testing.broker import InProcessBroker

GROUPS, PARTITIONS = 100, 100


def test_ten_thousand_share_partitions_are_loaded_while_the_broker_serves(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0")
    with InProcessBroker.serving(str(tmp_path), settings) as broker:

        def run(work):
            return asyncio.run_coroutine_threadsafe(work, broker._loop).result(60)

        inside = broker.running.broker
        topic = run(inside.create_topic("jobs", PARTITIONS, {}))
        for number in range(GROUPS):
            starts = {(topic.id, index): number + index for index in range(PARTITIONS)}
            run(inside.queues.initialize(f"group-{number}", starts))
        run(inside.queues.initialize("other", {(uuid4(), 0): 0}))  # of no topic: left out
        broker.restart(crash=True)
        queues = broker.running.broker.queues
        began_s = time.monotonic()
        wait_until(lambda: len(queues.groups_with_state()) == GROUPS)
        wait_until(lambda: all(loaded.is_set() for loaded in queues._loaded))
        assert time.monotonic() - began_s < 30
        for number in (0, 57, 99):
            assert queues.start_offset(f"group-{number}", topic.id, 5) == number + 5
            assert queues.lag(f"group-{number}", topic.id, 5) == 0
