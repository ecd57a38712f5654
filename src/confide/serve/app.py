"""The application: all routes behind the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from confide.serve import correcting, reading, rest
from confide.serve.corrections import Corrections
from confide.serve.gate import Doors, Gate
from confide.serve.limits import USUAL, Limits
from confide.serve.models import Served
from confide.serve.pages import Pages, doors_routes
from confide.serve.pool import Pool
from confide.text.document import Document

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class Shown:
    """What is served: models, and where corrections go (None: nothing is corrected)."""

    models: Mapping[str, Served]
    limits: Limits = USUAL
    corrections: Path | None = None
    texts: Sequence[Document] = ()


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
    served = {"read": shown.models, "api": shown.models, "correct": shown.corrections}
    pages = Pages(tuple(name for name, there in served.items() if there))
    routes: list[BaseRoute] = [
        *doors_routes(pages, doors, lasts=shown.limits.session, secure=secure),
        *rest.routes(shown.models, shown.limits),
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
    first = next((route.path for route in found if route.path.count("/") == 1), "/healthz")
    return [*found, Route("/", lambda ask: RedirectResponse(first, 303))]
