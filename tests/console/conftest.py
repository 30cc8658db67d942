import os

import pytest
from support.console.chromium import EXECUTABLE, TIMEOUT_MS
from support.console.serving import serving
from support.shared_broker import shared_broker

from bench.peers.kafka import TOOL_JVM, kafka


@pytest.fixture(scope="session")
def console_broker(tmp_path_factory):
    """One broker for all tests of the console that do not break it."""
    with shared_broker(tmp_path_factory.mktemp("console-broker")) as address:
        yield address


@pytest.fixture(scope="session")
def console_kafka(tmp_path_factory):
    """The address of an Apache Kafka, for all tests of the console on one."""
    with kafka(tmp_path_factory.mktemp("console-kafka"), jvm=TOOL_JVM) as broker:
        yield broker.address


@pytest.fixture(scope="session")
def console(console_broker, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("console"), broker__bootstrap=console_broker) as served:
        yield served


@pytest.fixture
def browser(console):
    return console.browser()


@pytest.fixture(scope="module")
def chromium():
    """Of a file of tests, not of the session: while it runs, its thread has an event loop, and
    tests of other files may want one of their own.
    """
    from playwright.sync_api import sync_playwright

    if EXECUTABLE is None:
        pytest.skip("needs chromium: sudo apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=EXECUTABLE, args=arguments)
        yield running
        running.close()


@pytest.fixture
def new_page(chromium):
    """Pages with contexts of their own. What one complains about (an error in a script, something
    that the content policy forbids) fails the test.
    """
    contexts, complaints = [], []

    def open_page(**options):
        context = chromium.new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: _note(complaints, message))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def _note(complaints, message):
    # A failed request is no mistake of the page; Chromium and htmx log it.
    expected = ("Failed to load resource", "Response Status Error Code")
    if message.type == "error" and not message.text.startswith(expected):
        complaints.append(message.text)
