"""Which site has trouble with which type: a map of F1, a cell for each pair."""

from __future__ import annotations

from dataclasses import dataclass

from confide.report.folder import FinishedRun

STRONGEST = 55
"""Percent of colour in the best cell."""


@dataclass(frozen=True, slots=True)
class MapCell:
    """F1 of one type at one site, how many were marked, and percent of colour; None: not there."""

    f1: float | None
    support: int
    share: float


@dataclass(frozen=True, slots=True)
class TypeMap:
    """Rows and columns are types and sites, the longer of the two down the page."""

    across: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]
    low: float
    high: float


def type_map(run: FinishedRun) -> TypeMap | None:
    """The map of one run; None unless it has several sites and several types."""
    kind = run.scoring.typed[0]
    tables = {
        site: dict(run.site_scores(site).get(kind, {}).get("types", {})) for site in run.sites
    }
    sites = [site for site, types in tables.items() if types]
    types = sorted({type for table in tables.values() for type in table})
    if len(sites) < 2 or len(types) < 2:
        return None
    values = {
        (site, type): rates["f1"]
        for site in sites
        for type, rates in tables[site].items()
        if rates.get("support") or rates.get("predicted")
    }
    if not values:
        return None
    low, high = min(values.values()), max(values.values())

    def cell(site: str, type: str) -> MapCell:
        f1 = values.get((site, type))
        share = 0.0 if f1 is None else STRONGEST * (f1 - low) / max(high - low, 1e-9)
        return MapCell(f1, tables[site].get(type, {}).get("support", 0), share)

    if len(sites) > len(types):
        rows = tuple((site, tuple(cell(site, type) for type in types)) for site in sites)
        return TypeMap("type", tuple(types), rows, low, high)
    rows = tuple((type, tuple(cell(site, type) for site in sites)) for type in types)
    return TypeMap("site", tuple(sites), rows, low, high)
