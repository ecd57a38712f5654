"""The page Correct, corrections on disk, and the agreement of annotators.

One sentence or whole text at a time is saved at once, and exported in any format.

A whole text shows what the annotator saved of its sentences, and once it is saved, it replaces
them.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, combinations, islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide import files
from confide.errors import ConfideError, DataError, GuardError, os_errors_as
from confide.scoring import count_entities, scores
from confide.serve import gate
from confide.serve.gate import CallerLimits, HttpError, Pages
from confide.serve.models import Served, answer_of, stretches
from confide.text.document import Document, Entity, Relation, Span
from confide.text.formats import FORMATS, read, write
from confide.text.formats.jsonl import document_record
from confide.text.segment import tokenise

# --- Corrections on disk
#
# One JSON Lines file for each annotator, safe from a crash at once.
#
# A correction is a document in confide's own form, appended in one write and flushed to the disk
# before it is answered. A later line of the same id replaces an earlier one. A crash can tear only
# the last line, which nobody was told is saved; it is removed before the next is written.
#
# Several servers may keep theirs in one folder, and a file may be put there meanwhile: whoever
# reads or writes has the folder to itself, and reads a file again that has changed.


ENDING = ".jsonl"
OF, AT = "of", "at"
"""Attributes of a corrected sentence: the id of its text, and the character at which it begins."""
EXPORTS = tuple(name for name, one in FORMATS.items() if one.write)


class Corrections:
    """All corrections in a folder, which is made with the first, for its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turn = threading.Lock()
        self._cache: dict[str, tuple[tuple[int, ...], dict[str, Document]]] = {}

    def annotators(self) -> list[str]:
        """Who has corrected something."""
        if not self.folder.is_dir():
            return []
        found = (path for path in self.folder.iterdir() if path.name.endswith(ENDING))
        return sorted(path.name.removesuffix(ENDING) for path in found if files.is_regular(path))

    def by_annotator(self, annotator: str) -> dict[str, Document]:
        """An annotator's corrections by id, each as last saved. Raises DataError, FormatError."""
        if not self.folder.is_dir():
            return {}
        with self._locked():
            return dict(self._read(annotator))

    def save(self, annotator: str, document: Document, *, of: str = "", at: int = 0) -> int:
        """Keep a correction, whatever happens next; how many the annotator has now.

        A sentence begins at character `at` of the text with the id `of`; a whole text is of none.
        Raises DataError if it cannot be written: then nothing is kept.
        """
        when = datetime.now(UTC).isoformat(timespec="seconds")
        own = [("annotator", annotator), ("corrected", when)]
        place = [(OF, of), (AT, str(at))] if of else []
        kept = replace(document, attributes=(*own, *place))
        line = json.dumps(document_record(kept), ensure_ascii=False) + "\n"
        path = self._path(annotator)
        files.private_folder(self.folder)
        with self._locked():
            held = self._read(annotator)
            with os_errors_as(
                DataError, "the correction cannot be written", where=path, fix="make room"
            ):
                files.append_durably(path, line.encode())
            held[kept.id] = kept
            self._cache[annotator] = files.stamp_of(path), held
            return len(held)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No other thread, and no other server, has the folder. Raises DataError."""
        with self._turn, os_errors_as(DataError, "the folder is out of reach", where=self.folder):
            handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _path(self, annotator: str) -> Path:
        return files.path_inside(self.folder, annotator + ENDING)

    def _read(self, annotator: str) -> dict[str, Document]:
        path = self._path(annotator)
        stamp, held = self._cache.get(annotator, ((), {}))
        if stamp != files.stamp_of(path):
            if path.exists():
                _mend(path)
            there = path.exists() and path.stat().st_size > 0
            documents = read(path, "jsonl").documents if there else []
            held = {one.id: one for one in documents}
            self._cache[annotator] = files.stamp_of(path), held
        return held


def sentence_place(document: Document) -> tuple[str, int] | None:
    """The id of the text that a corrected sentence is of, and where it begins; None if whole."""
    held = dict(document.attributes)
    of, at = held.get(OF, ""), held.get(AT, "")
    return (of, int(at)) if of and at.isdecimal() and len(at) < 13 else None


def without_replaced(own: Mapping[str, Document]) -> dict[str, Document]:
    """Corrections without the sentences of texts that were corrected as a whole too."""
    places = {id: sentence_place(one) for id, one in own.items()}
    return {id: one for id, one in own.items() if not ((at := places[id]) and at[0] in own)}


def _mend(path: Path) -> None:
    """Make the file end with a whole line: complete its last one, or cut off what a crash tore."""
    raw = path.read_bytes()
    if not raw or raw.endswith(b"\n"):
        return
    start = raw.rfind(b"\n") + 1
    try:
        json.loads(raw[start:])
        files.append_durably(path, b"\n")
    except ValueError:
        with open(path, "r+b") as file:
            file.truncate(start)
            os.fsync(file.fileno())


def export_corrections(documents: Sequence[Document], format: str) -> tuple[bytes, str]:
    """The documents in a format, and how the file's name ends; a folder comes as a zip.

    Raises SettingsError: there is no such format, or none that is written.
    """
    with TemporaryDirectory(prefix="confide-") as folder:
        suffix = FORMATS[format].suffix if format in FORMATS else ""
        path = Path(folder) / f"corrections{suffix}"
        write(documents, path, format)
        if not path.is_dir():
            return path.read_bytes(), suffix or ".txt"
        return Path(shutil.make_archive(str(path) + "-zip", "zip", path)).read_bytes(), ".zip"


# --- The queue of sentences
#
# Sentences, or whole texts, to be corrected, the most useful first.
#
# What the models disagree on comes first, then the sentence with the entity that the first model is
# least sure of. A model states no confidence in what it did not find, so every fifth sentence is
# one in which nothing was found: only there can missed entities show.


EVERY = 5


@dataclass(frozen=True, slots=True)
class Item:
    """A sentence as a document of its own, what the first model finds in it, and its neighbours.

    `sure` is the confidence of the least sure entity, None if there is none; `differ` says that the
    models find different entities, and `others` are those that only another model finds. A
    sentence begins at character `at` of the text with the id `of`; a whole text is of none.
    """

    document: Document
    before: str
    after: str
    sure: float | None
    differ: bool
    others: tuple[Entity, ...] = ()
    of: str = ""
    at: int = 0

    @property
    def why(self) -> str:
        """Why an annotator sees it now."""
        if self.differ:
            return "the models disagree"
        if self.sure is None:
            return "nothing was found; was something missed?"
        return f"the least sure entity has {100 * self.sure:.0f} %"


class Pool:
    """The sentences at hand and their whole texts by id, in the order in which to correct them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.sentences: dict[str, Item] = {}
        self.texts: dict[str, Item] = {}

    def add(self, sides: Sequence[Sequence[Document]]) -> int:
        """Add texts as each model annotated them; how many sentences are new.

        Sentences beyond the most that a pool holds are left out, and their texts as a whole.
        """
        before = len(self.sentences)
        for versions in zip(*sides, strict=True):
            items = list(sentence_items(versions))
            for item in items:
                if len(self.sentences) < self._most:
                    self.sentences.setdefault(item.document.id, item)
            if items and items[-1].document.id in self.sentences:
                self.texts.setdefault(versions[0].id, whole_item(versions))
        self.sentences = {id: self.sentences[id] for id in by_usefulness(self.sentences)}
        self.texts = {id: self.texts[id] for id in by_usefulness(self.texts)}
        return len(self.sentences) - before

    def all(self, *, whole: bool) -> Mapping[str, Item]:
        """The sentences by id, or the whole texts."""
        return self.texts if whole else self.sentences

    def get(self, id: str) -> Item | None:
        """The sentence or the whole text of that id."""
        return self.sentences.get(id) or self.texts.get(id)

    def next(self, done: Collection[str], *, whole: bool = False) -> Item | None:
        """The most useful sentence, or whole text, that is not done yet.

        A sentence is done with its text.
        """
        items = self.all(whole=whole).items()
        return next((one for id, one in items if id not in done and one.of not in done), None)

    def done(self, done: Collection[str], *, whole: bool) -> int:
        """Count the sentences, or whole texts, that are done."""
        items = self.all(whole=whole)
        return sum(id in done or item.of in done for id, item in items.items())


