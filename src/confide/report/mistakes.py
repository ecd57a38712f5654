"""A site's own list of errors, which holds its text, made ready to be shown; and confusions.

It is read from sites/NAME/errors.json, which a run writes only where the site's text lay in the
same process: {"site", "confusion": {gold type: {predicted type or "": n}}, "worst": [{"text",
"gold": [[start, end, type]], "predicted": [[start, end, type, confidence]], "where"}]}. In the
confusion the empty name stands for "no entity".

Of relations ("task": "re"), the confusion is of labels, and the empty name of a prediction stands
for a pair that was not looked at; "worst" are pairs: {"text", "head": [[start, end]], "tail",
"head_type", "tail_type", "gold": label, "predicted": label, "confidence", "where"}.

Of bags ("task": "bags"), there is no confusion, and "worst" are bags: {"head", "tail", "names",
"gold": labels, "predicted": label, "confidence", "relation", "sentences", "more"}. Sentences are as
pairs are, with a "score": how far each speaks for "relation".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from confide.tasks import TASKS, USUAL
from confide.text.pairs import NO_RELATION

_Table = Mapping[str, Mapping[str, int]]


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


def errors_view(found: dict[str, Any]) -> ErrorsView:
    """What the page shows of one errors.json."""
    view = _VIEWS.get(found.get("task", USUAL), _entities_view)
    return view(str(found["site"]), found["confusion"], found["worst"])


def _entities_view(site: str, table: _Table, worst: Sequence[Any]) -> ErrorsView:
    seen = {*table, *(name for row in table.values() for name in row)}
    types = (*sorted(seen - {""}), "")
    view = _confusion(table, types, types, nothing=TASKS["ner"].words.nothing)
    return ErrorsView(site, view, worst=tuple(_mistake(case) for case in worst))


def _relations_view(site: str, table: _Table, worst: Sequence[Any]) -> ErrorsView:
    return ErrorsView(site, _labels(table), pairs=tuple(_wrong_pair(case) for case in worst))


def _bags_view(site: str, table: _Table, worst: Sequence[Any]) -> ErrorsView:
    return ErrorsView(site, _labels(table), bags=tuple(_wrong_bag(case) for case in worst))


_VIEWS = {"ner": _entities_view, "re": _relations_view, "bags": _bags_view}
"""By task, what makes a view of a site's name, its confusion and its worst cases."""


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
    return _confusion(table, labels, columns, nothing=TASKS["re"].words.nothing)


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


def _wrong_bag(case: dict[str, Any]) -> WrongBag:
    head, tail = case["names"]
    return WrongBag(
        head=str(case["head"]),
        tail=str(case["tail"]),
        names=(str(head), str(tail)),
        gold=tuple(map(str, case["gold"])),
        predicted=str(case["predicted"]),
        confidence=float(case["confidence"]),
        relation=str(case["relation"]),
        sentences=tuple(
            BagSentence(
                where=str(one.get("where", "")),
                text=_text_of(one),
                score=None if one["score"] is None else float(one["score"]),
            )
            for one in case["sentences"]
        ),
        more=int(case["more"]),
    )


def _text_of(case: dict[str, Any]) -> tuple[Piece, ...]:
    """A text with its head and tail marked."""
    ends = [
        (start, end, " ".join(filter(None, (role, case.get(f"{role}_type")))))
        for role in ("head", "tail")
        for start, end in case[role]
    ]
    return tuple(_marked(case["text"], ends))


def _wrong_pair(case: dict[str, Any]) -> WrongPair:
    confidence = case.get("confidence")
    return WrongPair(
        where=str(case.get("where", "")),
        text=_text_of(case),
        gold=str(case["gold"]),
        predicted=str(case["predicted"]),
        confidence=None if confidence is None else float(confidence),
    )


def _marked(text: str, ends: Sequence[tuple[int, int, str]]) -> Iterator[Piece]:
    """The text cut at every border of its ends; where head and tail overlap, a piece is of both."""
    borders = {min(max(place, 0), len(text)) for start, end, _ in ends for place in (start, end)}
    for start, end in pairwise(sorted({0, *borders, len(text)})):
        names = [name for low, high, name in ends if low <= start and end <= high]
        yield Piece(text[start:end], ", ".join(names))


def _mistake(case: dict[str, Any]) -> Mistake:
    gold = [tuple(span[:3]) for span in case["gold"]]
    predicted = [tuple(span[:3]) for span in case["predicted"]]
    return Mistake(
        where=str(case.get("where", "")),
        gold=pieces(case["text"], case["gold"], right=predicted),
        predicted=pieces(case["text"], case["predicted"], right=gold),
    )


def pieces(
    text: str, spans: Sequence[Sequence[Any]], *, right: Sequence[tuple[Any, ...]]
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
        confidence = float(rest[0]) if rest and rest[0] is not None else None
        cut.append(Piece(text[start:end], str(type), confidence, (start, end, type) in right))
        at = end
    if at < len(text):
        cut.append(Piece(text[at:]))
    return tuple(cut)
