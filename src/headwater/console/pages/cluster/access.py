"""/cluster/users, /cluster/acls, /cluster/quotas: who may log in, do what, and how much. The broker
decides what the user who asks may see and change.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.broker.security.users import MAX_NAME_CHARACTERS
from headwater.console.project.overview import overview_of
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import RequestRefused, UsageError
from headwater.inspect import access
from headwater.inspect.access import OPERATIONS, QUOTAS, RESOURCES, ShownAcl
from headwater.web.listener import require_listener

USERS, ACLS, QUOTA_PAGE = "/cluster/users", "/cluster/acls", "/cluster/quotas"
_AGE_S: Final = 2.0
_DISABLED: Final = "SECURITY_DISABLED"
_ACL_COLUMNS: Final = {field: lambda acl, field=field: acl[field] for field in ShownAcl._fields}


async def _asked(request: Request, name: str, function: Any, *arguments: Any) -> Any:
    """What the broker answers; None from one without authentication."""
    overview = overview_of(request)

    def read() -> Any:
        require_listener(overview.access.bootstrap)
        return function(overview.kafka, *arguments)

    try:
        return await overview.access.read(name, read, max_age_s=_AGE_S)
    except RequestRefused as error:
        if _DISABLED in error.detail:
            return None
        raise


async def _changed(request: Request, name: str, function: Any, *arguments: Any) -> None:
    overview = overview_of(request)

    def change() -> None:
        require_listener(overview.access.bootstrap)
        function(overview.kafka, *arguments)

    await overview.access.call(change)
    overview.forget(name)


# Users


async def _users(request: Request) -> Response:
    found = await _asked(request, "users", access.users_of)
    rows = [{"user": name, "mechanisms": mechanisms} for name, mechanisms in (found or {}).items()]
    page = page_of(
        request,
        rows,
        columns={"user": lambda row: row["user"]},
        default_sort="user",
        text=lambda row: row["user"],
    )
    data = {**page.as_json(), "is_disabled": found is None, "users": page.rows}
    return shown(request, "users.html", data, tab="users", listing=page)


async def _set_password(request: Request) -> Response:
    """Of a new user, or of one that there is. The second field is the confirmation: a page that
    asks would have to repeat the password.
    """
    form = request.state.form
    name = str(form.get("name", "")).strip()
    password, again = str(form.get("password", "")), str(form.get("again", ""))
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS or "\0" in name:
        raise UsageError(f"a name has 1 to {MAX_NAME_CHARACTERS} characters")
    if not password:
        raise UsageError("the password is empty")
    if password != again:
        raise UsageError("the two passwords are not the same")
    existing = await _asked(request, "users", access.users_of) or {}
    if form.get("is_new") and name in existing:
        raise RequestRefused(
            f"there is a user {name} already", hint="the page of users changes the password"
        )
    if not form.get("is_new") and name not in existing:
        raise RequestRefused(f"there is no user {name}")
    await _changed(request, "users", access.set_password, name, password)
    return seen(USERS)


async def _delete_user(request: Request) -> Response:
    name = str(request.state.form.get("name", ""))
    if name not in (await _asked(request, "users", access.users_of) or {}):
        raise RequestRefused(f"there is no user {name}")
    if not confirmed(request, type_name=name):
        question = Question(
            f"Delete user {name}?",
            "Delete the user",
            "The user cannot log in any more. Open connections stay open; ACLs of the name stay.",
            type_name=name,
            is_dangerous=True,
            back=USERS,
        )
        return ask(request, question)
    await _changed(request, "users", access.delete_user, name)
    return seen(USERS)


# ACLs


async def _acls(request: Request) -> Response:
    found = await _asked(request, "acls", access.acls_of)
    page = page_of(
        request,
        [acl._asdict() for acl in found or ()],
        columns=_ACL_COLUMNS,
        default_sort="principal",
        text=lambda acl: " ".join(acl.values()),
    )
    data = {**page.as_json(), "is_disabled": found is None, "acls": page.rows}
    return shown(
        request,
        "acls.html",
        data,
        tab="acls",
        listing=page,
        resources=RESOURCES,
        operations=OPERATIONS,
    )


async def _change_acl(request: Request) -> Response:
    form, action = request.state.form, request.path_params["action"]
    user = str(form.get("principal", "")).strip()
    acl = ShownAcl(
        user if ":" in user else f"User:{user}",
        str(form.get("permission", "")),
        str(form.get("operation", "")),
        str(form.get("resource", "")),
        str(form.get("pattern", "")) or "literal",
        "kafka-cluster" if form.get("resource") == "cluster" else str(form.get("name", "")).strip(),
        str(form.get("host", "")).strip() or "*",
    )
    if not user or not acl.name:
        raise UsageError("an ACL needs a user and the name of a resource; * means every one")
    change = {"add": access.add_acl, "remove": access.remove_acl}.get(action)
    if change is None:
        raise UsageError(f"there is no {action} of an ACL")
    which = acl.name if acl.pattern == "literal" else f"those that begin with {acl.name}"
    sentence = (
        f"{acl.principal} {'may' if acl.permission == 'allow' else 'may not'} {acl.operation}:"
        f" {acl.resource} {which}, from {'any address' if acl.host == '*' else acl.host}."
    )
    if not confirmed(request):
        question = Question(
            f"{action.title()} this ACL?",
            f"{action.title()} it",
            sentence + (" It takes effect at once." if action == "add" else " It is removed."),
            is_dangerous=action == "remove" or acl.permission == "deny",
            back=ACLS,
        )
        return ask(request, question)
    try:
        await _changed(request, "acls", change, acl)
    except ValueError as error:
        raise UsageError(f"an ACL has no {error}") from error
    return seen(ACLS)


# Quotas


async def _quotas(request: Request) -> Response:
    found = await _asked(request, "quotas", access.quotas_of)
    rows = [
        {"entity": entry["entity"], "shown": _shown_entity(entry["entity"]), "quota": quota,
         "value": value}
        for entry in found or ()
        for quota, value in entry["quotas"].items()
    ]  # fmt: skip
    page = page_of(
        request,
        rows,
        columns={"entity": lambda row: row["shown"], "quota": lambda row: row["quota"]},
        default_sort="entity",
        text=lambda row: f"{row['shown']} {row['quota']}",
    )
    data = {**page.as_json(), "is_disabled": found is None, "quotas": page.rows}
    return shown(request, "quotas.html", data, tab="quotas", listing=page, kinds=QUOTAS)


def _shown_entity(entity: dict[str, str | None]) -> str:
    return ", ".join(
        f"{kind} {'(default)' if name is None else name}" for kind, name in entity.items()
    )


async def _set_quota(request: Request) -> Response:
    """An empty user is any user's default; both fields may be given."""
    form = request.state.form
    quota, text = str(form.get("quota", "")), str(form.get("value", "")).strip()
    entity: dict[str, str | None] = {}
    for kind in ("user", "client-id"):
        name = str(form.get(kind, "")).strip()
        if name:
            entity[kind] = None if name == "*" else name
    if not entity:
        raise UsageError("a quota is for a user, a client id, or both; * is the default of all")
    if quota not in QUOTAS:
        raise UsageError(f"there is no quota {quota}")
    value = None if form.get("remove") else _number(text)
    if not confirmed(request):
        outcome = f"{quota} = {value:,g}" if value is not None else f"without {quota}"
        question = Question(
            "Change this quota?",
            "Change it",
            f"{_shown_entity(entity)}: {outcome}. It takes effect at once.",
            back=QUOTA_PAGE,
        )
        return ask(request, question)
    await _changed(request, "quotas", access.set_quota, entity, quota, value)
    return seen(QUOTA_PAGE)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise UsageError(f"no number: {text or 'none was given'}") from error
    if not 0 < number < 1e18:
        raise UsageError(f"no quota: {text}", hint="a number above 0")
    return number


ROUTES: Final = [
    *both(USERS, _users),
    Route(f"{USERS}/password", _set_password, methods=["POST"]),
    Route(f"{USERS}/delete", _delete_user, methods=["POST"]),
    *both(ACLS, _acls),
    Route(f"{ACLS}/{{action}}", _change_acl, methods=["POST"]),
    *both(QUOTA_PAGE, _quotas),
    Route(f"{QUOTA_PAGE}/set", _set_quota, methods=["POST"]),
]
