"""Request checks in front of the pages."""

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.console.serving import TIMEOUT_S, serving

from headwater import config
from headwater.console.server import check_network
from headwater.errors import ConfigError
from headwater.web.hosts import host_is_ours
from headwater.web.logins import is_needed

PATHS = ["/topics", "/topics.json", "/nowhere", "/ready", "/static/console.css", "/sign-in"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_headers_that_protect_it(browser, path):
    headers = browser.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert path.startswith("/static/") or headers["cache-control"] == "no-store"


def test_no_page_has_scripts_or_styles_of_its_own(browser):
    page = browser.get("/topics").text
    assert "<style" not in page
    assert " style=" not in page
    assert "<script>" not in page
    assert " onclick" not in page


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("10.1.2.3:8080", True),
        ("localhost:8080", True),
        ("LOCALHOST.", True),
        ("console.example.org", True),
        ("evil.example.org", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8080", False),
        ("", False),
        ("a b", False),
    ],
)
def test_the_console_answers_to_addresses_and_to_its_own_names(host, is_ours):
    assert host_is_ours(host, frozenset({"localhost", "console.example.org"})) is is_ours


def test_another_name_is_not_answered(browser):
    answer = browser.get("/topics.json", Host="evil.example.org")
    assert answer.status == 421
    assert b"topics" not in answer.body


def test_a_form_without_its_token_changes_nothing(browser):
    assert browser.post("/sign-out", token=False).status == 403
    assert browser.post("/sign-out", {"csrf": "0" * 64}).status == 403
    assert browser.post("/sign-out").status == 303


def test_the_token_of_another_browser_is_not_good(console, browser):
    browser.get("/topics")
    other = console.browser().token()
    assert browser.post("/sign-out", {"csrf": other}).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_not_answered(browser, headers):
    assert browser.post("/sign-out", **headers).status == 403


@pytest.mark.parametrize(
    "path", ["/jobs/{}/", "/topics/x/records/{}/0/", "/topics/x/records/0/{}/value"]
)
def test_a_number_of_thousands_of_digits_is_no_page(browser, path):
    assert browser.get(path.format("9" * 5000)).status == 404


def test_a_position_far_beyond_is_a_mistake_of_the_user(console_broker, browser):
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic("numbered", 1)])["numbered"].result(TIMEOUT_S)
    for since in ("-" + "9" * 5000 + "h", "9" * 5000, "0001-01-01"):
        fields = {"to": "time", "value": since, "topic": "numbered"}
        assert browser.post("/groups/of-numbers/seek", fields).status < 500
    fields = {"path": f"a[{'9' * 5000}]"}
    assert browser.post("/topics/numbered/search", fields).status == 400


def test_the_size_of_a_header_does_not_take_long(browser):
    """64 KiB are a head; unquoting them as a cookie took a minute, on the event loop."""
    for value in ("\\" * 60_000, '\\"' * 30_000):
        begun_s = time.monotonic()
        assert browser.get("/live", Cookie=f'a="{value}"').status == 200
        assert time.monotonic() - begun_s < 10


def test_only_forms_are_taken(browser):
    assert browser.post("/sign-out", Content_Type="application/json").status == 415
    assert browser._request("DELETE", "/topics", None, {}).status == 405


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(browser):
    cookie = browser.get("/topics").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_cookie_that_is_not_ours_opens_no_session(browser):
    browser.get("/topics")
    ((name, value),) = browser.cookies.items()
    browser.cookies[name] = value[:-1] + ("0" if value[-1] != "0" else "1")
    assert browser.get("/topics").headers["set-cookie"]


@pytest.mark.parametrize(
    ("listen", "more", "reason"),
    [
        ("127.0.0.1:0", {}, None),
        ("[::1]:0", {}, None),
        ("localhost:0", {}, None),
        ("0.0.0.0:0", {}, "the broker has no users"),
        ("192.168.1.2:0", {"broker.authentication": "sasl"}, "passwords"),
        ("0.0.0.0:0", {"broker.authentication": "sasl", "console.tls_cert": "c"}, None),
        ("0.0.0.0:0", {"console.allow_insecure_network": True}, None),
    ],
)
def test_a_network_is_not_served_by_accident(tmp_path, listen, more, reason):
    loaded = config.load({"console.listen": listen, **more}, environ={}, cwd=str(tmp_path))
    if reason is None:
        check_network(loaded, needs_sign_in=is_needed(loaded))
        return
    with pytest.raises(ConfigError) as caught:
        check_network(loaded, needs_sign_in=is_needed(loaded))
    assert reason in caught.value.detail


def test_a_broker_that_does_not_answer_is_reported_on_every_page(tmp_path):
    with serving(tmp_path, broker__bootstrap="127.0.0.1:1") as served:
        browser = served.browser()
        answer = browser.get("/topics")
        assert answer.status == 503
        assert "The broker does not answer" in answer.text
        assert browser.get("/topics.json").json["error"] == "the broker does not answer"
        assert browser.get("/ready").status == 200
