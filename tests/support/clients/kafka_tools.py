"""Kafka's own command-line tools, all in one JVM (java/ToolServer.java)."""

import atexit
import subprocess
from base64 import b64decode, b64encode
from functools import cache
from pathlib import Path

from bench.peers.kafka import TOOL_JVM, TOOL_TIMEOUT_S, TOOLS, classpath
from support.readable import readable

SERVER = Path(__file__).parents[2] / "clients" / "java" / "ToolServer.java"


def run_tool(
    name: str, *args: str, stdin: str = "", timeout_s: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """As bench.peers.kafka.run_tool, without the start of a JVM."""
    tool = name if "." in name else f"{TOOLS}.{name}"
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    call = " ".join(b64encode(word.encode()).decode() for word in (tool, stdin, *args))
    server.stdin.write(call.encode() + b"\n")
    server.stdin.flush()
    if not readable(server.stdout, timeout_s=timeout_s):
        _end(server)
        raise subprocess.TimeoutExpired([tool, *args], timeout_s)
    answer = server.stdout.readline()
    if not answer:
        _end(server)
        raise ChildProcessError(f"the JVM with Kafka's tools ended in {tool} {' '.join(args)}")
    status, out, err = answer.rstrip(b"\n").split(b" ")
    said = (b64decode(out).decode(), b64decode(err).decode())
    return subprocess.CompletedProcess([tool, *args], int(status), *said)


@cache
def _server() -> subprocess.Popen[bytes]:
    """Ends with the tests; also with tests that are killed, for then its stdin ends."""
    server = subprocess.Popen(
        ["java", *TOOL_JVM, "-cp", classpath(), SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    """The next call has a new one."""
    _server.cache_clear()
    with server:
        server.kill()
