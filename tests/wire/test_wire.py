"""The wire lock: what leaves a site, method by method, as a checked-in table.

After a change that is meant, write the tables anew and look at the difference as a security office
would: `python tests/wire/test_wire.py`, then `git diff tests/wire`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from confide.errors import SettingsError
from confide.methods import METHODS, wire

FOLDER = Path(__file__).parent
ADVICE = """
What {method} sends is not what {path} says (- is the table, + is the code).
If the change is not meant, undo it. If it is meant:
  1. read every '+ up' line: can it carry text, or tell more about the text than before?
  2. write the table anew:  python tests/wire/test_wire.py
  3. say in docs/privacy.md and in the method's docstring what the new field tells,
     and let somebody who answers for privacy review the difference of tests/wire.
"""


def table(method: str) -> str:
    """The wire table of a method as text, one field a line."""
    rows = wire(method)
    lines = []
    for step in dict.fromkeys(row.step for row in rows):
        lines.append(step)
        lines += [
            f"  {row.direction:4} {row.field:22} {row.kind:7} {row.seen:11} | {row.what}"
            for row in rows
            if row.step == step
        ]
    return "\n".join(lines) + "\n"


def path_of(method: str) -> Path:
    return FOLDER / f"{method}.txt"


@pytest.mark.parametrize("method", METHODS)
def test_what_leaves_a_site_is_what_was_reviewed(method: str) -> None:
    import difflib

    path = path_of(method)
    locked = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = [
        line
        for line in difflib.ndiff(locked.splitlines(), table(method).splitlines())
        if line[0] in "+-"
    ]
    advice = ADVICE.format(method=method, path=path.relative_to(FOLDER.parent.parent))
    assert not changes, "\n".join([advice, *changes])


def test_every_table_belongs_to_a_method() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_field_says_what_it_carries(method: str) -> None:
    for row in wire(method):
        assert len(row.what) > 3, f"{row.step}.{row.field}"
        assert row.direction in ("up", "down")
        assert row.seen == ("by the site" if row.direction == "down" else row.seen)


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'fedavg'"):
        wire("fedavgg")


if __name__ == "__main__":
    for name in METHODS:
        path_of(name).write_text(table(name), encoding="utf-8")
