"""Users of the broker sign in, and see what the broker lets them see."""

import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import serving

from headwater.config import load
from headwater.console.web.sessions import Sessions
from headwater.errors import ConfigError
from headwater.settings import ClientSettings
from headwater.web.attempts import Attempts

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def secured_console(tmp_path_factory):
    """`alice` may do everything, `bob` may read the topic `open`."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        add_user(broker, "bob", "builder")
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        for future in admin.create_topics([NewTopic("open", 1), NewTopic("closed", 1)]).values():
            future.result(TIMEOUT_S)
        may_read = AclBinding(
            ResourceType.TOPIC, "open", ResourcePatternType.LITERAL, "User:bob", "*",
            AclOperation.READ, AclPermissionType.ALLOW,
        )  # fmt: skip
        for future in admin.create_acls([may_read]).values():
            future.result(TIMEOUT_S)
        with serving(
            tmp_path_factory.mktemp("c"),
            broker__listen=broker.bootstrap,
            broker__authentication="sasl",
        ) as served:
            yield served


def signed_in(served, name, password):
    browser = served.browser()
    answer = browser.post("/sign-in", {"name": name, "password": password, "next": "/topics"})
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    return browser


def test_nothing_is_shown_to_strangers(secured_console):
    browser = secured_console.browser()
    answer = browser.get("/topics?search=a")
    assert (answer.status, answer.headers["location"]) == (
        303,
        "/sign-in?next=/topics%3Fsearch%3Da",
    )
    assert browser.get("/topics.json").status == 401
    assert browser.get("/topics", HX_Request="true").headers["hx-redirect"] == "/sign-in"
    assert browser.post("/topics/open/delete").headers["location"] == "/sign-in"
    assert browser.get("/metrics").status == 303
    assert browser.get("/ready").status == 200


def test_strangers_cannot_send_much(secured_console):
    browser = secured_console.browser()
    assert browser.post("/sign-in", {"name": "x" * 100_000}).status == 413
    alice = signed_in(secured_console, USER, PASSWORD)
    answer = alice.post("/topics/open/produce", {"value": "x" * 100_000})
    assert answer.status == 200
    assert alice.post("/topics/open/produce", {"value": "x" * (5 << 20)}).status == 413


def test_users_see_what_the_broker_shows_them(secured_console):
    alice = signed_in(secured_console, USER, PASSWORD)
    assert alice.get("/topics.json").json["total"] == 2
    bob = signed_in(secured_console, "bob", "builder")
    assert [topic["topic"] for topic in bob.get("/topics.json").json["topics"]] == ["open"]
    assert bob.get("/topics/open/records.json").status == 200
    assert bob.get("/topics/closed/records.json").status == 404
    assert "bob" in bob.get("/topics").text


def test_what_the_broker_refuses_is_shown_as_refused(secured_console):
    bob = signed_in(secured_console, "bob", "builder")
    answer = bob.post("/topics/open/delete", {"confirmed": "yes", "typed": "open"})
    assert answer.status == 403
    assert "AUTHORIZATION" in answer.text
    answer = bob.post("/topics/open/produce", {"value": "x", "confirmed": "yes"})
    assert answer.status == 403
    assert bob.get("/topics/open.json").json["configs"] is None
    alice = signed_in(secured_console, USER, PASSWORD)
    assert alice.get("/topics/open/records.json").json["records"] == []


def test_signing_out_ends_the_session_for_good(secured_console):
    browser = signed_in(secured_console, USER, PASSWORD)
    cookies = dict(browser.cookies)
    assert browser.post("/sign-out").status == 303
    assert browser.get("/topics.json").status == 401
    browser.cookies = cookies
    assert browser.get("/topics.json").status == 401


def test_a_session_from_before_signing_in_is_no_use_afterwards(secured_console):
    browser = secured_console.browser()
    browser.get("/sign-in")
    before = dict(browser.cookies)
    browser.post("/sign-in", {"name": USER, "password": PASSWORD})
    assert browser.get("/topics.json").status == 200
    planted = secured_console.browser()
    planted.cookies = before
    assert planted.get("/topics.json").status == 401


def test_who_asked_does_not_change_while_a_request_is_answered(secured_console, monkeypatch):
    """A session that ends in the midst must not leave the request to the console's own login."""
    console = secured_console.console
    bob = signed_in(secured_console, "bob", "builder")
    token = bob.token()
    who = console.sessions.who

    def once(session):
        found = who(session)
        console.sessions.sign_out(session)
        return found

    monkeypatch.setattr(console.sessions, "who", once)
    answer = bob.post("/stores/verify", {"csrf": token}, token=False)
    assert (answer.status, console.jobs.all()) == (403, [])


