"""Which type was taken for which, and where a model is most wrong.

Error lists hold text: they are for the owner of the documents only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from confide.scoring.counts import paired
from confide.scoring.matching import maximum_pairs, shared_characters
from confide.scoring.units import by_sentence
from confide.text.document import Document, Entity
from confide.userfiles import Tree

Aligned = tuple[Entity | None, Entity | None]


@dataclass(frozen=True, slots=True)
class Confusion:
    """How often a gold type was predicted as which type. Numbers only, no text.

    `pairs` counts (gold type, predicted type) of entities that share characters; `missed` and
    `spurious` count entities without a counterpart on the other side.
    """

    pairs: dict[tuple[str, str], int]
    missed: dict[str, int]
    spurious: dict[str, int]

    @property
    def types(self) -> tuple[str, ...]:
        """Every type that occurs, in alphabetical order."""
        return tuple(sorted({type_ for pair in self.pairs for type_ in pair}
                            | self.missed.keys() | self.spurious.keys()))  # fmt: skip

    def to_json(self) -> Tree:
        """`{"types", "rows": {gold: {predicted: n}}, "missed": {type: n}, "spurious": ...}`."""
        rows: dict[str, dict[str, int]] = {}
        for (gold, predicted), count in self.pairs.items():
            rows.setdefault(gold, {})[predicted] = count
        types = list(self.types)
        return {"types": types, "rows": rows, "missed": self.missed, "spurious": self.spurious}


@dataclass(frozen=True, slots=True)
class Mark:
    """An entity in an error list: its type and its characters within the sentence."""

    type: str
    fragments: tuple[tuple[int, int], ...]
    text: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A sentence with mistakes: its text, both annotations, and the number of each kind of mistake.

    `borders`: the right type with other characters. `types`: shared characters, another type.
    """

    document: str
    text: str
    gold: tuple[Mark, ...]
    predicted: tuple[Mark, ...]
    missed: int
    spurious: int
    borders: int
    types: int

    @property
    def mistakes(self) -> int:
        """The number of mistakes in the sentence."""
        return self.missed + self.spurious + self.borders + self.types

    def to_json(self) -> Tree:
        """The fields as plain values."""
        return asdict(self)


def confusion(gold: Sequence[Document], predicted: Sequence[Document]) -> Confusion:
    """Count which type was taken for which. An entity that occurs twice counts once.

    Entities are paired one to one: first equal ones, then as many as possible that overlap and have
    the same type, then, over all types, those that share most characters. So for flat annotation,
    the diagonal is the relaxed count of true predictions.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    missed: Counter[str] = Counter()
    spurious: Counter[str] = Counter()
    for one, other in paired(gold, predicted):
        for ours, theirs in align(one, other):
            if ours and theirs:
                pairs[ours.type, theirs.type] += 1
            elif ours:
                missed[ours.type] += 1
            elif theirs:
                spurious[theirs.type] += 1
    return Confusion(
        dict(sorted(pairs.items())), dict(sorted(missed.items())), dict(sorted(spurious.items()))
    )


def worst_errors(
    gold: Sequence[Document], predicted: Sequence[Document], n: int
) -> list[ErrorCase]:
    """The `n` sentences with most mistakes; among equals, the most confident mistakes come first.

    The cases hold text: show them to the owner of the documents and to nobody else.
    """
    cases = [
        (case, doubt)
        for one, other in zip(*by_sentence(gold, predicted), strict=True)
        for case, doubt in [_case(one, other)]
        if case.mistakes
    ]
    cases.sort(key=lambda pair: (-pair[0].mistakes, pair[1]))
    return [case for case, _ in cases[:n]]


def right_sentences(
    gold: Sequence[Document], predicted: Sequence[Document], n: int
) -> list[ErrorCase]:
    """The `n` sentences with most entities in which every entity is right, and nothing else found.

    The cases hold text: show them to the owner of the documents and to nobody else.
    """
    whole = (_case(one, other)[0] for one, other in zip(*by_sentence(gold, predicted), strict=True))
    cases = [case for case in whole if case.gold and not case.mistakes]
    cases.sort(key=lambda case: -len(case.gold))
    return cases[:n]


def align(gold: Document, predicted: Document) -> list[Aligned]:
    """Every entity of both sides once, paired where they correspond (see `confusion`)."""
    theirs = {(entity.type, entity.fragments): entity for entity in predicted.entities}
    ours = {(entity.type, entity.fragments): entity for entity in gold.entities}
    pairs: list[Aligned] = [(ours[key], theirs[key]) for key in ours if key in theirs]
    left = [entity for key, entity in ours.items() if key not in theirs]
    right = [entity for key, entity in theirs.items() if key not in ours]
    for pick in (_same_type, _most_shared):
        found = pick(left, right)
        pairs += found
        used = {id(entity) for pair in found for entity in pair}
        left = [entity for entity in left if id(entity) not in used]
        right = [entity for entity in right if id(entity) not in used]
    return [*pairs, *((entity, None) for entity in left), *((None, entity) for entity in right)]


def _same_type(left: Sequence[Entity], right: Sequence[Entity]) -> list[Aligned]:
    pairs: list[Aligned] = []
    for type_ in sorted({entity.type for entity in left}):
        ours = [entity for entity in left if entity.type == type_]
        theirs = [entity for entity in right if entity.type == type_]
        found = maximum_pairs([e.fragments for e in ours], [e.fragments for e in theirs])
        pairs += [(ours[i], theirs[j]) for i, j in found]
    return pairs


def _most_shared(left: Sequence[Entity], right: Sequence[Entity]) -> list[Aligned]:
    overlaps = [
        (-shared, i, j)
        for i, one in enumerate(left)
        for j, other in enumerate(right)
        if (shared := shared_characters(one.fragments, other.fragments))
    ]
    pairs: list[Aligned] = []
    used_left: set[int] = set()
    used_right: set[int] = set()
    for _, i, j in sorted(overlaps):
        if i not in used_left and j not in used_right:
            used_left.add(i)
            used_right.add(j)
            pairs.append((left[i], right[j]))
    return pairs


def _case(gold: Document, predicted: Document) -> tuple[ErrorCase, float]:
    """The sentence's mistakes, and minus the summed confidence of its wrong predictions."""
    kinds: Counter[str] = Counter()
    sure = 0.0
    for ours, theirs in align(gold, predicted):
        kind = _kind(ours, theirs)
        kinds[kind] += 1
        if theirs and kind != "right":
            sure += theirs.confidence or 0.0
    case = ErrorCase(
        gold.id,
        gold.text,
        tuple(_mark(gold, entity) for entity in sorted(gold.entities, key=_place)),
        tuple(_mark(predicted, entity) for entity in sorted(predicted.entities, key=_place)),
        *(kinds[kind] for kind in ("missed", "spurious", "borders", "types")),
    )
    return case, -sure


def _kind(ours: Entity | None, theirs: Entity | None) -> str:
    if ours is None or theirs is None:
        return "spurious" if ours is None else "missed"
    if ours.type != theirs.type:
        return "types"
    return "right" if ours.fragments == theirs.fragments else "borders"


def _place(entity: Entity) -> tuple[tuple[tuple[int, int], ...], str]:
    return entity.fragments, entity.type


def _mark(document: Document, entity: Entity) -> Mark:
    return Mark(entity.type, entity.fragments, document.surface(entity), entity.confidence)
