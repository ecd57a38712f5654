"""The models that are served, each with its own thread and queue, their REST interface and page.

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
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import quote

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from confide.errors import ConfideError, printable
from confide.files import Tree
from confide.jobs.loading import LoadedModel, load
from confide.serve import gate
from confide.serve.gate import USUAL, CallerLimits, GivenText, HttpError
from confide.text.document import Document, Entity, Relation, Span
from confide.text.formats import read
from confide.text.formats.jsonl import document_record
from confide.text.segment import segmented
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
    runs: Sequence[str],
    *,
    key: Path | None = None,
    int8: bool = False,
    limits: CallerLimits = USUAL,
) -> dict[str, Served]:
    """The models by name, each read once before the first ask. Raises as `confide.load` does."""
    return {
        name: serve_model(name, load(run, site=site, key=key, int8=int8), limits=limits)
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
    models: Mapping[str, Served], limits: CallerLimits, pages: gate.Pages, *, doors: gate.Doors
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
        names = [quote(name, safe="") for name, model in models.items() if model.types]
        return pages.page(
            "api", title="REST", document=found, origin=origin, names=names, key=doors.tool_key
        )

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


# --- The page Read: what the models find in texts, side by side, sentence by sentence


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
