"""The page Read: what the models find in texts, side by side, sentence by sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError, printable
from confide.files import Tree
from confide.serve import gate
from confide.serve.gate import CallerLimits, HttpError
from confide.serve.models import Served, answer_of, choose_model
from confide.text.document import Document, Span
from confide.text.formats import read
from confide.text.segment import segmented

MARKED = "the file"
"""The name beside the models' of the annotations that a file brings along."""


class ReadAsk(gate.Body):
    """The body of POST /pages/read."""

    texts: list[gate.GivenText]
    models: Annotated[list[gate.Id], Field(min_length=1, max_length=8)]
    language: gate.Language = None
    types: gate.Types = None


def read_routes(
    models: Mapping[str, Served], limits: CallerLimits, pages: gate.Pages
) -> list[Route]:
    """The routes of the page."""
    one_by_one = asyncio.Lock()

    async def show(ask: Request) -> Response:
        entries = [model.entry() for model in models.values()]
        return pages.page("read", title="Read", models=entries, limits=limits)

    async def find(ask: Request) -> Response:
        asked = await ReadAsk.read(ask)
        texts = gate.given_documents(asked.texts, asked.language, limits)
        used = [choose_model(models, name) for name in dict.fromkeys(asked.models)]

        def types_for(model: Served) -> Sequence[str] | None:
            """The wanted types that this model has or, if it has none, all: it refuses them."""
            wanted = asked.types
            return wanted and ([one for one in wanted if one in model.types] or wanted)

        found = await asyncio.gather(*(one.predict(texts, types=types_for(one)) for one in used))
        sides = {model.name: documents for model, documents in zip(used, found, strict=True)}
        if any(text.entities for text in texts):
            sides[MARKED] = texts
        rows = [side_by_side(n, text, sides) for n, text in enumerate(texts)]
        return JSONResponse({"sides": list(sides), "texts": rows})

    async def open_file(ask: Request) -> Response:
        name = ask.query_params.get("name", "")
        raw = await ask.body()
        async with one_by_one:  # some take long, and hold what all threads share
            found = await asyncio.to_thread(documents_in, raw, name, limits)
        return JSONResponse({"texts": found})

    return [
        Route("/read", show),
        Route("/pages/read", find, methods=["POST"]),
        Route("/pages/open", open_file, methods=["POST"]),
    ]


def side_by_side(number: int, text: Document, sides: Mapping[str, Sequence[Document]]) -> Tree:
    """One text with what each side finds, and the stretches to show it in."""
    found = {name: answer_of(documents[number]) for name, documents in sides.items()}
    for row in found.values():
        row.pop("text")
    rows = stretches([documents[number] for documents in sides.values()])
    return {"id": text.id, "text": text.text, "rows": rows, "found": found}


def stretches(versions: Sequence[Document]) -> list[Span]:
    """The sentences of a text as the first version has them, or else by the plain rules.

    They are joined where an entity of any version crosses from one to the next.

    >>> stretches([Document("n", "Rash. No fever.")])
    [(0, 5), (6, 15)]
    """
    spans = [(one.start, one.end) for version in versions for one in version.entities]
    rows: list[Span] = []
    for sentence in segmented(versions[0]).sentences:
        crossed = any(start < sentence.start < end for start, end in spans)
        if crossed and rows:
            rows[-1] = (rows[-1][0], sentence.end)
        else:
            rows.append((sentence.start, sentence.end))
    return rows


def documents_in(raw: bytes, name: str, limits: CallerLimits) -> list[Tree]:
    """The documents in a file that was dropped onto the page, in any format that is one file.

    Raises HttpError with our own words: never with those of the file.
    """
    suffix = "".join(Path(name).suffixes[-2:]).lower()
    known = suffix if suffix.strip(".").replace(".", "").isalnum() and len(suffix) < 20 else ""
    with TemporaryDirectory(prefix="confide-") as folder:
        file = Path(folder) / f"file{known}"
        file.write_bytes(raw)
        try:
            documents = read(file).documents
        except ConfideError as error:
            what = printable(error.what.replace(folder, ""), 200)
            raise HttpError(422, "not-read", f"the file cannot be read: {what}") from None
    rows = []
    for document in documents[: limits.texts]:  # as the page sends them back: one stretch each
        whole = tuple(one for one in document.entities if len(one.fragments) == 1)
        marks = [{"type": one.type, "start": one.start, "end": one.end} for one in whole]
        rows.append({"id": document.id[:200], "text": document.text, "entities": marks})
    return rows
