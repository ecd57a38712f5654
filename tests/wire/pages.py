"""What docs/wire.md takes from the code: each step with its fields, and the numbers of the tables.

What a step reveals, and how much of a field there is if it is not one number, is written by hand on
the page, and kept where its steps stay. `python tests/wire/test_wire.py` writes the rest anew; a
new step says `?` until that is written, and a test refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from confide.federation.failures import Failure
from confide.federation.steps import WireRow
from confide.flare.joining import wire_digest, wire_of
from confide.kinds import KINDS
from confide.methods import METHODS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "wire.md"
UNWRITTEN = "?"
SEEN = {"one by one": "singly", "sum": "summed", "masked": "masked"}
STEPS = "## Step by step"
NUMBERS = "## Numbers of the tables"
HEAD = re.compile(r"^\*\*(.+?)\*\* \((.*), \w+\): (.*)$")
FIELD = re.compile(r"^- `(\w+)`: .*? \*\((.*)\)\*$")


@dataclass
class Told:
    """What several steps let leave alike: by field what it is and how it is seen, and of whom."""

    steps: list[str]
    of: list[str]
    fields: dict[str, tuple[str, str]]


def leaving() -> Iterator[tuple[str, str, list[WireRow]]]:
    """Every pair, each of its steps, and what leaves a site with it."""
    for name in METHODS:
        steps: dict[str, list[WireRow]] = {}
        for row in wire_of(name):
            own = steps.setdefault(row.step, [])
            if row.direction == "up":
                own.append(row)
        for step, rows in steps.items():
            yield name, step, rows


def told() -> list[Told]:
    """The steps of all pairs; those that let the same leave are one."""
    found: dict[tuple[tuple[str, str, str], ...], Told] = {}
    pairs: dict[tuple[str, int], set[str]] = {}
    for name, step, rows in leaving():
        key = tuple((row.field, row.what, SEEN[row.seen]) for row in rows)
        own = {field: (what, seen) for field, what, seen in key}
        one = found.setdefault(key, Told([], [], own))
        if step not in one.steps:
            one.steps.append(step)
        pairs.setdefault((step, id(one)), set()).add(name)
    for one in found.values():
        whose = set().union(*(pairs[step, id(one)] for step in one.steps))
        one.of = of_whom(whose)
    return list(found.values())


def of_whom(pairs: set[str]) -> list[str]:
    """These pairs in as few words as say it: all; kinds, or methods; kinds but under methods."""
    if pairs == set(METHODS):
        return ["all"]
    by_kind = {kind: {one for one in METHODS if METHODS[one].kind.name == kind} for kind in KINDS}
    by_method: dict[str, set[str]] = {}
    for one, pair in METHODS.items():
        by_method.setdefault(pair.method, set()).add(one)
    found = []
    for named in (by_kind, by_method):
        chosen = [name for name, own in named.items() if own & pairs]
        rest = set().union(*(named[name] for name in chosen)) - pairs
        without = [name for name, own in by_method.items() if own & rest]
        if not pairs & set().union(*(by_method[name] for name in without)):
            found.append([*chosen, *([f"not under {' or '.join(without)}"] if without else [])])
    return min(found, key=len) if found else sorted(pairs)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def by_hand(page: str) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
    """What is written by hand: what each step of whom reveals; how much a step has of a field."""
    reveals: dict[tuple[str, str], str] = {}
    much: dict[tuple[str, str], str] = {}
    steps: list[str] = []
    for line in page.partition(STEPS)[2].partition("\n## ")[0].splitlines():
        if head := HEAD.match(line):
            steps = [name.strip(" `") for name in head[1].split(",")]
            reveals |= {(step, whom): head[3] for step in steps for whom in (head[2], "")}
        elif field := FIELD.match(line):
            much |= {(step, field[1]): field[2] for step in steps}
    return reveals, much


def by_step(page: str) -> list[str]:
    """Each step of the page with its fields; a field that an earlier step has is named there."""
    reveals, much = by_hand(page)
    found: list[str] = []
    first: dict[tuple[str, str], Told] = {}
    for one in [*told(), *of_the_engine()]:
        of, step = ", ".join(one.of), one.steps[0]
        places = [(name, whom) for whom in (of, "") for name in one.steps]
        said = next((reveals[place] for place in places if place in reveals), UNWRITTEN)
        seen = "/".join(dict.fromkeys(seen for _, seen in one.fields.values()))
        names = _quoted(one.steps) if step not in ENGINE else step
        found += ["", f"**{names}** ({of}, {seen}): {said}", ""]
        again: dict[str, list[str]] = {}
        for field, (what, _) in one.fields.items():
            earlier = first.setdefault((field, what), one)
            if earlier is not one:
                where = f"in `{earlier.steps[0]}` of {earlier.of[0]}"
                again.setdefault(where, []).append(field)
                continue
            amount = f" *({much[step, field]})*" if (step, field) in much else ""
            found.append(f"- `{field}`: {what}{amount}")
        found += [f"- {_quoted(names)}: as {where}" for where, names in again.items()]
    return found


ENGINE = ("a failure", "every reply")


def of_the_engine() -> Iterator[Told]:
    """What leaves a site that could not answer, and what leaves with every reply."""
    failing = {one.name: (str(one.metadata["what"]), "singly") for one in fields(Failure)}
    yield Told([ENGINE[0]], ["all"], failing)
    yield Told([ENGINE[1]], ["all"], {"seconds": ("how long the site worked on it", "singly")})


def by_number() -> list[str]:
    """The numbers of the tables of all pairs, by method and kind."""
    rows: dict[str, dict[str, str]] = {}
    for name, pair in METHODS.items():
        rows.setdefault(pair.method, {})[pair.kind.name] = wire_digest(wire_of(name))
    lines = [("", list(KINDS))]
    lines += [(method, [own.get(kind, "") for kind in KINDS]) for method, own in rows.items()]
    return [
        (f"{name:16}" + "".join(f"{cell:17}" for cell in cells)).rstrip() for name, cells in lines
    ]


def written() -> str:
    """The page with its steps and numbers as the code has them."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, after = page.partition(f"{STEPS}\n")
    intro = after.lstrip("\n").partition("\n\n")[0]
    _, _, after = page.partition(f"{NUMBERS}\n")
    told_of_numbers = after.lstrip("\n").partition("\n\n")[0]
    end = after.partition("```text\n")[2].partition("```\n")[2]
    steps, numbers = "\n".join(by_step(page)), "\n".join(by_number())
    return (
        f"{before}{STEPS}\n\n{intro}\n{steps}\n\n"
        f"{NUMBERS}\n\n{told_of_numbers}\n\n```text\n{numbers}\n```\n{end}"
    )
