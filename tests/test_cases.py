"""What the tests' own helpers promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases import each

SEEN: list[tuple[int, str, Path]] = []


@each("number", [1, 2])
@each(("letter", "empty"), [("a", ""), ("b", "")])
def test_every_case_runs_with_a_folder_of_its_own(
    tmp_path: Path, number: int, letter: str, empty: str
) -> None:
    SEEN.append((number, letter + empty, tmp_path))
    assert len({folder for _, _, folder in SEEN}) == len(SEEN)
    assert [one[:2] for one in SEEN] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")][: len(SEEN)]


def test_all_cases_that_fail_are_named() -> None:
    seen = []

    @each("number", [1, 2, 3])
    def odd(number: int) -> None:
        seen.append(number)
        assert number != 2 and number != 3

    with pytest.raises(AssertionError) as caught:
        odd()
    assert seen == [1, 2, 3]
    assert [note.split(":")[0] for note in caught.value.__notes__] == [
        "case 1, {'number'",
        "case 2, {'number'",
    ]
