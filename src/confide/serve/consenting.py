"""The page Agree, at a real site: what a lead asks for, beside what was agreed, and two buttons.

It does what `confide site consent` does. What is agreed to is exactly what the page showed: if
anything has changed since, nothing is agreed to and the page is shown again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError, printable
from confide.flare.kits.startup import Kit, open_kit
from confide.flare.run import sitekit, standing
from confide.flare.run.sitekit import Consent
from confide.serve.asking import form_of
from confide.serve.gate import Refused
from confide.serve.pages import Pages
from confide.settings import Settings


@dataclass
class Table:
    """A site's kit, and the settings that a lead asks to run with, if there are any."""

    kit: Path
    asked: str | None = None
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def opened(self) -> Kit:
        """The kit. Raises KitError."""
        return open_kit(self.kit, "site")

    def settings(self) -> Settings | None:
        """The lead's settings, read again. Raises SettingsError."""
        return None if self.asked is None else sitekit.asked_by(self.asked)

    def found(self, method: str) -> Consent:
        """What the method would send and how far it may go. Raises SettingsError, KitError."""
        return sitekit.consent(self.opened(), method, asked=self._asked_of(method))

    def answer(self, form: Mapping[str, str]) -> bool:
        """Agree or withdraw, as the form says; whether what it showed is still so."""
        method, act = form.get("method", ""), form.get("act", "")
        before = self.found(method)
        if digest(before) != form.get("shown", ""):
            return False
        if act == "agree":
            sitekit.agree(self.opened(), method, steps=before.steps, asked=self._asked_of(method))
        elif act == "withdraw":
            sitekit.withdraw(self.opened(), method)
        else:
            raise Refused(422, "act", "agree, or withdraw")
        return True

    def methods(self) -> list[str]:
        """The methods to show: the one that is asked for, then those agreed to."""
        asked = self.settings()
        agreed = sorted(standing.held_of(self.opened()))
        return list(dict.fromkeys([*([asked.trained_by] if asked else []), *agreed]))

    def _asked_of(self, method: str) -> Settings | None:
        asked = self.settings()
        return asked if asked is not None and asked.trained_by == method else None


def digest(found: Consent) -> str:
    """A digest of all that a page shows of a method."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def routes(table: Table, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def show(ask: Request) -> Response:
        return await asyncio.to_thread(_shown, table, pages, changed="changed" in ask.query_params)

    async def answer(ask: Request) -> Response:
        form = await form_of(ask)
        async with table.one_by_one:
            try:
                same = await asyncio.to_thread(table.answer, form)
            except ConfideError as error:
                raise Refused(422, "not-agreed", printable(error.what, 300)) from None
        return RedirectResponse("/consent" if same else "/consent?changed=1", 303)

    return [
        Route("/consent", show),
        Route("/consent", answer, methods=["POST"]),
    ]


def _shown(table: Table, pages: Pages, *, changed: bool) -> Response:
    try:
        kit = table.opened()
        asked = table.settings()
        found = [(one, digest(one)) for one in map(table.found, table.methods())]
        held = {one.method: one for one in standing.standings(kit)}
        guards = standing.guards(kit)
    except ConfideError as error:
        return pages.page("wrong", title="Agree", status=500, why=printable(error.what, 300))
    return pages.page(
        "consent",
        title="Agree",
        site=kit.name,
        asked=None if asked is None else asked.trained_by,
        changed=changed,
        found=found,
        held=held,
        guards=guards,
    )
