"""Where users sign in, jobs are for those who may alter the cluster, and run as they."""

import sys
import time

import pytest
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import serving

from headwater.console.project import jobs

TIMEOUT_S = 60
CODE = (
    "import json, os\n"
    "print(json.dumps([os.environ.get('HEADWATER_CLIENT__' + each)"
    " for each in ('USERNAME', 'PASSWORD', 'SASL_MECHANISM', 'TLS')]))"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`alice` may do everything, `bob` nothing."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        add_user(broker, "bob", "builder")
        with serving(
            tmp_path_factory.mktemp("c"),
            broker__listen=broker.bootstrap,
            broker__authentication="sasl",
        ) as console:
            yield console


def signed_in(served, name, password):
    browser = served.browser()
    assert browser.post("/sign-in", {"name": name, "password": password}).status == 303
    return browser


def test_jobs_run_as_who_set_them_off_and_are_not_for_others(served, monkeypatch):
    monkeypatch.setattr(jobs, "_COMMAND", (sys.executable, "-c", CODE))
    alice, bob = signed_in(served, USER, PASSWORD), signed_in(served, "bob", "builder")
    answer = alice.post("/stores/verify")
    assert answer.status == 303, answer.text
    path = answer.headers["location"].rstrip("/") + ".json"
    end_s = time.monotonic() + TIMEOUT_S
    while (job := alice.get(path).json)["state"] in ("waiting", "running"):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    assert job["result"] == [USER, PASSWORD, "SCRAM-SHA-256", "false"]
    assert bob.post("/stores/verify").status == 403
    assert bob.get(path).status == 403
    assert bob.get("/jobs.json").json["jobs"] == []
    assert bob.post(answer.headers["location"] + "cancel").status == 403
