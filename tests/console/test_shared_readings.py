"""One answer for all who ask, and how long it lasts."""

import asyncio

import pytest

from headwater.console.web import cache
from headwater.console.web.cache import Shared


class Clock:
    now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(cache, "time", clock)
    return clock


class Question:
    """Answers when it is let; counts how often it was asked."""

    def __init__(self, clock, takes_s=0.0):
        self.clock = clock
        self.takes_s = takes_s
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure = None

    async def __call__(self):
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        self.clock.now_s += self.takes_s
        if self.failure:
            raise self.failure
        return number


def test_all_who_ask_at_once_get_one_answer(clock):
    async def ask():
        shared, question = Shared(), Question(clock)
        return await asyncio.gather(*(shared.get("a", question) for _ in range(50)))

    assert asyncio.run(ask()) == [1] * 50


def test_an_answer_lasts_two_seconds(clock):
    async def ask():
        shared, question = Shared(), Question(clock)
        answers = []
        for _ in range(4):
            answers.append(await shared.get("a", question))
            clock.now_s += 1.5
        shared.forget("a")
        return [*answers, await shared.get("a", question), await shared.get("b", question)]

    assert asyncio.run(ask()) == [1, 1, 2, 2, 3, 4]


def test_a_failure_lasts_one_second_and_one_who_leaves_takes_nothing_along(clock):
    async def ask():
        shared, question = Shared(), Question(clock)
        question.failure = ValueError("no")
        for _ in range(2):
            with pytest.raises(ValueError):
                await shared.get("a", question)
        assert question.asked == 1
        clock.now_s += 1.1
        question.failure = None
        question.may_answer.clear()
        leaving = asyncio.ensure_future(shared.get("a", question))
        staying = asyncio.ensure_future(shared.get("a", question))
        await asyncio.sleep(0)
        leaving.cancel()
        question.may_answer.set()
        return await staying

    assert asyncio.run(ask()) == 2


def test_no_request_waits_for_the_renewal_of_a_slow_answer(clock):
    async def ask():
        shared, question = Shared(), Question(clock, takes_s=1.0)
        assert await shared.get("a", question) == 1
        clock.now_s += 9  # ten times what it took
        assert await shared.get("a", question) == 1
        assert question.asked == 1
        clock.now_s += 5
        question.may_answer.clear()
        assert await shared.get("a", question) == 1  # and is being renewed
        assert await shared.get("a", question) == 1
        await asyncio.sleep(0)
        assert question.asked == 2
        question.may_answer.set()
        while await shared.get("a", question) == 1:
            await asyncio.sleep(0)
        assert await shared.get("a", question) == 2
        clock.now_s += 60  # no request came for long: the old one is not shown any more
        return await shared.get("a", question)

    assert asyncio.run(ask()) == 3


def test_the_failure_of_a_renewal_is_reported(clock):
    async def ask():
        shared, question = Shared(), Question(clock, takes_s=1.0)
        await shared.get("a", question)
        clock.now_s += 15
        question.failure = ValueError("gone")
        assert await shared.get("a", question) == 1
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="gone"):
            await shared.get("a", question)

    asyncio.run(ask())
