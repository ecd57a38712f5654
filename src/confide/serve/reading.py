"""The page Read: what the models find in texts, side by side, sentence by sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError, printable
from confide.files import Tree
from confide.serve.gate import (
    Given,
    GivenText,
    Id,
    Language,
    Limits,
    Pages,
    Refused,
    Types,
    body_of,
    cut,
    document_of,
)
from confide.serve.models import Served
from confide.serve.rest import answered, chosen, described
from confide.text.document import Document, Span
from confide.text.formats import read
from confide.text.segment import segmented

MARKED = "the file"
"""The name beside the models' of the annotations that a file brings along."""


class Reads(Given):
    """The body of POST /pages/read."""

    texts: list[GivenText]
    models: Annotated[list[Id], Field(min_length=1, max_length=8)]
    language: Language = None
    types: Types = None


def routes(models: Mapping[str, Served], limits: Limits, pages: Pages) -> list[Route]:
    """The routes of the page."""
    one_by_one = asyncio.Lock()

    async def show(ask: Request) -> Response:
        shown = [described(model) for model in models.values()]
        return pages.page("read", title="Read", models=shown, limits=limits)

    async def find(ask: Request) -> Response:
        asked = await body_of(ask, Reads)
        if len(asked.texts) > limits.texts:
            raise Refused(413, "too-many", f"at most {limits.texts} texts are read at once")
        given = [document_of(one, n, limits) for n, one in enumerate(asked.texts, 1)]
        texts = cut(given, asked.language)
        names = list(dict.fromkeys(asked.models))
        used = [chosen(models, name) for name in names]
        found = await asyncio.gather(
            *(model.found(texts, types=types_for(model, asked.types)) for model in used)
        )
        sides = dict(zip(names, found, strict=True))
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


def types_for(model: Served, types: Sequence[str] | None) -> Sequence[str] | None:
    """Those of the wanted types that this model has or, if it has none, all: it refuses them."""
    return types and ([one for one in types if one in model.types] or types)


def side_by_side(number: int, text: Document, sides: Mapping[str, Sequence[Document]]) -> Tree:
    """One text with what each side finds, and the stretches to show it in."""
    found = {name: answered(documents[number]) for name, documents in sides.items()}
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


def documents_in(raw: bytes, name: str, limits: Limits) -> list[Tree]:
    """The documents in a file that was dropped onto the page, in any format that is one file.

    Raises Refused with our own words: never with those of the file.
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
            raise Refused(422, "not-read", f"the file cannot be read: {what}") from None
    if len(documents) > limits.texts:
        documents = documents[: limits.texts]
    return [_flat(document) for document in documents]


def _flat(document: Document) -> Tree:
    """A document as the page sends it back: text, and entities of one stretch each."""
    whole = [one for one in document.entities if len(one.fragments) == 1]
    row = answered(replace(document, entities=tuple(whole), relations=()))
    entities = [
        {"type": one["type"], "start": one["fragments"][0][0], "end": one["fragments"][0][1]}
        for one in row["entities"]
    ]
    return {"id": document.id[:200], "text": document.text, "entities": entities}
