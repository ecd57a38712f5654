"""An application for tests: a model of rules, and a browser that speaks to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from starlette.testclient import TestClient

from confide.serve.app import ServedPages, application
from confide.serve.gate import CallerLimits
from confide.serve.models import Served
from confide.text.document import Document, Entity

HOST = "localhost:8765"
ORIGIN = f"http://{HOST}"
QUICK = CallerLimits(pad=0.0)


def annotate(documents: Sequence[Document]) -> list[Document]:
    """Marks drug1, drug2, ... as DRUG, surer of greater numbers."""
    return [
        replace(
            one,
            entities=tuple(
                Entity(f"T{n}", "DRUG", (found.span(),), confidence=int(found[1]) / 10)
                for n, found in enumerate(re.finditer(r"drug(\d)", one.text), 1)
            ),
        )
        for one in documents
    ]


def other(documents: Sequence[Document]) -> list[Document]:
    """Finds nothing."""
    return [replace(one, entities=()) for one in documents]


def broken(documents: Sequence[Document]) -> list[Document]:
    raise ValueError(f"secret {documents[0].text}")


def models(limits: CallerLimits = QUICK) -> dict[str, Served]:
    return {
        "ours": Served("ours", "entities", ("DRUG", "ADE"), annotate, limits),
        "other": Served("other", "entities", ("DRUG",), other, limits),
        "broken": Served("broken", "entities", ("DRUG",), broken, limits),
    }


def browser(
    shown: ServedPages | None = None, *, token: str | None = None, told: list[str] | None = None
):
    """A TestClient of the application; `told` collects what would be logged."""
    shown = shown or ServedPages(models(), limits=QUICK)
    app = application(
        shown, hosts=frozenset({HOST}), token=token, tell=(told if told is not None else []).append
    )
    return TestClient(app, base_url=ORIGIN, raise_server_exceptions=True, follow_redirects=False)
