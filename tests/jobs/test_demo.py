"""The demonstration: quickly, with a little of everything; and slowly, as a newcomer sees it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import confide.jobs.demo
from confide.data.corpus.synthetic import HABITS, write_corpus
from confide.errors import DataError
from confide.jobs.demo import RUNS, DemoResult, demo
from confide.report.folder import load_run

SITES = {habit.site for habit in HABITS}


@pytest.fixture(scope="module")
def small() -> Callable[[Path], DemoResult]:
    """The demonstration with little text, a small model and one round."""

    def make(out: Path, **options: int) -> DemoResult:
        quick = ("rounds=1", "workers=1", "model.bilstm_hidden=8", "model.word_dim=8")

        def run(settings: Path, *, overrides: list[str], **rest: object) -> object:
            return slow(settings, overrides=[*overrides, *quick], **rest)

        slow = confide.jobs.demo.run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confide.jobs.demo, "run", run)
            patch.setattr(confide.jobs.demo, "write_corpus", partial(write_corpus, sentences=16))
            return demo(out=out, **options)

    return make


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, small: Callable[[Path], DemoResult]
) -> DemoResult:
    return small(tmp_path_factory.mktemp("demo") / "demo-run")


def test_everything_is_there(shown: DemoResult) -> None:
    assert shown.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert shown.settings.exists()
    assert {name: load_run(path).method for name, path in shown.runs.items()} == RUNS
    for scores in shown.f1.values():
        assert set(scores) == SITES | {"all"}
    assert set(shown.left) == SITES
    assert min(shown.left.values()) > 10_000


def test_examples_show_gold_beside_predictions(shown: DemoResult) -> None:
    assert {example.site for example in shown.examples} == SITES
    for example in shown.examples:
        assert sum(bool(mark.marked) for mark in example.marks) >= 2
        for mark in example.marks:
            assert mark.words in example.text
            assert (mark.confidence is None) == (mark.found == "")
            assert mark.confidence is None or 0 < mark.confidence <= 1


def test_another_one_in_the_same_folder_replaces_it(
    shown: DemoResult, small: Callable[..., DemoResult]
) -> None:
    again = small(shown.folder)
    assert again.f1 == shown.f1
    assert again.examples == shown.examples


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("keep me")
    with pytest.raises(DataError, match=r"holds other files.*--out"):
        demo(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_training_together_helps(tmp_path: Path) -> None:
    told: list[str] = []
    shown = demo(out=tmp_path / "demo-run", on_event=lambda event: told.append(event.kind))
    everyone = {name: scores["all"] for name, scores in shown.f1.items()}
    assert everyone["alone"] + 0.05 < everyone["federated"] <= everyone["pooled"] + 0.01
    for site in SITES:
        assert shown.f1["federated"][site] > shown.f1["alone"][site]
    found = [mark for example in shown.examples for mark in example.marks if mark.marked]
    assert sum(mark.found == mark.marked for mark in found) > 0.6 * len(found)
    assert told.count("round") >= 36
