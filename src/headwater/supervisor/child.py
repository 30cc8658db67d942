"""One child: started, watched, and started again when it ends.

    waiting → starting → ready ⇄ not ready
                 │         │         │
                 └─────────┴─────────┴──→ paused → starting …     it has ended
                                      └─→ failed → starting …     by its user's mistake

One that is paused by a request is `stopped` until it is resumed.

A pause doubles with each end, up to LONGEST_PAUSE_S; one that ran well begins with the first pause
again. It is never given up: a disk is emptied, a database comes back. A mistake of the user (exit
code 2) is reported once; the child is tried again when one of its files changes, else at the
longest pause, because the mistake may have been elsewhere.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from headwater.config import Config
from headwater.errors import UsageError
from headwater.supervisor import guard, parent_death
from headwater.supervisor.lines import Line, Splitter
from headwater.supervisor.plan import BROKER, CONSOLE, GATEWAY, ChildPlan
from headwater.supervisor.readiness import address_of, not_ready_because
from headwater.supervisor.status_file import (
    FAILED,
    NOT_READY,
    PAUSED,
    READY,
    STARTING,
    STOPPED,
    STOPPING,
    ChildStatus,
)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
HELD_REASON: Final = "it is paused, as requested"
HELD_HINT: Final = "`headwater restart CHILD`, or the console, starts it again"
_STEADY_S: Final = 30.0  # after which an end counts as the first again
_LEFTOVERS_S: Final = 5.0  # for what it has started to end, too: Spark's JVM takes a moment
_FIRST_LOOK_S: Final = 0.05
_LOOK_S: Final = 0.5  # while it starts
_READY_LOOK_S: Final = 5.0
_FILES_LOOK_S: Final = 0.5
_LAST_LINES: Final = 5
_CALM: Final = ("debug", "info")  # lines of the log that are no reason for an end
_READ_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all children of a supervisor have in common."""

    config: Config
    base: Path
    data_dir: Path
    environment: Callable[[], Mapping[str, str]]
    on_line: Callable[["Child", Line], None]
    on_change: Callable[["Child", str], None]  # with the state before


@dataclass(slots=True)
class _Life:
    """One process of a child."""

    process: "subprocess.Popen[bytes]"
    began_s: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    announced: dict[str, Any] | None = None
    has_announced: asyncio.Event = field(default_factory=asyncio.Event)
    was_ready: bool = False
    error: dict[str, str] | None = None
    last_lines: "deque[str]" = field(default_factory=lambda: deque(maxlen=_LAST_LINES))


