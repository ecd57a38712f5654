"""From documents to relation examples: pairs of entities, the text around them, what holds.

Rules decide which pairs are looked at (`Rules`). A pair has its relation or `NO_RELATION`. No model
that reads these examples can find a gold relation that no pair covers: it is reported, and counted
in `Candidates.missed`, so that it is scored as missed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from confide.errors import DataError, SettingsError
from confide.text.document import (
    NO_RELATION,
    Document,
    Entity,
    Problem,
    Relation,
    Span,
    stated_pairs,
)
from confide.text.segment import segmented

Types = tuple[str, str]
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RelationExample:
    """A pair of entities as a relation extractor sees it.

    `text` is the sentence, or the window of sentences, with both entities. `head` and `tail` are
    their fragments, as characters of `text`. `relation` is `NO_RELATION` if nothing is said to
    hold. `document` is the position among the documents given, `pair` the ids of head and tail.
    """

    id: str
    text: str
    head: tuple[Span, ...]
    tail: tuple[Span, ...]
    head_type: str
    tail_type: str
    relation: str
    document: int = 0
    pair: Pair = ("", "")


@dataclass(frozen=True, slots=True)
class Rules:
    """Which pairs of entities are looked at.

    Attributes:
        types: the (head type, tail type) to look at; None: any. `type_pairs` gives those of the
            relations in training text.
        direction: "directed": each order of two entities is a pair of its own. "undirected": the
            two are one pair, in the order that `types` allow or else in that of the text, and a
            relation between them holds whichever way it was annotated.
        max_sentences: how many ends of sentences may lie between the two; 0: one sentence; None:
            any number.
        max_tokens: how many tokens may lie between the two; None: any number.
        alone: look at each entity by itself, as a pair with itself, instead: what is said of it.
    """

    types: frozenset[Types] | None = None
    direction: Literal["directed", "undirected"] = "directed"
    max_sentences: int | None = 0
    max_tokens: int | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """Examples, in the order of the documents, and what they leave out.

    `missed` counts, by relation, the gold relations that no example covers (if a pair has several
    relations, all but the first); `problems` names each of them.
    """

    examples: list[RelationExample]
    missed: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def relations(self) -> dict[str, int]:
        """Counts of each relation's examples, `NO_RELATION` included, in alphabetical order."""
        return dict(sorted(Counter(example.relation for example in self.examples).items()))


def candidates(documents: Sequence[Document], rules: Rules | None = None) -> Candidates:
    """Every pair of entities that the rules allow, as an example.

    A document that states its pairs (`confide.text.document`) gives these, in their order and
    direction, whatever the rules say about types and distance. Text without sentences is segmented.

    A relation between concepts becomes one between mentions: every pair of mentions that carry the
    two concepts has it, and it counts as missed if no such pair is looked at.
    """
    rules = rules or Rules()
    found = Candidates([])
    missed: Counter[str] = Counter()
    for number, given in enumerate(documents):
        document = _Pairs(segmented(given), number, rules)
        labels, lost = document.labelled()
        found.examples.extend(document.examples(labels))
        found.problems.extend(document.unknown())
        missed.update(kind for kind, _ in lost)
        found.problems.extend(problem for _, problem in lost)
    found.missed.update(sorted(missed.items()))
    return found


def type_pairs(documents: Iterable[Document]) -> frozenset[Types]:
    """The (head type, tail type) of all relations; for concepts, those of all their mentions.

    Those of entities with themselves count only if there are no others (`Rules.alone`).
    """
    pairs: set[Types] = set()
    alone: set[Types] = set()
    for document in documents:
        kinds = {entity.id: entity.type for entity in document.entities}
        for relation in document.relations:
            if relation.type != NO_RELATION:
                for head, tail in _mention_pairs(document, relation):
                    (alone if head == tail else pairs).add((kinds[head], kinds[tail]))
    return frozenset(pairs or alone)


def _mention_pairs(document: Document, relation: Relation) -> list[Pair]:
    """The ids of the mentions that a relation is between, head first."""
    if relation.level == "entity":
        names = {entity.id for entity in document.entities}
        known = relation.head in names and relation.tail in names
        return [(relation.head, relation.tail)] if known else []
    heads = [one.id for one in document.entities if relation.head in one.concepts]
    tails = [one.id for one in document.entities if relation.tail in one.concepts]
    return [(head, tail) for head in heads for tail in tails if head != tail]


class _Place(NamedTuple):
    """An entity, and the first and the last sentence that it touches."""

    entity: Entity
    first: int
    last: int