def by_usefulness(items: Mapping[str, Item]) -> Iterator[str]:
    """Ids in the order of use: doubtful ones, and every fifth one without an entity."""
    doubtful = [
        (not item.differ, item.sure or 0.0, id)
        for id, item in items.items()
        if item.differ or item.sure is not None
    ]
    some = {id for _, _, id in doubtful}
    first = iter([id for _, _, id in sorted(doubtful)])
    empty = iter([id for id in items if id not in some])
    for _ in range(len(items)):
        yield from chain(islice(first, EVERY - 1), islice(empty, 1))


def sentence_items(versions: Sequence[Document]) -> Iterator[Item]:
    """The sentences of one text, as the models annotated it."""
    first = versions[0]
    rows = stretches(versions)
    for number, (start, end) in enumerate(rows, 1):
        own = f"{first.id}.s{number}"
        pieces = [part_of(version, (start, end), id=own) for version in versions]
        before = first.text[rows[number - 2][0] : start] if number > 1 else first.text[:start]
        after = first.text[end : rows[number][1]] if number < len(rows) else first.text[end:]
        yield replace(_item(pieces), before=before, after=after, of=first.id, at=start)


def whole_item(versions: Sequence[Document]) -> Item:
    """A whole text, as the models annotated it."""
    first = versions[0]
    return _item([part_of(one, (0, len(first.text)), id=first.id) for one in versions])


