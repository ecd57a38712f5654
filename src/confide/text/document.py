"""The internal form of annotated text: raw text, entities as fragments, relations, tokens, pairs.

All offsets are characters (Python string positions) from the start of `Document.text`, half open.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, overload

# --- The tokens of a sentence in little memory ----------------------------------------------------
#
# Sequences of offsets that equal a tuple of the same.
#
# A pair of Python integers takes some 120 bytes, and a corpus of a million sentences has 20
# million.

Span = tuple[int, int]


class Spans(Sequence[Span]):
    """The base of the sequences below: they are equal to any tuple of the same spans."""

    __slots__ = ()

    @abstractmethod
    def one(self, place: int) -> Span:
        """The span at a place, counted from 0, in a time that does not grow with their number."""

    def stretches(self, places: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """The characters from each first token to the one before `last`; places ascend."""
        return ((self.one(first)[0], self.one(last - 1)[1]) for first, last in places)

    @overload
    def __getitem__(self, place: int) -> Span: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, place: int | slice) -> Span | tuple[Span, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        count = len(self)
        if not -count <= place < count:
            raise IndexError(f"token {place} of {count}")
        return self.one(place % count)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple | Spans):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class PackedSpans(Spans):
    """Spans of eight bytes each, as `pack_spans` makes them."""

    __slots__ = ("_borders",)

    def __init__(self, borders: array[int]) -> None:
        self._borders = borders

    def __len__(self) -> int:
        return len(self._borders) // 2

    def __iter__(self) -> Iterator[Span]:
        return zip(self._borders[::2], self._borders[1::2], strict=True)

    def one(self, place: int) -> Span:
        """The span at a place."""
        return self._borders[2 * place], self._borders[2 * place + 1]


class SpacedWords(Spans):
    """The words of a stretch of text in which each is one blank from the next.

    Nothing is stored until one of them is asked for by its number. `end` is one past the last
    character. A word has at least one.
    """

    __slots__ = ("_packed", "end", "start", "text")

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self._packed: PackedSpans | None = None

    def strings(self) -> list[str]:
        """The words themselves."""
        return self.text[self.start : self.end].split(" ")

    def __len__(self) -> int:
        if self._packed is not None:
            return len(self._packed)
        return self.text.count(" ", self.start, self.end) + 1

    def one(self, place: int) -> Span:
        """The span at a place."""
        if self._packed is None:
            self._packed = pack_spans(self)
        return self._packed.one(place)

    def stretches(self, places: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """The characters from each first word to the one before `last`; places ascend."""
        words, at, here = self.strings(), self.start, 0
        for first, last in places:
            at += len(" ".join(words[here:first])) + (first > here)
            here = first
            yield at, at + len(" ".join(words[first:last]))

    def __iter__(self) -> Iterator[Span]:
        start = self.start
        for word in self.strings():
            end = start + len(word)
            yield start, end
            start = end + 1


def pack_spans(spans: Iterable[Span]) -> PackedSpans:
    """Spans in little memory.

    >>> pack_spans([(0, 4), (5, 7)])[-1], pack_spans([(0, 4)]) == ((0, 4),)
    ((5, 7), True)
    """
    return PackedSpans(array("I", chain.from_iterable(spans)))


@dataclass(frozen=True, slots=True)
class Entity:
    """A mention: a type and one or more character fragments, ascending and not touching.

    `attribute_confidences`: how likely a model thinks the values of attributes, by name.
    """

    id: str
    type: str
    fragments: tuple[Span, ...]
    confidence: float | None = None
    concepts: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    attribute_confidences: tuple[tuple[str, float], ...] = ()

    @property
    def start(self) -> int:
        """The first character of the first fragment."""
        return self.fragments[0][0]

    @property
    def end(self) -> int:
        """One past the last character of the last fragment."""
        return self.fragments[-1][1]

    def said(self, name: str) -> str:
        """The value of its first attribute of that name; "" if it has none."""
        return next((value for key, value in self.attributes if key == name), "")

    def sure(self, confidence: float) -> Entity:
        """The entity with this confidence; `replace` takes four times as long."""
        return Entity(
            self.id, self.type, self.fragments, confidence, self.concepts, self.attributes,
            self.attribute_confidences,
        )  # fmt: skip

    def with_attribute(
        self, name: str, value: str | None, *, confidence: float | None = None
    ) -> Entity:
        """The entity with this value of an attribute, last, in place of those it had; None: none.

        >>> pain = Entity("T1", "sign", ((3, 7),), attributes=(("assertion", "present"),))
        >>> pain.with_attribute("assertion", "absent", confidence=0.75).attribute_confidences
        (('assertion', 0.75),)
        """
        said = tuple(pair for pair in self.attributes if pair[0] != name)
        sure = tuple(pair for pair in self.attribute_confidences if pair[0] != name)
        if value is not None:
            said += ((name, value),)
            sure += ((name, confidence),) if confidence is not None else ()
        return replace(self, attributes=said, attribute_confidences=sure)

    def shifted(self, by: int) -> Entity:
        """The entity, `by` characters further on."""
        return replace(self, fragments=tuple((s + by, e + by) for s, e in self.fragments))


@dataclass(frozen=True, slots=True)
class Relation:
    """A typed link from `head` to `tail`: entity ids, or concept ids if `level` is "concept"."""

    id: str
    type: str
    head: str
    tail: str
    level: Literal["entity", "concept"] = "entity"
    confidence: float | None = None
    attributes: tuple[tuple[str, str], ...] = ()

    def sure(self, confidence: float) -> Relation:
        """The relation with this confidence."""
        return replace(self, confidence=confidence)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its tokens, as offsets into the document's text.

    `tokens` are a tuple, or one of the sequences above, which take less memory.
    """

    start: int
    end: int
    tokens: Sequence[Span]

    def shifted(self, by: int) -> Sentence:
        """The sentence, `by` characters further on."""
        tokens = pack_spans((s + by, e + by) for s, e in self.tokens)
        return Sentence(self.start + by, self.end + by, tokens)


