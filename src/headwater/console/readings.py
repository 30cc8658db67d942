"""What the broker tells of itself, read once for all who look.

`Shared` keeps the last answer of each question. Whoever asks gets it while it is young enough; who
comes when it is not, asks anew, and all who come meanwhile wait for the same answer. So the broker
is asked the same whether one browser looks or a hundred.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

DEFAULT_AGE_S: Final = 2.0
# A question that takes long is asked less often: at most this share of the time is spent on it.
_SHARE: Final = 0.1
_FAILURE_AGE_S: Final = 1.0
_MOST_ANSWERS: Final = 512


@dataclass(slots=True)
class _Answer:
    future: "asyncio.Future[Any]"
    asked_s: float
    took_s: float = 0.0

    def is_fresh(self, max_age_s: float) -> bool:
        if not self.future.done():
            return True
        failed = self.future.cancelled() or self.future.exception() is not None
        age_s = _FAILURE_AGE_S if failed else max(max_age_s, self.took_s / _SHARE)
        return time.monotonic() - self.asked_s - self.took_s <= age_s


class Shared:
    """Answers by name; used on the event loop only."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, _Answer] = OrderedDict()
        self.asked = 0  # how often somebody was really asked

    async def get(
        self, name: Any, read: Callable[[], Awaitable[_T]], max_age_s: float = DEFAULT_AGE_S
    ) -> _T:
        """What `read` returned or raised, at most so old (or ten times what reading took)."""
        answer = self._answers.get(name)
        if answer is None or not answer.is_fresh(max_age_s):
            answer = self._answers[name] = _Answer(asyncio.ensure_future(read()), time.monotonic())
            self.asked += 1
            answer.future.add_done_callback(lambda future: _note_end(answer, future))
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(name)
        # One who goes away does not take the answer from the others.
        found: _T = await asyncio.shield(answer.future)
        return found

    def forget(self, name: Any) -> None:
        """After a change: the next one to ask is told the new state."""
        self._answers.pop(name, None)


def _note_end(answer: _Answer, future: "asyncio.Future[Any]") -> None:
    answer.took_s = time.monotonic() - answer.asked_s
    if not future.cancelled():
        future.exception()  # somebody has looked at it: asyncio need not complain
