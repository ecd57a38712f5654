"""A site's own list of errors, which holds its text, made ready to be shown; and confusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from confide.report.errorlists import (
    BagCase,
    BagErrors,
    Errors,
    PairCase,
    PairText,
    RelationErrors,
    SentenceCase,
    Span,
)
from confide.report.words import CALLED
from confide.text.pairs import NO_RELATION


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of a sentence: outside an entity (`type` empty), or one entity's."""

    text: str
    type: str = ""
    confidence: float | None = None
    right: bool = True


@dataclass(frozen=True, slots=True)
class Mistake:
    """A sentence twice: as its annotators marked it, and as the model did."""

    where: str
    gold: tuple[Piece, ...]
    predicted: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class WrongPair:
    """A text with head and tail marked, the relation between them, and what the model said.

    `confidence` is the model's in what it said, where it says.
    """

    where: str
    text: tuple[Piece, ...]
    gold: str
    predicted: str
    confidence: float | None


@dataclass(frozen=True, slots=True)
class BagSentence:
    """A sentence of a bag with head and tail marked, and how far it speaks for the relation."""

    where: str
    text: tuple[Piece, ...]
    score: float | None


@dataclass(frozen=True, slots=True)
class WrongBag:
    """A pair, its facts, and what the model said: the best sentences, and how many `more` it has.

    `relation` is what the sentences' scores are of; `nothing` is what no fact is called.
    """

    head: str
    tail: str
    names: tuple[str, str]
    gold: tuple[str, ...]
    predicted: str
    confidence: float
    relation: str
    sentences: tuple[BagSentence, ...]
    more: int
    nothing: str = NO_RELATION


@dataclass(frozen=True, slots=True)
class ConfusionView:
    """Counts: a row for each gold name, columns predicted names; `nothing` is how "" is called."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    nothing: str


@dataclass(frozen=True, slots=True)
class ErrorsView:
    """One site's confusion, and its worst sentences, its worst pairs or its worst bags."""

    site: str
    confusion: ConfusionView
    worst: tuple[Mistake, ...] = ()
    pairs: tuple[WrongPair, ...] = ()
    bags: tuple[WrongBag, ...] = ()


def errors_view(found: Errors) -> ErrorsView:
    """What the page shows of one errors.json."""
    table = found.confusion
    if isinstance(found, RelationErrors):
        return ErrorsView(found.site, _labels(table), pairs=tuple(map(_wrong_pair, found.worst)))
    if isinstance(found, BagErrors):
        return ErrorsView(found.site, _labels(table), bags=tuple(map(_wrong_bag, found.worst)))
    seen = {*table, *(name for row in table.values() for name in row)}
    types = (*sorted(seen - {""}), "")
    view = _confusion(table, types, types, nothing=CALLED["ner"].nothing)
    return ErrorsView(found.site, view, worst=tuple(map(_mistake, found.worst)))


def relation_confusion(scores: Mapping[str, Any]) -> ConfusionView:
    """The confusion of relation scores; missed relations have a column of their own."""
    table = {gold: dict(row) for gold, row in scores["confusion"].items()}
    for relation, count in (scores.get("missed") or {}).items():
        table.setdefault(relation, {})[""] = count
    return _labels(table)


def _labels(table: Mapping[str, Mapping[str, int]]) -> ConfusionView:
    """Relations in alphabetical order, then none, then pairs that were not looked at."""
    seen = {*table, *(name for row in table.values() for name in row)}
    labels = sorted(seen - {"", NO_RELATION}) + [NO_RELATION] * (NO_RELATION in seen)
    columns = labels + [""] * ("" in seen)
    return _confusion(table, labels, columns, nothing=CALLED["re"].nothing)


def _confusion(
    table: Mapping[str, Mapping[str, int]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    nothing: str,
) -> ConfusionView:
    cells = ((gold, table.get(gold, {})) for gold in rows)
    return ConfusionView(
        tuple(columns),
        tuple((gold, tuple(row.get(name, 0) for name in columns)) for gold, row in cells),
        nothing,
    )


def _wrong_bag(case: BagCase) -> WrongBag:
    return WrongBag(
        head=case.head,
        tail=case.tail,
        names=case.names,
        gold=tuple(case.gold),
        predicted=case.predicted,
        confidence=case.confidence,
        relation=case.relation,
        sentences=tuple(BagSentence(o.where, _text_of(o), o.score) for o in case.sentences),
        more=case.more,
    )


def _text_of(case: PairText) -> tuple[Piece, ...]:
    """A text with its head and tail marked."""
    roles = (("head", case.head_type, case.head), ("tail", case.tail_type, case.tail))
    ends = [
        (start, end, " ".join(filter(None, (role, type))))
        for role, type, fragments in roles
        for start, end in fragments
    ]
    return tuple(_marked(case.text, ends))


def _wrong_pair(case: PairCase) -> WrongPair:
    return WrongPair(case.where, _text_of(case), case.gold, case.predicted, case.confidence)


def _marked(text: str, ends: Sequence[tuple[int, int, str]]) -> Iterator[Piece]:
    """The text cut at every border of its ends; where head and tail overlap, a piece is of both."""
    borders = {min(max(place, 0), len(text)) for start, end, _ in ends for place in (start, end)}
    for start, end in pairwise(sorted({0, *borders, len(text)})):
        names = [name for low, high, name in ends if low <= start and end <= high]
        yield Piece(text[start:end], ", ".join(names))


def _mistake(case: SentenceCase) -> Mistake:
    gold, predicted = ([span[:3] for span in spans] for spans in (case.gold, case.predicted))
    return Mistake(
        where=case.where,
        gold=pieces(case.text, case.gold, right=predicted),
        predicted=pieces(case.text, case.predicted, right=gold),
    )


def pieces(
    text: str, spans: Sequence[Span], *, right: Sequence[tuple[int, int, str]]
) -> tuple[Piece, ...]:
    """The text cut at its spans [start, end, type(, confidence)]; those in `right` are right.

    Of spans that overlap, the first and longest is shown.
    """
    cut, at = list[Piece](), 0
    for start, end, type, *rest in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < at or end > len(text) or start >= end:
            continue
        if start > at:
            cut.append(Piece(text[at:start]))
        sure = rest[0] if rest else None
        cut.append(Piece(text[start:end], type, sure, (start, end, type) in right))
        at = end
    if at < len(text):
        cut.append(Piece(text[at:]))
    return tuple(cut)
