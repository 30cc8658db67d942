"""A capture as a process of its own, to be killed:

    python capture_process.py NAME SOURCE BOOTSTRAP CHUNK_ROWS TABLE…

CAPTURE_FORMAT in its environment is the format of the records, by default json.
It restarts at once after errors that can be retried, as `headwater capture run` does.
"""

import logging
import os
import sys
import threading
import time

from headwater.capture.metrics import CaptureState
from headwater.capture.runner import run
from headwater.capture.settings import CaptureSettings
from headwater.errors import BrokerUnreachable, Fenced, SourceUnreachable
from headwater.settings import ClientSettings, Secret


def main(name: str, source: str, bootstrap: str, chunk_rows: str, *tables: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    settings = CaptureSettings(
        name=name,
        source=Secret(source),
        tables=tables,
        chunk_rows=int(chunk_rows),
        heartbeat_s=1.0,
        format=os.environ.get("CAPTURE_FORMAT", "json"),
    )
    while True:
        try:
            run(settings, bootstrap, ClientSettings(), CaptureState(name), threading.Event())
        except (SourceUnreachable, BrokerUnreachable) as error:
            logging.getLogger("capture").warning("again: %r", error)
            time.sleep(0.1)  # so that a database that starts is not asked all the time
        except Fenced:
            sys.exit("another process has taken over")


if __name__ == "__main__":
    main(*sys.argv[1:])
