"""Models for annotation tools: Label Studio's ML backend, INCEpTION's external recommender.

Both tools send texts and show what comes back as suggestions. Nothing is kept, nothing is fetched
from them, and what they send to train on is not read: Label Studio's webhooks, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError
from confide.files import Tree
from confide.kinds.relations.batches import known_type
from confide.serve import gate
from confide.serve.gate import CallerLimits, GivenText, HttpError
from confide.serve.models import Served, choose_model
from confide.text.document import Document
from confide.text.files import Element, xml_root
from confide.text.formats.inception import SentCas
from confide.text.formats.jsonl import label_studio_results, label_studio_score


class ToolBody(gate.Body):
    """A body of a tool: keys that are not for us are ignored."""

    model_config = ConfigDict(extra="ignore")


def tool_routes(models: Mapping[str, Served], limits: CallerLimits) -> list[Route]:
    """The routes that annotation tools ask."""

    def model_of(ask: Request) -> Served:
        model = choose_model(models, ask.path_params["model"])
        if not model.types:
            raise HttpError(422, "no-entities", "this model finds no entities of its own")
        return model

    async def untrained(ask: Request) -> Response:
        raise HttpError(501, "not-supported", "models are not trained from here")

    trains = ("labelstudio/{model}/train", "labelstudio/{model}/webhook", "inception/{model}/train",
              "inception/{model}/{key}/train")  # fmt: skip
    return [
        *_label_studio_routes(model_of, limits),
        *_inception_routes(model_of, limits),
        *(Route(f"/v1/{path}", untrained, methods=["POST"]) for path in trains),
    ]


def _no_document_type(xml: str) -> str:
    """The XML, which tools send without a document type. Raises HttpError if it has one."""
    if "<!DOCTYPE" in xml:
        raise HttpError(422, "not-xml", "XML with a document type is not read")
    return xml


# --- Label Studio
#
# It sends tasks and its project's labelling configuration, and takes predictions of its own labels.


MOST_CONTROLS, MOST_LABELS = 20, 1000
MOST_TASKS = 10_000
"""Label Studio sends all tasks that are chosen in one ask, and takes nothing from a shorter answer.
Of tasks as it writes them, a body holds fewer."""
Config = Annotated[str, Field(max_length=200_000)]


class SetupAsk(ToolBody):
    """The body of POST setup."""

    config: Annotated[Config, Field(alias="schema")]


class LabelStudioTask(ToolBody):
    """A task: its data has the text, under the name that the configuration says."""

    data: dict[str, Any]


class LabelStudioAsk(ToolBody):
    """The body of POST predict."""

    tasks: Annotated[list[LabelStudioTask], Field(min_length=1, max_length=MOST_TASKS)]
    label_config: Config


@dataclass(frozen=True, slots=True)
class Labelling:
    """A project's tags and labels: where its text is, and what predictions are called there.

    `control` and `shown` are the names of the tags with the labels and the text, `key` that of the
    text in a task. `labels` are the project's by the model's types; `relations` are its labels of
    relations.
    """

    control: str
    shown: str
    key: str
    labels: Mapping[str, str]
    relations: Collection[str]

    @staticmethod
    def of(config: str, types: Sequence[str]) -> Labelling:
        """Read a configuration for a model of these types.

        Raises HttpError: it is not XML, has no label of these types, or its text is not in tasks.
        """
        try:
            root = xml_root(_no_document_type(config), "the configuration")
        except ConfideError:
            raise HttpError(422, "not-xml", "the labelling configuration is not XML") from None
        texts = {one.get("name", ""): one for one in root.iter("Text")}
        found: list[tuple[dict[str, str], str, str]] = []
        controls = list(root.iter("Labels"))
        if len(controls) > MOST_CONTROLS:
            raise HttpError(422, "labels", f"a configuration has at most {MOST_CONTROLS} <Labels>")
        for control in controls:
            known = _labels(control.iter("Label"))
            fits = {type: label for type in types if (label := known_type(type, known))}
            shown = next((one for one in control.get("toName", "").split(",") if one in texts), "")
            if fits and shown:
                found.append((fits, control.get("name", ""), shown))
        if not found:
            finds = ", ".join(types[:20])
            what = f"no <Labels> of a <Text> has a label that this model finds: {finds}"
            raise HttpError(422, "labels", what)
        labels, name, shown = max(found, key=lambda one: len(one[0]))
        value = texts[shown].get("value", "")
        if not value.startswith("$") or texts[shown].get("valueType") == "url":
            raise HttpError(422, "text", "the text is not in the tasks, and none is fetched")
        return Labelling(name, shown, value[1:], labels, _labels(root.iter("Relation")))

    def prediction(self, document: Document) -> Tree:
        """The prediction of what a model found, in the project's terms."""
        entities = tuple(
            replace(one, type=self.labels[one.type])
            for one in document.entities
            if one.type in self.labels and len(one.fragments) == 1
        )
        ids = {one.id for one in entities}
        called = {one.type: known_type(one.type, self.relations) for one in document.relations}
        relations = tuple(
            replace(one, type=called[one.type])
            for one in document.relations
            if called[one.type] and {one.head, one.tail} <= ids
        )
        found = replace(document, entities=entities, relations=relations)
        results = label_studio_results(found, control=self.control, shown=self.shown)
        return {"result": results, "score": label_studio_score(found)}