class Child:
    """Runs until it is stopped. All of it on one event loop, in the main thread: the kernel ends
    children with the thread that started them.
    """

    def __init__(self, plan: ChildPlan, around: Surroundings) -> None:
        self.plan = plan
        self.status = ChildStatus(plan.name, plan.kind, since=time.time())
        self.is_repeated = False  # it has ended for the same reason as the time before
        self.pause_s = 0.0
        self._around = around
        self._life: _Life | None = None
        self._is_stopping = False
        self._is_hurried = False
        self._is_restarting = False
        self._is_on_hold = False  # paused, as requested
        self._wake = asyncio.Event()
        self._arguments = plan.arguments
        self._ended_because = ""

    async def run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping:
            if self._is_on_hold:
                await self._held()
                pause_s = FIRST_PAUSE_S
                continue
            is_mistake = False
            try:
                life = self._started()
            except OSError as error:  # no process, memory or descriptor is left, just now
                reason, hint = f"it cannot be started: {error}", ""
            else:
                await self._lived(life)
                if self._is_stopping:
                    break
                if self._is_on_hold:
                    continue
                if self._is_restarting:
                    self._is_restarting = False
                    self._ended_because = ""
                    pause_s = FIRST_PAUSE_S
                    self.status.restarts += 1
                    continue
                if life.was_ready and time.monotonic() - life.began_s > _STEADY_S:
                    pause_s = FIRST_PAUSE_S
                reason, hint = _why(life)
                is_mistake = life.process.returncode == UsageError.exit_code
            self.is_repeated = reason == self._ended_because
            self._ended_because = reason
            self.pause_s = LONGEST_PAUSE_S if is_mistake else pause_s
            self._set(FAILED if is_mistake else PAUSED, reason, hint, pid=None)
            await self._wait()
            if self._is_on_hold:
                continue
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self.status.restarts += 1
        self._set(STOPPED, self._ended_because, pid=None)

    @property
    def _is_leaving(self) -> bool:
        return self._is_restarting or self._is_on_hold

    def begin_end(self) -> None:
        """It is not started again; the process that runs continues until `stop`."""
        self._is_stopping = True
        self._wake.set()

    async def stop(self, grace_s: float) -> bool:
        """Asks its process to end; kills it after `grace_s`, and returns whether that was needed.
        `run` returns when nothing of it is left.
        """
        self.begin_end()
        life = self._life
        if life is None:
            return False
        self._set(STOPPING, self._ended_because)
        _send(life.process, signal.SIGTERM)
        try:
            await asyncio.wait_for(life.ended.wait(), grace_s)
        except TimeoutError:
            self.kill()
            return True
        return False

    async def restart(self, grace_s: float) -> None:
        """Ends its process, by force after `grace_s`, and starts another at once. One that waits
        for its next start is started now.
        """
        self._is_on_hold = False
        life = self._life
        if life is None:
            self._wake.set()
            return
        self._is_restarting = True
        self._set(STOPPING, "it is restarted, as requested")
        await _end(life, grace_s)

    async def pause(self, grace_s: float) -> None:
        """Ends its process, by force after `grace_s`; it is not started again before `resume`."""
        self._is_on_hold = True
        self._is_restarting = False
        self._wake.set()
        if self._life is not None:
            self._set(STOPPING, HELD_REASON)
            await _end(self._life, grace_s)

    async def resume(self) -> None:
        """Starts one that is paused; one that runs goes on."""
        # One that is still ending is started when it has ended.
        self._is_restarting |= self._is_on_hold and self._life is not None
        self._is_on_hold = False
        self._wake.set()

    def kill(self) -> None:
        """All of its processes, at once."""
        self.begin_end()
        self._is_hurried = True
        if self._life is not None:
            _send(self._life.process, signal.SIGKILL)
        guard.send(guard.marked(str(self._around.data_dir), self.plan.name), signal.SIGKILL)

    def look(self) -> None:
        """Whether its process has ended; called when one has."""
        if self._life is not None and self._life.process.poll() is not None:
            self._life.ended.set()

    async def _lived(self, life: _Life) -> None:
        """One life, from its start until nothing of it is left."""
        self._life = life
        stdout, stderr = _streams(life.process)
        outputs = [
            _Output(stdout, partial(self._read, life, is_stderr=False)),
            _Output(stderr, partial(self._read, life, is_stderr=True)),
        ]
        watch = asyncio.create_task(self._watch(life))
        try:
            self.look()
            await life.ended.wait()
        finally:
            watch.cancel()
            self._life = None
        grace_s = 0.0 if self._is_hurried else _LEFTOVERS_S
        name = self.plan.name
        await asyncio.to_thread(guard.end, str(self._around.data_dir), name, grace_s=grace_s)
        if sys.platform != "linux":
            _kill_group(life.process.pid)
        for output in outputs:
            output.close()

    def _started(self) -> _Life:
        environment = {
            **self._around.environment(),
            **self.plan.environment,
            guard.MARK: str(self._around.data_dir),
            guard.MARK_CHILD: self.plan.name,
            "PYTHONUNBUFFERED": "1",  # what user code prints is shown when it is printed
        }
        headwater = (sys.executable, "-m", "headwater.cli.main")
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())),
                *(*headwater, *self._arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=self._around.base,
            start_new_session=True,  # Ctrl-C goes to the supervisor, which stops it in order
        )
        self.status.started_at = time.time()
        self._set(STARTING, self._ended_because, pid=process.pid)
        return _Life(process, time.monotonic())

    def _read(self, life: _Life, line: Line, *, is_stderr: bool) -> None:
        if line.announced is not None and life.announced is None:
            life.announced = line.announced
            life.has_announced.set()
            self.status.address = address_of(self.plan, self._around.config, line.announced)
            metrics = line.announced.get("metrics_listen")
            self.status.metrics = None if metrics is None else str(metrics)
            self._keep_port(line.announced)
            return
        if line.error is not None:
            life.error = line.error  # reported as the reason when it has ended
            return
        if is_stderr and line.text.strip() and line.level not in _CALM:
            life.last_lines.append(line.text)
        self._around.on_line(self, line)

    def _keep_port(self, announced: Mapping[str, Any]) -> None:
        """A port that was chosen stays: others use it by now."""
        if self.plan.kind in (BROKER, CONSOLE, GATEWAY) and "listen" in announced:
            self._arguments = (*self.plan.arguments, "--listen", str(announced["listen"]))

    async def _watch(self, life: _Life) -> None:
        await life.has_announced.wait()
        look_s = _FIRST_LOOK_S
        while not self._is_stopping:
            try:
                reason = await asyncio.to_thread(
                    not_ready_because, self.plan, self._around.config, life.announced
                )
            except Exception as error:  # a bug must not keep it from being watched
                reason = f"unexpected {type(error).__name__}: {error}"
            if life.ended.is_set() or self._is_stopping or self._is_leaving:
                return
            if reason is None:
                life.was_ready = True
                self._set(READY, self._ended_because)
                look_s = _READY_LOOK_S
            else:
                self._set(NOT_READY if life.was_ready else STARTING, reason)
                look_s = min(2 * look_s, _LOOK_S)
            await asyncio.sleep(look_s)

    async def _held(self) -> None:
        self._ended_because = ""
        self._set(STOPPED, HELD_REASON, HELD_HINT, pid=None)
        while self._is_on_hold and not self._is_stopping:
            self._wake.clear()
            await self._wake.wait()

    async def _wait(self) -> None:
        """Until it is over, or a file was changed in which a mistake may have been fixed."""
        if not self._is_stopping:
            self._wake.clear()  # of an earlier `restart`
        before = _changed_at(self.plan.files)
        until_s = time.monotonic() + self.pause_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._wake.is_set():
            if _changed_at(self.plan.files) != before:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(left_s, _FILES_LOOK_S))

    def _set(self, state: str, reason: str, hint: str = "", **more: int | None) -> None:
        status, before = self.status, self.status.state
        is_new = (status.state, status.reason) != (state, reason) or "pid" in more
        if status.state != state:
            status.since = time.time()
        status.state, status.reason, status.hint = state, reason, hint
        if "pid" in more:
            status.pid = more["pid"]
        if is_new:
            self._around.on_change(self, before)


