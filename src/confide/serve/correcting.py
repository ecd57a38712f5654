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
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from confide.errors import ConfideError, DataError, os_errors_as
from confide.files import Tree, inside, is_regular, private_folder
from confide.scoring import count_entities, scores
from confide.serve.gate import (
    Given,
    GivenText,
    Id,
    Language,
    Limits,
    Pages,
    Place,
    Refused,
    Type,
    body_of,
    cut,
    document_of,
    plain,
)
from confide.serve.models import Served
from confide.serve.reading import stretches
from confide.serve.rest import answered
from confide.text.document import Document, Entity, Relation, Sentence, pack_spans
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


Mark = tuple[int, int, int] | None


class Corrections:
    """All corrections in a folder, which is made with the first, for its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turn = threading.Lock()
        self._held: dict[str, tuple[Mark, dict[str, Document]]] = {}

    def annotators(self) -> list[str]:
        """Who has corrected something."""
        if not self.folder.is_dir():
            return []
        files = (path for path in self.folder.iterdir() if path.name.endswith(ENDING))
        return sorted(path.name.removesuffix(ENDING) for path in files if is_regular(path))

    def of(self, annotator: str) -> dict[str, Document]:
        """An annotator's corrections by id, each as last saved. Raises DataError, FormatError."""
        if not self.folder.is_dir():
            return {}
        with self._alone():
            return dict(self._of(annotator))

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
        private_folder(self.folder)
        with self._alone():
            held = self._of(annotator)
            with os_errors_as(
                DataError, "the correction cannot be written", where=path, fix="make room"
            ):
                _append(path, line.encode())
            held[kept.id] = kept
            self._held[annotator] = _mark(path), held
            return len(held)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread, and no other server, has the folder. Raises DataError."""
        with self._turn, os_errors_as(DataError, "the folder is out of reach", where=self.folder):
            handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _path(self, annotator: str) -> Path:
        return inside(self.folder, annotator + ENDING)

    def _of(self, annotator: str) -> dict[str, Document]:
        path = self._path(annotator)
        mark, held = self._held.get(annotator, (None, {}))
        if mark is None or mark != _mark(path):
            if path.exists():
                _mend(path)
            there = path.exists() and path.stat().st_size > 0
            documents = read(path, "jsonl").documents if there else []
            held = {one.id: one for one in documents}
            self._held[annotator] = _mark(path), held
        return held


def place_of(document: Document) -> tuple[str, int] | None:
    """The id of the text that a corrected sentence is of, and where it begins; None if whole."""
    held = dict(document.attributes)
    of, at = held.get(OF, ""), held.get(AT, "")
    return (of, int(at)) if of and at.isdecimal() and len(at) < 13 else None


def settled(own: Mapping[str, Document]) -> dict[str, Document]:
    """Corrections without the sentences of texts that were corrected as a whole too."""
    return {
        id: one for id, one in own.items() if not ((place := place_of(one)) and place[0] in own)
    }


def _mark(path: Path) -> Mark:
    """A stamp that changes if a file is changed or replaced; None if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mend(path: Path) -> None:
    """Make the file end with a whole line: complete its last one, or cut off what a crash tore."""
    raw = path.read_bytes()
    if not raw or raw.endswith(b"\n"):
        return
    start = raw.rfind(b"\n") + 1
    try:
        json.loads(raw[start:])
        _append(path, b"\n")
    except ValueError:
        with open(path, "r+b") as file:
            file.truncate(start)
            os.fsync(file.fileno())


def _append(path: Path, data: bytes) -> None:
    """Append in one write and flush to disk; if that fails, the file is as before."""
    new = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        start = os.fstat(handle).st_size
        try:
            if os.write(handle, data) != len(data):
                raise OSError(28, "the disk is full")
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, start)
            raise
    finally:
        os.close(handle)
    if new:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def exported(documents: Sequence[Document], format: str) -> tuple[bytes, str]:
    """The documents in a format, and how the file's name ends; a folder comes as a zip.

    Raises SettingsError: there is no such format, or none that is written.
    """
    with TemporaryDirectory(prefix="confide-") as folder:
        suffix = FORMATS[format].suffix if format in FORMATS else ""
        path = Path(folder) / f"corrections{suffix}"
        write(documents, path, format)
        if not path.is_dir():
            return path.read_bytes(), suffix or ".txt"
        packed = Path(folder) / "corrections.zip"
        with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
            for file in sorted(path.rglob("*")):
                archive.write(file, file.relative_to(path))
        return packed.read_bytes(), ".zip"