class _Pairs:
    """The pairs of one segmented document."""

    def __init__(self, document: Document, number: int, rules: Rules) -> None:
        self.document, self.number, self.rules = document, number, rules
        self.where = document.where
        self.starts = [sentence.start for sentence in document.sentences]
        self.ends = [sentence.end for sentence in document.sentences]
        self.tokens = [token for sentence in document.sentences for token in sentence.tokens]
        self.places = {entity.id: self._place(entity) for entity in document.entities}
        self.stated = stated_pairs(document)
        self.pairs = list(self._looked_at())
        self.known = frozenset(self.pairs)

    def _place(self, entity: Entity) -> _Place:
        first = min(bisect_right(self.ends, entity.start), max(len(self.ends) - 1, 0))
        last = max(bisect_left(self.starts, entity.end) - 1, first)
        return _Place(entity, first, last)

    # --- which pairs ------------------------------------------------------------------

    def _looked_at(self) -> Iterator[Pair]:
        """The pairs that are candidates, in the order of the text."""
        if self.stated is not None:
            yield from (
                pair
                for pair in self.stated
                if pair[0] != pair[1] and self.places.keys() >= set(pair)
            )
            return
        ordered = sorted(self.places.values(), key=lambda place: place.entity.fragments)
        if self.rules.alone:
            for place in ordered:
                yield from self._orders(place.entity, place.entity)[:1]
            return
        for position, one in enumerate(ordered):
            for other in ordered[position + 1 :]:
                if self._beyond(one, other):
                    break  # and so is all that begins later
                if self.near(one, other):
                    yield from self._orders(one.entity, other.entity)

    def unknown(self) -> Iterator[Problem]:
        """Problems for pairs that the document states but that are not two of its entities."""
        for head, tail in self.stated or ():
            if (head, tail) not in self.known:
                what = f"the pair {head} {tail} is not of two entities of the document"
                yield Problem("dangling-pair", self.where, what, lost=True)

    def _orders(self, one: Entity, other: Entity) -> list[Pair]:
        """The orders of two entities that are candidates: none, one, or (directed) both."""
        orders = [
            (head.id, tail.id)
            for head, tail in ((one, other), (other, one))
            if self.rules.types is None or (head.type, tail.type) in self.rules.types
        ]
        return orders if self.rules.direction == "directed" else orders[:1]

    def near(self, one: _Place, other: _Place) -> bool:
        """Return whether the two are close enough for the rules, in sentences and tokens."""
        if self._beyond(one, other) or self._beyond(other, one):
            return False
        return self.rules.max_tokens is None or self._between(one, other) <= self.rules.max_tokens

    def _beyond(self, one: _Place, other: _Place) -> bool:
        """Return whether the second begins too many sentences after the end of the first."""
        limit = self.rules.max_sentences
        return limit is not None and other.first - one.last > limit

    def _between(self, one: _Place, other: _Place) -> int:
        """Whole tokens between two entities."""
        end = min(one.entity.end, other.entity.end)
        start = max(one.entity.start, other.entity.start)
        first = bisect_left(self.tokens, end, key=lambda token: token[0])
        last = bisect_right(self.tokens, start, key=lambda token: token[1])
        return max(0, last - first)

    # --- what holds -------------------------------------------------------------------

    def labelled(self) -> tuple[dict[Pair, str], list[tuple[str, Problem]]]:
        """The relation of each pair that has one, and every gold relation that no pair covers."""
        labels: dict[Pair, str] = {}
        lost: list[tuple[str, Problem]] = []
        seen: set[tuple[str, str, str, str]] = set()
        for relation in self.document.relations:
            fact = (relation.level, relation.type, relation.head, relation.tail)
            if relation.type == NO_RELATION or fact in seen:
                continue
            seen.add(fact)
            mentions = _mention_pairs(self.document, relation)
            covered = [pair for pair in map(self._turned, mentions) if pair in self.known]
            kept = [labels.setdefault(pair, relation.type) for pair in covered]
            if relation.type not in kept:
                problem = self._problem(relation, mentions, taken=bool(covered))
                lost.append((relation.type, problem))
        return labels, lost

    def _turned(self, pair: Pair) -> Pair:
        """A pair in the order in which it is looked at, where both orders are the same pair."""
        if self.rules.direction == "directed" or pair in self.known:
            return pair
        return (pair[1], pair[0])

    def _problem(self, relation: Relation, mentions: Sequence[Pair], *, taken: bool) -> Problem:
        """Why no pair covers a relation."""
        if taken:
            kind, why = "several-relations", "the pair has another relation, which is kept"
        elif relation.head == relation.tail and not self.rules.alone:
            kind, why = "relation-to-itself", "head and tail are one"
        elif not mentions:
            kind, why = "relation-without-mention", "head or tail is no mention of the text"
        elif self.stated is not None:
            kind, why = "pair-not-stated", "the document does not ask about this pair"
        elif not any(self.near(self.places[one], self.places[two]) for one, two in mentions):
            kind, why = "relation-too-far", "head and tail are too far from each other"
        else:
            kind, why = "relation-types", "its types are not among those that are looked at"
        what = f"{relation.type} {relation.id}: {why}"
        return Problem(kind, self.where, what, lost=True)

    # --- examples ---------------------------------------------------------------------

    def examples(self, labels: dict[Pair, str]) -> Iterator[RelationExample]:
        """An example for each pair."""
        for head, tail in self.pairs:
            one, other = self.places[head], self.places[tail]
            start, end = self._window(one, other)
            yield RelationExample(
                id=f"{self.document.id}:{head}:{tail}",
                text=self.document.text[start:end],
                head=tuple((a - start, b - start) for a, b in one.entity.fragments),
                tail=tuple((a - start, b - start) for a, b in other.entity.fragments),
                head_type=one.entity.type,
                tail_type=other.entity.type,
                relation=labels.get((head, tail), NO_RELATION),
                document=self.number,
                pair=(head, tail),
            )

    def _window(self, one: _Place, other: _Place) -> Span:
        """The characters of all sentences from the first to the last that the two touch."""
        if not self.starts:
            return 0, len(self.document.text)
        start = self.starts[min(one.first, other.first)]
        end = self.ends[max(one.last, other.last)]
        entities = (one.entity, other.entity)
        return min(start, *(e.start for e in entities)), max(end, *(e.end for e in entities))