async def _end(life: _Life, grace_s: float) -> None:
    _send(life.process, signal.SIGTERM)
    try:
        await asyncio.wait_for(life.ended.wait(), grace_s)
    except TimeoutError:
        _send(life.process, signal.SIGKILL)


class _Output:
    """A pipe that is read whenever there is something in it."""

    def __init__(self, stream: IO[bytes], on_line: Callable[[Line], None]) -> None:
        self._stream = stream
        self._on_line = on_line
        self._splitter = Splitter()
        os.set_blocking(stream.fileno(), False)
        asyncio.get_running_loop().add_reader(stream.fileno(), self._read)

    def close(self) -> None:
        """Reads what is left in it, then closes it."""
        while not self._stream.closed and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        try:
            data = os.read(self._stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        for line in self._splitter.lines(data):
            self._on_line(line)
        if not data:
            self._end()
        return bool(data)

    def _end(self) -> None:
        if self._stream.closed:
            return
        for line in self._splitter.last():
            self._on_line(line)
        asyncio.get_running_loop().remove_reader(self._stream.fileno())
        self._stream.close()


def _streams(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout, process.stderr


def _why(life: _Life) -> tuple[str, str]:
    """Why it has ended, and what to do about it."""
    code = life.process.returncode
    if life.error is not None:
        parts = (life.error["error"], life.error.get("detail", ""))
        return ": ".join(filter(None, parts)), life.error.get("hint", "")
    if code < 0:
        how = f"it was ended by {signal.Signals(-code).name}"
    else:
        how = f"it ended with exit code {code}"
    return "\n".join((how, *life.last_lines)) if code else how, ""


def _changed_at(files: Iterable[Path]) -> list[float]:
    def changed_at(file: Path) -> float:
        try:
            return file.stat().st_mtime
        except OSError:
            return 0.0

    return [changed_at(file) for file in files]


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _kill_group(pid: int) -> None:
    """Where there is no /proc to find them in: those that have stayed in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