def _item(pieces: Sequence[Document]) -> Item:
    marks = [frozenset((one.type, one.fragments) for one in piece.entities) for piece in pieces]
    others: dict[tuple[str, tuple[Span, ...]], Entity] = {}
    for one in chain.from_iterable(piece.entities for piece in pieces[1:]):
        if (one.type, one.fragments) not in marks[0]:
            others.setdefault((one.type, one.fragments), one)
    first = len(marks[0]) + 1
    return Item(
        document=pieces[0],
        before="",
        after="",
        sure=pieces[0].least_sure,
        differ=len(set(marks)) > 1,
        others=tuple(replace(one, id=f"O{n}") for n, one in enumerate(others.values(), first)),
    )


def part_of(document: Document, span: tuple[int, int], *, id: str) -> Document:
    """A stretch of a document as one of its own, with the annotations that lie in it."""
    start, end = span
    inner = [one for one in document.entities if start <= one.start and one.end <= end]
    return Document(
        id,
        document.text[start:end],
        tuple(one.shifted(-start) for one in inner),
        tuple(_between(inner, document.relations)),
        tuple(one.shifted(-start) for one in document.sentences if start <= one.start < end),
    )


def _between(entities: Iterable[Entity], relations: Iterable[Relation]) -> Iterator[Relation]:
    """The relations both of whose ends are among the entities."""
    ids = {one.id for one in entities}
    return (one for one in relations if {one.head, one.tail} <= ids)


# --- Agreement of two annotators
#
# On the texts that both corrected.


@dataclass(frozen=True, slots=True)
class TypeAgreement:
    """Agreement on one type, or on all: the F1 of exact entities, and Cohen's kappa of tokens.

    `kappa` is None where both say the same of every token because neither marks any.
    """

    type: str
    f1: float
    relaxed: float
    kappa: float | None
    first: int
    second: int


