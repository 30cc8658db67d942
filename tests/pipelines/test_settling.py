"""What Spark's garbage collection after each task of a worker has to look through."""

import subprocess
import sys

SCRIPT = """
import gc, sys
from headwater.pipelines.source import reading

def scanned():
    gc.collect()
    return len(gc.get_objects())

reading.settle()
settled = scanned()
import headwater.pipelines.operators.joins.as_of_join
import headwater.pipelines.operators.windows.sessions
assert scanned() > settled + 1000, "this test needs modules that were not there yet"
reading.settle()
assert scanned() < settled + 1000, "modules that came later are looked through"

frozen = gc.get_freeze_count()
kept = [[] for _ in range(100_000)]
reading.settle()
assert gc.get_freeze_count() - frozen < 1000, "what is no module is frozen"
"""


def test_modules_that_come_with_a_later_task_are_not_looked_through_after_each():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
