"""How far two annotators agree on the texts that both corrected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confide.scoring import count_entities, scores
from confide.serve.corrections import place_of, settled
from confide.serve.pool import part_of
from confide.text.document import Document
from confide.text.segment import tokens_of


@dataclass(frozen=True, slots=True)
class Agreed:
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
) -> tuple[int, list[Agreed]]:
    """How many texts both corrected, and how far they agree: over all types, then by type.

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
) -> Agreed:
    return Agreed(
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
        (_types(one, start, end), _types(other, start, end)) for start, end in tokens_of(one.text)
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
