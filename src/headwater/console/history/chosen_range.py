"""The range of plots that a request asks for. A cookie makes it the choice for all pages."""

from starlette.requests import Request

from headwater.console.history.ranges import DEFAULT, RANGES, Range


def range_of(request: Request) -> Range:
    """What the address asks for, else what this browser was shown last."""
    asked = (request.query_params.get("range", ""), request.cookies.get(cookie_of(request), ""))
    return next((RANGES[name] for name in asked if name in RANGES), DEFAULT)


def cookie_of(request: Request) -> str:
    return f"{request.app.state.console.cookie_name}_range"
