"""The page Correct: one sentence or whole text at a time, saved at once, exported in any format.

A whole text shows what the annotator saved of its sentences, and once it is saved, it replaces
them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError
from confide.serve.agreement import agreement
from confide.serve.asking import (
    Given,
    GivenText,
    Id,
    Language,
    Place,
    Type,
    body_of,
    cut,
    document_of,
    plain,
)
from confide.serve.corrections import EXPORTS, Corrections, exported, place_of, settled
from confide.serve.gate import Refused
from confide.serve.limits import Limits
from confide.serve.models import Served
from confide.serve.pages import Pages
from confide.serve.pool import Item, Pool, moved, part_of
from confide.serve.rest import answered
from confide.text.document import Document, Entity, Relation
from confide.text.segment import tokens_of
from confide.userfiles import Tree

AN_ANNOTATOR = "an annotator"
T = TypeVar("T")


class Adds(Given):
    """The body of POST /pages/pool."""

    texts: list[GivenText]
    language: Language = None


class Asks(Given):
    """The body of POST /pages/next: `skip` are ids not to show now, `id` one to show again.

    `whole`: a whole text, not a sentence.
    """

    annotator: Id
    whole: bool = False
    skip: Annotated[tuple[Id, ...], Field(max_length=20_000, strict=False)] = ()
    id: Id | None = None


class Marked(Given):
    """An entity as an annotator leaves it."""

    id: Id
    type: Type
    fragments: Annotated[
        list[Annotated[list[Place], Field(min_length=2, max_length=2)]],
        Field(min_length=1, max_length=100),
    ]


class Linked(Given):
    """A relation as an annotator leaves it."""

    type: Type
    head: Id
    tail: Id


class Saves(Given):
    """The body of POST /pages/save."""

    annotator: Id
    id: Id
    entities: Annotated[list[Marked], Field(max_length=5000)]
    relations: Annotated[tuple[Linked, ...], Field(max_length=5000, strict=False)] = ()


@dataclass(frozen=True)
class Desk:
    """What annotators work with. Corrections have a thread of their own: a save waits for nothing.

    Exports, which may take long, are written one by one.
    """

    models: Mapping[str, Served]
    pool: Pool
    corrections: Corrections
    limits: Limits
    thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="corrections")
    )
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def kept(self, work: Callable[[], T]) -> T:
        """What reading or writing corrections gives."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def add(self, texts: Sequence[Document]) -> int:
        """Let every model annotate the texts, and pool their sentences; how many are new."""
        own = [replace(text, id=_id(text)) for text in texts]
        if not self.models:
            return self.pool.add([own])
        sides = await asyncio.gather(*(model.found(own) for model in self.models.values()))
        return self.pool.add(sides)

    def add_now(self, texts: Sequence[Document]) -> None:
        """The same before anything is served; texts that are too long are left out."""
        own = [replace(text, id=_id(text)) for text in texts]
        own = [text for text in own if len(text.text) <= self.limits.characters]
        sides = [model.annotate(own) for model in self.models.values()] or [own]
        self.pool.add(sides)

    def types(self) -> list[str]:
        """The types that the models find."""
        return sorted({type for model in self.models.values() for type in model.types})