def _labels(tags: Iterable[Element]) -> Collection[str]:
    """The labels as Label Studio writes them: an alias, if there is one. Raises HttpError."""
    names = {one.get("alias") or one.get("value") or "" for one in tags} - {""}
    if len(names) > MOST_LABELS:
        raise HttpError(422, "labels", f"a configuration has at most {MOST_LABELS} labels")
    return names


def _label_studio_routes(
    model_of: Callable[[Request], Served], limits: CallerLimits
) -> list[Route]:
    async def health(ask: Request) -> Response:
        model_of(ask)
        return JSONResponse({"status": "UP"})

    async def versions(ask: Request) -> Response:
        return JSONResponse({"versions": [model_of(ask).name]})

    async def setup(ask: Request) -> Response:
        model, asked = model_of(ask), await SetupAsk.read(ask)
        Labelling.of(asked.config, model.types)
        return JSONResponse({"model_version": model.name})

    async def predict(ask: Request) -> Response:
        model, asked = model_of(ask), await LabelStudioAsk.read(ask)
        labelling = Labelling.of(asked.label_config, model.types)
        texts = [one.data.get(labelling.key) for one in asked.tasks]
        there = {str(n): one for n, one in enumerate(texts) if isinstance(one, str)}
        given = [GivenText(id=number, text=text) for number, text in there.items()]
        of_tasks = replace(limits, texts=MOST_TASKS)
        found = await model.predict(gate.given_documents(given, None, of_tasks))
        by_number = {one.id: labelling.prediction(one) for one in found}
        nothing: Tree = {"result": [], "score": None}
        results = [by_number.get(str(n), nothing) for n in range(len(texts))]
        version = {"model_version": model.name}
        return JSONResponse({"results": [{**one, **version} for one in results], **version})

    return [
        Route("/v1/labelstudio/{model}/health", health),
        Route("/v1/labelstudio/{model}/versions", versions),
        Route("/v1/labelstudio/{model}/setup", setup, methods=["POST"]),
        Route("/v1/labelstudio/{model}/predict", predict, methods=["POST"]),
    ]


# --- INCEpTION
#
# It sends a CAS as XMI, and takes the CAS back with annotations that are marked as suggestions.


Name = r"[\p{L}_][\p{L}\p{N}_]*"


class InceptionMetadata(ToolBody):
    """The layer to suggest, and its feature that holds the type."""

    layer: Annotated[str, Field(max_length=300, pattern=rf"^{Name}(\.{Name})*$")]
    feature: Annotated[str, Field(max_length=100, pattern=f"^{Name}$")]


class InceptionDocument(ToolBody):
    """The CAS as XMI."""

    xmi: str


class InceptionAsk(ToolBody):
    """The body of POST predict."""

    metadata: InceptionMetadata
    document: InceptionDocument


def _inception_routes(model_of: Callable[[Request], Served], limits: CallerLimits) -> list[Route]:
    one_by_one = asyncio.Lock()  # a tree takes many times the memory of its XMI

    async def predict(ask: Request) -> Response:
        model, asked = model_of(ask), await InceptionAsk.read(ask)
        xmi, about = _no_document_type(asked.document.xmi), asked.metadata
        async with one_by_one:
            try:
                cas = await asyncio.to_thread(SentCas, xmi)
            except ConfideError:
                raise HttpError(422, "not-xmi", "this is not XMI, or has no text") from None
            if len(cas.document.text) > limits.characters:
                most = limits.characters
                raise HttpError(413, "too-long", f"a text has at most {most} characters")
            (found,) = await model.predict([cas.document])
            sent = await asyncio.to_thread(cas.suggest, found.entities, about.layer, about.feature)
        return JSONResponse({"document": sent})

    paths = ("/v1/inception/{model}/predict", "/v1/inception/{model}/{key}/predict")
    return [Route(path, predict, methods=["POST"]) for path in paths]
