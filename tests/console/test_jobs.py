"""Commands that a page has set off."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.wire import wait_until

from headwater.console.project import jobs as module
from headwater.console.project.jobs import CANCELLED, DIFFERS, DONE, FAILED, RUNNING, WAITING, Jobs
from headwater.errors import RequestRefused

TIMEOUT_S = 60


def script(monkeypatch, source):
    """What stands for the command: Python that is given its arguments."""
    monkeypatch.setattr(module, "_COMMAND", (sys.executable, "-c", "import sys, time\n" + source))


async def until(condition):
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(test):
    async def whole():
        jobs = Jobs(("--config", "x.toml"))
        try:
            return await test(jobs)
        finally:
            await jobs.close()

    return asyncio.run(whole())


def test_progress_and_result(monkeypatch, tmp_path):
    gate = tmp_path / "gate"
    script(
        monkeypatch,
        "sys.stderr.write('deriving …\\n'); sys.stderr.flush()\n"
        f"import pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "import json; print(json.dumps(sys.argv[1:]))",
    )

    async def test(jobs):
        job = jobs.start("verify", "Verify it", ("verify", "revenue"), about="/stores")
        await until(lambda: job.progress == "deriving …")
        assert job.state == RUNNING
        assert not job.has_ended
        gate.touch()
        await until(lambda: job.has_ended)
        assert job.state == DONE
        assert job.result == ["verify", "revenue", "--config", "x.toml", "--json"]
        assert job.command == "headwater verify revenue"
        assert jobs.about("/stores", "verify") == [job]
        assert jobs.about("/stores", "why") == []

    run(test)


def test_not_equal_and_failed(monkeypatch):
    script(
        monkeypatch,
        "if sys.argv[1] == 'differs': print('[]'); sys.exit(3)\n"
        'sys.stderr.write(\'some log\\n{"error": "no such pipeline", "hint": "look"}\\n\')\n'
        "sys.exit(1)",
    )

    async def test(jobs):
        differs = jobs.start("verify", "a", ("differs",), about="/")
        failed = jobs.start("verify", "b", ("fails",), about="/")
        await until(lambda: differs.has_ended and failed.has_ended)
        assert (differs.state, differs.result) == (DIFFERS, [])
        assert failed.state == FAILED
        assert failed.error == {"error": "no such pipeline", "hint": "look"}

    run(test)


def test_an_argument_that_no_command_can_have(monkeypatch):
    """A zero byte in a row's key. The job would be under way for good, and ten keep others out."""
    script(monkeypatch, "print('{}')")

    async def test(jobs):
        job = jobs.start("why", "Why?", ("why", "--key=id=a\0b"), about="/stores")
        await until(lambda: job.has_ended)
        assert job.state == FAILED
        assert "cannot be started" in job.error["error"]

    run(test)


def test_cancelling_ends_the_whole_process_group(monkeypatch, tmp_path):
    pid_file = tmp_path / "pid"
    script(
        monkeypatch,
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(f'{{child.pid}}\\n')\n"
        "time.sleep(600)",
    )

    async def test(jobs):
        job = jobs.start("rebuild", "a", ("rebuild",), about="/")
        await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        await jobs.cancel(job)
        assert job.state == CANCELLED
        await until(lambda: not _lives(int(pid_file.read_text())))

    run(test)


def _lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_closing_ends_what_runs_and_what_waits(monkeypatch):
    script(monkeypatch, "time.sleep(600)")

    async def test(jobs):
        started = [jobs.start("verify", "x", (str(n),), about="/") for n in range(4)]
        await until(lambda: sum(job.state == RUNNING for job in started) == 2)
        assert sum(job.state == WAITING for job in started) == 2
        await jobs.close()
        assert {job.state for job in started} == {CANCELLED}

    run(test)


def test_a_console_that_is_killed_leaves_no_job_behind(tmp_path):
    pids = tmp_path / "pid"
    child = (
        f"import os, time; open({str(pids)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    )
    source = (
        "import asyncio, sys\nfrom headwater.console.project import jobs\n"
        f"jobs._COMMAND = (sys.executable, '-c', {child!r})\n"
        "async def main():\n"
        "    jobs.Jobs().start('verify', 'it', ('a',), about='/')\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    console = subprocess.Popen([sys.executable, "-c", source])
    try:
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    finally:
        console.kill()
        console.wait()
    wait_until(lambda: not _lives(int(pids.read_text())))


def test_not_twice_and_not_without_end(monkeypatch):
    script(monkeypatch, "time.sleep(600)")

    async def test(jobs):
        jobs.start("verify", "it", ("a",), about="/")
        with pytest.raises(RequestRefused, match="under way"):
            jobs.start("verify", "it", ("a",), about="/")
        with pytest.raises(RequestRefused, match="too many"):
            for number in range(100):
                jobs.start("verify", "it", (str(number),), about="/")
        assert len(jobs.all()) == 10

    run(test)


def test_what_is_retained_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_RESULT_BYTES", 1000)
    monkeypatch.setattr(module, "_STDERR_BYTES", 500)
    monkeypatch.setattr(module, "_RETAINED", 3)
    script(
        monkeypatch,
        "print('[' + '1,' * int(sys.argv[1]) + '1]')\nsys.stderr.write('x' * 100_000)",
    )

    async def test(jobs):
        for number in (1, 2, 3, 4, 5):
            job = jobs.start("verify", "it", (str(number),), about="/")
            await until(lambda job=job: job.has_ended)
            assert job.state == DONE
            assert len(job.stderr_tail) == 500
        large = jobs.start("verify", "it", ("100000",), about="/")
        assert len(jobs.all()) <= 4
        await until(lambda: large.has_ended)
        assert large.state == FAILED
        assert large.result is None
        assert "more than" in large.error["error"]

    run(test)


def test_the_environment_of_one_job(monkeypatch):
    script(monkeypatch, "import json, os; print(json.dumps(os.environ.get('ONE')))")

    async def test(jobs):
        job = jobs.start("verify", "it", ("a",), about="/", environment={"ONE": "1"})
        await until(lambda: job.has_ended)
        assert job.result == "1"
        assert "ONE" not in os.environ

    run(test)
