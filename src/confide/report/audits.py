"""What an audit found, on the page of a run and as a picture of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from confide.report.plots import STYLE, figure_of, found, svg_file
from confide.report.views import RunView
from confide.runs.audited import Audit, SiteAudit, told_epsilon, told_of, told_smallest


@dataclass(frozen=True, slots=True)
class AuditView:
    """An audit as a section: the sentences of each site, the drawing, and the other two numbers."""

    sites: tuple[tuple[str, str, SiteAudit], ...]
    plot: Markup
    epsilon: str
    smallest: str
    references: bool
    canaries: bool


def audits(views: Sequence[RunView]) -> list[tuple[RunView, AuditView]]:
    """The audits of the runs that have one."""
    return [
        (view, _view(view.run.audit, id=f"audit{number}"))
        for number, view in enumerate(views)
        if view.run.audit is not None
    ]


def picture(audit: Audit) -> str:
    """The drawing as the text of an SVG file."""
    with matplotlib.rc_context(STYLE):
        return svg_file(_drawn(audit))


def _view(audit: Audit, *, id: str) -> AuditView:
    sentences = [f"{name}: {told_of(one)}." for name, one in audit.sites.items()]
    plot = figure_of(_drawn(audit), id=id, alternative=" ".join(sentences))
    every = audit.sites.values()
    return AuditView(
        tuple((name, told_of(one), one) for name, one in audit.sites.items()),
        Markup(plot),
        told_epsilon(audit),
        told_smallest(audit.crossed),
        any(one.referenced is not None for one in every),
        any(one.canaries is not None for one in every),
    )


def _drawn(audit: Audit) -> Figure:
    rows = [
        (name, one.strongest.found.value, (one.strongest.found.low, one.strongest.found.high))
        for name, one in audit.sites.items()
    ]
    units = next(iter(audit.sites.values())).membership.units
    return found(rows, x_label=f"{units} found of 100 (dashed: by chance)")
