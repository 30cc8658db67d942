"""Random pauses: what has failed at the same time is not tried again at the same time."""

import random
from typing import Final

# Of its own: applications that seed `random` get the same numbers, whatever our threads do.
_random: Final = random.Random()  # noqa: S311 (no secret)


def pause_between(shortest_s: float, longest_s: float) -> float:
    return _random.uniform(shortest_s, longest_s)
