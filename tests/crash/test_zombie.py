"""A writer that is stopped, replaced and woken again cannot write.

The writers are processes of their own: the first is stopped by SIGSTOP at any moment of its
transactions, which is what a machine that pauses looks like from outside.
"""

import random
import signal
import subprocess
import sys
import time

import pytest
from support import SUPPORT
from support.broker.txn_harness import Producer
from support.crash.steady_client import SteadyClient, create_topics, done

from headwater.testing import InProcessBroker

STUBBORN = str(SUPPORT / "crash" / "stubborn_writer.py")
TRIES = 6
FENCED = {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"}


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True], ids=["same-broker", "broker-killed-meanwhile"])
def test_a_stopped_and_woken_writer_is_refused(tmp_path, restarted):
    chance = random.Random(20261115)
    with InProcessBroker.serving(str(tmp_path)) as broker:
        for number in range(TRIES // 2 if restarted else TRIES):
            client = SteadyClient(broker.bootstrap)
            topic = f"numbers-{number}"
            create_topics(client, {topic: {}})
            committed = _stop_replace_wake(broker, client, topic, chance, restarted=restarted)
            found = [record.value for record in client.all_committed(topic)]
            client.close()
            # What was acknowledged to the first is there; of the rest, at most the one
            # transaction whose end it had asked for when it was stopped.
            replaced = found.index(b"second")
            assert found[replaced:] == [b"second"]
            firsts = [int(value) for value in found[:replaced]]
            assert firsts in (list(range(committed)), list(range(committed + 1)))


def _stop_replace_wake(broker, client, topic, chance, *, restarted: bool) -> int:
    """How many transactions were acknowledged to the first writer as committed."""
    command = [sys.executable, STUBBORN, broker.bootstrap, topic, topic]
    # Unbuffered: `communicate` would not see what a buffer has read beyond a line.
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as first:
        try:
            for _ in range(3):
                assert first.stdout.readline().strip().isdigit()
            time.sleep(chance.random() * 0.05)  # somewhere in the next ones
            first.send_signal(signal.SIGSTOP)
            if restarted:
                broker.restart(crash=True)
            second = Producer(client, topic)
            done(second.init)
            done(lambda: second.send(topic, b"second"))
            done(second.commit)
            first.send_signal(signal.SIGCONT)
            *numbers, refusal = first.communicate(timeout=60)[0].decode().split()
        finally:
            first.kill()
    assert refusal in FENCED, refusal
    assert numbers == [str(number) for number in range(3, 3 + len(numbers))]
    return 3 + len(numbers)