def test_jobs_are_seen_by_those_who_may_set_them_off(secured_console):
    alice = signed_in(secured_console, USER, PASSWORD)
    address = alice.post("/stores/verify").headers["location"]
    assert len(alice.get("/jobs.json").json["jobs"]) == 1
    assert alice.get(address).status == 200
    bob = signed_in(secured_console, "bob", "builder")
    assert bob.get("/jobs.json").json["jobs"] == []
    answer = bob.get(address)
    assert (answer.status, "may not see jobs" in answer.text) == (403, True)
    assert bob.post(f"{address}cancel").status == 403
    assert alice.post(f"{address}cancel").status == 303


def test_nothing_is_read_for_who_has_signed_out(secured_console):
    console = secured_console.console
    first, second = (signed_in(secured_console, "bob", "builder") for _ in range(2))
    assert first.get("/topics.json").status == 200
    first.post("/sign-out")
    assert second.get("/topics.json").status == 200
    assert console.sessions.has("bob")
    for session, login in list(console.sessions._signed_in.items()):
        if login.user == "bob":
            last = session
            console.sessions.sign_out(session)
    assert not console.sessions.is_open(last)
    console.forget("bob")
    assert "bob" not in console._accesses


def test_a_cookie_of_any_letters_opens_no_session(secured_console):
    browser = secured_console.browser()
    browser.cookies = {secured_console.console.cookie_name: "s\xe9.\xfc"}
    assert browser.get("/topics.json").status == 401


def test_a_new_password_ends_the_sessions_with_the_old_one():
    sessions = Sessions()
    old = sessions.sign_in("a", ClientSettings(username="a"))
    other = sessions.sign_in("b", ClientSettings(username="b"))
    new = sessions.sign_in("a", ClientSettings(username="a", sasl_mechanism="PLAIN"))
    assert [sessions.is_open(session) for session in (old, other, new)] == [False, True, True]


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil", "x"])
def test_signing_in_leads_nowhere_else(secured_console, after):
    browser = secured_console.browser()
    answer = browser.post("/sign-in", {"name": USER, "password": PASSWORD, "next": after})
    assert answer.headers["location"] == "/"


def test_sign_in_needs_a_name(secured_console, monkeypatch):
    """Also if the broker should believe it: jobs take the name "" for one who need not sign in."""
    monkeypatch.setattr("headwater.console.web.signing_in.try_login", lambda *_: None)
    browser = secured_console.browser()
    assert browser.post("/sign-in", {"name": "", "password": ""}).status == 403
    assert browser.get("/jobs.json").status == 401


def test_guessing_passwords_is_slowed_down(secured_console):
    browser = secured_console.browser()
    statuses = [
        browser.post("/sign-in", {"name": "bob", "password": f"guess {number}"}).status
        for number in range(6)
    ]
    assert statuses == [403] * 5 + [429]
    answer = browser.post("/sign-in", {"name": "bob", "password": "builder"})
    assert answer.status == 429
    assert 0 < int(answer.headers["retry-after"]) <= 61
    secured_console.console.attempts = Attempts()  # for the tests that come


def guesses(browser, number, forwarded_for):
    fields = {"name": "bob", "password": "wrong", "csrf": browser.token()}
    return [
        browser.post("/sign-in", fields, X_Forwarded_For=forwarded_for(guess)).status
        for guess in range(number)
    ]


def test_an_address_that_is_only_claimed_does_not_help_guessing(secured_console, caplog):
    statuses = guesses(secured_console.browser(), 6, lambda each: f"10.0.0.{each}")
    assert statuses == [403] * 5 + [429]
    secured_console.console.attempts = Attempts()
    warnings = [message for message in caplog.messages if "console.trusted_proxies" in message]
    assert len(warnings) == 1


