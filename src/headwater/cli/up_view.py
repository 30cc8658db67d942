"""The output of `headwater up`, as text or as one JSON object per event.

The lines of all children, the changes of their states, and, when all are ready, their addresses and
what to try next.
"""

import shlex
import shutil
import sys
import time
from typing import Any, Final

from headwater.config import Config, read
from headwater.printable import printable
from headwater.supervisor import status_file
from headwater.supervisor.child import LONGEST_PAUSE_S, Child
from headwater.supervisor.lines import Line
from headwater.supervisor.log_mux import Merged
from headwater.supervisor.plan import BROKER, CONSOLE, GATEWAY
from headwater.terminal.output import coloured, path_to_type, styled, terminal

_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta")
_LEVEL_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "bold red"}
_OWN_NAME: Final = "up"
_STILL_S: Final = 10.0  # between lines about a slow start, where none can be redrawn


class TextView:
    def __init__(self, output: Merged, config: Config, names: list[str]) -> None:
        self._output = output
        self._config = config
        self._width = max(map(len, (*names, _OWN_NAME)))
        self._colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
        self._began_s = self._told_s = time.monotonic()
        self._has_colour = coloured(sys.stdout)

    def line(self, name: str, line: Line) -> None:
        style = _LEVEL_STYLES.get(line.level, "")
        level = f"{line.level}: " if style and not self._has_colour else ""
        for text in printable(level + line.text).split("\n"):
            self._put(name, styled(text, style) if style and text else text, line.at)

    def changed(self, child: Child, before: str) -> None:
        state, name = child.status.state, child.plan.name
        if state == before and state != status_file.NOT_READY:
            return
        match state:
            case status_file.STARTING if not child.status.restarts:
                self._put(name, "starting …")
            case status_file.STARTING:
                self._put(name, f"starting again ({child.status.restarts}) …")
            case status_file.READY:
                took = _since(child.status.started_at)
                at = f" at {styled(child.status.address, 'bold')}" if child.status.address else ""
                self._put(name, f"{styled('ready', 'bold green')}{at} after {took}")
            case status_file.NOT_READY:
                self._put(name, styled(f"not ready: {child.status.reason}", "yellow"))
            case status_file.PAUSED | status_file.FAILED:
                self._ended(child)
            case status_file.STOPPED if before != status_file.WAITING:
                self._put(name, "stopped")

    def _ended(self, child: Child) -> None:
        name, is_mistake = child.plan.name, child.status.state == status_file.FAILED
        if is_mistake and child.is_repeated:
            return
        if is_mistake:
            files = " or ".join(file.name for file in child.plan.files)
            then = f"tried again when {files} changes" if files else ""
            then = then or f"tried again every {LONGEST_PAUSE_S:.0f} s"
        else:
            then = f"started again in {child.pause_s:g} s"
        first, *more = child.status.reason.split("\n")
        if child.is_repeated:
            self._put(name, styled(f"ended again: {first}; {then}", "red"))
            return
        self._put(name, styled(f"ended: {first}", "red"))
        for line in more:
            self._put(name, styled(f"  {line}", "red"))
        if child.status.hint:
            self._put(name, f"{styled('hint:', 'bold cyan')} {child.status.hint}")
        self._put(name, then)

    def tick(self, children: list[Child]) -> None:
        starting = [child for child in children if child.status.state != status_file.READY]
        parts = ", ".join(f"{child.plan.name} ({_doing(child)})" for child in starting)
        took_s = time.monotonic() - self._began_s
        line = f"{took_s:.0f} s, not ready yet: {parts}"
        columns = shutil.get_terminal_size().columns  # a line that wraps cannot be taken back
        self._output.status(styled(line[: columns - 1], "dim"))
        if not terminal() and time.monotonic() - self._told_s >= _STILL_S:
            self._told_s = time.monotonic()
            self._put(_OWN_NAME, f"not ready yet: {parts}")

    def all_ready(self, children: list[Child]) -> None:
        self._output.status("")
        took = f"{time.monotonic() - self._began_s:.1f} s"
        self._put(_OWN_NAME, f"{styled('everything is ready', 'bold green')} after {took}")
        self._output.write("\n" + "\n".join(_next_steps(self._config, children)) + "\n")

    def stopping(self, *, at_once: bool) -> None:
        self._output.status("")
        self._put(
            _OWN_NAME,
            "killing everything" if at_once else "stopping in order; a second Ctrl-C kills at once",
        )

    def said(self, text: str) -> None:
        self._put(_OWN_NAME, text)

    def _put(self, name: str, text: str, at: float | None = None) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        padded = name.ljust(self._width)
        if self._has_colour:
            padded = styled(padded, self._colours.get(name, "bold"))
            clock = styled(clock, "dim")
        self._output.write(f"{clock} {padded} {'│' if self._has_colour else '|'} {text}")


