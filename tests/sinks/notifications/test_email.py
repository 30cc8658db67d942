"""Mails, to a real SMTP server; what was sent is recorded on a real broker."""

import ssl
import time
from contextlib import closing
from uuid import uuid4

import pyarrow as pa
import pytest
from support.certificates import Authority
from support.sinks.kill_writer import ROWS, Work, write_and_be_killed
from support.sinks.sink_rows import batch, position, table
from support.sinks.smtp_receiver import receiving_mails

from headwater.errors import ConfigError, RowRefused, StoreRefused, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks.contract import AT_LEAST_ONCE, Log, Target
from headwater.sinks.notifications import delivery
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

FIELDS = pa.schema([("id", pa.int64()), ("email", pa.string()), ("name", pa.string())])
TEMPLATES = {"to": "{email}", "subject": "Order {id}", "body": "Hello {name},\n{{{id}}}\n"}
KILLS = 10


@pytest.fixture
def receiver():
    with receiving_mails() as receiver:
        yield receiver


@pytest.fixture
def store_with(receiver, topic_headwater):
    """Makes stores for the receiver; a name of their own for each test."""
    name = f"mails{uuid4().hex[:8]}"

    def make(url=None, sink=None, **options):
        settings = SinkSettings(
            name,
            kind="email",
            url=Secret(url or f"smtp://127.0.0.1:{receiver.port}"),
            options={"from": "Shop <shop@example.org>", **(sink or {})},
        )
        target = Target("shop", "orders", (), {**TEMPLATES, **options})
        return store_of(settings, target, Log(topic_headwater))

    return make


def row(n, email=None, name="Ann"):
    return {"id": n, "email": email or f"a{n}@example.org", "name": name}


def test_each_row_is_a_mail(receiver, store_with):
    store = store_with(to="{name} <{email}>, archive@example.org")
    store.check()
    assert store.guarantee == AT_LEAST_ONCE
    rows = [row(1, name='Zoë, the "first"'), row(2), row(3), row(4)]
    with store.writer(1, FIELDS) as writer:
        for _ in range(2):
            writer.apply(batch(0, table(FIELDS, rows, ["c", "d", "u", "t"])))
        assert writer.position == position(0)
    first, second = receiver.mails
    assert first.sender == "shop@example.org"
    assert first.recipients == ["a1@example.org", "archive@example.org"]
    message = first.message
    assert [address.display_name for address in message["To"].addresses] == ['Zoë, the "first"', ""]
    assert str(message["From"]) == "Shop <shop@example.org>"
    assert message["Subject"] == "Order 1"
    assert first.text == 'Hello Zoë, the "first",\n{1}'
    assert message["Auto-Submitted"] == "auto-generated"
    assert second.message["Subject"] == "Order 3"
    assert first.message["Message-ID"] != second.message["Message-ID"]
    assert first.message["Message-ID"].endswith("@example.org>")
    assert store.versions()[0].position == position(0)


def test_what_a_row_holds_is_never_a_header_or_another_recipient(receiver, store_with):
    evil = "x\r\nBcc: evil@example.org\r\n\r\nbody"
    addresses = [
        "a@example.org, evil@example.org",
        "a@example.org\r\nBcc: evil@example.org",
        "a@example.org>\r\nRCPT TO:<evil@example.org",
        "<evil@example.org>", "", "nobody", "a@b@c",
    ]  # fmt: skip
    rows = [row(n, email) for n, email in enumerate(addresses, 1)]
    rows[4]["email"] = None
    refusals = []
    with store_with(subject="{name}", body="{name}", to="{name} <{email}>").writer(
        1, FIELDS
    ) as writer:
        writer.apply(batch(0, table(FIELDS, [row(0, name=evil), *rows])), refusals.extend)
    [mail] = receiver.mails
    assert mail.recipients == ["a0@example.org"]
    assert mail.message["Bcc"] is None
    assert mail.message["Subject"] == "x Bcc: evil@example.org body"
    assert [error.row["id"] for error in refusals] == [1, 2, 3, 4, 5, 6, 7]


def test_a_mail_that_is_refused(receiver, store_with):
    receiver.to = lambda address: "550 no such user" if address == "a2@example.org" else "250 OK"
    rows = table(FIELDS, [row(1), row(2), row(3)])
    with store_with().writer(1, FIELDS) as writer:
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(0, rows))
        assert caught.value.row["id"] == 2
        assert "550 no such user" in caught.value.detail
        refusals = []
        writer.apply(batch(0, rows), refusals.extend)
    assert [error.row["id"] for error in refusals] == [2]
    assert [mail.recipients[0] for mail in receiver.mails] == ["a1@example.org", "a3@example.org"]


