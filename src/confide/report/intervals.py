"""How certain a score is: bootstrap intervals from what each sentence or bag counted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from confide.errors import DataError, RunError
from confide.report.folder import FinishedRun
from confide.report.plots import Range
from confide.scoring.bag_bootstrap import auc_interval
from confide.scoring.bootstrap import Interval, Table, bootstrap_interval

ALL = ""
"""The key of all sites together."""
LEVEL = 0.95


def intervals(run: FinishedRun) -> Mapping[str, Range]:
    """The interval of the first kind of score, by site, and of all sites under `ALL`.

    Where a site did not keep its counts, or they do not belong to its score, there is none.
    """
    kind = run.scoring.kinds[0]
    if kind not in run.scoring.counted:
        return _ranked(run, kind)
    tables: dict[str, Table] = {}
    for held in run.sentences:
        rows = getattr(held, kind) or ()
        if rows:
            tables[held.site] = np.array(rows, np.int64)
    found: dict[str, Range] = {}
    for site, table_N3 in tables.items():
        _keep(found, site, run.score(kind, site), bootstrap_interval(table_N3, level=LEVEL))
    if _is_whole(run, found):
        all_N3 = np.concatenate(list(tables.values()))
        _keep(found, ALL, run.score(kind), bootstrap_interval(all_N3, level=LEVEL))
    return found


def _ranked(run: FinishedRun, kind: str) -> Mapping[str, Range]:
    """The same of an area under the curve, from the ranked candidates of each bag.

    Raises RunError if a site's file is damaged.
    """
    found: dict[str, Range] = {}
    bags = {held.site: held.ranked for held in run.sentences if held.ranked}
    try:
        for site, ranked in bags.items():
            _keep(found, site, run.score(kind, site), auc_interval(ranked, level=LEVEL))
        if _is_whole(run, found):
            everything = [bag for ranked in bags.values() for bag in ranked]
            _keep(found, ALL, run.score(kind), auc_interval(everything, level=LEVEL))
    except DataError as error:
        raise RunError(error.what, where=str(run.path), expected=error.expected) from error
    return found


def _is_whole(run: FinishedRun, found: Mapping[str, Range]) -> bool:
    """Whether every site that has a score has an interval."""
    scored = {site for site in run.sites if run.site_scores(site).get(run.scoring.unit)}
    return bool(scored) and scored == found.keys()


def type_intervals(run: FinishedRun) -> Mapping[str, Range]:
    """The interval of the strict F1 of each type, over the sentences of all sites.

    Sentences without the type count too: whether they are drawn changes how often the others are.
    """
    kind = run.scoring.typed[0]
    if kind not in run.scoring.counted or set(run.result.scores.sites) != {
        held.site for held in run.sentences if held.types
    }:
        return {}
    drawn = sum(len(getattr(held, kind) or ()) for held in run.sentences)
    rows: dict[str, list[list[int]]] = {}
    for held in run.sentences:
        for name, own in held.types.items():
            rows.setdefault(name, []).extend(own)
    types = run.overall.get(kind, {}).get("types", {})
    found: dict[str, Range] = {}
    for name, own in rows.items():
        if name in types and len(own) <= drawn:
            table_N3 = np.array([*own, *([[0, 0, 0]] * (drawn - len(own)))], np.int64)
            one = bootstrap_interval(table_N3, level=LEVEL)
            _keep(found, name, types[name]["f1"], one)
    return found


def _keep(found: dict[str, Range], name: str, score: float | None, one: Interval) -> None:
    """Add the interval of a score, if it holds the score."""
    if score is not None and one.low <= score <= one.high:
        found[name] = (one.low, one.high)
