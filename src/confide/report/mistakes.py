"""What a model gets wrong and right at a site, with its text, and confusion tables, for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confide.report.errorlists import (
    BagCase,
    BagErrors,
    EntityErrors,
    Errors,
    PairCase,
    RelationErrors,
    SentenceCase,
)
from confide.scoring.scores import Scored
from confide.tasks import TASKS
from confide.text.document import NO_RELATION


@dataclass(frozen=True, slots=True)
class ConfusionView:
    """Counts: a row per gold name, a column per predicted name; `nothing` is shown for ""."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    nothing: str


@dataclass(frozen=True, slots=True)
class ErrorsView:
    """One site's confusion, its worst sentences, pairs or bags, and some that are right."""

    site: str
    confusion: ConfusionView
    worst: Sequence[SentenceCase] = ()
    pairs: Sequence[PairCase] = ()
    bags: Sequence[BagCase] = ()
    right: Sequence[SentenceCase] = ()
    right_pairs: Sequence[PairCase] = ()
    right_bags: Sequence[BagCase] = ()


def errors_view(found: Errors) -> ErrorsView:
    """What the page shows of one errors.json."""
    table = found.confusion
    if isinstance(found, RelationErrors):
        return ErrorsView(found.site, _labels(table), pairs=found.worst, right_pairs=found.right)
    if isinstance(found, BagErrors):
        return ErrorsView(found.site, _labels(table), bags=found.worst, right_bags=found.right)
    return ErrorsView(found.site, _types(table), worst=found.worst, right=found.right)


def entity_confusion(errors: Sequence[Errors]) -> ConfusionView | None:
    """Which type was found as which at all sites together; None without entities."""
    tables = [found.confusion for found in errors if isinstance(found, EntityErrors)]
    whole: dict[str, dict[str, int]] = {}
    for table in tables:
        for gold, row in table.items():
            for predicted, count in row.items():
                own = whole.setdefault(gold, {})
                own[predicted] = own.get(predicted, 0) + count
    return _types(whole) if whole else None


def relation_confusion(scores: Scored) -> ConfusionView:
    """The confusion of relation scores; missed relations get a column of their own."""
    table = {gold: dict(row) for gold, row in scores["confusion"].items()}
    for relation, count in (scores.get("missed") or {}).items():
        table.setdefault(relation, {})[""] = count
    return _labels(table)


def _types(table: Mapping[str, Mapping[str, int]]) -> ConfusionView:
    """Types in alphabetical order, then no entity."""
    seen = {*table, *(name for row in table.values() for name in row)}
    types = (*sorted(seen - {""}), "")
    return _confusion(table, types, types, nothing=TASKS["ner"].words.nothing)


def _labels(table: Mapping[str, Mapping[str, int]]) -> ConfusionView:
    """Relations in alphabetical order, then no relation, then pairs that were not looked at."""
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