def annotator_agreement(
    first: Mapping[str, Document], second: Mapping[str, Document]
) -> tuple[int, list[TypeAgreement]]:
    """Count the texts that both corrected, and score their agreement: over all types, then by type.

    A text that one of them corrected as a whole is cut into the sentences of the other.
    """
    first, second = without_replaced(first), without_replaced(second)
    own, other = dict(_cut(first, second)), dict(_cut(second, first))
    first, second = {**first, **own}, {**second, **other}
    common = sorted(id for id in first.keys() & second.keys() if first[id].text == second[id].text)
    ones, others = [first[id] for id in common], [second[id] for id in common]
    found = scores(count_entities(ones, others))
    labels = [  # of every token, by both
        (_types_in(one, *span), _types_in(other, *span))
        for one, other in zip(ones, others, strict=True)
        for span in tokenise(one.text)
    ]
    pairs = {"all": [(" ".join(sorted(a)), " ".join(sorted(b))) for a, b in labels]}
    strict, relaxed = (
        {"all": found[kind], **found[kind]["types"]} for kind in ("strict", "relaxed")
    )
    for type in sorted(found["strict"]["types"]):
        pairs[type] = [(str(type in a), str(type in b)) for a, b in labels]
    return len(common), [
        TypeAgreement(
            type,
            strict[type]["f1"],
            relaxed[type]["f1"],
            kappa(both),
            round(strict[type]["support"]),
            round(strict[type]["predicted"]),
        )
        for type, both in pairs.items()
    ]


def _cut(
    own: Mapping[str, Document], other: Mapping[str, Document]
) -> Iterator[tuple[str, Document]]:
    """Pieces of one's whole texts, where the other corrected sentences of them."""
    for id, piece in other.items():
        place = sentence_place(piece)
        if place is not None and place[0] in own:
            of, at = place
            yield id, part_of(own[of], (at, at + len(piece.text)), id=id)


def _types_in(document: Document, start: int, end: int) -> frozenset[str]:
    """The types of the entities that cover a token."""
    return frozenset(
        entity.type
        for entity in document.entities
        if any(first < end and start < last for first, last in entity.fragments)
    )


def kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa of two annotators' labels of the same things; None if it is not defined.

    Cohen, "A Coefficient of Agreement for Nominal Scales", 1960.

    >>> kappa([("a", "a"), ("a", "b"), ("b", "b"), ("b", "b")])
    0.5
    """
    total = len(pairs)
    if not total:
        return None
    same = sum(one == other for one, other in pairs) / total
    labels = {label for pair in pairs for label in pair}
    chance = sum(
        sum(one == label for one, _ in pairs) * sum(other == label for _, other in pairs)
        for label in labels
    ) / (total * total)
    return None if chance == 1 else (same - chance) / (1 - chance)


# --- The page


class AddAsk(gate.Body):
    """The body of POST /pages/pool."""

    texts: list[gate.GivenText]
    language: gate.Language = None


class NextAsk(gate.Body):
    """The body of POST /pages/next: `skip` are ids not to show now, `id` one to show again.

    `whole`: a whole text, not a sentence.
    """

    annotator: gate.Id
    whole: bool = False
    skip: Annotated[tuple[gate.Id, ...], Field(max_length=20_000, strict=False)] = ()
    id: gate.Id | None = None


class CorrectedEntity(gate.Body):
    """An entity as an annotator leaves it."""

    id: gate.Id
    type: gate.Type
    fragments: Annotated[
        list[Annotated[list[gate.Place], Field(min_length=2, max_length=2)]],
        Field(min_length=1, max_length=100),
    ]


class CorrectedRelation(gate.Body):
    """A relation as an annotator leaves it."""

    type: gate.Type
    head: gate.Id
    tail: gate.Id


class SaveAsk(gate.Body):
    """The body of POST /pages/save."""

    annotator: gate.Id
    id: gate.Id
    entities: Annotated[list[CorrectedEntity], Field(max_length=5000)]
    relations: Annotated[tuple[CorrectedRelation, ...], Field(max_length=5000, strict=False)] = ()


@dataclass(frozen=True)
class Workplace:
    """The annotators' workplace. Corrections have a thread of their own: a save waits for nothing.

    Exports, which may take long, are written one by one.
    """

    models: Mapping[str, Served]
    pool: Pool
    corrections: Corrections
    limits: CallerLimits
    thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="corrections")
    )
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def add(self, texts: Sequence[Document]) -> int:
        """Let every model annotate the texts, and pool their sentences; how many are new."""
        own = [_with_digest(text) for text in texts]
        sides = await asyncio.gather(*(model.predict(own) for model in self.models.values()))
        return self.pool.add(sides or [own])

    def add_now(self, texts: Sequence[Document]) -> None:
        """Add texts before anything is served; texts that are too long are left out."""
        own = [_with_digest(text) for text in texts if len(text.text) <= self.limits.characters]
        self.pool.add([model.annotate(own) for model in self.models.values()] or [own])

    async def annotators(self) -> list[str]:
        """Who has corrected something."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self.corrections.annotators)

    async def corrected_by(self, annotator: str | None) -> dict[str, Document]:
        """An annotator's corrections by id. Raises HttpError."""
        try:
            name = files.plain_name(annotator, "an annotator")
        except GuardError:
            what = "this is not the name of an annotator: letters, digits, '.', '_' and '-'"
            raise HttpError(422, "name", what) from None
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.thread, self.corrections.by_annotator, name)
        except ConfideError:
            what = "this annotator's file is damaged; `confide data check` says where"
            raise HttpError(500, "damaged", what) from None

    async def save(self, annotator: str, document: Document, item: Item) -> int:
        """Keep a correction; how many the annotator has now. Raises HttpError."""
        work = partial(self.corrections.save, annotator, document, of=item.of, at=item.at)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except ConfideError:
            what = "the correction could not be written: NOT saved"
            raise HttpError(507, "not-saved", what) from None

    def item(self, id: str) -> Item:
        """The sentence or whole text of that id. Raises HttpError."""
        if (item := self.pool.get(id)) is None:
            raise HttpError(404, "no-sentence", "there is no such sentence here")
        return item

    def types(self) -> list[str]:
        """The types that the models find."""
        return sorted({type for model in self.models.values() for type in model.types})


def _with_digest(text: Document) -> Document:
    """A text whose id is the same for the same text, whoever adds it and when."""
    digest = hashlib.sha256(text.text.encode()).hexdigest()[:10]
    return replace(text, id=f"{text.id[:150]}-{digest}")


