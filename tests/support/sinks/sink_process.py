"""A driver of a pipeline, as far as a store sees one; to be killed (sink_killing.py).

Reads tasks from standard input, a line each, and forks for each of them: a process that has all
imported already begins within milliseconds. Writes the child's id, and when it has ended, how.

The child applies numbered batches as the driver does: what it is about to do is in its checkpoint
before, that it is done behind. `die_at` ends (or stops) it in front of the n-th step of an `apply`
with few rows or with many, if `die_in` says so: stores write them in different ways. A step is each
call from headwater.sinks into the store's driver, and each return from it.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import pyarrow as pa

import headwater.sinks
from headwater.errors import Fenced, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks import stores
from headwater.sinks.contract import Batch, Log, Target, Writer
from headwater.sinks.settings import SinkSettings
from support.sinks import sink_rows
from support.sinks.sink_rows import TOPIC
from support.sinks.staged_store import StagedStore

FIELDS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
FENCED = 3
FEW, MANY = "few", "many"
_SINKS = os.path.dirname(headwater.sinks.__file__)


def made_batch(number: int, *, has_keys: bool) -> Batch:
    """The same for the same number, as a replay has it."""
    rng = random.Random(number)
    size = (20, 300, 5, 60, 1, 0, 30)[number % 7]
    if has_keys:
        ids = [rng.randrange(400) for _ in range(size)]
        ops = [rng.choice("cuuud") for _ in range(size)]
        if size and number % 11 == 10:
            ops[size // 2] = "t"
    else:
        ids, ops = [number * 1000 + n for n in range(size)], []
    rows = [{"id": id_, "v": f"{number}:{rng.random()}", "n": number} for id_ in ids]
    return sink_rows.batch(number, sink_rows.table(FIELDS, rows, ops))


def kind_of(batch: Batch) -> str:
    return MANY if len(batch.rows) > 50 else FEW if len(batch.rows) else ""


class Checkpoint:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.intended, self.committed = -1, -1
        if path.exists():
            self.intended, self.committed = json.loads(path.read_text())

    def write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([self.intended, self.committed]))
        new.rename(self._path)


class Steps:
    """Counts calls into the driver, and does something in front of one of them."""

    def __init__(self, drivers: tuple[str, ...], die_at: int, how: int) -> None:
        self._drivers = drivers
        self._die_at = die_at
        self._how = how
        self.count = 0

    def __call__(self, frame, event, callee) -> None:
        if event in ("c_call", "c_return"):
            of = getattr(callee, "__self__", None)
            module = getattr(callee, "__module__", None) or type(of).__module__
            caller = frame
        else:
            module, caller = frame.f_globals.get("__name__", ""), frame.f_back
        is_step = (
            caller is not None
            and caller.f_code.co_filename.startswith(_SINKS)
            and str(module).startswith(self._drivers)
        )
        if is_step:
            if self.count == self._die_at:
                os.kill(os.getpid(), self._how)
            self.count += 1


def run(task: dict) -> None:
    """Until the checkpoint says that `until` batches are committed."""
    settings = SinkSettings(
        "kills", task["kind"], Secret(task["url"]) if task["url"] else None, None, task["options"]
    )
    target = Target("kills", task["name"], ("id",) if task["has_keys"] else ())
    checkpoint = Checkpoint(Path(task["checkpoint"]))
    while checkpoint.committed < task["until"] - 1:
        try:
            store = stores.store_of(settings, target, Log(task["bootstrap"]))
            store = StagedStore(store, target.key) if task["is_staged"] else store
            with store.writer(1, FIELDS) as writer:
                _write(writer, checkpoint, task)
            store.close()
        except StoreUnreachable:
            if task["how"] == signal.SIGSTOP:  # its successor has ended its connection
                raise Fenced("while it was stopped") from None
            time.sleep(0.05)


def _write(writer: Writer, checkpoint: Checkpoint, task: dict) -> None:
    while checkpoint.committed < task["until"] - 1:
        number = checkpoint.committed + 1
        batch = made_batch(number, has_keys=task["has_keys"])
        checkpoint.intended = number
        checkpoint.write()
        if task["die_at"] is not None and task["die_in"] in (None, kind_of(batch)):
            steps = Steps(tuple(task["drivers"]), task["die_at"], task["how"])
            sys.setprofile(steps)
            try:
                writer.apply(batch)
            finally:
                sys.setprofile(None)
            Path(task["checkpoint"]).with_suffix(".steps").write_text(str(steps.count))
        else:
            writer.apply(batch)
        assert writer.position is not None
        assert writer.position.offsets[TOPIC] == batch.offsets[TOPIC]
        checkpoint.committed = number
        checkpoint.write()


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(json.loads(line))
                code = 0
            except Fenced:
                code = FENCED
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # All that takes time, but nothing that starts a thread: a fork has none of them.
    import_module(f"headwater.sinks.{stores._STORES[sys.argv[1]][0]}")
    made_batch(3, has_keys=True)
    if json_text := sys.modules.get("headwater.sinks.rows.json_text"):  # compiled when first used
        columns = [pa.array(["a"]), pa.array([1]), pa.nulls(1, pa.string())]
        json_text.objects(columns, ["a", "b", "c"])
        json_text.joined(1, [(b"", columns[0])], b"")
    main()
