"""What a site can see of its own errors: confusion and the worst sentences, with their text.

Written into the folder that the site owns, by whoever holds the site's text; never sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from confide.errors import KeyFileError
from confide.federation.files import write_of_run
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
from confide.text.document import Document

WORST = 20


def site_reports(method: Method, homes: Iterable[tuple[Any, SiteSpec]]) -> dict[str, EntityCounts]:
    """Every site's report: `homes` are sites, each with the state that it ends with.

    Neighbours with one state and one key share the extractor; no more than one is held at a time.
    """
    counts: dict[str, EntityCounts] = {}
    made: tuple[Any, bytes, Any] = (None, b"", None)
    for state, spec in homes:
        key = _key_of(spec)
        if key is None:
            counts[spec.name] = EntityCounts({}, {})
            continue
        if made[0] is not state or made[1] != key:
            made = (state, key, method.extractor(state, key=key))
        counts[spec.name] = site_report(made[2](spec.test), spec)
    return counts


def site_report(predicted: Sequence[Document], spec: SiteSpec) -> EntityCounts:
    """Keep a site's errors on its test text at the site, give the counts."""
    report = {
        "site": spec.name,
        "confusion": _rows(confusion(spec.test, predicted)),
        "worst": [_case(case) for case in worst_errors(spec.test, predicted, WORST)],
    }
    write_of_run(spec.folder / "errors.json", json.dumps(report, indent=1).encode())
    return count_entities(spec.test, predicted)


def _key_of(spec: SiteSpec) -> bytes | None:
    """The key of a site that has test text; a site without a key took no part."""
    try:
        return read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        return None  # the history says so


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
