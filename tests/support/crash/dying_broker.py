"""A broker that ends itself, as by kill -9, at a chosen call of a chosen method of its files.

    dying_broker.py DATA_DIR METHOD PATH_PATTERN NTH before|half|after [SETTINGS]

Writes its address to stdout when it is ready. Checkpoints come ten times a second, and whatever
else runs in the background nearly as often. SETTINGS is JSON.
"""

import asyncio
import json
import os
import re
import sys
import threading

from headwater.broker import broker as broker_module
from headwater.broker.main import RunningBroker
from headwater.log.archive import objects
from headwater.log.disk.files import Files
from headwater.settings import BrokerSettings
from support.crash.hurried_broker import hurry

EXIT_CODE = 137


class DyingFiles(Files):
    """The real files, until the chosen call."""

    def __init__(self, method: str, pattern: str, nth: int, moment: str) -> None:
        self._paths: dict[int, str] = {}
        self._left = nth
        self._lock = threading.Lock()
        self._moment = moment
        self._pattern = re.compile(pattern)
        self.is_armed = False
        call = getattr(super(), method)

        def dying(first, *rest, **named):
            path = first if isinstance(first, str) else self._paths.get(first, "")
            if not self._strikes(path):
                return call(first, *rest, **named)
            if self._moment == "half":
                data, position = rest
                data = b"".join(data) if isinstance(data, list) else bytes(data)
                os.pwrite(first, data[: len(data) // 2], position)
            elif self._moment == "after":
                call(first, *rest, **named)
            os._exit(EXIT_CODE)

        setattr(self, method, dying)
        if method != "open":
            self.open = self._open

    def _open(self, path: str, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._paths[fd] = path
        return fd

    def _strikes(self, path: str) -> bool:
        if not self.is_armed or not self._pattern.search(path):
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


async def main() -> None:
    data_dir, method, pattern, nth, moment, *more = sys.argv[1:]
    hurry()
    broker_module.CHECKPOINT_S = 0.1
    files = DyingFiles(method, pattern, int(nth), moment)
    objects.Files = lambda: files  # those of an archive
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        data_dir=data_dir,
        topic_defaults={"segment.bytes": "4096"},
        **(json.loads(more[0]) if more else {}),
    )
    running = RunningBroker(settings, files=files)
    await running.start()
    files.is_armed = True
    print(running.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
