"""The REST interface: /v1/predict, /v1/models, /healthz, /openapi.json."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from confide.files import Tree
from confide.serve.gate import Limits, Pages, Predict, Refused, body_of, texts_of
from confide.serve.models import Served
from confide.text.document import Document, Entity, Relation
from confide.text.formats.jsonl import document_record
from confide.version import __version__

# --- The OpenAPI document
#
# It is made from the same forms that check what comes in.


_ERRORS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "403": "Another site's page sent this.",
    "404": "There is no such model.",
    "408": "The body took too long.",
    "413": "The body, a text or the number of texts is too large.",
    "415": "The body does not say that it is JSON.",
    "421": "This address is not served under that name.",
    "422": "The body is not what was asked for.",
    "503": "Too many asks are waiting; try again.",
}


def openapi(models: Sequence[str], limits: Limits) -> Tree:
    """The document, version 3.1, with the names of the models and the limits that hold here."""
    predict = Predict.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = predict.pop("$defs", {})
    predict["properties"]["texts"] |= {"minItems": 1, "maxItems": limits.texts}
    if models:
        predict["properties"]["model"] = {"type": "string", "enum": list(models)}
    ours = {"$ref": "#/components/schemas/Document"}
    found = {"type": "array", "items": ours}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "confide",
            "version": __version__,
            "description": "Entities and relations in text, by models that run here."
            f" A body has at most {limits.body} bytes, a text {limits.characters} characters.",
        },
        "paths": {
            "/v1/predict": {"post": _predicting(found, ours)},
            "/v1/models": {"get": _getting("The models that are served.", _MODELS)},
            "/healthz": {"get": _getting("Whether the server answers.", {"type": "object"})},
        },
        "components": {
            "schemas": {**parts, "Predict": predict, "Document": _DOCUMENT, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _predicting(found: Tree, line: Tree) -> Tree:
    shape = {"type": "object", "properties": {"model": {"type": "string"}, "documents": found}}
    wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: Tree = {
        "200": {
            "description": "The texts in their order; as lines if NDJSON is accepted.",
            "content": {
                "application/json": {"schema": shape},
                "application/x-ndjson": {"schema": line},
            },
        }
    }
    answers |= {code: {"description": says, "content": wrong} for code, says in _ERRORS.items()}
    asked = {"application/json": {"schema": {"$ref": "#/components/schemas/Predict"}}}
    return {
        "operationId": "predict",
        "summary": "Find entities and relations in texts.",
        "requestBody": {"required": True, "content": asked},
        "responses": answers,
    }


def _getting(summary: str, schema: Tree) -> Tree:
    content = {"application/json": {"schema": schema}}
    return {
        "operationId": summary.split()[1],
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}},
    }


_TEXT = {"type": "string"}
_CONFIDENCE = {"type": "number", "minimum": 0, "maximum": 1}
_MODEL = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "finds": {"enum": ["entities", "relations", "facts", "entities and relations"]},
        "types": {"type": "array", "items": _TEXT},
    },
}
_MODELS = {"type": "object", "properties": {"models": {"type": "array", "items": _MODEL}}}
_ENTITY = {
    "type": "object",
    "required": ["id", "type", "fragments"],
    "properties": {
        "id": _TEXT,
        "type": _TEXT,
        "fragments": {
            "description": "Characters of the text, counted in code points; the end is left out.",
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        },
        "confidence": _CONFIDENCE,
    },
}
_RELATION = {
    "type": "object",
    "required": ["id", "type", "head", "tail"],
    "properties": dict.fromkeys(("id", "type", "head", "tail"), _TEXT)
    | {"confidence": _CONFIDENCE},
}
_DOCUMENT = {
    "type": "object",
    "required": ["id", "text", "entities", "relations"],
    "properties": {
        "id": _TEXT,
        "text": _TEXT,
        "entities": {"type": "array", "items": _ENTITY},
        "relations": {"type": "array", "items": _RELATION},
    },
}
_ERROR = {
    "type": "object",
    "required": ["error", "what"],
    "properties": {"error": _TEXT, "what": _TEXT},
}


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
    """A model's entry in /v1/models."""
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
    row = document_record(replace(document, entities=kept, relations=related, sentences=()))
    row.pop("attributes", None)
    return {"relations": [], **row}


def sure(one: Entity | Relation, threshold: float) -> bool:
    """Return whether it is as likely as the threshold, or of no stated confidence."""
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
