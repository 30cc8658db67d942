"""/searches: stored searches; /searches/ID/: one, to be tested, changed and dropped; /new-search:
a new one, which can be tested before it is stored. (Records of a topic are searched in search.py.)

All of it has `searches` for another topic than the default one. A test does what `headwater search
test` does: it decides the query for the last records of a topic, without Spark.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.project.overview import no_such
from headwater.console.web.access import Access
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.paging import page_of, whole
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import HeadwaterError, MissingExtra, UsageError
from headwater.pipelines.definitions_topic import now
from headwater.pipelines.search.analysis import LANGUAGES
from headwater.pipelines.search.query_parser import parse_query
from headwater.pipelines.search.recent_matches import RecentMatch, RecentSearch, search_recent
from headwater.pipelines.search.stored_searches import (
    DEFAULT_TOPIC,
    StoredSearch,
    StoredSearches,
)
from headwater.web.listener import require_listener

NAVIGATION_ENTRY: Final = NavigationEntry("Searches", "/searches")

_COLUMNS: Final = {
    "id": lambda search: search.id,
    "owner": lambda search: search.owner,
    "target": lambda search: search.target,
    "limit": lambda search: search.limit,
    "created": lambda search: search.created,
}
_SINCE_S: Final = {"1h": 3600, "1d": 86_400, "7d": 7 * 86_400}
_RECORDS: Final = 10_000  # of the topic, for one test
_RECORDS_BYTES: Final = 16 << 20
_MOST_MATCHES: Final = 50  # shown, the newest
_MOST_LIMIT: Final = 1_000_000
_MOST_TOPICS: Final = 500  # to choose from
# Highlights are split by these private characters, so that what is in a document is never markup.
_MARKS: Final = ("\ue000", "\ue001")
_SHOWN_MARKS: Final = ("<em>", "</em>")


# The list


async def _list(request: Request) -> Response:
    topic = _topic_of(request)
    found = await _read(request)
    page = page_of(
        request,
        found.values(),
        columns=_COLUMNS,
        default_sort="id",
        text=lambda search: f"{search.id} {search.query} {search.owner} {search.target}",
        keep=["searches"],
    )
    rows, missing = await _access(request).call(_rows, page.rows)
    data: dict[str, Any] = {"searches_topic": topic, **page.as_json(), "searches": rows}
    return shown(
        request,
        "stored_searches.html",
        data,
        listing=page,
        missing=missing,
        address_of=lambda id_: address_of(id_, topic),
        ms_of=_ms_of,
        new_address=_with_topic("/new-search", topic),
    )


def _rows(searches: list[StoredSearch]) -> tuple[list[dict[str, Any]], MissingExtra | None]:
    """Without a check of those whose language needs an extra that is not installed."""
    rows: list[dict[str, Any]] = []
    missing = None
    for search in searches:
        try:
            rows.append(search.as_json())
        except MissingExtra as error:
            missing = error
            rows.append(search.without_check())
    return rows, missing


def _ms_of(created: str) -> float | None:
    """None for what is no time: any producer may write searches."""
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000


# One


async def _one(request: Request) -> Response:
    found, id_ = await _read(request), request.path_params["id"]
    if id_ not in found:
        raise no_such("search", id_, list(found))
    return await _page(request, found[id_])


async def _new(request: Request) -> Response:
    return await _page(request, None)


async def _page(request: Request, search: StoredSearch | None) -> Response:
    """The forms have what was tested last, so that it is what gets stored."""
    given, topic = request.query_params, _topic_of(request)
    access = _access(request)
    query = given.get("query", search.query if search else "").replace("\r\n", "\n")
    language = given.get("language", search.language if search else "").strip()
    rows, missing = await access.call(_rows, [search] if search else [])
    tested: dict[str, Any] | None = None
    matches: list[dict[str, Any]] = []
    if "topic" in given:
        tested, matches = await _tested(request, query, language)
    topics = (await access.topics()).topics.values()
    return shown(
        request,
        "stored_search.html",
        {"searches_topic": topic, "search": rows[0] if rows else None, "tested": tested},
        query=query,
        language=language,
        matches=matches,
        ms_of=_ms_of,
        missing=missing,
        languages=LANGUAGES,
        topics=[one.name for one in topics if not one.is_internal][:_MOST_TOPICS],
        periods=list(_SINCE_S),
        address=address_of(search.id) if search else "/new-search",
        list_address=_with_topic("/searches", topic),
        topic_in_form="" if topic == DEFAULT_TOPIC else topic,
    )


# What would have matched


async def _tested(
    request: Request, query: str, language: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As JSON, and the matches with their highlights in parts."""
    given = request.query_params
    since = given.get("since", "")
    asked = {
        "query": query,
        "language": language,
        "topic": given["topic"].strip(),
        "text": [name.strip() for name in given.get("text", "").split(",") if name.strip()],
        "since": since if since in _SINCE_S else next(iter(_SINCE_S)),
    }
    try:
        found = await _test(request, asked)
    except HeadwaterError as error:
        return {**asked, "error": error.what, "detail": error.detail, "hint": error.hint}, []
    newest = found.matches[: -_MOST_MATCHES - 1 : -1]
    tested = {
        **asked,
        "documents": found.documents,
        "unreadable": found.unreadable,
        "found": len(found.matches),
        "matches": [_match_json(match) for match in newest],
    }
    return tested, [_match_shown(match) for match in newest]


