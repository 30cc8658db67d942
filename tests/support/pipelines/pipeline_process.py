"""`headwater pipeline run`, with a step at which it ends itself. To be killed (spark_killing.py).

    pipeline_process.py CONFIG DEATH NAME …

DEATH is "" or JSON: {"write": "cache/orders", "at": …, "batch": 2, "how": 9}. It happens at the
n-th batch of that write since the start (or at the first of any write that is there, with null):

    begun      Spark has recorded the batch, nothing else has happened
    arrow      its rows are in the driver
    step       in front of the call number `step` of the store into its driver
    applied    the store has committed, Spark has not

`how` is a signal. SIGKILL with "all" goes to the JVM, too, in the same moment.
"""

import json
import os
import sys

from headwater.cli import main as headwater_main
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.query_run import QueryRun
from support.sinks.sink_process import Steps

DRIVERS = ("sqlite3", "psycopg2", "headwater.client")


class Death:
    def __init__(self, task: dict) -> None:
        self._task = task
        self._seen: dict[str, int] = {}
        self.steps = Steps(DRIVERS, task.get("step"), task["how"])

    def begun(self, write: str) -> None:
        """Of the write that is to see it: the number of its batch."""
        self._seen[write] = self._seen.get(write, 0) + 1
        self.at("begun", write)

    def is_now(self, step: str, write: str) -> bool:
        task = self._task
        return (
            task["at"] == step
            and task["write"] in (write, None)
            and self._seen[write] >= task["batch"]
        )

    def at(self, step: str, write: str) -> None:
        if self.is_now(step, write):
            if self._task.get("all"):
                os.killpg(0, self._task["how"])
            os.kill(os.getpid(), self._task["how"])


def wrap(death: Death) -> None:
    """The steps of a batch, from outside."""
    names: dict[int, str] = {}
    make, call = QueryRun.__init__, BatchApplier.__call__
    batch, apply = BatchApplier._batch, BatchApplier._apply

    def made(run, environment, settings, write, choice, **options):
        make(run, environment, settings, write, choice, **options)
        names[id(run._applier)] = write.name

    def called(applier, frame, batch_id):
        death.begun(names[id(applier)])
        call(applier, frame, batch_id)

    def batched(applier, frame, batch_id):
        found = batch(applier, frame, batch_id)
        death.at("arrow", names[id(applier)])
        return found

    def applied(applier, rows):
        if death.is_now("step", names[id(applier)]):
            sys.setprofile(death.steps)
        try:
            apply(applier, rows)
        finally:
            sys.setprofile(None)
        death.at("applied", names[id(applier)])

    QueryRun.__init__, BatchApplier.__call__ = made, called
    BatchApplier._batch, BatchApplier._apply = batched, applied


def main() -> None:
    file, death, *names = sys.argv[1:]
    if death:
        wrap(Death(json.loads(death)))
    sys.exit(headwater_main.run(["pipeline", "run", "--config", file, *names]))


if __name__ == "__main__":
    main()