# --- The queue of sentences
#
# Sentences, or whole texts, to be corrected, the most useful first.
#
# What the models disagree on comes first, then what the first model is least sure of: the
# sentence with the least sure entity (least confidence: Settles, "Active Learning Literature
# Survey", 2009). A model states no confidence in what it did not find, so every fifth sentence is
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
    """The sentences at hand and their whole texts, each in the order in which to correct them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.sentences: dict[str, Item] = {}
        self.texts: dict[str, Item] = {}
        self._order: list[str] = []
        self._order_of_texts: list[str] = []

    def add(self, sides: Sequence[Sequence[Document]]) -> int:
        """Add texts as each model annotated them; how many sentences are new.

        Sentences beyond the most that a pool holds are left out, and their texts as a whole.
        """
        before = len(self.sentences)
        for versions in zip(*sides, strict=True):
            items = list(items_of(versions))
            for item in items:
                if len(self.sentences) < self._most:
                    self.sentences.setdefault(item.document.id, item)
            if items and items[-1].document.id in self.sentences:
                self.texts.setdefault(versions[0].id, whole_of(versions))
        self._order = list(ordered(self.sentences))
        self._order_of_texts = list(ordered(self.texts))
        return len(self.sentences) - before

    def all(self, *, whole: bool) -> Mapping[str, Item]:
        """The sentences by id, or the whole texts."""
        return self.texts if whole else self.sentences

    def found(self, id: str) -> Item | None:
        """The sentence or the whole text of that id."""
        return self.sentences.get(id) or self.texts.get(id)

    def next(self, done: Collection[str], *, whole: bool = False) -> Item | None:
        """The most useful sentence, or whole text, that is not done yet.

        A sentence is done with its text.
        """
        items, order = self.all(whole=whole), self._order_of_texts if whole else self._order
        left = (items[id] for id in order if id not in done)
        return next((item for item in left if item.of not in done), None)

    def done(self, done: Collection[str], *, whole: bool) -> int:
        """Count the sentences, or whole texts, that are done."""
        items = self.all(whole=whole)
        return sum(id in done or item.of in done for id, item in items.items())


def ordered(items: Mapping[str, Item]) -> Iterator[str]:
    """Ids in the order of use: doubtful ones, and every fifth one without an entity."""
    some = {id for id, item in items.items() if item.differ or item.sure is not None}
    ranks = sorted((not items[id].differ, items[id].sure or 0.0, id) for id in some)
    doubtful = iter([id for _, _, id in ranks])
    empty = iter([id for id in items if id not in some])
    for _ in range(len(items)):
        for _ in range(EVERY - 1):
            yield from _one(doubtful)
        yield from _one(empty)
    yield from chain(doubtful, empty)


def _one(ids: Iterator[str]) -> Iterator[str]:
    for id in ids:
        yield id
        return


def items_of(versions: Sequence[Document]) -> Iterator[Item]:
    """The sentences of one text, as the models annotated it."""
    first = versions[0]
    rows = stretches(versions)
    for number, (start, end) in enumerate(rows, 1):
        own = f"{first.id}.s{number}"
        pieces = [part_of(version, (start, end), id=own) for version in versions]
        before = first.text[rows[number - 2][0] : start] if number > 1 else first.text[:start]
        after = first.text[end : rows[number][1]] if number < len(rows) else first.text[end:]
        yield replace(_item(pieces), before=before, after=after, of=first.id, at=start)


def whole_of(versions: Sequence[Document]) -> Item:
    """A whole text, as the models annotated it."""
    first = versions[0]
    return _item([part_of(one, (0, len(first.text)), id=first.id) for one in versions])


def _item(pieces: Sequence[Document]) -> Item:
    sure = [one.confidence for one in pieces[0].entities if one.confidence is not None]
    return Item(
        pieces[0],
        "",
        "",
        min(sure, default=None),
        len({_keys(piece.entities) for piece in pieces}) > 1,
        tuple(_only_others(pieces)),
    )


def _only_others(pieces: Sequence[Document]) -> Iterator[Entity]:
    """Iterate over entities that the first version lacks and another has, each once."""
    seen = _keys(pieces[0].entities)
    for entity in chain.from_iterable(piece.entities for piece in pieces[1:]):
        key = (entity.type, entity.fragments)
        if key not in seen:
            seen |= {key}
            yield replace(entity, id=f"O{len(seen)}")


def part_of(document: Document, span: tuple[int, int], *, id: str) -> Document:
    """A stretch of a document as one of its own, with the annotations that lie in it."""
    start, end = span
    inner = [one for one in document.entities if start <= one.start and one.end <= end]
    ids = {one.id for one in inner}
    return Document(
        id,
        document.text[start:end],
        tuple(moved(one, -start) for one in inner),
        tuple(_inner(document.relations, ids)),
        tuple(_shifted(one, -start) for one in document.sentences if start <= one.start < end),
    )


def _shifted(sentence: Sentence, by: int) -> Sentence:
    """A sentence, `by` characters further on."""
    tokens = pack_spans((s + by, e + by) for s, e in sentence.tokens)
    return Sentence(sentence.start + by, sentence.end + by, tokens)


def moved(entity: Entity, by: int) -> Entity:
    """An entity, `by` characters further on."""
    return replace(entity, fragments=tuple((s + by, e + by) for s, e in entity.fragments))


def _inner(relations: Iterable[Relation], ids: Collection[str]) -> Iterator[Relation]:
    return (one for one in relations if one.head in ids and one.tail in ids)


def _keys(entities: Iterable[Entity]) -> frozenset[tuple[str, tuple[tuple[int, int], ...]]]:
    return frozenset((one.type, one.fragments) for one in entities)


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


def agreement(
    first: Mapping[str, Document], second: Mapping[str, Document]
) -> tuple[int, list[TypeAgreement]]:
    """Count the texts that both corrected, and score their agreement: over all types, then by type.

    A text that one of them corrected as a whole is cut into the sentences of the other.
    """
    first, second = settled(first), settled(second)
    mine, its = dict(_cut(first, second)), dict(_cut(second, first))
    first, second = {**first, **mine}, {**second, **its}
    common = sorted(first.keys() & second.keys())
    both = [
        (first[id], second[id]) for id in common if first[id].text == second[id].text
    ]  # fmt: skip
    ones, others = [one for one, _ in both], [other for _, other in both]
    found = scores(count_entities(ones, others))
    types = sorted(found["strict"]["types"])
    marks = [_marks(one, other) for one, other in both]
    rows = [_row("all", found["strict"], found["relaxed"], _pairs(marks, None))]
    for type in types:
        strict, relaxed = found["strict"]["types"][type], found["relaxed"]["types"][type]
        rows.append(_row(type, strict, relaxed, _pairs(marks, type)))
    return len(both), rows


def _cut(
    own: Mapping[str, Document], other: Mapping[str, Document]
) -> Iterator[tuple[str, Document]]:
    """Pieces of one's whole texts, where the other corrected sentences of them."""
    for id, piece in other.items():
        place = place_of(piece)
        if place is not None and place[0] in own:
            of, at = place
            yield id, part_of(own[of], (at, at + len(piece.text)), id=id)