async def _test(request: Request, asked: dict[str, Any]) -> RecentSearch:
    console, access = request.app.state.console, _access(request)
    if not asked["topic"] or not asked["text"]:
        raise UsageError(
            "a test needs a topic and the text fields of its documents",
            hint="fields that words are searched in, for example: title, body",
        )

    def search() -> RecentSearch:
        condition = parse_query(asked["query"], asked["text"], language=asked["language"])
        require_listener(access.bootstrap)
        return search_recent(
            access.bootstrap,
            access.login,
            asked["topic"],
            condition,
            asked["text"],
            since_ms=int((time.time() - _SINCE_S[asked["since"]]) * 1000),
            most=_RECORDS,
            schemas=console.config.schemas,
            marks=_MARKS,
            most_bytes=_RECORDS_BYTES,
        )

    console.search_tests.acquire(access.user)
    try:
        return await access.call(search)
    finally:
        console.search_tests.release(access.user)


def _match_json(match: RecentMatch) -> dict[str, Any]:
    """Without the document, which its record has."""
    row = match.as_json()
    del row["document"]
    for mark, shown_mark in zip(_MARKS, _SHOWN_MARKS, strict=True):
        row["highlights"] = [text.replace(mark, shown_mark) for text in row["highlights"]]
    return row


def _match_shown(match: RecentMatch) -> dict[str, Any]:
    return {
        "partition": match.partition,
        "offset": match.offset,
        "at_ms": match.at.timestamp() * 1000,
        "fragments": [_parts(text) for text in match.highlights],
    }


def _parts(fragment: str) -> list[tuple[str, bool]]:
    """(text, whether it was found), …"""
    before, *rest = fragment.split(_MARKS[0])
    parts = [(before, False)]
    for part in rest:
        found, _, after = part.partition(_MARKS[1])
        parts += [(found, True), (after, False)]
    return parts


# Changes


async def _store(request: Request) -> Response:
    """A new one, or another version of one that is there."""
    access, form, topic = _access(request), request.state.form, _topic_of(request)
    search = StoredSearch(
        form.get("id", "").strip(),
        form.get("query", "").replace("\r\n", "\n").strip(),
        form.get("owner", "").strip(),
        form.get("language", "").strip(),
        form.get("target", "").strip(),
        _limit(form.get("limit", "").strip()),
        now(),
    )
    await access.call(search.check)
    if not confirmed(request):
        before = (await _read(request)).get(search.id)
        title, button = f"Store search {search.id}?", "Store it"
        detail = f"Documents that are written from now on meet “{search.query}”."
        if before is not None:
            title, button = f"Replace search {search.id}?", "Replace it"
            detail += f" Until now it is “{before.query}”."
        back = address_of(search.id, topic) if before else _with_topic("/new-search", topic)
        return ask(request, Question(title, button, detail, back=back))
    await _changed(request, lambda: _stored(access, topic).put(search))
    return seen(address_of(search.id, topic))


async def _drop(request: Request) -> Response:
    topic, id_ = _topic_of(request), request.path_params["id"]
    found = await _read(request)
    if id_ not in found:
        raise no_such("search", id_, list(found))
    if not confirmed(request):
        return ask(
            request,
            Question(
                f"Drop search {id_}?",
                "Drop it",
                f"Documents that are written from now on do not meet “{found[id_].query}”.",
                is_dangerous=True,
                back=address_of(id_, topic),
            ),
        )
    await _changed(request, lambda: _stored(_access(request), topic).drop(id_))
    return seen(_with_topic("/searches", topic))


async def _changed(request: Request, change: Callable[[], object]) -> None:
    access = _access(request)

    def changing() -> None:
        require_listener(access.bootstrap)
        change()

    await access.call(changing)
    access.shared.forget(("searches", _topic_of(request)))


def _limit(text: str) -> int | None:
    """Raises UsageError."""
    if not text:
        return None
    number = whole(text, 0)
    if not 1 <= number <= _MOST_LIMIT:
        raise UsageError(
            f"not a limit: {text}", hint=f"matches in an hour, from 1 to {_MOST_LIMIT:,}; or empty"
        )
    return number


# Shared


async def _read(request: Request) -> dict[str, StoredSearch]:
    access, topic = _access(request), _topic_of(request)

    def read() -> dict[str, StoredSearch]:
        require_listener(access.bootstrap)
        return _stored(access, topic).all()

    return await access.read(("searches", topic), read)


def _stored(access: Access, topic: str) -> StoredSearches:
    return StoredSearches(access.bootstrap, access.login, topic)


def _access(request: Request) -> Access:
    access: Access = request.app.state.console.access(request)
    return access


def _topic_of(request: Request) -> str:
    """Of the searches."""
    form = getattr(request.state, "form", {})
    given = form.get("searches") or request.query_params.get("searches", "")
    return str(given).strip()[:249] or DEFAULT_TOPIC


def address_of(id_: str, topic: str = DEFAULT_TOPIC) -> str:
    return _with_topic(f"/searches/{quote(id_, safe='')}/", topic)


def _with_topic(path: str, topic: str) -> str:
    return path if topic == DEFAULT_TOPIC else f"{path}?{urlencode({'searches': topic})}"


ROUTES: Final = [
    Route("/new-search", _store, methods=["POST"]),
    *both("/new-search", _new),
    *both("/searches", _list),
    Route("/searches/{id:path}/drop", _drop, methods=["POST"]),
    *both("/searches/{id:path}/", _one),
]