@dataclass(frozen=True, slots=True)
class Document:
    """Text and its annotations. `sentences` is empty if the text has not been segmented.

    `source` says where the document came from ("file:line"); it serves messages to the owner of the
    text and never travels. `unmarked`: it is a sentence of a file that does not say where documents
    begin, so its neighbours in the file may belong to the same text.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    source: str = ""
    unmarked: bool = field(default=False, compare=False)

    @property
    def where(self) -> str:
        """The place of the document, for a problem."""
        return self.source or self.id

    def at(self, start: int, end: int) -> str:
        """The place of a stretch of the document, for a problem: ``source [start:end]``."""
        return f"{self.where} [{start}:{end}]"

    @property
    def least_sure(self) -> float | None:
        """The confidence of the least sure entity; None if none has any.

        Documents in this order are in that of least confidence (Settles, "Active Learning
        Literature Survey", 2009).
        """
        stated = (one.confidence for one in self.entities if one.confidence is not None)
        return min(stated, default=None)

    def surface(self, entity: Entity) -> str:
        """The characters of an entity, its fragments joined by one space."""
        return " ".join(self.text[start:end] for start, end in entity.fragments)

    def token_texts(self, sentence: Sentence) -> tuple[str, ...]:
        """The tokens of a sentence as strings."""
        tokens, text = sentence.tokens, self.text
        if type(tokens) is SpacedWords and tokens.text is text:
            return tuple(tokens.strings())
        return tuple([text[start:end] for start, end in tokens])


@dataclass(frozen=True, slots=True)
class Problem:
    """An annotation or line that was lost, changed or doubtful: a kind (slug), where, and why.

    `lost` is true if something in the file is missing from the documents, or may be so.
    """

    kind: str
    where: str
    what: str
    lost: bool = False


class Problems(list[Problem]):
    """Problems in the order in which they were found."""

    def lost(self, kind: str, where: object, what: str) -> None:
        """Add something that the documents, or a written file, lack."""
        self.append(Problem(kind, str(where), what, lost=True))

    def note(self, kind: str, where: object, what: str, *, lost: bool = False) -> None:
        """Add something changed or doubtful, or `lost`."""
        self.append(Problem(kind, str(where), what, lost))


def attributes_as_relations(document: Document, name: str) -> Document:
    """The document with that attribute of each entity as a relation of the entity with itself.

    They replace its relations and the pairs that it states. A relation has the attribute's value as
    its type, or the name of an attribute without a value (a flag).

    >>> pain = Entity("T1", "sign", ((3, 7),), attributes=(("assertion", "absent"),))
    >>> attributes_as_relations(Document("n", "No pain", (pain,)), "assertion").relations[0].type
    'absent'
    """
    found = [
        (one.id, next((value for key, value in one.attributes if key == name), None))
        for one in document.entities
    ]
    said = [(own, value or name) for own, value in found if value is not None]
    relations = (Relation(f"R{n}", kind, own, own) for n, (own, kind) in enumerate(said, 1))
    rest = tuple(pair for pair in document.attributes if pair[0] != PAIR)
    return replace(document, relations=tuple(relations), attributes=rest)


def relations_as_attributes(document: Document, name: str, said: Document) -> Document:
    """The document with that attribute of its entities as the relations of `said` have it."""
    found = {one.head: one for one in said.relations}
    entities = []
    for one in document.entities:
        own = found.get(one.id)
        value = None if own is None else "" if own.type == name else own.type
        sure = None if own is None else own.confidence
        entities.append(one.with_attribute(name, value, confidence=sure))
    return replace(document, entities=tuple(entities))


# --- Pairs that a document asks about -------------------------------------------------------------
#
# And the label of a pair without a relation.
#
# Some formats mark one pair of entities in each text (BioBERT's tables, ChemProt, SemEval-2010 task
# 8), or list the pairs that annotators looked at. Documents carry these as attributes named "pair":
# two entity ids separated by a blank. A document without the attribute asks about every pair.

ASSERTION = "assertion"
"""The attribute of an entity that says whether it holds: "present", "absent", "possible" ..."""
NO_RELATION = "no-relation"
"""The label of a pair between whose entities nothing is said to hold."""
PAIR = "pair"
NEGATIVE = frozenset(("0", "false", "none", "na", "other", NO_RELATION, "no_relation"))
"""Labels, in lower case, that mean no relation; so does any label that ends in ``-false``."""


def is_negative(label: str) -> bool:
    """Return whether a label says that nothing holds between the two.

    >>> [label for label in ("0", "1", "CPR:4", "DDI-false", "False") if is_negative(label)]
    ['0', 'DDI-false', 'False']
    """
    label = label.lower()
    return label in NEGATIVE or label.endswith("-false")


def pair_attributes(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The attributes that state these pairs (head id, tail id) and no others.

    >>> pair_attributes([("T1", "T2")])
    (('pair', 'T1 T2'),)
    >>> pair_attributes([])
    (('pair', ''),)
    """
    stated = tuple((PAIR, f"{head} {tail}") for head, tail in pairs)
    return stated or ((PAIR, ""),)


def stated_pairs(document: Document) -> list[tuple[str, str]] | None:
    """The pairs that a document asks about, in order, each once; None if it does not say.

    A value that is not two words is not a pair; an empty value stands for no pair at all.
    """
    values = [value.split() for key, value in document.attributes if key == PAIR]
    if not values:
        return None
    return list(dict.fromkeys((words[0], words[1]) for words in values if len(words) == 2))
