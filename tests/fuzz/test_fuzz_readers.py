"""Short runs of the fuzzers of readers and of settings (benchmarks/security/fuzz)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from confide.text.formats import FORMATS


def fuzzer(name: str, root: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    patch.syspath_prepend(str(root / "benchmarks" / "security" / "fuzz"))
    return importlib.import_module(name)


@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_files_give_documents_or_errors_of_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    readers = fuzzer("readers", root, monkeypatch)
    tally = readers.attack(count, 1)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == count
    assert tally.refused > count // 3
    assert tally.accepted > count // 12


def test_a_reader_that_raises_something_else_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer can fail: it sees what damaged archives raised before."""
    readers = fuzzer("readers", root, monkeypatch)
    monkeypatch.setattr("confide.text.files._BROKEN", ())
    failures = readers.attack(40, 1).failures
    assert any("ReadError" in failure for failure in failures)


def test_a_format_without_a_sample_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = fuzzer("readers", root, monkeypatch)
    assert set(readers.samples()) == set(FORMATS)
    monkeypatch.setitem(FORMATS, "new", FORMATS["nyt10"])
    fuzzer("samples", root, monkeypatch).samples.cache_clear()
    with pytest.raises(LookupError, match="no sample of the format new"):
        readers.attack(1, 1)


@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_settings_are_read_or_refused_with_their_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    settings = fuzzer("settings", root, monkeypatch)
    tally = settings.attack(count, 1)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == count
    assert tally.refused > count // 3
    assert tally.accepted > count // 30


def test_the_table_is_printed_and_the_exit_code_says_what_was_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fuzzer("run", root, monkeypatch)
    assert run.main(["settings", "--count", "8", "--seed", "3"]) == 0
    assert "| settings  |         3 | 8 |" in capsys.readouterr().out
    monkeypatch.setattr(fuzzer("settings", root, monkeypatch), "LONGEST", 1)
    assert run.main(["settings", "--count", "40"]) == 1
    assert "characters" in capsys.readouterr().out


def test_a_month_of_nights_is_one_command_that_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each date is a seed of every fuzzer; a batch that was recorded is not begun again."""
    run = fuzzer("run", root, monkeypatch)
    tally = fuzzer("tally", root, monkeypatch)
    begun: list[tuple[str, int]] = []

    def attacking(name: str) -> ModuleType:
        def attack(count: int, seed: int) -> object:
            begun.append((name, seed))
            if len(begun) == 50:
                raise KeyboardInterrupt
            failures = ("input 3: found",) if begun[-1] == ("replies", begun[0][1]) else ()
            return tally.Tally(count, count - 1, 1, 0.1, failures)

        found = ModuleType(name)
        found.attack = attack  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(run.importlib, "import_module", attacking)
    words = ["all", "--nights", "30", "--count", "7", "--record", str(tmp_path / "month.jsonl")]
    with pytest.raises(KeyboardInterrupt):
        run.main(words)
    with open(tmp_path / "month.jsonl", "a") as file:
        file.write('\n{"fuzzer": "torn')
    assert run.main(words) == 1  # what was found before the stop is told again
    assert len(set(begun)) == 4 * 30 and len(begun) == 4 * 30 + 1
    shown = capsys.readouterr().out
    assert "| replies   |" in shown and "input 3: found" in shown and "| 210 |" in shown
    assert run.main([*words, "--seconds", "-1"]) == 1 and len(begun) == 4 * 30 + 1
