"""The schema registry of the gateway: lookups, registrations and compatibility checks.

    python -m bench.schemas [SECONDS]

A broker and a gateway, each a process of its own, and clients that keep their connections.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.rounds import Measured

CLIENTS = (1, 8)
_FIELDS = 20


def schemas(seconds: float = 3.0) -> Measured:
    """Requests a second of each kind, by one client and by several."""
    with tempfile.TemporaryDirectory() as directory, _started(directory) as url:
        address = urlsplit(url).netloc
        ids = [_register(address, f"s{number}", number) for number in range(50)]
        kinds = {
            "lookups by id": lambda turn: ("GET", f"/schemas/ids/{ids[turn % 50]}", None),
            "lookups of a subject's last version": lambda turn: (
                "GET", f"/subjects/s{turn % 50}/versions/latest", None,
            ),
            "lookups of a schema": lambda turn: ("POST", f"/subjects/s{turn % 50}", turn % 50),
            "compatibility checks": lambda turn: (
                "POST", f"/compatibility/subjects/s{turn % 50}/versions/latest", turn % 50,
            ),
        }  # fmt: skip
        measured: Measured = {}
        for name, request in kinds.items():
            for clients in CLIENTS:
                several = "s" if clients > 1 else ""
                label = f"registry, {name}, {clients} client{several}, 1/s"
                measured[label] = _rate(address, request, clients, seconds)
        began_s, turns = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            _register(address, f"new{turns}", 1000 + turns)
            turns += 1
        measured["registry, new schemas, 1 client, 1/s"] = turns / (time.perf_counter() - began_s)
        return measured


def _schema(number: int) -> str:
    fields = [{"name": f"field_{index}", "type": "string"} for index in range(_FIELDS)]
    return json.dumps({"type": "record", "name": f"Record{number}", "fields": fields})


def _asked(connection: http.client.HTTPConnection, method: str, path: str, number: int | None):
    body = None if number is None else json.dumps({"schema": _schema(number)})
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return data


def _register(address: str, subject: str, number: int) -> int:
    connection = http.client.HTTPConnection(address)
    made = json.loads(_asked(connection, "POST", f"/subjects/{subject}/versions", number))
    connection.close()
    return made["id"]


def _rate(address: str, request, clients: int, seconds: float) -> float:
    done = [0] * clients
    ends_s = time.perf_counter() + seconds

    def work(client: int) -> None:
        connection = http.client.HTTPConnection(address)
        while time.perf_counter() < ends_s:
            _asked(connection, *request(done[client]))
            done[client] += 1
        connection.close()

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


@contextmanager
def _started(directory: str):
    """The gateway's URL."""
    environment = {**os.environ, "HEADWATER_BROKER__DATA_DIR": f"{directory}/data"}
    command = [sys.executable, "-m", "headwater.cli.main"]
    processes = []
    try:
        found = None
        for arguments in (["broker", "--listen", "127.0.0.1:0"], ["gateway"]):
            if found is not None:
                arguments += ["--listen", "127.0.0.1:0", "-b", found["listen"]]
            process = subprocess.Popen(
                [*command, *arguments, "--json"],
                cwd=directory, env=environment, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            processes.append(process)
            found = json.loads(process.stdout.readline())
        yield found["url"]
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    for label, value in schemas(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0).items():
        print(f"{label}: {value:,.0f}")
