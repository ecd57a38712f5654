"""The OpenAPI document of the REST interface, from the same forms that check what comes in."""

from __future__ import annotations

from collections.abc import Sequence

from confide import __version__
from confide.serve.asking import Predict
from confide.serve.limits import Limits
from confide.userfiles import Tree

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
