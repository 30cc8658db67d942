"""The fetch sessions by themselves: their number is bounded, and who leaves makes room."""

import pytest

from headwater.broker import fetch_sessions
from headwater.broker.fetch_sessions import EVICTABLE_AFTER_S, MAX_SESSIONS, FetchSessions
from headwater.broker.security.authorizer import Principal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
)
from headwater.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def sessions(clock):
    return FetchSessions(clock)


def _begin(sessions: FetchSessions, session_id: int = 0):
    topics = [FetchRequestFetchTopic(topic="t", partitions=[FetchRequestFetchPartition()])]
    request = FetchRequest(session_id=session_id, session_epoch=0, topics=topics)
    return sessions.session_for(request, by_id=False)


def _go_on(sessions: FetchSessions, session_id: int, epoch: int):
    request = FetchRequest(session_id=session_id, session_epoch=epoch)
    return sessions.session_for(request, by_id=False)


def test_without_a_session(sessions):
    session = sessions.session_for(FetchRequest(), by_id=False)
    assert (session.id, len(sessions)) == (0, 0)


def test_a_full_table_gives_no_more(sessions):
    assert len({_begin(sessions).id for _ in range(MAX_SESSIONS)}) == MAX_SESSIONS
    late = _begin(sessions)
    assert late.id == 0
    assert len(late.partitions) == 1  # the request is served all the same
    assert len(sessions) == MAX_SESSIONS


def test_the_one_unused_for_longest_goes_first(sessions, clock):
    ids = [_begin(sessions).id for _ in range(MAX_SESSIONS)]
    _go_on(sessions, ids[0], 1)
    clock.advance(EVICTABLE_AFTER_S + 1)
    _go_on(sessions, ids[0], 2)
    assert _begin(sessions).id > 0
    assert len(sessions) == MAX_SESSIONS
    with pytest.raises(ApiError) as refused:
        _go_on(sessions, ids[1], 1)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert _go_on(sessions, ids[0], 3).id == ids[0]


def test_a_new_session_ends_the_old_one(sessions):
    first = _begin(sessions).id
    second = _begin(sessions, first).id
    assert second != first
    assert len(sessions) == 1


def _of_many(sessions: FetchSessions, count: int, **fields):
    partitions = [FetchRequestFetchPartition(partition=index) for index in range(count)]
    topics = [FetchRequestFetchTopic(topic="many", partitions=partitions)]
    return sessions.session_for(FetchRequest(topics=topics, **fields), by_id=False)


def test_what_all_of_them_remember_is_bounded(sessions, monkeypatch):
    half = 500
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 2 * half)
    first = _of_many(sessions, half, session_epoch=0)
    second = _of_many(sessions, half, session_epoch=0)
    assert first.id
    assert second.id
    # One more is served, but not remembered.
    third = _of_many(sessions, 10, session_epoch=0)
    assert (third.id, len(third.partitions)) == (0, 10)
    # One that grows beyond it has to begin a new session.
    with pytest.raises(ApiError) as refused:
        _of_many(sessions, half + 1, session_id=second.id, session_epoch=1)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 1
    # Who leaves makes room.
    _of_many(sessions, 0, session_id=first.id, session_epoch=-1)
    assert _of_many(sessions, half, session_epoch=0).id
    assert _of_many(sessions, half, session_epoch=0).id


def test_epochs_go_round(sessions):
    session = _begin(sessions)
    session.epoch = 2**31 - 1
    assert _go_on(sessions, session.id, 1).epoch == 1


def test_no_client_continues_or_ends_the_session_of_another(sessions):
    session = _begin(sessions)
    for epoch in (1, 0, -1):
        request = FetchRequest(session_id=session.id, session_epoch=epoch)
        if epoch == 1:
            with pytest.raises(ApiError) as refused:
                sessions.session_for(request, by_id=False, owner=Principal("mallory"))
            assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        else:
            other = sessions.session_for(request, by_id=False, owner=Principal("mallory"))
            assert not other.partitions
    assert len(_go_on(sessions, session.id, 1).partitions) == 1
