"""The page Agree, at a real site: what a lead asks for, beside what was agreed, and two buttons.

It does what `confide site consent` does. The site may put in other bounds than those asked for, and
agree to some steps only. What is agreed to is exactly what the page showed: if anything has changed
since, nothing is agreed to and the page is shown again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError, SettingsError, printable
from confide.flare import sitekit, status
from confide.flare.agreements import AgreementLine
from confide.flare.joining import run_steps
from confide.flare.kit import Kit, open_kit
from confide.flare.sitekit import Consent
from confide.methods import METHODS
from confide.serve.gate import HttpError, Pages, read_form
from confide.settings import Settings
from confide.settings.sitefile import BOUNDS

BOUND, STEP = "bound.", "step."
"""Prefixes of a form's fields: those of bounds, and those of steps."""


@dataclass(frozen=True, slots=True)
class BoundField:
    """A bound as a field of a form: its line, the kind of input, and what stands in it."""

    line: AgreementLine
    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class MethodForm:
    """A method on the page: what it sends and asks, as fields and steps to be ticked."""

    found: Consent
    fields: tuple[BoundField, ...]
    steps: tuple[tuple[str, bool], ...]


@dataclass
class ConsentPage:
    """A site's kit, and the settings that a lead asks to run with, if there are any."""

    kit: Path
    asked: str | None = None
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def open_kit(self) -> Kit:
        """The kit. Raises KitError."""
        return open_kit(self.kit, "site")

    def settings(self) -> Settings | None:
        """The lead's settings, read again. Raises SettingsError."""
        return None if self.asked is None else sitekit.settings_asked(self.asked)

    def consent_to(self, method: str) -> Consent:
        """Return what the method would send and its limits. Raises SettingsError, KitError."""
        return sitekit.propose_consent(self.open_kit(), method, asked=self._asked_of(method))

    def answer(self, form: Mapping[str, str]) -> bool:
        """Agree or withdraw, as the form says; whether what it showed is still so.

        Raises SettingsError, KitError, RunError: a bound that is none, or no step.
        """
        method, act = form.get("method", ""), form.get("act", "")
        before = self.consent_to(method)
        if consent_digest(before) != form.get("shown", ""):
            return False
        if act == "agree":
            sitekit.agree_to(
                self.open_kit(),
                method,
                steps=steps_in(form, method),
                asked=self._asked_of(method),
                bounds=bounds_in(form),
            )
        elif act == "withdraw":
            sitekit.withdraw_from(self.open_kit(), method)
        else:
            raise HttpError(422, "act", "agree, or withdraw")
        return True

    def methods(self, other: str = "") -> list[str]:
        """The methods to show: another one, the one that is asked for, then those agreed to."""
        asked = self.settings()
        agreed = sorted(status.read_agreements(self.open_kit()))
        first = [other] if other in METHODS else []
        return list(dict.fromkeys([*first, *([asked.trained_by] if asked else []), *agreed]))

    def _asked_of(self, method: str) -> Settings | None:
        asked = self.settings()
        return asked if asked is not None and asked.trained_by == method else None


def consent_digest(found: Consent) -> str:
    """A digest of all that a page shows of a method."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def bounds_in(form: Mapping[str, str]) -> list[str]:
    """The bounds in a form, as `confide site consent --bound` takes them."""
    return [
        f"{name}={_assigned(name, form[BOUND + name])}" for name in BOUNDS if BOUND + name in form
    ]


def _assigned(name: str, value: str) -> str:
    """A value as TOML: words with commas between them become a list."""
    if name in ("combine", "lead", "sites"):
        return json.dumps([part.strip() for part in value.split(",") if part.strip()])
    return " ".join(value.split())


def steps_in(form: Mapping[str, str], method: str) -> list[str]:
    """The steps that are ticked in a form; none if all are, as in an agreement.

    Raises SettingsError if none is.
    """
    known = [step.name for step in run_steps(method)]
    ticked = [name for name in known if STEP + name in form]
    if not ticked:
        raise SettingsError("no step is ticked", fix="tick the steps to agree to, or withdraw")
    return [] if ticked == known else ticked


def method_form(found: Consent, sent: Mapping[str, str]) -> MethodForm:
    """A method as the page shows it, or as it was filled in if the form `sent` is about it."""
    if sent.get("method") != found.method:
        sent = {}
    fields = [
        BoundField(line, _kind(line.asked), sent.get(BOUND + line.name, _value(line.asked)))
        for line in found.lines
    ]
    known = [step.name for step in run_steps(found.method)]
    ticked = [name for name in known if STEP + name in sent] if sent else found.steps or known
    return MethodForm(found, tuple(fields), tuple((name, name in ticked) for name in known))


def _kind(value: object) -> str:
    """The kind of input for a value."""
    if isinstance(value, bool):
        return "choice"
    kinds = {int: "whole", float: "number", date: "date"}
    return next((kind for type, kind in kinds.items() if isinstance(value, type)), "text")


def _value(value: object) -> str:
    """A value as an input holds it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def consent_routes(place: ConsentPage, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def show(ask: Request) -> Response:
        other, changed = ask.query_params.get("method", ""), "changed" in ask.query_params
        return await asyncio.to_thread(_page, place, pages, {}, other=other, changed=changed)

    async def answer(ask: Request) -> Response:
        form = await read_form(ask)
        async with place.one_by_one:
            try:
                same = await asyncio.to_thread(place.answer, form)
            except ConfideError as error:
                wrong, other = printable(error, 400), form.get("method", "")
                return await asyncio.to_thread(_page, place, pages, form, other=other, wrong=wrong)
        return RedirectResponse("/consent" if same else "/consent?changed=1", 303)

    return [Route("/consent", show), Route("/consent", answer, methods=["POST"])]


def _page(
    place: ConsentPage,
    pages: Pages,
    sent: Mapping[str, str],
    *,
    other: str = "",
    changed: bool = False,
    wrong: str | None = None,
) -> Response:
    """The page; with the form that was `sent` and what is `wrong` with it."""
    try:
        kit = place.open_kit()
        asked = place.settings()
        found = [place.consent_to(one) for one in place.methods(other)]
        agreed = {one.method: one for one in status.agreement_status(kit)}
        guards = status.guard_values(kit)
    except ConfideError as error:
        return pages.page("wrong", title="Agree", status=500, why=printable(error.what, 300))
    return pages.page(
        "consent",
        title="Agree",
        status=200 if wrong is None else 422,
        site=kit.name,
        asked=None if asked is None else asked.trained_by,
        changed=changed,
        wrong=wrong,
        found=[(method_form(one, sent), consent_digest(one)) for one in found],
        held=agreed,
        guards=guards,
        methods=sorted(METHODS.keys() - {one.method for one in found}),
    )
