"""The guide under /docs: the site that tools/build_site.py makes of docs/, and a wheel brings.

Files only, all of them from here: pages, their search index, styles. What is not built is said.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from headwater.console.web import rendering
from headwater.errors import NotReady

if TYPE_CHECKING:
    from starlette.types import Scope

SITE: Final = rendering.HERE / "site"


class _Site(StaticFiles):
    """Browsers ask whether a file has changed, and get it again only then: its address stays the
    same when the product is upgraded.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, html=True, check_dir=False)
        self._index = directory / "index.html"

    async def check_config(self) -> None:
        """Before the first file, again and again until there is one."""
        if not self._index.is_file():
            raise NotReady(
                "the documentation is not built",
                hint="`make docs-site` builds it (in a copy of the repository); a wheel has it",
            )

    async def get_response(self, path: str, scope: "Scope") -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException:
            raise HTTPException(404) from None  # for a method, too: there is nothing to be posted
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _with_slash(request: Request) -> Response:
    """Links of the pages are relative."""
    return RedirectResponse("/docs/", 308)


def mounted(directory: Path) -> Mount:
    return Mount("/docs", _Site(directory), name="docs")


ROUTES: Final[list[BaseRoute]] = [Route("/docs", _with_slash), mounted(SITE)]