def test_what_is_not_taken_now_is_sent_again(receiver, store_with):
    receiver.mail = lambda number, _: "451 later" if number == 1 else "250 OK"
    with store_with().writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, [row(1), row(2), row(3)])))
    assert [mail.message["Subject"][-1] for mail in receiver.mails] == list("1223")
    ids = [mail.message["Message-ID"] for mail in receiver.mails]
    assert ids[1] == ids[2]
    assert len(set(ids)) == 3


def test_the_next_writer_goes_on_behind_what_was_sent(receiver, store_with, monkeypatch):
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.3)
    receiver.to = lambda address: "450 later" if address == "a2@example.org" else "250 OK"
    rows = table(FIELDS, [row(n) for n in range(4)])
    with store_with().writer(1, FIELDS) as writer, pytest.raises(StoreUnreachable, match="arrive"):
        writer.apply(batch(0, rows))
    receiver.to = lambda _: "250 OK"
    with store_with().writer(1, FIELDS) as writer:
        writer.apply(batch(0, rows))
    assert [mail.message["Subject"][-1] for mail in receiver.mails] == list("0123")


def test_logging_in_over_tls(receiver, store_with, tmp_path):
    authority = Authority(tmp_path)
    receiver.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    receiver.tls.load_cert_chain(*authority.issue("mail"))
    receiver.password = "right one"
    address = f"127.0.0.1:{receiver.port}"
    trusting = {"tls_ca": authority.ca}
    store = store_with(f"smtp+starttls://me:right%20one@{address}", trusting)
    store.check()
    with store.writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, [row(1)])))
    assert len(receiver.mails) == 1
    assert receiver.logins[-1] == ("me", "right one")
    with pytest.raises(StoreRefused, match="certificate"):
        store_with(f"smtp+starttls://me:x@{address}").check()
    with pytest.raises(StoreRefused, match="does not let me in") as caught:
        store_with(f"smtp+starttls://me:wrong-one@{address}", trusting).check()
    assert "wrong-one" not in f"{caught.value} {caught.value.detail}"
    with receiving_mails(receiver.tls) as encrypted:
        with store_with(f"smtps://127.0.0.1:{encrypted.port}", trusting).writer(
            1, FIELDS
        ) as writer:
            writer.apply(batch(1, table(FIELDS, [row(2)])))
        assert len(encrypted.mails) == 1


def test_a_sender_that_the_server_does_not_take_refuses_no_row(receiver, store_with):
    receiver.sender = "550 not you"
    refusals = []
    with store_with().writer(1, FIELDS) as writer, pytest.raises(StoreRefused, match="shop@"):
        writer.apply(batch(0, table(FIELDS, [row(1)])), refusals.extend)
    assert not refusals


def test_no_faster_than_asked(receiver, store_with):
    began_s = time.monotonic()
    with store_with(sink={"mails_per_minute": "600"}).writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, [row(n) for n in range(5)])))
    assert time.monotonic() - began_s >= 0.4


def test_no_server_listens(store_with, monkeypatch):
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.2)
    store = store_with("smtp://127.0.0.1:1")
    with pytest.raises(StoreUnreachable):
        store.check()
    with store.writer(1, FIELDS) as writer, pytest.raises(StoreUnreachable, match="arrive"):
        writer.apply(batch(0, table(FIELDS, [row(1)])))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://x", {}),
        ("smtp://me:secret@mail.example.org", {}),  # in clear
        (None, {"to": ""}),
        (None, {"subject": "{id"}),
        (None, {"from": "nobody"}),
    ],
)
def test_settings_that_are_wrong(store_with, url, options):
    with pytest.raises(ConfigError):
        store_with(url, **options)


def test_a_template_with_a_column_that_is_not_there(store_with):
    with pytest.raises(ConfigError, match="nothing") as caught:
        store_with(body="{nothing}").writer(1, FIELDS)
    assert "email" in caught.value.hint


def test_killed_senders_lose_nothing_and_keep_the_order(receiver, topic_headwater):
    """What comes twice has the same Message-ID; the first of each are in order."""
    options = {"from": "shop@example.org", "to": "a@example.org", "subject": "{id} {n}"}
    target = Target("shop", f"kills{uuid4().hex[:8]}", (), options)
    url = f"smtp://127.0.0.1:{receiver.port}"
    work = Work("email", url, {}, target, Log(topic_headwater), "added")
    batches = write_and_be_killed(work, KILLS)
    rows = [row for number in range(batches) for row in ROWS["added"](number).to_pylist()]
    first = {}
    for mail in receiver.mails:
        message = mail.message
        subject = str(message["Subject"])
        assert first.setdefault(str(message["Message-ID"]), subject) == subject
    assert list(first.values()) == [f"{row['id']} {row['n']}" for row in rows]
    assert len(receiver.mails) <= len(rows) + KILLS  # at most one for each kill
    with closing(work.store()) as store:
        assert store.versions()[0].position == position(batches - 1)
