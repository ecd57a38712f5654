"""The tables of docs that come from the wire: what leaves a site, step by step.

docs/wire.md has the steps, and then every field.
Only what a step reveals, and how much of a field there is, is written by hand, in the pages:
it is kept where its steps stay. `python tests/wire/test_wire.py` writes the tables anew; a new row
says `?` where somebody has to write, and a test refuses that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confide.federation.steps import WireRow
from confide.flare.joining import wire_digest, wire_of
from confide.kinds import KINDS
from confide.methods import METHODS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "wire.md"
UNWRITTEN = "?"
SEEN = {"one by one": "singly", "sum": "summed", "masked": "masked"}
FIELDS = "| step | field | what it is | how much | seen |"
STEPS = "| step | of | seen | what it reveals to a curious server |"
NUMBERS = "| method and kind | number of its table |"


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


def _cells(page: str, head: str) -> list[list[str]]:
    table = page.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def _names(cell: str) -> list[str]:
    return [name.strip(" `") for name in cell.split(",")]


def _kept(rows: list[list[str]], column: int) -> dict[tuple[str, str], str]:
    """What was written by hand: by step and second column, or by a step that has one row alone."""
    found = {(step, row[1]): row[column] for row in rows for step in _names(row[0])}
    once = Counter(step for step, _ in found)
    return found | {(step, ""): cell for (step, _), cell in found.items() if once[step] == 1}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def by_step(page: str) -> list[str]:
    """The table of steps; hand-written are the last column and rows of no step of the code."""
    rows = _cells(page, STEPS)
    kept, every = _kept(rows, 3), {step for _, step, _ in leaving()}
    found = []
    for one in told():
        of = ", ".join(one.of)
        places = [(step, whom) for step in one.steps for whom in (of, "")]
        reveals = next((kept[place] for place in places if place in kept), UNWRITTEN)
        seen = "/".join(dict.fromkeys(seen for _, seen in one.fields.values()))
        found.append(f"| {_quoted(one.steps)} | {of} | {seen} | {reveals} |")
    others = [row for row in rows if not set(_names(row[0])) & every]
    return [*found, *("| " + " | ".join(row) + " |" for row in others)]


def by_field(page: str) -> list[str]:
    """The table of fields; hand-written is how much each is, and rows of no step of the code."""
    rows = _cells(page, FIELDS)
    kept, every = _kept(rows, 3), {step for _, step, _ in leaving()}
    fields: dict[tuple[str, str, str], list[str]] = {}
    for _, step, own in leaving():
        for row in own:
            steps = fields.setdefault((row.field, row.what, SEEN[row.seen]), [])
            if step not in steps:
                steps.append(step)
    found = []
    for (field, what, seen), steps in fields.items():
        much = next((kept[s, f"`{field}`"] for s in steps if (s, f"`{field}`") in kept), UNWRITTEN)
        found.append(f"| {_quoted(steps)} | `{field}` | {what} | {much} | {seen} |")
    others = [row for row in rows if not set(_names(row[0])) & every]
    return [*found, *("| " + " | ".join(row) + " |" for row in others)]


def by_number() -> list[str]:
    """The numbers of the tables of all pairs."""
    return [f"| {name} | `{wire_digest(wire_of(name))}` |" for name in METHODS]


def _with_table(page: str, head: str, lines: list[str]) -> str:
    before, head, after = page.partition(head)
    rule, _, rest = after.lstrip("\n").partition("\n")
    return "\n".join([f"{before}{head}", rule, *lines, "", rest.partition("\n\n")[2]])


def written() -> str:
    """The page with its tables as the code has them."""
    page = PAGE.read_text(encoding="utf-8")
    for head, lines in ((STEPS, by_step(page)), (FIELDS, by_field(page)), (NUMBERS, by_number())):
        page = _with_table(page, head, lines)
    return page
