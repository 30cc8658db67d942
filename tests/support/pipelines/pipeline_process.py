"""`headwater pipeline run`, with a step at which it ends itself. To be killed (spark_killing.py).

    pipeline_process.py CONFIG TASK NAME …

TASK is JSON. {"most_backlog": 300} is the backlog from which a streaming query takes over,
{"fewest_staged": 0} how many records a batch has at least that tasks stage. Its
death, if there is one: {"write": "cache/orders", "at": …, "batch": 2, "how": 9}. It happens at the
n-th batch of that write since the start (or at the first of any write that is there, with null):

    begun      the batch is recorded, nothing else has happened
    arrow      its rows are in the driver, or staged by tasks
    step       in front of the call number `step` of the store into its driver
    applied    the store has committed, the checkpoint has not

`how` is a signal. SIGKILL with "all" goes to the JVM, too, in the same moment.
"""

import json
import os
import sys

from headwater.cli import main as headwater_main
from headwater.pipelines.engine import local_run
from headwater.pipelines.running import staging_tasks
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.write_run import WriteRun
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
    make, run_batch = WriteRun.__init__, BatchApplier.run
    apply, apply_once = BatchApplier._apply, BatchApplier._apply_once

    def made(run, environment, settings, write, choice, **options):
        make(run, environment, settings, write, choice, **options)
        names[id(run._applier)] = write.name

    def ran(applier, batch_id, compute, frame=None):
        death.begun(names[id(applier)])
        run_batch(applier, batch_id, compute, frame)

    def computed(applier, batch, write):
        death.at("arrow", names[id(applier)])
        apply_once(applier, batch, write)

    def applied(applier, batch, stage=None):
        if death.is_now("step", names[id(applier)]):
            sys.setprofile(death.steps)
        try:
            apply(applier, batch, stage)
        finally:
            sys.setprofile(None)
        death.at("applied", names[id(applier)])

    WriteRun.__init__, BatchApplier.run = made, ran
    BatchApplier._apply, BatchApplier._apply_once = applied, computed


def main() -> None:
    file, task, *names = sys.argv[1:]
    asked = json.loads(task)
    local_run.MOST_BACKLOG = asked.get("most_backlog", local_run.MOST_BACKLOG)
    staging_tasks._FEWEST_RECORDS = asked.get("fewest_staged", staging_tasks._FEWEST_RECORDS)
    if "at" in asked:
        wrap(Death(asked))
    sys.exit(headwater_main.run(["pipeline", "run", "--config", file, *names]))


if __name__ == "__main__":
    main()
