"""Matches on their way to people, as docs/search.md says it: from a topic by webhook, and by mail.
Each is sent once, also if the pipeline is killed where it would repeat a batch.
"""

import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from support.gateway.receivers import receivers
from support.gateway.serving import serving
from support.pipelines.project import Project
from support.pipelines.spark_killing import Victim
from support.sinks.smtp_receiver import receiving_mails
from tiers import in_full

from headwater.cli import main
from headwater.pipelines.search.stored_searches import StoredSearch, StoredSearches
from headwater.settings import ClientSettings

PAGE = Path(__file__).parents[3] / "docs/search.md"
TIMEOUT_S = 240.0
LOOPBACK = "127.0.0.0/8"


def page_example() -> str:
    """The page's pipeline, with what it says of mails."""
    first, mails, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return textwrap.dedent(first.partition("-> None:\n")[2]) + textwrap.dedent(mails)


@pytest.fixture
def project(tmp_path, headwater_broker):
    """With a broker of its own: the topics have the names of the page."""
    return Project(tmp_path, headwater_broker.bootstrap)


def produce(project, numbers) -> None:
    for number in numbers:
        title = f"<b>Storms</b> and rain, number {number}"
        project.produce("articles", {"id": number, "title": title})


def run_command(project, *arguments: str) -> None:
    assert main.run([*arguments, "--config", str(project.file)]) == 0


@pytest.mark.parametrize("death", ["mail/mails", *in_full("topic/matches")])
def test_matches_are_sent_once_by_webhook_and_mail_also_after_a_kill(project, death):
    project.topic("articles", 2)
    project.topic("matches")
    with receiving_mails() as mails, receivers() as hooks:
        project.section(
            f"""
            [sink.mail]
            kind = "email"
            url = "smtp://127.0.0.1:{mails.port}"
            [sink.mail.options]
            from = "Searches <searches@example.org>"
            [gateway]
            webhook_allowed_networks = "{LOOPBACK}"
            """
        )
        project.pipeline("found", page_example())
        searches = StoredSearches(project.bootstrap, ClientSettings())
        searches.put(StoredSearch("storms", "storm", target="ann"))
        searches.put(StoredSearch("rain", "rain", target="bob@example.org"))
        searches.put(StoredSearch("none", "storm OR rain"))
        run_command(
            project, "webhook", "add", "ann", hooks.url_of("ann"), "-t", "matches",
            "--where", "$.target=ann",
        )  # fmt: skip
        with serving(
            project.directory,
            broker__bootstrap=project.bootstrap,
            gateway__webhook_allowed_networks=LOOPBACK,
            delivers=True,
        ):
            produce(project, range(5))
            killed = Victim(project, "found", death={"write": death, "at": "applied", "batch": 1})
            try:
                killed.wait(TIMEOUT_S)
            finally:
                killed.end()
            produce(project, range(5, 10))
            victim = Victim(project, "found")
            try:
                victim.wait_until(
                    lambda: len(mails.mails) >= 10 and len(hooks.got["ann"]) >= 10, "all matches"
                )
            finally:
                victim.end()
    sent = Counter(mail.message["Subject"] for mail in mails.mails)
    assert sent == {f"rain: <b>Storms</b> and rain, number {n}": 1 for n in range(10)}
    assert {tuple(mail.recipients) for mail in mails.mails} == {("bob@example.org",)}
    texts = sorted(mail.text for mail in mails.mails)
    assert "<b>Storms</b> and <em>rain</em>, number 0" in texts[0]
    received = Counter(got.json["value"]["id"] for got in hooks.got["ann"])
    assert received == dict.fromkeys(range(10), 1)
    (value,) = (got.json["value"] for got in hooks.got["ann"] if got.json["value"]["id"] == 0)
    assert (value["query_id"], value["target"]) == ("storms", "ann")
