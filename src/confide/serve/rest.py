"""The REST interface: /v1/predict, /v1/models, /healthz, /openapi.json."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from confide import __version__
from confide.serve.asking import Predict, body_of, texts_of
from confide.serve.gate import Refused
from confide.serve.limits import Limits
from confide.serve.models import Served
from confide.serve.openapi import openapi
from confide.serve.pages import Pages
from confide.text.document import Document, Entity, Relation
from confide.text.formats.jsonl import record
from confide.userfiles import Tree

LINES = "application/x-ndjson"


def routes(
    models: Mapping[str, Served], limits: Limits, pages: Pages, *, locked: bool
) -> list[Route]:
    """The routes of the REST interface."""

    async def predict(ask: Request) -> Response:
        asked = await body_of(ask, Predict)
        model = chosen(models, asked.model)
        documents = texts_of(asked, limits)
        if LINES in ask.headers.get("accept", ""):
            pieces = model.pieces(documents, types=asked.types)
            first = await anext(pieces)  # refused before the answer begins, not within it
            return StreamingResponse(_lines(first, pieces, asked.threshold), media_type=LINES)
        given = await model.found(documents, types=asked.types)
        found = [answered(one, asked.threshold) for one in given]
        return JSONResponse({"model": model.name, "documents": found})

    async def list_models(ask: Request) -> Response:
        return JSONResponse({"models": [described(model) for model in models.values()]})

    async def healthz(ask: Request) -> Response:
        return JSONResponse({"status": "ok", "confide": __version__})

    async def document(ask: Request) -> Response:
        return JSONResponse(openapi(list(models), limits))

    async def described_page(ask: Request) -> Response:
        origin = f"{ask.url.scheme}://{ask.headers['host']}"
        found = openapi(list(models), limits)
        return pages.page("api", title="REST", document=found, origin=origin, locked=locked)

    return [
        Route("/v1/predict", predict, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/healthz", healthz),
        Route("/openapi.json", document),
        Route("/api", described_page),
    ]


def chosen(models: Mapping[str, Served], name: str | None) -> Served:
    """The model of that name, or the first. Raises Refused."""
    if not models:
        raise Refused(404, "no-model", "no model is served here")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise Refused(404, "no-model", "there is no such model; /v1/models lists them")
    return models[name]


def described(model: Served) -> Tree:
    """What is said of a model."""
    return {"name": model.name, "finds": model.finds, "types": list(model.types)}


def answered(document: Document, threshold: float = 0.0) -> Tree:
    """A document as JSON, without what is less likely than the threshold."""
    kept = tuple(one for one in document.entities if sure(one, threshold))
    ids = {one.id for one in kept}
    related = tuple(
        one
        for one in document.relations
        if sure(one, threshold) and (one.level == "concept" or {one.head, one.tail} <= ids)
    )
    row = record(replace(document, entities=kept, relations=related, sentences=()))
    row.pop("attributes", None)
    return {"relations": [], **row}


def sure(one: Entity | Relation, threshold: float) -> bool:
    """Whether it is as likely as the threshold, or of no stated confidence."""
    return one.confidence is None or one.confidence >= threshold


async def _lines(
    first: list[Document], rest: AsyncIterator[list[Document]], threshold: float
) -> AsyncIterator[bytes]:
    """One JSON object in a line for each document, as soon as it is found."""
    yield _as_lines(first, threshold)
    async for piece in rest:
        yield _as_lines(piece, threshold)


def _as_lines(piece: list[Document], threshold: float) -> bytes:
    rows = (json.dumps(answered(one, threshold), ensure_ascii=False) for one in piece)
    return "".join(f"{row}\n" for row in rows).encode()
