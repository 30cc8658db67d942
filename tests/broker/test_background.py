"""Background: what is started is waited for, or stopped; failures are logged."""

import asyncio

import pytest

from headwater.broker.background import Background
from headwater.protocol.error_codes import ApiError, ErrorCode


def test_wait_also_waits_for_what_is_started_meanwhile():
    done = []

    async def scenario() -> None:
        background = Background("counting")

        async def second() -> None:
            await asyncio.sleep(0)
            done.append("second")

        async def first() -> None:
            await asyncio.sleep(0)
            background.start(second())
            done.append("first")

        background.start(first())
        await background.wait()

    asyncio.run(scenario())
    assert done == ["first", "second"]


def test_stop_cancels_and_waits_for_the_end():
    ended = []

    async def scenario() -> None:
        background = Background("waiting")

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        background.start(forever())
        await asyncio.sleep(0)
        await background.stop()
        assert ended == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "logged"),
    [(ValueError("odd"), ["counting failed"]), (ApiError(ErrorCode.NOT_CONTROLLER), [])],
)
def test_a_failure_is_logged_unless_it_is_an_answer(
    error: Exception, logged: list[str], caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        async def fail() -> None:
            raise error

        background = Background("counting")
        background.start(fail())
        await background.wait()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == logged
