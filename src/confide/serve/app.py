"""The application: all routes behind the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from confide.serve import correcting, live, reading, rest
from confide.serve.corrections import Corrections
from confide.serve.gate import Doors, Gate
from confide.serve.limits import USUAL, Limits
from confide.serve.models import Served
from confide.serve.pages import Pages, doors_routes
from confide.serve.pool import Pool
from confide.serve.watching import Runs
from confide.text.document import Document

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class Shown:
    """What is served; None leaves a page out.

    `corrections` is the folder that corrections go to, and `texts` are to be corrected; `watched`
    is the folder whose runs are watched; `kit` is that of a real site, and `asked` the settings
    that a lead asks it to run with.
    """

    models: Mapping[str, Served]
    limits: Limits = USUAL
    corrections: Path | None = None
    texts: Sequence[Document] = ()
    watched: Path | None = None
    kit: Path | None = None
    asked: str | None = None


def application(
    shown: Shown,
    *,
    hosts: frozenset[str],
    token: str | None = None,
    tell: Callable[[str], None],
    secure: bool = False,
) -> Gate:
    """The ASGI application.

    Args:
        shown: what is served.
        hosts: the values of Host that are served.
        token: the token to ask for; None: everyone who reaches the address may enter.
        tell: called with one line about an error of our own.
        secure: whether browsers reach the address over https.
    """
    doors = Doors(token, lasts=shown.limits.session)
    served: dict[str, object] = {
        "read": shown.models,
        "correct": shown.corrections,
        "watch": shown.watched,
        "consent": shown.kit,
        "api": shown.models,
    }
    pages = Pages(tuple(name for name, there in served.items() if there))
    routes: list[BaseRoute] = [
        *doors_routes(pages, doors, lasts=shown.limits.session, secure=secure),
        *rest.routes(shown.models, shown.limits, pages, locked=doors.locked),
        *_pages(shown, pages),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Gate(
        Router(routes),
        hosts=hosts,
        doors=doors,
        limits=shown.limits,
        tell=tell,
        secure=secure,
    )


def _pages(shown: Shown, pages: Pages) -> list[Route]:
    """The pages of what is served, and a way from / to the first."""
    found: list[Route] = []
    if shown.models:
        found += reading.routes(shown.models, shown.limits, pages)
    if shown.corrections is not None:
        desk = correcting.Desk(
            shown.models, Pool(shown.limits.pool), Corrections(shown.corrections), shown.limits
        )
        desk.add_now(shown.texts)
        found += correcting.routes(desk, pages)
    if shown.watched is not None:
        found += live.routes(live.Watch(Runs(shown.watched), shown.limits), pages)
    if shown.kit is not None:
        from confide.serve import consenting  # real sites, which nobody else waits for

        found += consenting.routes(consenting.Table(shown.kit, shown.asked), pages)
    first = next((route.path for route in found if route.path.count("/") == 1), "/healthz")

    async def home(ask: Request) -> Response:
        return RedirectResponse(first, 303)

    return [*found, Route("/", home)]
