"""Pages from templates, and the door's own page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from confide.errors import printable
from confide.serve.asking import form_of
from confide.serve.gate import COOKIE, ENTER, Doors
from confide.userfiles import size_in_words

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["short"] = lambda value, most=80: printable(value, most)
_TEMPLATES.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f}"
_TEMPLATES.filters["size"] = lambda value: "–" if value is None else size_in_words(value)

NAMES = {"read": "Read", "correct": "Correct", "watch": "Watch", "consent": "Agree", "api": "REST"}


class Pages:
    """Renders templates with the navigation between the pages that are served."""

    def __init__(self, served: tuple[str, ...]) -> None:
        self._menu = [(f"/{name}", NAMES[name]) for name in NAMES if name in served]

    def page(self, name: str, *, status: int = 200, title: str, **values: object) -> HTMLResponse:
        """A whole page from the template of that name."""
        return HTMLResponse(
            self.part(name, title=title, here=name, menu=self._menu, **values), status
        )

    def part(self, name: str, **values: object) -> str:
        """What a template makes of the values; everything in it is escaped."""
        return _TEMPLATES.get_template(f"{name}.html.j2").render(**values)


def doors_routes(pages: Pages, doors: Doors, *, lasts: float, secure: bool) -> list[Route]:
    """The page that asks for the token, and exchanges it for a cookie."""

    async def enter(ask: Request) -> Response:
        if ask.method != "POST":
            return pages.page("enter", title="Enter", wrong=False)
        if not doors.knows((await form_of(ask)).get("token", "").strip()):
            return pages.page("enter", status=401, title="Enter", wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            doors.opened(),
            max_age=round(lasts),
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return answer

    return [Route(ENTER, enter, methods=["GET", "POST"])] if doors.locked else []