# --- what a model says of examples ----------------------------------------------------------


def with_labels(
    examples: Iterable[RelationExample], known: Container[str]
) -> list[RelationExample]:
    """The examples, with `NO_RELATION` in place of any unknown relation."""
    return [
        one if one.relation in known else replace(one, relation=NO_RELATION) for one in examples
    ]


def with_relations(
    documents: Sequence[Document],
    examples: Sequence[RelationExample],
    probabilities: Sequence[Mapping[str, float]],
) -> list[Document]:
    """The documents with the likeliest relation of each example's pair instead of their own.

    `examples` are those that `candidates` makes from the documents, `probabilities` a model's
    probability of each relation. The likeliest (the first of equals) counts, and its probability
    becomes the confidence.
    """
    found: dict[int, list[Relation]] = {}
    for example, likely in zip(examples, probabilities, strict=True):
        best = max(likely, key=lambda name: likely[name])
        if best != NO_RELATION:
            own = found.setdefault(example.document, [])
            head, tail = example.pair
            own.append(Relation(f"R{len(own) + 1}", best, head, tail, confidence=likely[best]))
    return [replace(one, relations=tuple(found.get(n, ()))) for n, one in enumerate(documents)]


def predicted_labels(found: Candidates, documents: Sequence[Document]) -> list[str]:
    """The relation that predicted documents have for each example's pair.

    `documents` are in the order of those that the examples were made from.
    """
    labels = {
        (number, relation.head, relation.tail): relation.type
        for number, document in enumerate(documents)
        for relation in document.relations
    }
    return [labels.get((one.document, *one.pair), NO_RELATION) for one in found.examples]


# --- Names of entity types in a relation model
#
# Another model or file may call them otherwise.
#
# An entity recogniser and a relation extractor are trained separately, and may have two names for
# one type: "Chemical" here, "CHEMICAL" there.


def as_known(
    found: Iterable[str],
    known: Collection[str],
    *,
    pairs: Set[Types] | None = None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """The relation model's name for each found type; "" if it knows no such type.

    `given` decides, otherwise the same name, or the only name that differs in case alone.

    Args:
        found: the types in the text, or those that a recogniser finds.
        known: the types that the relation model knows.
        pairs: the (head type, tail type) that it looks at; None: any of the known.
        given: the model's names for some of the found types; "" leaves a type out.

    Raises:
        SettingsError: `given` names a type that is not found, or uses a name that is not known.
        DataError: no relation is possible between any of these types.

    >>> as_known(["Chemical", "Protein", "Age"], ["CHEMICAL", "GENE"], given={"Protein": "GENE"})
    {'Age': '', 'Chemical': 'CHEMICAL', 'Protein': 'GENE'}
    """
    found = sorted(set(found))
    check_renamed(given, found, known)
    names = {name: given.get(name, known_type(name, known)) for name in found}
    used = set(names.values()) - {""}
    fitting = used if pairs is None else [pair for pair in pairs if used.issuperset(pair)]
    if not fitting:
        shown = sorted(known) if pairs is None else sorted(" and ".join(pair) for pair in pairs)
        unnamed = [name for name in found if not names[name]]
        raise DataError(
            "the relation model knows no pair of these entity types",
            expected=", ".join(shown) or "any",
            got=", ".join(found) or "no type",
            fix=f"say what it calls each of them: --as {[*unnamed, 'FOUND'][0]}=NAME,"
            f" where NAME is {' or '.join(sorted(known)) or 'KNOWN'}",
        )
    return names


def check_renamed(given: Mapping[str, str], found: Collection[str], known: Collection[str]) -> None:
    """Raise SettingsError if `given` renames a type that is not found, or to one not known."""
    for name, other in given.items():
        if name not in found:
            raise SettingsError(
                f"no entity has the type {name!r}, so it cannot be renamed to {other!r}",
                expected=", ".join(found),
                fix="--as takes FOUND=KNOWN: the type that is found, then the model's",
            )
        if other and other not in known:
            raise SettingsError(
                f"the model does not know the type {other!r}",
                expected=", ".join(sorted(known)),
                got=f"{name}={other}",
                fix="--as takes FOUND=KNOWN: the type that is found, then the model's",
            )


def known_type(name: str, known: Collection[str]) -> str:
    """The known type of that name, or of a name that differs in case alone; "" if there is none."""
    if name in known:
        return name
    same = [other for other in known if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else ""
