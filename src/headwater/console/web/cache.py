"""Cache of answers of the broker, shared by all requests.

`Shared` caches the last answer of each question. A request gets it while it is fresh. The first
request after that reads it again, and all that come meanwhile wait for the same answer. So the load
on the broker does not depend on how many browsers show a page.
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
_LONG_S: Final = 0.25  # to wait for a page
_MOST_ANSWERS: Final = 512


@dataclass(slots=True, eq=False)
class _Answer:
    future: "asyncio.Future[Any]"
    asked_s: float
    took_s: float = 0.0
    renewal: "_Answer | None" = None  # under way, while this one still does

    @property
    def age_s(self) -> float:
        """Since it has arrived."""
        return time.monotonic() - self.asked_s - self.took_s

    @property
    def has_failed(self) -> bool:
        return self.future.cancelled() or self.future.exception() is not None

    def is_fresh(self, max_age_s: float) -> bool:
        if not self.future.done():
            return True
        return self.age_s <= (_FAILURE_AGE_S if self.has_failed else self._lasts_s(max_age_s))

    def may_be_shown_once_more(self, max_age_s: float) -> bool:
        """Whether requests need not wait for its renewal, which would take long."""
        is_slow = self.took_s > _LONG_S and not self.has_failed
        return is_slow and self.age_s <= 2 * self._lasts_s(max_age_s)

    def _lasts_s(self, max_age_s: float) -> float:
        return max(max_age_s, self.took_s / _SHARE)


class Shared:
    """Answers by name; used on the event loop only."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, _Answer] = OrderedDict()
        self.asked = 0  # reads, as opposed to answers from the cache

    async def get(
        self, name: Any, read: Callable[[], Awaitable[_T]], max_age_s: float = DEFAULT_AGE_S
    ) -> _T:
        """What `read` returned or raised, at most so old (or ten times what reading took, and
        twice that while it is being renewed).
        """
        answer = self._answers.get(name)
        if answer is None or not answer.is_fresh(max_age_s):
            if answer is None or not answer.may_be_shown_once_more(max_age_s):
                answer = (answer and answer.renewal) or self._asked(read)
                self._answers[name] = answer
            elif answer.renewal is None:
                answer.renewal = self._asked(read)
                self._replace_by_renewal(name, answer)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(name)
        # A request that is cancelled does not cancel the answer of the others.
        found: _T = await asyncio.shield(answer.future)
        return found

    def forget(self, name: Any) -> None:
        """After a change: the next request reads the new state."""
        self._answers.pop(name, None)

    def _asked(self, read: Callable[[], Awaitable[Any]]) -> _Answer:
        self.asked += 1
        answer = _Answer(asyncio.ensure_future(read()), time.monotonic())
        answer.future.add_done_callback(lambda future: _record_end(answer, future))
        return answer

    def _replace_by_renewal(self, name: Any, answer: _Answer) -> None:
        renewal = answer.renewal
        assert renewal is not None

        def replace(_: object) -> None:
            if self._answers.get(name) is answer:  # else forgotten meanwhile, or replaced
                self._answers[name] = renewal

        renewal.future.add_done_callback(replace)


def _record_end(answer: _Answer, future: "asyncio.Future[Any]") -> None:
    answer.took_s = time.monotonic() - answer.asked_s
    if not future.cancelled():
        future.exception()  # retrieved, so that asyncio does not warn
