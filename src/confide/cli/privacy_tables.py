"""Tables and words for `confide privacy plan`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from confide.cli.tables import titled

if TYPE_CHECKING:
    from rich.table import Table

    from confide.jobs.privacy_plan import PrivacyPlan


def planned(plan: PrivacyPlan) -> list[Table]:
    """ε by round, ε against more or fewer colluders, and what noise cost elsewhere."""
    spent = titled(f"ε at δ = {plan.delta:g}, for one {plan.unit}")
    spent.add_column("after round", justify="right")
    spent.add_column("ε", justify="right")
    for row in plan.rounds_spent:
        spent.add_row(str(row.rounds), _short(row.epsilon))
    against = titled("ε of the whole run, by who is in league with the server")
    for name in ("colluding sites", "sites in a sum", "ε"):
        against.add_column(name, justify="right")
    for one in plan.against:
        against.add_row(str(one.colluding), str(one.sites), _short(one.epsilon))
    elsewhere = titled("F1 on published corpora, at δ = 1e-05 (docs/noise.md)")
    elsewhere.add_column("corpus")
    for name in ("units", "no noise", "ε = 8", "ε = 3", "ε = 1"):
        elsewhere.add_column(name, justify="right")
    for cell in plan.elsewhere:
        scores = (cell.without, cell.at_8, cell.at_3, cell.at_1)
        elsewhere.add_row(f"{cell.corpus}, {cell.model}", str(cell.units), *map(str, scores))
    more = [against] * bool(plan.against) + [elsewhere] * bool(plan.elsewhere)
    return [spent, *more]


def said(plan: PrivacyPlan) -> Iterator[str]:
    """The plan in sentences."""
    yield (
        f"σ = {plan.noise:g} clips, rate {plan.rate:g}, {plan.rounds} rounds:"
        f" ε = {_short(plan.epsilon)} at δ = {plan.delta:g}"
    )
    if plan.steps:
        yield (
            f"{plan.sites} sites, each in {plan.steps} steps of its own in a round: each adds all"
            f" of the noise, {plan.site_noise:.3g} clips, whoever colludes"
        )
    else:
        yield _together(plan)
    if plan.drawn:
        what = "a step of a site" if plan.steps else "a round"
        yield (
            f"{what} draws about {plan.drawn:.3g} units; on each number of their mean gradient the"
            f" noise has a standard deviation of {plan.per_number:.2g}"
        )
    if not plan.proposed:
        able = '"dp-feded"' if plan.steps else '"dp-fedsgd", or "dp-fedner"'
        yield f"train under it with method = {able}"


def lines_to_add(plan: PrivacyPlan, settings: str) -> Iterator[str]:
    """What is proposed as TOML with reasons, then what is left to say, and the command to run."""
    if not plan.proposed and not plan.unsaid:
        return
    yield f"\n# Add these lines to {settings}, or change those that are there:"
    tables: dict[str, list[str]] = {}
    for one in plan.proposed:
        table, _, key = one.key.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(one.value)}  # {one.why}")
    for said in plan.unsaid:
        table, _, key = said.key.rpartition(".")
        example = f"# {key} = {json.dumps(said.example)}  # YOU SAY: {said.why}"
        tables.setdefault(table, []).append(example)
    for table in sorted(tables):
        yield from ([f"\n[{table}]"] if table else [])
        yield from tables[table]
    words = [f"{one.key}={json.dumps(one.value)}" for one in plan.proposed]
    words += [f"{one.key}={json.dumps(one.example)}" for one in plan.unsaid if one.needed]
    yield "\n# Or all on one line (your own values for those that YOU SAY):"
    yield shlex.join(["confide", "run", settings, *(w for one in words for w in ("--set", one))])
    for why in plan.blocked:
        yield f"\n# A run would still be refused: {why}"


def _together(plan: PrivacyPlan) -> str:
    return (
        f"{plan.sites} sites, a sum over at least {plan.least}, up to {plan.colluding} colluding:"
        f" each site adds {plan.site_noise:.3g} clips; with nobody lost the sum has"
        f" {plan.whole_noise:.3g}"
    )


def _short(epsilon: float) -> str:
    return "no bound" if math.isinf(epsilon) or epsilon > 1000 else f"{epsilon:.3g}"
