"""The child process that rewrites segments: `python -m headwater.log.compaction.worker`.

Jobs come in as lines of JSON, reports go out the same way, one job after the other. When the pipe
closes (the broker has no more work, or is dead) the process ends at once, in the middle of a job
if need be: what it has written so far is used by nothing.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import msgspec

from headwater.log.compaction.job import EraseJob, Job, Report
from headwater.log.disk.files import Files
from headwater.log.erasure.rewriting import erase

NICENESS = 10  # brokers and clients go first


def main() -> NoReturn:
    os.nice(NICENESS)
    # Whatever a library may print goes where the broker's log goes, not among the reports.
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(report: Report) -> None:
        reports.write(msgspec.json.encode(report) + b"\n")
        reports.flush()

    jobs: queue.SimpleQueue[Job | EraseJob] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    files = Files()
    while True:
        job = jobs.get()
        try:
            if isinstance(job, EraseJob):
                erase(job, files, send)
            else:
                _clean(job, files, send)
        except OSError as error:
            send(Report(error=str(error)))


def _clean(job: Job, files: Files, send: Callable[[Report], None]) -> None:
    # Not before: what only erases has no need of numba.
    from headwater.log.compaction.cleaning import clean
    from headwater.log.compaction.loops import kernels

    kernels.load()
    clean(job, files, send)


def _listen(jobs: "queue.SimpleQueue[Job | EraseJob]") -> None:
    decoder = msgspec.json.Decoder(Job | EraseJob)
    for line in sys.stdin.buffer:
        jobs.put(decoder.decode(line))
    os._exit(0)


if __name__ == "__main__":
    main()
