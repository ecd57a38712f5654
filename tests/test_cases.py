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


def test_a_case_that_is_skipped_hides_no_other() -> None:
    seen = []

    @each("number", [1, 2, 3])
    def odd(number: int) -> None:
        seen.append(number)
        if number == 1:
            pytest.skip("not here")
        if number == 2:
            pytest.fail("this one does not raise what it should")

    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as caught:
        odd()
    assert caught.type is pytest.fail.Exception
    assert seen == [1, 2, 3]
    assert caught.value.__notes__ == ["case 1, {'number': 2}: Failed"]


def test_a_test_is_skipped_if_all_its_cases_are() -> None:
    @each("number", [1, 2])
    def absent(number: int) -> None:
        pytest.skip(f"no {number}")

    @each("number", [1, 2])
    def partly(number: int) -> None:
        if number == 1:
            pytest.skip("no 1")

    with pytest.raises(pytest.skip.Exception, match="no 1"):
        absent()
    try:
        partly()
    except pytest.skip.Exception:
        pytest.fail("a case that ran is hidden by one that was skipped")
