"""The guide under /docs: its pages, or how to build it."""

import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support.console.chromium import check_readable
from tiers import long

from headwater.console.web import documentation
from headwater.errors import NotReady

BUILT = pytest.mark.skipif(
    not (documentation.SITE / "index.html").is_file(), reason="needs `make docs-site`"
)


@BUILT
def test_the_guide_is_served_with_its_search_and_nothing_from_elsewhere(browser):
    page = browser.get("/docs/")
    assert page.status == 200
    assert "Headwater" in page.text
    assert page.headers["Cache-Control"] == "no-cache"
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "<script>" not in page.text
    assert 'src="http' not in page.text
    assert browser.get("/docs/start.html").status == 200
    assert browser.get("/docs/searchindex.js").status == 200
    assert browser.get("/docs").headers["Location"] == "/docs/"


@BUILT
def test_what_is_no_page_is_not_found(browser):
    assert browser.get("/docs/nothing.html").status == 404
    assert browser.get("/docs/..%2f..%2fserver.py").status == 404


@BUILT
def test_pages_of_the_console_link_to_the_guide(browser):
    assert 'href="/docs/"' in browser.get("/topics").text


def test_a_guide_that_is_not_built_says_how_it_is(tmp_path):
    site = documentation.mounted(tmp_path / "missing")
    with pytest.raises(NotReady, match="not built") as refused:
        TestClient(Starlette(routes=[site])).get("/docs/")
    assert "make docs-site" in refused.value.hint


@BUILT
def test_the_search_finds_pages_without_a_network(console, new_page):
    page = new_page()
    page.goto(f"{console.url}/docs/")
    page.get_by_role("searchbox").fill("watermark")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li").first).to_be_visible()
    expect(page.locator("#search-results")).to_contain_text("Time and joins")


@BUILT
@long
@pytest.mark.parametrize("path", ["", "start.html", "concepts/log.html", "cli.html", "limits.html"])
def test_pages_of_the_guide_are_readable(path, console, new_page):
    page = new_page()
    page.goto(f"{console.url}/docs/{path}")
    check_readable(page, path)