Marks = list[tuple[frozenset[str], frozenset[str]]]
"""For every token of a text, the types that each annotator gave it."""


def _row(
    type: str,
    strict: Mapping[str, float],
    relaxed: Mapping[str, float],
    pairs: Sequence[tuple[str, str]],
) -> TypeAgreement:
    return TypeAgreement(
        type,
        strict["f1"],
        relaxed["f1"],
        kappa(pairs),
        round(strict["support"]),
        round(strict["predicted"]),
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


def _marks(one: Document, other: Document) -> Marks:
    return [
        (_types(one, start, end), _types(other, start, end)) for start, end in tokenise(one.text)
    ]


def _types(document: Document, start: int, end: int) -> frozenset[str]:
    return frozenset(
        entity.type
        for entity in document.entities
        if any(first < end and start < last for first, last in entity.fragments)
    )


def _pairs(marks: Sequence[Marks], type: str | None) -> list[tuple[str, str]]:
    """Both labels of every token: all its types, or whether it has the one `type`."""
    return [
        (_label(one, type), _label(other, type)) for text in marks for one, other in text
    ]  # fmt: skip


def _label(types: frozenset[str], type: str | None) -> str:
    return " ".join(sorted(types)) if type is None else str(type in types)


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
    """The annotators' workplace. Corrections have a thread of their own: a save waits for nothing.

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
        """Run `work`, which reads or writes corrections, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def add(self, texts: Sequence[Document]) -> int:
        """Let every model annotate the texts, and pool their sentences; how many are new."""
        own = [replace(text, id=_id(text)) for text in texts]
        if not self.models:
            return self.pool.add([own])
        sides = await asyncio.gather(*(model.found(own) for model in self.models.values()))
        return self.pool.add(sides)

    def add_now(self, texts: Sequence[Document]) -> None:
        """Add texts before anything is served; texts that are too long are left out."""
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

    return [*_working(desk), Route("/correct", show), Route("/corrections/export", export)]


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
        "tokens": tokenise(item.document.text),
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
