"""`headwater …` in forks of one process that has imported it: a tenth of the work of a start.

The fork has arguments, directory, environment, streams and exit code of its own, as a process that
was started. What differs is that every module of the command line is imported already.

    commands = ForkedCommands()
    commands.run(["topic", "list"], stdin=b"", cwd=tmp_path, environment={}, timeout_s=60)
    commands.close()
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

_EXIT = struct.Struct("i")


class ForkedCommands:
    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.PIPE,  # Python makes its streams for pipes, which the forks have
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        cwd: Path,
        environment: dict[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[bytes]:
        """As subprocess.run does, with what it wrote."""
        task = json.dumps([list(arguments), str(cwd), environment]).encode()
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe() for _ in range(3)]
        (its_input, to_input), (from_output, its_output), (from_errors, its_errors) = pipes
        with theirs:
            given = [its_input, its_output, its_errors, theirs.fileno()]
            socket.send_fds(self._control, [task], given)
        for number in given[:3]:
            os.close(number)
        found: dict[int, bytes] = {}
        threads = [threading.Thread(target=_write, args=(to_input, stdin))]
        threads += [
            threading.Thread(target=_read, args=(number, found))
            for number in (from_output, from_errors)
        ]
        for thread in threads:
            thread.start()
        with reply:
            (pid,) = _EXIT.unpack(reply.recv(_EXIT.size))
            reply.settimeout(timeout_s)
            try:
                (code,) = _EXIT.unpack(reply.recv(_EXIT.size))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            finally:
                for thread in threads:
                    thread.join()
        return subprocess.CompletedProcess(
            list(arguments), code, found[from_output], found[from_errors]
        )

    def close(self) -> None:
        self._control.close()
        _, said = self._server.communicate()
        assert self._server.returncode == 0, said


def _write(number: int, data: bytes) -> None:
    try:
        with open(number, "wb") as pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # it has not read all of it


def _read(number: int, found: dict[int, bytes]) -> None:
    with open(number, "rb") as pipe:
        found[number] = pipe.read()


def _serve(control: socket.socket) -> None:
    """Forks until the other side is closed. In the fork it ends by SystemExit."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([control, *running], [], [])
        for source in ready:
            if isinstance(source, int):
                pid, reply = running.pop(source)
                _, status = os.waitpid(pid, 0)
                os.close(source)
                with reply:
                    reply.send(_EXIT.pack(os.waitstatus_to_exitcode(status)))
                continue
            task, given, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not task:
                return
            pid = os.fork()
            if pid == 0:
                _run(*json.loads(task), given)
            for number in given[:3]:
                os.close(number)
            reply = socket.socket(fileno=given[3])
            reply.send(_EXIT.pack(pid))
            running[os.pidfd_open(pid)] = pid, reply


def _run(arguments: list[str], cwd: str, environment: dict[str, str], given: list[int]) -> None:
    for stream, number in enumerate(given[:3]):
        os.dup2(number, stream)
    os.closerange(3, 1000)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = cwd  # as `python -m` has it
    main = import_module("headwater.cli.main")
    sys.argv = [str(main.__file__), *arguments]
    main.main()


if __name__ == "__main__":
    for module in walk_packages(import_module("headwater.cli").__path__, "headwater.cli."):
        import_module(module.name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
