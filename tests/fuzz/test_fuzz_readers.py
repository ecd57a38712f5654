"""Short runs of the fuzzers of readers and of settings (benchmarks/fuzz)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from confide.text.formats import FORMATS


def fuzzer(name: str, root: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    patch.syspath_prepend(str(root / "benchmarks" / "fuzz"))
    return importlib.import_module(name)


def test_files_give_documents_or_errors_of_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = fuzzer("readers", root, monkeypatch)
    tally = readers.attack(600, 1)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == 600
    assert tally.refused > 200
    assert tally.accepted > 50


def test_a_reader_that_raises_something_else_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer can fail: it sees what damaged archives raised before."""
    readers = fuzzer("readers", root, monkeypatch)
    monkeypatch.setattr("confide.text.archives._BROKEN", ())
    failures = readers.attack(300, 1).failures
    assert any("ReadError" in failure for failure in failures)


def test_a_format_without_a_sample_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = fuzzer("readers", root, monkeypatch)
    assert set(readers.samples()) == set(FORMATS)
    monkeypatch.setitem(FORMATS, "new", FORMATS["nyt10"])
    fuzzer("samples", root, monkeypatch).samples.cache_clear()
    with pytest.raises(LookupError, match="no sample of the format new"):
        readers.attack(1, 1)


def test_settings_are_read_or_refused_with_their_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fuzzer("settings", root, monkeypatch)
    tally = settings.attack(600, 1)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == 600
    assert tally.refused > 200
    assert tally.accepted > 20


def test_the_table_is_printed_and_the_exit_code_says_what_was_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fuzzer("run", root, monkeypatch)
    assert run.main(["settings", "--count", "8", "--seed", "3"]) == 0
    assert "| settings  |    3 | 8 |" in capsys.readouterr().out
    monkeypatch.setattr(fuzzer("settings", root, monkeypatch), "LONGEST", 1)
    assert run.main(["settings", "--count", "40"]) == 1
    assert "characters" in capsys.readouterr().out
