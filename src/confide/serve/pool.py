"""Sentences, or whole texts, to be corrected, the most useful first.

What the models disagree on comes first, then what the first model is least sure of: the sentence
with the least sure entity (least confidence: Settles, "Active Learning Literature Survey", 2009).
A model states no confidence in what it did not find, so every fifth sentence is one in which
nothing was found: only there can missed entities show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from confide.serve.reading import stretches
from confide.text.document import Document, Entity, Relation, Sentence, packed

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
        """How many sentences, or whole texts, are done."""
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
    """What the first version of a sentence lacks and another has, each once, with a new id."""
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
    """A sentence, so many characters further on."""
    tokens = packed((s + by, e + by) for s, e in sentence.tokens)
    return Sentence(sentence.start + by, sentence.end + by, tokens)


def moved(entity: Entity, by: int) -> Entity:
    """An entity, so many characters further on."""
    return replace(entity, fragments=tuple((s + by, e + by) for s, e in entity.fragments))


def _inner(relations: Iterable[Relation], ids: Collection[str]) -> Iterator[Relation]:
    return (one for one in relations if one.head in ids and one.tail in ids)


def _keys(entities: Iterable[Entity]) -> frozenset[tuple[str, tuple[tuple[int, int], ...]]]:
    return frozenset((one.type, one.fragments) for one in entities)
