"""Alerts in the console: their state and history, and silences."""

import pytest
from support.console.serving import serving
from support.shared_broker import shared_broker

from headwater.gateway.alerts import store
from headwater.settings import ClientSettings


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("broker")) as bootstrap:
        yield bootstrap


def test_an_alert_is_shown_and_silenced(log, tmp_path):
    (tmp_path / "headwater.toml").write_text(
        '[alert.lag]\nwhen = "lag(orders) > 10"\nnotify = ["webhook:https://a.example/s3cret"]\n'
    )
    with serving(tmp_path, broker__bootstrap=log) as served:
        browser = served.browser()
        page = browser.get("/alerts")
        assert page.status == 200
        assert "lag(orders) &gt; 10" in page.text
        assert "s3cret" not in page.text
        assert "Nobody watches" in page.text
        shown = browser.get("/alerts.json").json
        assert shown["alerts"][0]["state"] == "not watched"
        assert browser.post("/alerts/lag/silence").status == 303
        assert store.read(log, ClientSettings()).silences["lag"] > 0
        assert "End silence" in browser.get("/alerts").text
        assert browser.post("/alerts/lag/silence", {"end": "1"}).status == 303
        assert not store.read(log, ClientSettings()).silences
        assert browser.post("/alerts/lag/silence", token=False).status == 403
        assert browser.post("/alerts/log/silence").status in (400, 404)