def test_a_trusted_proxy_says_who_asks_and_how(tmp_path, secured_console):
    config = secured_console.console.config
    with serving(
        tmp_path,
        broker__listen=config.broker.listen,
        broker__authentication="sasl",
        console__trusted_proxies="127.0.0.1, 10.1.0.0/16",
    ) as proxied:
        browser = proxied.browser()
        # What the client itself has claimed stands left of what the proxies have added.
        statuses = guesses(browser, 6, lambda each: f"7.7.7.{each}, 10.0.0.1, 10.1.2.3")
        assert statuses == [403] * 5 + [429]
        assert guesses(browser, 1, lambda each: "10.0.0.2") == [403]
        answer = proxied.browser().get("/sign-in", X_Forwarded_Proto="https")
        assert "; Secure" in answer.headers["set-cookie"]
        assert "; Secure" not in proxied.browser().get("/sign-in").headers["set-cookie"]
    untrusted = secured_console.browser().get("/sign-in", X_Forwarded_Proto="https")
    assert "; Secure" not in untrusted.headers["set-cookie"]


@pytest.mark.parametrize("proxies", ["*", "proxy.example", "10.0.0.1/8"])
def test_trusted_proxies_are_addresses_and_networks(tmp_path, proxies):
    with pytest.raises(ConfigError, match="trusted_proxies"):
        load({"console.trusted_proxies": proxies}, environ={}, cwd=str(tmp_path))


def test_failures_of_many_addresses_slow_down_and_lock_no_user_out(secured_console):
    attempts = secured_console.console.attempts = Attempts()
    for number in range(150):
        attempts.begin(f"10.0.{number}.1", "bob")
    assert attempts.wait_s("127.0.0.1", "bob") == 0
    assert 1 < attempts.delay_s() < 2
    begun_s = time.monotonic()
    signed_in(secured_console, "bob", "builder")
    assert time.monotonic() - begun_s > 1
    for number in range(5000):
        attempts.begin(f"10.1.{number % 250}.{number // 250}", "bob")
    assert attempts.delay_s() == 10
    secured_console.console.attempts = Attempts()
    assert secured_console.console.attempts.delay_s() == 0


def test_who_comes_by_ipv4_to_a_socket_of_ipv6_has_an_address_of_its_own():
    attempts = Attempts()
    for number in range(20):
        attempts.begin("::ffff:10.0.0.1", str(number))
    assert attempts.wait_s("::ffff:10.0.0.1", "a") > 0
    assert attempts.wait_s("10.0.0.1", "a") > 0
    assert attempts.wait_s("::ffff:10.0.0.2", "a") == 0


def test_attempts_at_the_same_time_are_several():
    attempts = Attempts()
    for _ in range(5):
        assert attempts.wait_s("10.0.0.1", "a") == 0
        attempts.begin("10.0.0.1", "a")
    assert attempts.wait_s("10.0.0.1", "a") > 0
    assert attempts.wait_s("10.0.0.1", "b") == 0
    attempts.succeeded("10.0.0.1", "a")
    assert attempts.wait_s("10.0.0.1", "a") == 0


def test_no_user_is_locked_out_by_attempts_from_elsewhere():
    attempts = Attempts()
    for number in range(50):
        if not attempts.wait_s("10.0.0.1", "bob"):
            attempts.begin("10.0.0.1", "bob")
        if not attempts.wait_s(f"fe80::{number:x}", str(number)):
            attempts.begin(f"fe80::{number:x}", str(number))
    assert attempts.wait_s("10.0.0.1", "bob") > 0
    assert attempts.wait_s("fe80::ffff", "new") > 0  # of the same network
    assert attempts.wait_s("10.0.0.2", "bob") == 0
    assert attempts.wait_s("10.0.0.2", "x" * 1_000_000) == 0


def test_attempts_are_remembered_in_little():
    attempts = Attempts()
    for number in range(10_001):
        attempts.begin(f"10.{number >> 8 & 255}.{number & 255}.1", "x" * 10_000)
    assert len(attempts._failed) == 10_000
    assert max(map(len, attempts._failed)) < 200


def test_strangers_send_little(secured_console):
    browser = secured_console.browser()
    assert browser.post("/sign-in", {"name": "x" * 70_000, "password": ""}).status == 413
    alice = signed_in(secured_console, USER, PASSWORD)
    assert alice.post("/topics/open/produce", {"value": "x" * 70_000}).status == 200


def test_sessions_are_bounded():
    sessions = Sessions()
    first = sessions.sign_in("a", ClientSettings())
    for _ in range(1000):
        sessions.sign_in("b", ClientSettings())
    assert sessions.who(first) is None
