"""The wire lock: what leaves a site, as checked-in tables, one for each kind and for each method.

A pair sends what its kind says of text, and what its method does. `kinds/NAME.txt` holds the steps
with which a kind's text is described, the fields of its form, wherever a message holds it, and its
counts; `kinds/NAME-on-public.txt` holds those of a kind that is another one under methods that give
all sites a public set. `methods/NAME.txt` holds the method's own steps, the same for all its kinds
but for these.

After a change that is meant, write the tables anew and look at the difference as a security office
would: `python tests/wire/test_wire.py`, then `git diff tests/wire docs`. It writes docs/wire.md
too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from cases import each
from confide.errors import SettingsError
from confide.federation.messages import forms_of
from confide.federation.steps import WireRow, wire_table
from confide.kinds.steps import SCORING
from confide.methods import METHODS, wire
from confide.methods.method import Pair
from wire import pages

FOLDER = Path(__file__).parent
FORM, PUBLIC, COUNTS = "(the form)", "(the public examples)", "(the counts)"
"""What stands in a method's table for lines of its kind's."""
ADVICE = """
What {name} sends is not what {kind} and {method} say (- is the tables, + is the code).
If the change is not meant, undo it. If it is meant:
  1. read every '+ up' line: can it carry text, or tell more about the text than before?
  2. write the tables anew:  python tests/wire/test_wire.py
  3. say in docs/wire.md (where a step says ?) and in the docstring of the method or the kind
     what the new field tells, and let whoever answers for privacy review the differences.
"""


def lines(rows: Iterable[WireRow]) -> list[str]:
    """Rows of the wire table as text, under the names of their steps."""
    found, last = [], ""
    for row in rows:
        found += [row.step] if row.step != last else []
        last = row.step
        found.append(f"  {row.direction:4} {row.field:27} {row.kind:7} {row.seen:11} | {row.what}")
    return found


def of_a_kind(pair: Pair) -> dict[str, list[str]]:
    """The lines of a kind: of the steps that describe text, and those that methods' steps hold."""
    kind = pair.kind
    named = {"form": kind.Spec, "public": kind.Spec.Public}
    held = {
        name: [
            WireRow("", "down", f"{name}.{field}", form.kind, form.what, "by the site")
            for field, form in forms_of(message).items()
        ]
        for name, message in named.items()
        if message is not None
    }
    counts = [
        WireRow("", "up", field, form.kind, form.what, "one by one")
        for field, form in forms_of(SCORING[kind.task].reply).items()
    ]
    blocks = {FORM: held["form"], PUBLIC: held.get("public", []), COUNTS: counts}
    own = {"": lines(wire_table([step for step in pair.steps if step in kind.steps]))}
    return own | {name: lines(rows) for name, rows in blocks.items() if rows}


def written(blocks: Mapping[str, list[str]]) -> str:
    """The table of a kind as its file has it."""
    return "\n".join(line for name, own in blocks.items() for line in (*filter(None, [name]), *own))


def read(text: str) -> dict[str, list[str]]:
    """The lines of a kind, from its file."""
    blocks: dict[str, list[str]] = {"": []}
    for line in text.splitlines():
        if line in (FORM, PUBLIC, COUNTS):
            blocks[line] = []
        else:
            blocks[list(blocks)[-1]].append(line)
    return blocks


def of_a_method(pair: Pair) -> str:
    """The lines of a method's own steps, with what is its kind's left out."""
    found, blocks = lines(wire(pair.name)), of_a_kind(pair)
    found = found[len(blocks.pop("")) :]
    for name, block in blocks.items():
        for start in reversed(range(len(found))):
            if found[start : start + len(block)] == block:
                found[start : start + len(block)] = [f"  {name}"]
    return "\n".join(found)


def whole(kind: str, method: str) -> list[str]:
    """The lines of a pair, from the files of its kind and its method."""
    blocks = read(kind)
    found = list(blocks.pop(""))
    for line in method.splitlines():
        found += blocks.get(line.strip(), [line])
    return found


def table_of(pair: Pair) -> str:
    """The file of a pair's kind; one whose words are clear where there is a public set has two."""
    kind = pair.kind
    return f"{kind.name}-on-public" if kind.keyed and pair.public else kind.name


def path_of(axis: str, name: str) -> Path:
    return FOLDER / axis / f"{name}.txt"


def locked(axis: str, name: str) -> str:
    path = path_of(axis, name)
    return path.read_text(encoding="utf-8") if path.exists() else ""


@each("name", METHODS)
def test_what_leaves_a_site_is_what_was_reviewed(name: str) -> None:
    kind, method = table_of(METHODS[name]), METHODS[name].method
    reviewed = whole(locked("kinds", kind), locked("methods", method))
    changes = [line for line in difflib.ndiff(reviewed, lines(wire(name))) if line[0] in "+-"]
    advice = ADVICE.format(
        name=name,
        kind=path_of("kinds", kind).relative_to(FOLDER.parent.parent),
        method=path_of("methods", method).relative_to(FOLDER.parent.parent),
    )
    assert not changes, "\n".join([advice, *changes])


def test_every_table_belongs_to_a_kind_or_a_method() -> None:
    kinds = {table_of(pair) for pair in METHODS.values()}
    named = {"kinds": kinds, "methods": {pair.method for pair in METHODS.values()}}
    assert {axis: {path.stem for path in FOLDER.glob(f"{axis}/*")} for axis in named} == named
    assert not list(FOLDER.glob("*.txt"))


@each("name", METHODS)
def test_a_methods_table_is_the_same_for_all_its_kinds(name: str) -> None:
    """No line of a kind stands in a method's table, where another kind would send it unseen."""
    assert of_a_method(METHODS[name]) + "\n" == locked("methods", METHODS[name].method)


@each("name", METHODS)
def test_every_field_says_what_it_carries(name: str) -> None:
    for row in wire(name):
        assert len(row.what) > 3, f"{row.step}.{row.field}"
        assert row.direction in ("up", "down")
        assert row.seen == ("by the site" if row.direction == "down" else row.seen)


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'fedavg'"):
        wire("fedavgg")


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = pages.written()
    assert pages.PAGE.read_text(encoding="utf-8") == page, "python tests/wire/test_wire.py"
    assert f"): {pages.UNWRITTEN}\n" not in page, "a step lacks what it reveals"


if __name__ == "__main__":
    for pair in METHODS.values():
        texts = {
            ("kinds", table_of(pair)): written(of_a_kind(pair)),
            ("methods", pair.method): of_a_method(pair),
        }
        for place, text in texts.items():
            path_of(*place).parent.mkdir(exist_ok=True)
            path_of(*place).write_text(f"{text}\n", encoding="utf-8")
    pages.PAGE.write_text(pages.written(), encoding="utf-8")
