"""The report of an entity model at a site: what it gets wrong and right, by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import examples_from
from confide.kinds.trained import RIGHT, WORST, Report, fingerprint
from confide.scoring import (
    Confusion,
    ErrorCase,
    confusion,
    count_entities,
    micro,
    right_sentences,
    worst_errors,
)
from confide.scoring.counts import Count, Match, match_documents
from confide.scoring.units import by_sentence
from confide.text.document import Document

if TYPE_CHECKING:
    from confide.learning.trainer import EntityTrainer


def entity_report(gold: Sequence[Document], predicted: Sequence[Document]) -> Report:
    """The confusion, the worst and some right sentences, and the counts of each sentence."""
    matches = list(match_documents(*by_sentence(gold, predicted)))
    return Report(
        counts=count_entities(gold, predicted),
        errors={
            "confusion": _rows(confusion(gold, predicted)),
            "worst": [_case(case) for case in worst_errors(gold, predicted, WORST)],
            "right": [_case(case) for case in right_sentences(gold, predicted, RIGHT)],
        },
        sentences={
            "fingerprint": fingerprint(gold),
            "strict": [micro({one.type: one.strict for one in sentence}) for sentence in matches],
            "relaxed": [micro({one.type: one.relaxed for one in sentence}) for sentence in matches],
            "types": _by_type(matches),
        },
    )


def weighted_sentences(
    trainer: EntityTrainer, documents: Sequence[Document], weights_S: NDArray[np.float32]
) -> dict[str, list[dict[str, object]]]:
    """The training sentences with their instance weights, the heaviest first.

    A sentence of several windows has the mean of their weights.
    """
    examples, _ = examples_from(documents)
    weights: dict[int, list[float]] = {}
    windows = trainer.prepared(examples).windows
    for window, weight in zip(windows, weights_S.tolist(), strict=True):
        weights.setdefault(window.example, []).append(weight)
    mean = {row: fmean(values) for row, values in weights.items()}
    rows: list[dict[str, object]] = [
        {
            "where": documents[examples[row].document].id,
            "text": " ".join(examples[row].tokens),
            "entities": [list(span) for span in examples[row].spans],
            "weight": mean[row],
        }
        for row in sorted(mean, key=lambda row: -mean[row])
    ]
    return {"sentences": rows}


def _by_type(matches: Sequence[Sequence[Match]]) -> dict[str, list[Count]]:
    """Strict counts of each type, of the sentences that have any."""
    found: dict[str, list[Count]] = {}
    for sentence in matches:
        for one in sentence:
            found.setdefault(one.type, []).append(one.strict)
    return dict(sorted(found.items()))


def _rows(found: Confusion) -> dict[str, dict[str, int]]:
    """Gold type -> predicted type -> count; "" stands for no entity on that side."""
    rows: dict[str, dict[str, int]] = {}
    for (gold, predicted), count in found.pairs.items():
        rows.setdefault(gold, {})[predicted] = count
    for gold, count in found.missed.items():
        rows.setdefault(gold, {})[""] = count
    if found.spurious:
        rows[""] = dict(found.spurious)
    return rows


def _case(case: ErrorCase) -> dict[str, object]:
    return {
        "where": case.document,
        "text": case.text,
        "gold": [[mark.fragments[0][0], mark.fragments[-1][1], mark.type] for mark in case.gold],
        "predicted": [
            [mark.fragments[0][0], mark.fragments[-1][1], mark.type, mark.confidence]
            for mark in case.predicted
        ],
    }
