"""The models that are served, each with its own thread and its own queue, and their REST interface.

Inference never runs on the event loop. Asks for one model are answered in turn, in pieces, so a
long one does not hold up the others; a full queue is refused.

A reply is held back until a multiple of a time that depends on the text's length alone. The time
that one text takes then says nothing of whether its words were in the training text (Ali et al.,
"Unintended Memorization and Timing Attacks in Named Entity Recognition Models", arXiv 2211.02245).
It hides one ask's time, not how busy the server is.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from confide.errors import ConfideError, printable
from confide.files import Tree
from confide.jobs.loading import LoadedModel, load
from confide.serve import gate
from confide.serve.gate import USUAL, CallerLimits, GivenText, HttpError
from confide.text.document import Document, Entity, Relation
from confide.text.formats.jsonl import document_record
from confide.version import __version__

PIECE_TEXTS, PIECE_CHARACTERS = 16, 20_000
"""The most that a model reads before it is another ask's turn."""
PACE = 500
"""Characters that one padded time is meant for; longer texts have a multiple of it."""


@dataclass
class Served:
    """One model: its name here, what it finds, and its thread.

    `annotate` is called with documents; with `types`, too, if the caller names the labels among
    which to decide.
    """

    name: str
    finds: str
    types: tuple[str, ...]
    annotate: Callable[..., list[Document]]
    limits: CallerLimits = USUAL
    waiting: int = 0
    thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="model")
    )

    async def predict(
        self, documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> list[Document]:
        """The documents, annotated. Raises HttpError if too many asks are waiting."""
        return [one async for piece in self.pieces(documents, types=types) for one in piece]

    async def pieces(
        self, documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> AsyncIterator[list[Document]]:
        """The documents in order, annotated, a few at a time, each few at its padded time.

        With `types`, the model decides among these alone. Raises HttpError if it lacks one.
        """
        if self.waiting >= self.limits.waiting:
            raise HttpError(503, "busy", "too many asks are waiting for this model; try again")
        loop = asyncio.get_running_loop()
        work = self.annotate if types is None else partial(self.annotate, types=types)
        self.waiting += 1
        start = loop.time()
        try:
            for piece in _pieces(documents):
                try:
                    found = await loop.run_in_executor(self.thread, work, piece)
                except ConfideError as error:
                    raise HttpError(422, "data", printable(error.what)) from None
                size = sum(len(one.text) for one in piece)
                until = padded_time(loop.time() - start, pad=self.limits.pad, characters=size)
                await asyncio.sleep(start + until - loop.time())
                yield found
        finally:
            self.waiting -= 1

    def entry(self) -> Tree:
        """The model's entry in /v1/models."""
        return {"name": self.name, "finds": self.finds, "types": list(self.types)}


def padded_time(seconds: float, *, pad: float, characters: int) -> float:
    """When to answer: the next multiple of a step that depends on the length of the text alone.

    >>> padded_time(0.003, pad=0.02, characters=100), padded_time(0.021, pad=0.02, characters=100)
    (0.02, 0.04)
    """
    step = pad * max(1, math.ceil(characters / PACE))
    return step * max(1, math.ceil(seconds / step)) if step else seconds


def _pieces(documents: Iterable[Document]) -> Iterator[list[Document]]:
    piece: list[Document] = []
    size = 0
    for document in documents:
        if piece and (len(piece) == PIECE_TEXTS or size + len(document.text) > PIECE_CHARACTERS):
            yield piece
            piece, size = [], 0
        piece.append(document)
        size += len(document.text)
    if piece:
        yield piece


def model_names(runs: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Names for what is to be served, short and different: folder and site by name.

    `RUN@SITE` is a site's own model; a folder whose name contains an @ wins.

    >>> list(model_names(["runs/ours", "other/ours", "runs/ours@north"]))
    ['ours', 'ours-2', 'ours@north']
    """
    found: dict[str, tuple[str, str | None]] = {}
    for given in runs:
        run, at, site = given.rpartition("@")
        if not at or not run or not site or Path(given).expanduser().is_dir():
            run, site = given, ""
        short = "+".join(Path(part).name or part for part in run.split("+"))
        short = printable(short + (f"@{site}" if site else ""), 60)
        name, count = short, 1
        while name in found:
            count += 1
            name = f"{short}-{count}"
        found[name] = (run, site or None)
    return found


def serve_models(
    runs: Sequence[str], *, key: Path | None = None, limits: CallerLimits = USUAL
) -> dict[str, Served]:
    """The models by name, each read once before the first ask. Raises as `confide.load` does."""
    return {
        name: serve_model(name, load(run, site=site, key=key), limits=limits)
        for name, (run, site) in model_names(runs).items()
    }


def serve_model(name: str, model: LoadedModel, *, limits: CallerLimits = USUAL) -> Served:
    """A loaded model, warm: the first ask takes no longer than the others."""

    def annotate(
        documents: Sequence[Document], *, types: Sequence[str] | None = None
    ) -> list[Document]:
        used = model if types is None else model.only(types)
        return [one.document for one in used.pipe(documents)]

    if model.entity_types:
        annotate([Document("warm", "One sentence.")])
    return Served(name, " and ".join(model.finds), model.entity_types, annotate, limits)


def choose_model(models: Mapping[str, Served], name: str | None) -> Served:
    """The model of that name, or the first. Raises HttpError."""
    if not models:
        raise HttpError(404, "no-model", "no model is served here")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise HttpError(404, "no-model", "there is no such model; /v1/models lists them")
    return models[name]


def answer_of(document: Document, threshold: float = 0.0) -> Tree:
    """A document as JSON, without what is less likely than the threshold."""

    def likely(one: Entity | Relation) -> bool:
        return one.confidence is None or one.confidence >= threshold

    entities = tuple(filter(likely, document.entities))
    ids = {one.id for one in entities}
    relations = tuple(
        one
        for one in filter(likely, document.relations)
        if one.level == "concept" or {one.head, one.tail} <= ids
    )
    row = document_record(replace(document, entities=entities, relations=relations, sentences=()))
    row.pop("attributes", None)
    return {"relations": [], **row}


# --- The REST interface: /v1/predict, /v1/models, /healthz, /openapi.json


class Predict(gate.Body):
    """The body of POST /v1/predict."""

    texts: list[str | GivenText]
    model: gate.Id | None = None
    threshold: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    language: gate.Language = None
    types: gate.Types = None


LINES = "application/x-ndjson"


def rest_routes(
    models: Mapping[str, Served], limits: CallerLimits, pages: gate.Pages, *, locked: bool
) -> list[Route]:
    """The routes of the REST interface."""

    async def predict(ask: Request) -> Response:
        asked = await Predict.read(ask)
        model = choose_model(models, asked.model)
        if not asked.texts:
            raise HttpError(422, "no-text", "there is no text")
        documents = gate.given_documents(asked.texts, asked.language, limits)
        if LINES in ask.headers.get("accept", ""):
            pieces = model.pieces(documents, types=asked.types)
            first = await anext(pieces)  # refused before the answer begins, not within it
            return StreamingResponse(_lines(first, pieces, asked.threshold), media_type=LINES)
        given = await model.predict(documents, types=asked.types)
        found = [answer_of(one, asked.threshold) for one in given]
        return JSONResponse({"model": model.name, "documents": found})

    async def list_models(ask: Request) -> Response:
        return JSONResponse({"models": [model.entry() for model in models.values()]})

    async def healthz(ask: Request) -> Response:
        return JSONResponse({"status": "ok", "confide": __version__})

    async def openapi(ask: Request) -> Response:
        return JSONResponse(openapi_document(list(models), limits))

    async def show(ask: Request) -> Response:
        origin = f"{ask.url.scheme}://{ask.headers['host']}"
        found = openapi_document(list(models), limits)
        return pages.page("api", title="REST", document=found, origin=origin, locked=locked)

    return [
        Route("/v1/predict", predict, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/healthz", healthz),
        Route("/openapi.json", openapi),
        Route("/api", show),
    ]


async def _lines(
    first: list[Document], rest: AsyncIterator[list[Document]], threshold: float
) -> AsyncIterator[bytes]:
    """One JSON object in a line for each document, as soon as it is found."""

    def lines(piece: list[Document]) -> bytes:
        rows = (json.dumps(answer_of(one, threshold), ensure_ascii=False) for one in piece)
        return "".join(f"{row}\n" for row in rows).encode()

    yield lines(first)
    async for piece in rest:
        yield lines(piece)


def openapi_document(models: Sequence[str], limits: CallerLimits) -> Tree:
    """The OpenAPI document, version 3.1, with the names of the models and the limits here.

    The body's schema is made from the form that checks what comes in.
    """
    body = Predict.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**body.pop("$defs", {}), "Predict": body}
    body["properties"]["texts"] |= {"minItems": 1, "maxItems": limits.texts}
    if models:
        body["properties"]["model"] = {"type": "string", "enum": list(models)}
    document: Tree = json.loads(gate.fill("openapi.json", version=__version__, limits=limits))
    document["components"]["schemas"] = schemas | document["components"]["schemas"]
    return document
