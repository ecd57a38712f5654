"""What a site can see of its own errors: confusion and the worst sentences, with their text.

Written into the folder that the site owns, by whoever holds the site's text; never sent.
"""

from __future__ import annotations

import json
from typing import Any

from confide.errors import KeyFileError
from confide.federation.files import write_atomically
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.methods import Method
from confide.scoring import (
    Confusion,
    EntityCounts,
    ErrorCase,
    confusion,
    count_entities,
    worst_errors,
)

WORST = 20


def site_report(method: Method, state: Any, spec: SiteSpec) -> EntityCounts:
    """Annotate the site's test text with a state, keep its errors at the site, give the counts."""
    try:
        key = read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        key = None  # such a site took no part, and the history says so
    if key is None:
        return EntityCounts({}, {})
    predicted = method.extractor(state, key=key)(spec.test)
    report = {
        "site": spec.name,
        "confusion": _rows(confusion(spec.test, predicted)),
        "worst": [_case(case) for case in worst_errors(spec.test, predicted, WORST)],
    }
    write_atomically(spec.folder / "errors.json", json.dumps(report, indent=1).encode())
    return count_entities(spec.test, predicted)


def _rows(found: Confusion) -> dict[str, dict[str, int]]:
    """Gold type -> predicted type -> how often; "" stands for no entity on that side."""
    rows: dict[str, dict[str, int]] = {}
    for (gold, predicted), count in found.pairs.items():
        rows.setdefault(gold, {})[predicted] = count
    for gold, count in found.missed.items():
        rows.setdefault(gold, {})[""] = count
    if found.spurious:
        rows[""] = dict(found.spurious)
    return rows


def _case(case: ErrorCase) -> dict[str, Any]:
    return {
        "where": case.document,
        "text": case.text,
        "gold": [[mark.fragments[0][0], mark.fragments[-1][1], mark.type] for mark in case.gold],
        "predicted": [
            [mark.fragments[0][0], mark.fragments[-1][1], mark.type, mark.confidence]
            for mark in case.predicted
        ],
    }
