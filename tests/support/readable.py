"""Waiting for sockets and pipes: by poll(), for select() has no files above number 1,023."""

import select


def readable(*sources, timeout_s: float) -> list:
    """Those that have something to read, or have ended, as soon as there are any."""
    by_number = {
        source if isinstance(source, int) else source.fileno(): source for source in sources
    }
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(timeout_s * 1000)]
