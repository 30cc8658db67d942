"""Personal fields of events: encrypted in the database and the log, gone with their key."""

from pathlib import Path

import msgspec
import pytest
from support.capture.capture_harness import read, running
from support.subjects.customers import customers
from tiers import long

from headwater.errors import EventRefused, KeyStoreLost
from headwater.events import Event, EventTypes, View, open_store
from headwater.subjects.key_store import KeyStore
from headwater.testing import InProcessBroker

TOPIC = "outbox.event.account"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=long)])
def url(request, tmp_path):
    """The address of a new, empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/events.db"
    return request.getfixturevalue("postgres").url


@pytest.fixture
def personal(tmp_path):
    return customers(tmp_path, TOPIC, id_field="owner", fields=("name", "age"))


@pytest.fixture
def types():
    found = EventTypes()

    @found.register
    class Opened(msgspec.Struct):
        owner: str
        name: str
        age: int | None = None

    return found


def erase(personal, subject):
    store = KeyStore(personal.places)
    store.begin_erasure("customer", store.subject_hash("customer", subject), {})
    store.close()


def test_data_are_encrypted_in_the_database_and_plain_for_readers(url, personal, types):
    with open_store(url, types=types, personal=personal) as store:
        opened = types._named("Opened").cls("eva", "Eva Zyx", 33)
        store.append("account-1", [opened])
        with store.transaction() as transaction:
            transaction.append("account-2", [types._named("Opened").cls("max", "Max Qrs", 44)])
            assert [event.data.name for event in transaction.read()] == ["Eva Zyx", "Max Qrs"]
        store.append("order-1", [types._named("Opened").cls("eva", "no personal topic")])
        (first, *_) = store.read(stream="account-1")
        assert first.data == opened
        assert "Zyx" not in first.json
        assert first.as_dict()["data"]["owner"] == "eva"
        assert first.as_dict()["data"]["age"].startswith("hw1:")
        with store.subscribe(category="account") as subscription:
            seen = subscription.next_batch(60, 2)
        assert [event.data.age for event in seen] == [33, 44]
    with open_store(url, types=types) as store:  # who has no keys
        assert [event.data.name for event in store.read(category="order")] == ["no personal topic"]
        with pytest.raises(EventRefused):
            next(store.read(stream="account-1")).data  # noqa: B018


def test_readers_of_an_erased_subject_get_a_marked_blank(url, personal, types):
    with open_store(url, types=types, personal=personal) as store:
        make = types._named("Opened").cls
        store.append("account-1", [make("eva", "Eva Zyx", 33), make("max", "Max Qrs", None)])
        erase(personal, "eva")
        eva, max_ = (event.data for event in store.read(stream="account-1"))
        assert (eva.owner, eva.name, eva.age) == ("eva", "(erased)", None)
        assert max_.name == "Max Qrs"
        store.append("account-1", [make("eva", "Eva Again", 1)])
        assert [event.data.name for event in store.read(stream="account-1")][2] == "(erased)"
    with open_store(url, personal=personal) as store:  # without classes: what JSON has
        assert next(store.read()).data == {"owner": "eva", "name": None, "age": None}


def test_a_synchronous_view_sees_plain_data(url, personal):
    names = []
    view = View("names", lambda events, _: names.extend(event.data["name"] for event in events))
    with open_store(url, personal=personal, views=[view]) as store:
        store.append("account-1", [Event("Opened", {"owner": "eva", "name": "Eva"})])
    assert names == ["Eva"]


def test_events_that_do_not_say_whose_they_are_are_refused(url, personal):
    with open_store(url, personal=personal) as store:
        with pytest.raises(EventRefused, match="personal fields"):
            store.append("account-1", [Event("Opened", {"name": "Eva"})])
        store.append("account-1", [Event("Closed", {"reason": "none"})])
        assert store.head() == 1


def test_without_its_key_store_nothing_is_appended(url, personal):
    with open_store(url, personal=personal) as store:
        store.append("account-1", [Event("Opened", {"owner": "eva", "name": "Eva"})])
        for file in Path(personal.places.key_store).glob("keys.sqlite*"):
            file.unlink()
        with pytest.raises(KeyStoreLost):
            store.append("account-2", [Event("Opened", {"owner": "max", "name": "Max"})])
        assert store.head() == 1


def test_published_events_are_encrypted_once(tmp_path, personal):
    """The capture finds them encrypted, and encrypts what older versions have appended."""
    url = f"sqlite:///{tmp_path}/events.db"
    with open_store(url) as store:
        store.append("account-1", [Event("Opened", {"owner": "eva", "name": "Eva Old"})])
    with open_store(url, personal=personal) as store:
        store.append("account-1", [Event("Opened", {"owner": "eva", "name": "Eva New"})])
        stored = [event.as_dict()["data"]["name"] for event in store.read()]
    table = "main.headwater_events"
    with (
        InProcessBroker.serving(str(tmp_path / "broker")) as broker,
        running(
            broker.bootstrap, url, "events", personal, tables=(table,), outbox=table
        ) as capture,
    ):
        capture.wait_until(lambda: len(read(broker.bootstrap, TOPIC)) == 2, "both events")
        old, new = (record.value["name"] for record in read(broker.bootstrap, TOPIC))
    assert new == stored[1]
    assert old.startswith("hw1:")
    assert personal.keyring.decrypt(old, "name") == b'"Eva Old"'