def routes(desk: Desk, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def show(ask: Request) -> Response:
        return await _show(desk, pages)

    async def export(ask: Request) -> Response:
        return await _export(desk, ask)

    return [
        *_working(desk),
        Route("/correct", show),
        Route("/corrections/export", export),
    ]


def _working(desk: Desk) -> list[Route]:
    async def add(ask: Request) -> Response:
        asked = await body_of(ask, Adds)
        if len(asked.texts) > desk.limits.texts:
            raise Refused(413, "too-many", f"at most {desk.limits.texts} texts at once")
        texts = [document_of(one, n, desk.limits) for n, one in enumerate(asked.texts, 1)]
        added = await desk.add(cut(texts, asked.language))
        return JSONResponse({"added": added, "sentences": len(desk.pool.sentences)})

    async def following(ask: Request) -> Response:
        asked = await body_of(ask, Asks)
        own = await _own(desk, asked.annotator)
        item = None if asked.id is None else desk.pool.found(asked.id)
        if asked.id is not None and item is None:
            raise Refused(404, "no-sentence", "there is no such sentence here")
        item = item or desk.pool.next({*own, *asked.skip}, whole=asked.whole)
        facts = {
            "done": desk.pool.done(own.keys(), whole=asked.whole),
            "sentences": len(desk.pool.all(whole=asked.whole)),
        }
        return JSONResponse(facts | {"item": _shown(item, own) if item else None})

    async def save(ask: Request) -> Response:
        asked = await body_of(ask, Saves)
        own = await _own(desk, asked.annotator)
        item = desk.pool.found(asked.id)
        if item is None:
            raise Refused(404, "no-sentence", "there is no such sentence here")
        if item.of in own:
            raise Refused(409, "whole", "the whole text was corrected: change it there; NOT saved")
        document = corrected(item.document, asked)
        keep = partial(desk.corrections.save, of=item.of, at=item.at)
        try:
            count = await desk.kept(partial(keep, asked.annotator, document))
        except ConfideError:
            raise Refused(
                507, "not-saved", "the correction could not be written: NOT saved"
            ) from None
        return JSONResponse({"saved": count})

    return [
        Route("/pages/pool", add, methods=["POST"]),
        Route("/pages/next", following, methods=["POST"]),
        Route("/pages/save", save, methods=["POST"]),
    ]


async def _own(desk: Desk, annotator: str) -> dict[str, Document]:
    name = plain(annotator, AN_ANNOTATOR)
    try:
        return await desk.kept(partial(desk.corrections.of, name))
    except ConfideError:
        raise Refused(
            500, "damaged", "this annotator's file is damaged; `confide data check` says where"
        ) from None


def corrected(document: Document, asked: Saves) -> Document:
    """A sentence as an annotator leaves it. Raises Refused: marks outside it, ids twice."""
    size = len(document.text)
    entities = []
    for one in asked.entities:
        spans = [(start, end) for start, end in one.fragments]
        ends = [0, *(place for span in spans for place in span), size]
        apart = all(end < start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        if not apart or ends != sorted(ends) or any(start == end for start, end in spans):
            raise Refused(422, "outside", "an entity is empty, or does not lie in its sentence")
        entities.append(Entity(one.id, one.type, tuple(spans)))
    ids = {one.id for one in entities}
    if len(ids) < len(entities) or any(not {o.head, o.tail} <= ids for o in asked.relations):
        raise Refused(422, "ids", "an id is there twice, or a relation has an end that is not")
    entities.sort(key=lambda one: (one.start, one.end, one.type))
    relations = [
        Relation(f"R{n}", one.type, one.head, one.tail) for n, one in enumerate(asked.relations, 1)
    ]
    return replace(document, entities=tuple(entities), relations=tuple(relations))


def _shown(item: Item, own: Mapping[str, Document]) -> Tree:
    """A sentence for the page, as it was saved, or else as the first model reads it."""
    saved = own.get(item.document.id)
    if saved is None and item.of in own:
        span = (item.at, item.at + len(item.document.text))
        saved = part_of(own[item.of], span, id=item.document.id)
    item = item if saved else with_saved(item, own)
    others = answered(replace(item.document, entities=item.others, relations=()))["entities"]
    return {
        **answered(saved or item.document),
        "others": [] if saved else others,
        "saved": saved is not None,
        "whole": not item.of,
        "tokens": tokens_of(item.document.text),
        "before": item.before,
        "after": item.after,
        "why": item.why,
    }


def with_saved(item: Item, own: Mapping[str, Document]) -> Item:
    """A whole text with what the annotator saved of its sentences, in place of what was found."""
    document, others = item.document, item.others
    for saved in own.values():
        place = place_of(saved)
        if place is None or place[0] != document.id:
            continue
        at, end = place[1], place[1] + len(saved.text)
        if document.text[at:end] == saved.text:
            document = _put(document, saved, at=at)
            others = tuple(one for one in others if one.end <= at or end <= one.start)
    return replace(item, document=document, others=others)


def _put(document: Document, saved: Document, *, at: int) -> Document:
    """A document with the marks of a sentence that was saved, and no others in that place."""
    end = at + len(saved.text)
    left = [one for one in document.entities if one.end <= at or end <= one.start]
    names = {one.id: f"S{at}-{n}" for n, one in enumerate(saved.entities, 1)}
    new = [replace(moved(one, at), id=names[one.id]) for one in saved.entities]
    ids = {one.id for one in left}
    relations = [one for one in document.relations if {one.head, one.tail} <= ids]
    linked = [
        replace(one, id=f"S{at}-{one.id}", head=names[one.head], tail=names[one.tail])
        for one in saved.relations
        if {one.head, one.tail} <= names.keys()
    ]
    entities = sorted([*left, *new], key=lambda one: (one.start, one.end, one.type))
    return replace(document, entities=tuple(entities), relations=(*relations, *linked))


async def _show(desk: Desk, pages: Pages) -> Response:
    """The page, with what each annotator has done and how far any two agree."""
    names = await desk.kept(desk.corrections.annotators)
    held = {name: await _own(desk, name) for name in names}
    pairs = [
        (one, other, *agreement(held[one], held[other])) for one, other in combinations(names, 2)
    ]
    return pages.page(
        "correct",
        title="Correct",
        types=desk.types(),
        counts={name: len(own) for name, own in held.items()},
        pairs=[pair for pair in pairs if pair[2]],
        exports=EXPORTS,
        sentences=len(desk.pool.sentences),
        limits=desk.limits,
    )


async def _export(desk: Desk, ask: Request) -> Response:
    """An annotator's corrections as a file to save."""
    annotator = plain(ask.query_params.get("annotator"), AN_ANNOTATOR)
    format = ask.query_params.get("format", "jsonl")
    if format not in EXPORTS:
        raise Refused(422, "format", f"the formats are {', '.join(EXPORTS)}")
    own = await _own(desk, annotator)
    if not own:
        raise Refused(404, "none", "this annotator has corrected nothing yet")
    async with desk.one_by_one:
        raw, suffix = await asyncio.to_thread(exported, list(settled(own).values()), format)
    name = f"{annotator}-{format}{suffix}"
    return Response(
        raw,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


def _id(text: Document) -> str:
    """An id that is the same for the same text, whoever adds it and when."""
    digest = hashlib.sha256(text.text.encode()).hexdigest()[:10]
    return f"{text.id[:150]}-{digest}"
