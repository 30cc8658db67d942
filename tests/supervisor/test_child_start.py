"""A child for which there is no process, just now."""

import asyncio
import subprocess

from headwater import config
from headwater.supervisor import child as supervised
from headwater.supervisor.child import Child, Surroundings
from headwater.supervisor.plan import ChildPlan
from headwater.supervisor.status_file import PAUSED, STOPPED

TIMEOUT_S = 60.0


def test_one_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.001)
    attempts = []

    def full(*_, **__):
        attempts.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)

    async def tried():
        enough = asyncio.Event()

        def changed(child, before):
            if len(attempts) == 3:
                enough.set()
            states.append((child.status.state, child.status.reason))

        around = Surroundings(
            config.load({}, environ={}, cwd=str(tmp_path)), tmp_path, tmp_path, dict,
            lambda child, line: None, changed,
        )  # fmt: skip
        child = Child(ChildPlan("broker", "broker", ("broker",)), around)
        running = asyncio.create_task(child.run())
        await asyncio.wait_for(enough.wait(), TIMEOUT_S)
        await child.stop(1.0)
        await asyncio.wait_for(running, TIMEOUT_S)

    states = []
    asyncio.run(tried())
    reason = "it cannot be started: [Errno 11] Resource temporarily unavailable"
    assert states[0] == (PAUSED, reason)
    assert states[-1] == (STOPPED, reason)
