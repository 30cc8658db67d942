"""The child process that cleans: `python -m headwater.log.compaction.worker`.

Jobs come in as lines of JSON, reports go out the same way, one pass after the other. When the pipe
closes (the broker has no more work, or is dead) the process ends at once, in the middle of a pass
if need be: what it has written so far is used by nothing.
"""

import os
import queue
import sys
import threading
from typing import NoReturn

import msgspec

from headwater.log.compaction.cleaning import clean
from headwater.log.compaction.job import Job, Report
from headwater.log.compaction.loops import kernels
from headwater.log.disk.files import Files

NICENESS = 10  # brokers and clients go first


def main() -> NoReturn:
    os.nice(NICENESS)
    # Whatever a library may print goes where the broker's log goes, not among the reports.
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(report: Report) -> None:
        reports.write(msgspec.json.encode(report) + b"\n")
        reports.flush()

    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    kernels.load()
    files = Files()
    while True:
        job = jobs.get()
        try:
            clean(job, files, send)
        except OSError as error:
            send(Report(error=str(error)))


def _listen(jobs: "queue.SimpleQueue[Job]") -> None:
    decoder = msgspec.json.Decoder(Job)
    for line in sys.stdin.buffer:
        jobs.put(decoder.decode(line))
    os._exit(0)


if __name__ == "__main__":
    main()
