"""A process that appends until it is done or killed, and reports what was acknowledged.

python event_writer.py URL WRITER APPENDS    prints "NUMBER POSITION" for each acknowledged append.

Every append adds one event to a stream of the writer and one to a stream that all writers share,
with expected versions; some appends are rolled back on purpose. The ids follow from writer and
number, so a writer that starts again repeats the append whose outcome it does not know.
"""

import sys

from headwater.errors import AppendConflict, EventStoreUnreachable
from headwater.events import ANY, Event, StreamWrite, open_store


def main(url: str, writer: str, appends: int) -> None:
    with open_store(url) as store:
        number = store.version(f"own-{writer}")  # where an earlier process was killed
        while number < appends:
            number += 1
            shared = f"shared-{number % 3}"
            expected = store.version(shared) if number % 2 else ANY
            own = Event("Own", number, id=f"{writer}/{number}")
            other = Event("Shared", [writer, number], id=f"{writer}/{number}s")
            writes = [
                StreamWrite(f"own-{writer}", [own], number - 1),
                StreamWrite(shared, [other], expected),
            ]
            try:
                result = store.append_all(writes)
            except (AppendConflict, EventStoreUnreachable):
                number -= 1
                continue
            print(number, result.last_position, flush=True)
            if number % 7 == 0:
                _roll_back(store, writer)


def _roll_back(store, writer: str) -> None:
    try:
        with store.transaction() as transaction:
            transaction.append(f"never-{writer}", [Event("Never")])
            raise KeyError
    except KeyError:
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
