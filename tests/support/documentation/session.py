"""Runs a page: its commands in a shell, its Python in one process, in a directory of its own.

The addresses that pages name (127.0.0.1:9092 …) stand for free ports. Commands run on a terminal,
as those of a reader. What is compared leaves out what differs each time: durations, times, sizes
of columns; "…" stands for any text, a line of it for any lines.
"""

import difflib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from bench.peers.ports import free_port
from support.documentation.blocks import Block, Command, blocks

TIMEOUT_S = 300
_EXAMPLES = Path(__file__).parents[3] / "examples"
_PORTS = ("9092", "9093", "8080", "8081")
_ADDRESS = re.compile(rf"\b(127\.0\.0\.1|localhost):({'|'.join(_PORTS)})\b")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]")
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)( \d+ (s|min))?(?!\w)"), "DURATION"),
    (re.compile(r"\b\d+(\.\d+)? (B|KiB|MiB|GiB)(/s)?(?!\w)"), "SIZE"),
    (re.compile(r"\bprocess \d+"), "process PID"),
    (re.compile(r"─+"), "─"),
    (re.compile(r" +"), " "),
)
_INTERPRETER = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "page", "exec"), names)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    print("\\x00", flush=True)
"""


class Session:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cwd = directory / "work"
        self._cwd.mkdir()
        shutil.copytree(_EXAMPLES, self._cwd / "examples")
        self._state = directory / "state"
        self._state.mkdir()
        self._ports = {port: str(free_port()) for port in _PORTS}
        self._python: subprocess.Popen[bytes] | None = None
        self._terminals: list[int] = []
        (directory / "tmp").mkdir()
        self._environment = {
            **{name: value for name, value in os.environ.items() if "HEADWATER" not in name},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HEADWATER_BROKER__LISTEN": f"127.0.0.1:{self._ports['9092']}",
            "HEADWATER_CONSOLE__LISTEN": f"127.0.0.1:{self._ports['8080']}",
            "NO_COLOR": "1",
            "TERM": "xterm",
            "TZ": "UTC",
            "PYTHONPATH": "",
            "TMPDIR": str(directory / "tmp"),
        }

    def run(self, page: Path) -> list[tuple[Command | Block, str]]:
        """What each command and each block of Python has printed, in the order of the page."""
        printed: list[tuple[Command | Block, str]] = []
        for block in blocks(page):
            if not block.runs:
                continue
            if block.file:
                path = self._cwd / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._real(block.text))
            elif block.language == "console":
                printed += [(command, self.command(command.text)) for command in block.commands()]
            elif block.language == "python":
                printed.append((block, self.python(block.text)))
        return printed

    def command(self, text: str) -> str:
        """Runs it where the last one ended, and returns what it has shown."""
        if text.startswith("pip install"):
            return ""
        environment = self._state / "environment"
        script = (
            f"cd '{self._cwd}'\n[ -e '{environment}' ] && . '{environment}'\n{self._real(text)}\n"
            f"pwd > '{self._state}/cwd'\ndeclare -px > '{environment}'\n"
        )
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 110, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)
        self._terminals.append(ours)  # closed at the end: what runs in the background would hang up
        shown = _read(ours, process)
        self._cwd = Path((self._state / "cwd").read_text().strip())
        return self._as_documented(shown.decode(errors="replace"))

    def python(self, text: str) -> str:
        """Runs it in the interpreter of this page, and returns what it has printed."""
        if self._python is None:
            with (self._directory / "python.log").open("wb") as log:
                self._python = subprocess.Popen(
                    [sys.executable, "-c", _INTERPRETER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    cwd=self._cwd,
                )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(self._real(text)).encode() + b"\n")
        self._python.stdin.flush()
        printed = b""
        while not printed.endswith(b"\x00\n"):
            line = self._python.stdout.readline()
            assert line, (self._directory / "python.log").read_text()[-3000:]
            printed += line
        return self._as_documented(printed[:-2].decode())

    def close(self) -> None:
        if self._python is not None:
            self._python.kill()
            self._python.communicate()
        for running in (self._directory / "work").rglob("up.json"):
            self._cwd = running.parents[1]
            self.command("headwater down")
        for terminal in self._terminals:
            os.close(terminal)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _real(self, text: str) -> str:
        return _ADDRESS.sub(lambda found: f"{found[1]}:{self._ports[found[2]]}", text)

    def _as_documented(self, shown: str) -> str:
        text = _ESCAPE.sub("", shown).replace("\r\n", "\n")
        text = "\n".join(line.rpartition("\r")[2].rstrip() for line in text.split("\n"))
        # Progress, which goes away, and what Java says of the tests' own options.
        text = re.sub(r"^([⠀-⣿] |Picked up JAVA_TOOL).*\n", "", text, flags=re.MULTILINE)
        for documented, real in self._ports.items():
            text = re.sub(rf"\b(127\.0\.0\.1|localhost):{real}\b", rf"\1:{documented}", text)
        text = text.replace(str(self._directory / "work"), "/home/you")
        return text.strip("\n")


def _read(terminal: int, process: subprocess.Popen[bytes]) -> bytes:
    """What it shows until it ends. A process that it leaves behind may hold the terminal."""
    shown = b""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        has_ended = process.poll() is not None
        if select.select([terminal], [], [], 0 if has_ended else 0.05)[0]:
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # no process has it open
                piece = b""
            shown += piece
            if piece:
                continue
        if has_ended:
            return shown
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(shown.decode(errors="replace"))
        if not select.select([terminal], [], [], 0)[0]:
            continue
        time.sleep(0.01)  # closed, and it is about to end


def expected_of(part: Command | Block) -> str:
    if isinstance(part, Command):
        return "\n".join(part.output).strip("\n")
    return part.expected.text.strip("\n") if part.expected else ""


def difference(expected: str, printed: str) -> str:
    """How they differ, or an empty text."""
    pattern = "".join(_pattern(line) for line in f"{_settled(expected)}\n".splitlines())
    if re.fullmatch(pattern, f"{_settled(printed)}\n"):
        return ""
    return "\n".join(
        difflib.unified_diff(expected.splitlines(), printed.splitlines(), "page", "printed", "", "")
    )


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:[^\n]*\n)*?"
    return ".*".join(re.escape(piece) for piece in line.split("…")) + r"\n"


def _settled(text: str) -> str:
    for pattern, replacement in _VARIES:
        text = pattern.sub(replacement, text)
    return "\n".join(line.strip() for line in text.splitlines())
