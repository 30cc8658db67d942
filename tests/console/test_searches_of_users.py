"""Searches are shared out among users."""

from types import SimpleNamespace

import pytest

from headwater.console.topics import search
from headwater.console.topics.search import Searches, Wanted
from headwater.errors import RequestRefused

WANTED = Wanted(key="k")


class FakeSearch:
    """Runs until the test ends it."""

    made = 0

    def __init__(self, access, topic, partitions, wanted) -> None:
        FakeSearch.made += 1
        self.id = str(FakeSearch.made)
        self.user = access.user
        self.is_running = True


@pytest.fixture
def searches(monkeypatch):
    monkeypatch.setattr(search, "Search", FakeSearch)
    return Searches()


def user(name):
    return SimpleNamespace(user=name)


def test_a_user_leaves_searches_to_the_others(searches):
    alice, bob, carol = user("alice"), user("bob"), user("carol")
    first = searches.start(alice, "t", 1, WANTED)
    searches.start(alice, "t", 1, WANTED)
    with pytest.raises(RequestRefused, match="2 searches are running"):
        searches.start(alice, "t", 1, WANTED)
    for _ in range(2):
        searches.start(bob, "t", 1, WANTED)
    with pytest.raises(RequestRefused, match="4 searches are running"):
        searches.start(carol, "t", 1, WANTED)
    first.is_running = False
    searches.start(carol, "t", 1, WANTED)


def test_without_sign_in_there_is_no_limit_per_user(searches):
    for _ in range(4):
        searches.start(user(""), "t", 1, WANTED)
    with pytest.raises(RequestRefused):
        searches.start(user(""), "t", 1, WANTED)


def test_what_one_user_searches_does_not_push_out_what_another_found(searches):
    found = searches.start(user("bob"), "t", 1, WANTED)
    found.is_running = False
    running = searches.start(user("bob"), "t", 1, WANTED)
    for _ in range(40):
        searches.start(user("alice"), "t", 1, WANTED).is_running = False
    assert searches.find(user("bob"), found.id) is found
    assert searches.find(user("bob"), running.id) is running
    assert searches.find(user("alice"), found.id) is None
    assert len(searches._searches) <= 11
