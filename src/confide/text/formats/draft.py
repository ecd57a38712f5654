"""A document in the making: what a file says of it is checked here, once for all formats.

A reader turns its file into calls of `Draft`. How offsets are counted, places that point nowhere,
surfaces that differ from the text, ids given twice and links to nothing are found, named and left
out in one way. `gathered` is the loop that readers of many documents share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.files import LONGEST_JSON, lines_of, read_text
from confide.text.formats.base import (
    Options,
    Reading,
    entity_id,
    free_id,
    merged_fragments,
    nothing_in,
    reads,
    shown,
    shown_at,
)
from confide.text.formats.offsets import CHARACTERS, NOWHERE, Given, Ruler, Stretch, Way, fitting
from confide.text.pairs import NO_RELATION, pair_attributes

Pairs = tuple[tuple[str, str], ...]
Made = TypeVar("Made")
NEGATIVE = frozenset(("0", "false", "none", "na", "other", NO_RELATION, "no_relation"))
"""Labels, in lower case, that mean no relation; so does any label that ends in ``-false``."""
_HEADS = {
    "arg1": "arg2", "subj": "obj", "subject": "object", "head": "tail", "source": "target",
    "from": "to", "e1": "e2", "entity1": "entity2", "governor": "dependent", "first": "second",
}  # fmt: skip
"""Roles, in lower case, that are a relation's head, and those of its tail."""


def is_negative(label: str) -> bool:
    """Whether a label says that nothing holds between the two.

    >>> [label for label in ("0", "1", "CPR:4", "DDI-false", "False") if is_negative(label)]
    ['0', 'DDI-false', 'False']
    """
    label = label.lower()
    return label in NEGATIVE or label.endswith("-false")


def head_first(roles: Sequence[str], known: dict[frozenset[str], str]) -> bool:
    """Whether the first of two roles is the head's: by their names, never by their order.

    Of roles whose names do not tell, the first that a file puts first is the head's in all of it:
    `known` remembers.

    >>> known = {}
    >>> head_first(("Arg2", "Arg1"), known)
    False
    >>> head_first(("Cause", "Effect"), known), head_first(("Effect", "Cause"), known)
    (True, False)
    """
    first, second = (role.lower() for role in roles)
    if _HEADS.get(second) == first:
        return False
    return first == second or known.setdefault(frozenset((first, second)), first) == first


class _Waiting(NamedTuple):
    """A mention that has no place yet: its key, what the file calls it, and what it says of it."""

    key: str
    given: str
    kind: str
    where: str
    mention: Given
    rest: tuple[float | None, tuple[str, ...], Pairs]