class JsonView:
    """One object per line: {"event": …, "at": …, …}."""

    def __init__(self, output: Merged) -> None:
        self._output = output

    def line(self, name: str, line: Line) -> None:
        self._put("log", child=name, level=line.level or None, message=line.text)

    def changed(self, child: Child, before: str) -> None:
        import dataclasses

        pause_s = (
            child.pause_s
            if child.status.state in (status_file.PAUSED, status_file.FAILED)
            else None
        )
        self._put("child", **dataclasses.asdict(child.status), before=before, pause_s=pause_s)

    def tick(self, children: list[Child]) -> None:
        pass  # every change is written

    def all_ready(self, children: list[Child]) -> None:
        self._put("ready", addresses={child.plan.name: child.status.address for child in children})

    def stopping(self, *, at_once: bool) -> None:
        self._put("stopping", at_once=at_once)

    def said(self, text: str) -> None:
        self._put("note", message=text)

    def _put(self, event: str, **fields: Any) -> None:
        import json

        self._output.write(json.dumps({"event": event, "at": time.time(), **fields}))


def _doing(child: Child) -> str:
    if child.status.state in (status_file.PAUSED, status_file.FAILED):
        return "ended"
    if child.status.state == status_file.WAITING:
        return "begins" if child.status.kind == BROKER else "waits for the broker"
    return _since(child.status.started_at)


def _since(at: float | None) -> str:
    return f"{max(0.0, time.time() - at):.1f} s" if at is not None else "?"


def _next_steps(config: Config, children: list[Child]) -> list[str]:
    addresses = {child.plan.kind: child.status.address for child in children}
    broker = addresses.get(BROKER) or config.bootstrap()
    lines = [f"  broker     {styled(broker, 'bold')}  (any Kafka client)"]
    if addresses.get(CONSOLE):
        lines.append(f"  console    {styled(f'http://{addresses[CONSOLE]}', 'bold')}")
    if addresses.get(GATEWAY):
        scheme = "https" if config.gateway.tls_cert else "http"
        lines.append(f"  gateway    {styled(f'{scheme}://{addresses[GATEWAY]}', 'bold')}")
    lines += ["", "try, in another terminal:"]
    lines += [f"  {line}" for line in path_to_type()]
    # Another terminal has the same file and environment; it does not know a port that was free.
    given = f" -b {broker}" if broker != config.bootstrap() else ""
    if config.path and config.path != read().path:  # named on the command line
        given += f" --config {shlex.quote(str(config.path.resolve()))}"
    lines += [f"  headwater status{given}"]
    for name in list(config.captures)[:1]:
        lines.append(f"  headwater capture status {name}{given}")
    for name in list(config.pipelines)[:1]:
        lines.append(f"  headwater verify {name}{given}")
    if not config.captures:
        lines.append(f"  echo hello | headwater produce greetings{given}")
    return [*lines, "", "Ctrl-C stops everything"]
