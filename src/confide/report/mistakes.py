"""A site's own list of errors, which holds its text, made ready to be shown.

It is read from sites/NAME/errors.json, which a run writes only where the site's text lay in the
same process: {"site", "confusion": {gold type: {predicted type or "": n}}, "worst": [{"text",
"gold": [[start, end, type]], "predicted": [[start, end, type, confidence]], "where"}]}. In the
confusion the empty name stands for "no entity".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
class ErrorsView:
    """One site's confusion (rows gold, columns predicted, "" for no entity) and worst sentences."""

    site: str
    types: tuple[str, ...]
    confusion: tuple[tuple[str, tuple[int, ...]], ...]
    worst: tuple[Mistake, ...]


def errors_view(found: dict[str, Any]) -> ErrorsView:
    """What the page shows of one errors.json."""
    table: dict[str, dict[str, int]] = found["confusion"]
    seen = {*table, *(name for row in table.values() for name in row)}
    types = (*sorted(seen - {""}), "")
    rows = ((gold, table.get(gold, {})) for gold in types)
    return ErrorsView(
        site=str(found["site"]),
        types=types,
        confusion=tuple((gold, tuple(row.get(name, 0) for name in types)) for gold, row in rows),
        worst=tuple(_mistake(case) for case in found["worst"]),
    )


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