@dataclass(slots=True)
class Draft:
    """A document in the making.

    Attributes:
        units: how offsets may be counted, the format's own rule first (see `offsets.fitting`).
        keep: whether entities keep the ids of the file; else they are T1, T2, ...
        within: the parts of the text from which the offsets of the next mentions count.
        names: the entities' ids by what the file, or `entity`, calls them.
    """

    id: str
    text: str
    where: str
    options: Options
    problems: list[Problem]
    sentences: tuple[Sentence, ...] = ()
    attributes: Pairs = ()
    units: tuple[str, ...] = (CHARACTERS,)
    keep: bool = False
    within: Sequence[Stretch] = ()
    entities: dict[str, Entity] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _count: int = 0
    _tried: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))

    def note(self, kind: str, what: str, *, lost: bool = True, where: str = "") -> None:
        """Write down a problem."""
        self.problems.append(Problem(kind, where or self.where, what, lost))

    def entity(
        self,
        kind: str,
        spans: Sequence[Span],
        *,
        given: str = "",
        surface: object = None,
        where: str = "",
        concepts: tuple[str, ...] = (),
        attributes: Pairs = (),
        confidence: float | None = None,
    ) -> str:
        """Take a mention, and give the key by which `relation` and `pair` know it.

        `spans` are its fragments as the file counts them, `given` is what the file calls it, and
        `surface` what the file says stands there; anything but a string says nothing.

        Raises DataError if the type was not declared.
        """
        self.options.require(kind, where or self.where)
        self._count += 1
        key = f"\0{self._count}"
        mention = Given(spans, surface if isinstance(surface, str) else "", self.within)
        rest = confidence, concepts, attributes
        self._waiting.append(_Waiting(key, given, kind, where or self.where, mention, rest))
        return key

    @property
    def names(self) -> Mapping[str, str]:
        """The ids of all entities that have a place, by their keys and what the file calls them."""
        self.place()
        return self._names

    def place(self) -> None:
        """Give all mentions that were taken their places, once it is known how they count."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        given = [one.mention for one in waiting]
        ruler, doubt = fitting(self.text, given, self.units)
        if ruler.way != Way(self.units[0]):
            self.note("offsets-counted", str(ruler.way), lost=False)
        if doubt:
            self.note("offsets-doubtful", f"{doubt}; read as {ruler.way.unit}")
        for one in waiting:
            self._place(one, ruler)

    def _place(self, one: _Waiting, ruler: Ruler) -> None:
        """Give a mention its place in the text, or write down that it has none."""
        kind, given, (spans, surface, within) = one.kind, one.given, one.mention
        called = f"{kind} {given}" if given else kind
        placed = [ruler(span, within) for span in spans]
        if not placed or NOWHERE in placed:
            start, end = spans[placed.index(NOWHERE)] if placed else (0, 0)
            length = len(self.text) if len(within) != 1 else within[0].end - within[0].start
            what = f"{called} {start}-{end} points nowhere in {length} characters"
            slug = "empty-span" if start >= end and (start, end) != NOWHERE else "beyond-text"
            self.note(slug, what, where=one.where)
            return
        fragments = merged_fragments(placed) if len(placed) > 1 else tuple(placed)
        if len(fragments) != len(placed):
            what = f"fragments of {called} touch or overlap: made one"
            self.note("fragments-merged", what, lost=False, where=one.where)
        if surface and not reads(self.text, placed, surface):
            what = f"{called} is {shown(surface)} but {shown_at(self.text, placed)} in the text"
            self.note("text-mismatch", what, lost=False, where=one.where)
        if given and given in self._names:
            what = f"another entity is called {given}"
            self.note("duplicate-id", what, lost=False, where=one.where)
        name = entity_id(len(self.entities) + 1)
        if self.keep:  # a file that names some by their ids names the rest by their order
            name = given or entity_id(int(one.key[1:]))
        name = free_id(name, self.entities, self._tried[0])
        self._names[one.key] = name
        self._names.setdefault(given or name, name)
        self.entities[name] = Entity(name, kind, fragments, *one.rest)

    def relation(
        self,
        kind: str,
        head: str,
        tail: str,
        *,
        given: str = "",
        concepts: bool = False,
        where: str = "",
        attributes: Pairs = (),
        confidence: float | None = None,
    ) -> None:
        """Add a relation between two entities by their names, or between two `concepts`."""
        if not concepts:
            if head not in self.names or tail not in self._names:
                what = f"{kind} from {head} to {tail}: no such entity".replace("\0", "")
                self.note("dangling-relation", what, where=where)
                return
            head, tail = self._names[head], self._names[tail]
        if given in self.relations:
            what = f"another relation is called {given}"
            self.note("duplicate-id", what, lost=False, where=where)
        name = free_id(given or f"R{len(self.relations) + 1}", self.relations, self._tried[1])
        level: Literal["entity", "concept"] = "concept" if concepts else "entity"
        self.relations[name] = Relation(name, kind, head, tail, level, confidence, attributes)

    def pair(self, head: str, tail: str, label: str | None) -> None:
        """State that the document asks about this pair, and what its label says.

        Nothing is asked if one of the two has no place. A label that `is_negative` is no relation;
        None: nobody says whether there is one.
        """
        if {head, tail} <= self.names.keys():
            self.attributes = (
                *pair_attributes([(self._names[head], self._names[tail])]), *self.attributes
            )  # fmt: skip
            if label is not None and not is_negative(label):
                self.relation(label, head, tail)
        else:
            self.attributes = (*pair_attributes([]), *self.attributes)

    def document(self) -> Document:
        """The document as it stands."""
        self.place()
        return Document(
            self.id,
            self.text,
            tuple(self.entities.values()),
            tuple(self.relations.values()),
            self.sentences,
            self.attributes,
            self.where,
        )


# --- the loop of a reader ---------------------------------------------------------------------


@dataclass(slots=True)
class Source:
    """A file that is read: its text, and what all its documents share."""

    path: Path
    options: Options
    text: str
    encoding: str
    problems: list[Problem] = field(default_factory=list)
    roles: dict[frozenset[str], str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Every line that is not blank: its place, a name for its document, and the line."""
        file, stem = str(self.path), self.path.stem
        for number, line in enumerate(lines_of(self.text), 1):
            if line and not line.isspace():
                yield f"{file}:{number}", f"{stem}:{number}", line

    def draft(self, id: str, text: str, where: str, *, attributes: Pairs = ()) -> Draft:
        """A new document of this file."""
        return Draft(id, text, where, self.options, self.problems, attributes=attributes)


def opened(path: Path, options: Options, *, longest: int = LONGEST_JSON) -> Source:
    """Read a file's text. Raises FormatError."""
    text, encoding = read_text(path, options.encoding, longest=longest)
    return Source(path, options, text, encoding)


def gathered(
    source: Source,
    rows: Iterable[tuple[str, str, Made]],
    one: Callable[[str, str, Made], Document | None],
    *,
    format: str,
    **details: str,
) -> Reading:
    """The documents of all rows; a broken one is left out if that is wished.

    Raises DataError if there is none.
    """
    documents: list[Document] = []
    for where, name, row in rows:
        with source.options.document(source.problems, where):
            found = one(where, name, row)
            documents += [found] if found is not None else []
    if not documents:
        raise nothing_in(source.path, source.problems, "there is no document: the file is empty")
    return Reading(documents, source.problems, format, {"encoding": source.encoding, **details})
