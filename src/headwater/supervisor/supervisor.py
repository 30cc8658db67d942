"""The children of one configuration, from the first start to the last end.

1. take the lock of the data directory, end what a killed supervisor has left behind;
2. start the guard, then the broker, and when it is ready all others at once;
3. watch them, report what happens (up.json, and the view);
4. on SIGINT, SIGTERM, SIGHUP: stop gateway, captures, pipelines, console, broker, in this order.
   A second signal kills all of them at once;
5. on SIGUSR1: restart, pause and resume the children that are asked for (requests.py).
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from headwater.config import Config
from headwater.supervisor import guard, requests, status_file
from headwater.supervisor.child import Child, Surroundings
from headwater.supervisor.lines import Line
from headwater.supervisor.lock import Lock
from headwater.supervisor.plan import (
    BROKER,
    GRACE_S,
    PAUSED_KINDS,
    STOP_ORDER,
    base_of,
    children_of,
    data_dir_of,
    environment_of,
)

_GUARD_GRACE_S: Final = 20.0
_LOCK_WAIT_S: Final = _GUARD_GRACE_S + 10.0
_TICK_S: Final = 0.5


class View(Protocol):
    """Shows what happens. Called on the event loop: must not block."""

    def line(self, name: str, line: Line) -> None: ...

    def changed(self, child: Child, before: str) -> None: ...

    def tick(self, children: list[Child]) -> None:
        """Twice a second until all are ready for the first time, or are to stop."""

    def all_ready(self, children: list[Child]) -> None: ...

    def stopping(self, *, at_once: bool) -> None: ...

    def said(self, text: str) -> None: ...


class Supervisor:
    def __init__(
        self, config: Config, view: View, secrets: Mapping[str, str], *, log: Path | None = None
    ) -> None:
        """`secrets` go into the environment of children: what was asked for at the terminal. `log`
        is the file that `view` writes, of a detached one.
        """
        self._config = config
        self._view = view
        self._secrets = secrets
        self._data_dir = data_dir_of(config)
        self._stop = asyncio.Event()
        self._broker_ready = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._began_at = time.time()
        self._has_write_error = False
        self._log = str(log) if log else None
        self._at_work: set[asyncio.Task[None]] = set()  # what was requested
        around = Surroundings(
            config,
            base_of(config),
            self._data_dir,
            self._environment,
            lambda child, line: view.line(child.plan.name, line),
            self._changed,
        )
        self.children = [Child(plan, around) for plan in children_of(config)]

    async def run(self) -> None:
        """Returns when all have ended. Raises DataDirectoryInUse."""
        signal.signal(requests.SIGNAL, signal.SIG_IGN)  # until it can be handled
        lock = Lock.take(self._data_dir, wait_s=_LOCK_WAIT_S, on_wait=self._view.said)
        left = guard.end(str(self._data_dir), grace_s=0.0)
        if left:
            self._view.said(f"ended {len(left)} processes that an earlier `up` has left behind")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        requests.taken(self._data_dir)  # those that were for another
        loop.add_signal_handler(requests.SIGNAL, self._requested)
        self._guard = self._start_guard(lock)
        loop.add_signal_handler(signal.SIGCHLD, self._look, lock)
        try:
            await self._supervise()
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            (self._data_dir / status_file.FILE_NAME).unlink(missing_ok=True)
            lock.release()

    def stop(self) -> None:
        """In order; at once if called a second time."""
        at_once = self._stop.is_set()
        self._view.stopping(at_once=at_once)
        self._begin_end()
        if at_once:
            for child in self.children:
                child.kill()

    def _requested(self) -> None:
        children = {child.plan.name: child for child in self.children}
        for name, action in requests.taken(self._data_dir):
            child = children.get(name)
            if child is None or self._stop.is_set():
                continue
            grace_s = GRACE_S[child.plan.kind]
            match action:
                case requests.RESTART:
                    words, work = "restarted", child.restart(grace_s)
                case requests.PAUSE if child.plan.kind in PAUSED_KINDS:
                    words, work = "paused", child.pause(grace_s)
                case requests.RESUME:
                    words, work = "resumed", child.resume()
                case _:
                    continue
            self._view.said(f"{name} is {words}, as requested")
            task = asyncio.create_task(work)
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)

    def _begin_end(self) -> None:
        for child in self.children:
            child.begin_end()
        self._stop.set()

    async def _supervise(self) -> None:
        self._write_status()
        lives = {}
        for child in self.children:
            lives[child.plan.name] = asyncio.create_task(self._run(child))
        tick = asyncio.create_task(self._tick())
        await self._stop.wait()
        self._write_status()
        for kind in STOP_ORDER:
            of_kind = [child for child in self.children if child.plan.kind == kind]
            was_killed = await asyncio.gather(*(child.stop(GRACE_S[kind]) for child in of_kind))
            for child, killed in zip(of_kind, was_killed, strict=True):
                if killed:
                    self._view.said(f"{child.plan.name} was killed: it did not end in time")
            await asyncio.gather(*(lives[child.plan.name] for child in of_kind))
        tick.cancel()

    async def _run(self, child: Child) -> None:
        """A child whose supervision fails ends all: it would never be started again."""
        try:
            if child.plan.kind != BROKER and self._has_broker():
                ready = asyncio.create_task(self._broker_ready.wait())
                stop = asyncio.create_task(self._stop.wait())
                await asyncio.wait((ready, stop), return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                stop.cancel()
            await child.run()
        except BaseException:
            self._begin_end()
            raise

    def _has_broker(self) -> bool:
        return any(child.plan.kind == BROKER for child in self.children)

    def _environment(self) -> Mapping[str, str]:
        address = next(
            (child.status.address for child in self.children if child.plan.kind == BROKER), None
        )
        return {**environment_of(self._config, address), **self._secrets}

    async def _tick(self) -> None:
        while not self._all_ready.is_set() and not self._stop.is_set():
            self._view.tick(self.children)
            await asyncio.sleep(_TICK_S)

    def _changed(self, child: Child, before: str) -> None:
        self._write_status()  # first: a user who sees it may read it there
        self._view.changed(child, before)
        if child.plan.kind == BROKER and child.status.state == status_file.READY:
            self._broker_ready.set()
        is_ready = all(child.status.state == status_file.READY for child in self.children)
        if is_ready and not self._all_ready.is_set() and not self._stop.is_set():
            self._all_ready.set()
            self._view.all_ready(self.children)

    def _write_status(self) -> None:
        """A disk that takes no file is no reason to stop."""
        children = [child.status for child in self.children]
        status = status_file.SupervisorStatus(
            os.getpid(), self._began_at, self._stop.is_set(), children, self._log
        )
        try:
            status_file.write(self._data_dir, status)
            self._has_write_error = False
        except OSError as error:
            if not self._has_write_error:
                self._view.said(f"{status_file.FILE_NAME} cannot be written: {error}")
            self._has_write_error = True

    def _look(self, lock: Lock) -> None:
        for child in self.children:
            child.look()
        if self._guard.poll() is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard = self._start_guard(lock)

    def _start_guard(self, lock: Lock) -> "subprocess.Popen[bytes]":
        marks = (guard.MARK, guard.MARK_CHILD)
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", guard.__file__),
                *(str(self._data_dir), str(_GUARD_GRACE_S)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in marks},
            pass_fds=(lock.fd,),
            start_new_session=True,  # Ctrl-C is not meant for it
            cwd="/",
        )
