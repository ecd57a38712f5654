"""The demonstration's page: what each part showed, and what left the sites."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from confide import __version__
from confide.jobs.demo.examples import Example
from confide.jobs.demo.parts import Part
from confide.report import words

TOGETHER = "together"
WORDS = {
    "alone": "each site alone",
    "pooled": "all text in one place",
}
"""How the page calls a run; a run that is not named here is the federated one."""
MOST_FIELDS = 4
"""Fields of a part that the page names; its report has them all."""


def templates() -> Environment:
    """The templates of the demonstration; what they are given is escaped."""
    return Environment(
        loader=PackageLoader("confide.jobs.demo", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(
    page: Path, parts: Sequence[Part], examples: Sequence[Example], *, seconds: float
) -> Path:
    """Write the page and return its path. It loads nothing from elsewhere and has no scripts."""
    environment = templates()
    environment.filters |= {
        "points": words.points,
        "size": words.size,
        "duration": words.duration,
        "link": lambda path: Path(os.path.relpath(path, page.parent)).as_posix(),
        "called": lambda name: WORDS.get(name, TOGETHER),
    }
    html = environment.get_template("demo.html.j2").render(
        version=__version__,
        parts=parts,
        examples=examples,
        seconds=seconds,
        most=MOST_FIELDS,
        widths={part.name: _width(part) for part in parts},
    )
    page.write_text(html, encoding="utf-8")
    return page


def _width(part: Part) -> dict[str, str]:
    """The length of each run's bar, in percent of the line."""
    return {name: f"{100 * score:.1f}%" for name, score in part.scores.items()}
