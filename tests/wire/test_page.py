"""docs/wire.md says all that leaves a site, in the code's own words.

`tests/wire/pages.py` writes it; here it is read on its own.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from cases import each
from confide.federation.failures import Failure
from confide.flare.joining import wire_of
from confide.methods import METHODS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
SEEN = {"one by one": "singly", "sum": "summed", "masked": "masked"}
ANY = "a failure"
OF_THE_ENGINE = ("every reply", "seconds", "how long the site worked on it", "singly")

Row = tuple[str, str, str, str]
"""Step, field, what it is, how it is seen."""


def shown() -> set[Row]:
    """The fields on the page; of several steps in one heading, each has them all.

    "As in" names the step, and a kind or a method, where a field is described.
    """
    what: dict[tuple[str, str, str], str] = {}
    found = set()
    part = PAGE.read_text(encoding="utf-8").partition("## Step by step")[2].partition("\n## ")[0]
    for block in part.split("\n**")[1:]:
        head, *lines = block.splitlines()
        names, whose = head.split("** (")
        of, seen = whose.partition("): ")[0].rsplit(", ", 1)
        steps = [name.strip("` ") for name in names.split(",")]
        for line in filter(None, lines):
            cells, _, said = line.removeprefix("- ").partition(": ")
            for field in re.findall(r"`(\w+)`", cells):
                if earlier := re.fullmatch(r"as in `(\w+)` of (\S+)", said):
                    text = what[earlier[1], earlier[2], field]
                else:
                    text = re.sub(r" \*\(.*\)\*$", "", said)
                for step in steps:
                    what |= {(step, whom, field): text for whom in of.split(", ")}
                    found.add((step, field, text, seen))
    return found


def leaving(method: str) -> set[Row]:
    """What the code lets leave a site under this method."""
    rows = [row for row in wire_of(method) if row.direction == "up"]
    return {(row.step, row.field, row.what, SEEN[row.seen]) for row in rows}


@each("method", METHODS)
def test_every_field_that_leaves_a_site_is_on_the_page(method: str) -> None:
    missing = sorted(leaving(method) - shown())
    assert not missing, f"docs/wire.md does not say, or says otherwise: {missing}"


def test_what_a_failure_tells_is_on_the_page() -> None:
    assert set(failing()) <= shown()


def test_the_page_names_nothing_that_does_not_leave() -> None:
    known = {OF_THE_ENGINE, *failing()}.union(*(leaving(method) for method in METHODS))
    assert not sorted(shown() - known)


def test_the_page_says_which_command_prints_the_table() -> None:
    assert "`confide site consent KIT METHOD`" in PAGE.read_text(encoding="utf-8")


def failing() -> list[Row]:
    """What the code lets leave a site that could not answer."""
    return [(ANY, one.name, str(one.metadata["what"]), "singly") for one in fields(Failure)]