def correct_routes(place: Workplace, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def show(ask: Request) -> Response:
        names = await place.annotators()
        held = {name: await place.corrected_by(name) for name in names}
        pairs = [
            (one, other, *annotator_agreement(held[one], held[other]))
            for one, other in combinations(names, 2)
        ]
        return pages.page(
            "correct",
            title="Correct",
            types=place.types(),
            counts={name: len(own) for name, own in held.items()},
            pairs=[pair for pair in pairs if pair[2]],
            exports=EXPORTS,
            sentences=len(place.pool.sentences),
            limits=place.limits,
        )

    async def add(ask: Request) -> Response:
        asked = await AddAsk.read(ask)
        texts = gate.given_documents(asked.texts, asked.language, place.limits)
        added = await place.add(texts)
        return JSONResponse({"added": added, "sentences": len(place.pool.sentences)})

    async def show_next(ask: Request) -> Response:
        asked = await NextAsk.read(ask)
        own = await place.corrected_by(asked.annotator)
        pool, whole = place.pool, asked.whole
        if asked.id is None:
            item = pool.next({*own, *asked.skip}, whole=whole)
        else:
            item = place.item(asked.id)
        facts = {"done": pool.done(own, whole=whole), "sentences": len(pool.all(whole=whole))}
        return JSONResponse(facts | {"item": item and item_record(item, own)})

    async def save(ask: Request) -> Response:
        asked = await SaveAsk.read(ask)
        own = await place.corrected_by(asked.annotator)
        item = place.item(asked.id)
        if item.of in own:
            what = "the whole text was corrected: change it there; NOT saved"
            raise HttpError(409, "whole", what)
        document = apply_corrections(item.document, asked)
        return JSONResponse({"saved": await place.save(asked.annotator, document, item)})

    async def export(ask: Request) -> Response:
        """An annotator's corrections as a file to save."""
        annotator = ask.query_params.get("annotator")
        format = ask.query_params.get("format", "jsonl")
        own = await place.corrected_by(annotator)
        if format not in EXPORTS:
            raise HttpError(422, "format", f"the formats are {', '.join(EXPORTS)}")
        if not own:
            raise HttpError(404, "none", "this annotator has corrected nothing yet")
        documents = list(without_replaced(own).values())
        async with place.one_by_one:
            raw, suffix = await asyncio.to_thread(export_corrections, documents, format)
        headers = {"content-disposition": f'attachment; filename="{annotator}-{format}{suffix}"'}
        return Response(raw, media_type="application/octet-stream", headers=headers)

    return [
        Route("/correct", show),
        Route("/pages/pool", add, methods=["POST"]),
        Route("/pages/next", show_next, methods=["POST"]),
        Route("/pages/save", save, methods=["POST"]),
        Route("/corrections/export", export),
    ]


def apply_corrections(document: Document, asked: SaveAsk) -> Document:
    """A sentence as an annotator leaves it. Raises HttpError: marks outside it, ids twice."""
    size = len(document.text)
    entities = []
    for one in asked.entities:
        spans = [(start, end) for start, end in one.fragments]
        ends = [0, *chain.from_iterable(spans), size]
        apart = all(end < start for (_, end), (start, _) in pairwise(spans))
        if not apart or ends != sorted(ends) or any(start == end for start, end in spans):
            raise HttpError(422, "outside", "an entity is empty, or does not lie in its sentence")
        entities.append(Entity(one.id, one.type, tuple(spans)))
    ids = {one.id for one in entities}
    if len(ids) < len(entities) or any(not {o.head, o.tail} <= ids for o in asked.relations):
        raise HttpError(422, "ids", "an id is there twice, or a relation has an end that is not")
    entities.sort(key=lambda one: (one.start, one.end, one.type))
    relations = [
        Relation(f"R{n}", one.type, one.head, one.tail) for n, one in enumerate(asked.relations, 1)
    ]
    return replace(document, entities=tuple(entities), relations=tuple(relations))


def item_record(item: Item, own: Mapping[str, Document]) -> files.Tree:
    """A sentence for the page, as it was saved, or else as the first model reads it."""
    saved = own.get(item.document.id)
    if saved is None and item.of in own:
        span = (item.at, item.at + len(item.document.text))
        saved = part_of(own[item.of], span, id=item.document.id)
    item = item if saved else with_saved(item, own)
    others = answer_of(replace(item.document, entities=item.others, relations=()))["entities"]
    return {
        **answer_of(saved or item.document),
        "others": [] if saved else others,
        "saved": saved is not None,
        "whole": not item.of,
        "tokens": tokenise(item.document.text),
        "before": item.before,
        "after": item.after,
        "why": item.why,
    }


def with_saved(item: Item, own: Mapping[str, Document]) -> Item:
    """A whole text with what the annotator saved of its sentences, in place of what was found."""
    document, others = item.document, item.others
    for saved in own.values():
        place = sentence_place(saved)
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
    new = [replace(one.shifted(at), id=names[one.id]) for one in saved.entities]
    linked = [
        replace(one, id=f"S{at}-{one.id}", head=names[one.head], tail=names[one.tail])
        for one in _between(saved.entities, saved.relations)
    ]
    entities = sorted([*left, *new], key=lambda one: (one.start, one.end, one.type))
    relations = (*_between(left, document.relations), *linked)
    return replace(document, entities=tuple(entities), relations=relations)
