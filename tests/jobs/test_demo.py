"""The demonstration: quickly, with a little of everything; and slowly, as a newcomer sees it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from confide.corpora import synthetic
from confide.corpora.synthetic import HABITS, write_corpus
from confide.errors import DataError
from confide.jobs import demo as demo_module
from confide.jobs.demo import PLANS, WIDEST, DemoExample, DemoMark, DemoResult, demo, example_lines
from confide.methods import wire
from confide.report.folder import load_run
from confide.settings import load_settings
from contract.relations import encoder

SITES = {habit.site for habit in HABITS}


@pytest.fixture(scope="module")
def small() -> Callable[[Path], DemoResult]:
    """The demonstration with little text, small models and one or two rounds."""

    def make(out: Path, *, every: bool = True) -> DemoResult:
        quick = {
            "demo-own": ("options.local_steps=1", "model.bilstm_hidden=8", "model.word_dim=8"),
            "demo-relations": (f"classifier.encoder={encoder()}", "classifier.max_length=32"),
            "demo-distant": ("pcnn.filters=8", "options.warmup_rounds=1", "select.every=1"),
        }

        def run(settings: Path, *, overrides: list[str], **rest: object) -> object:
            name = tomllib.loads(settings.read_text())["name"]
            small = quick.get(name, ("model.bilstm_hidden=8", "model.word_dim=8"))
            rounds = "rounds=2" if name == "demo-distant" else "rounds=1"
            return slow(settings, overrides=[*overrides, rounds, "workers=1", *small], **rest)

        slow = demo_module.run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_module, "run", run)
            patch.setattr(demo_module, "_RELATION_SENTENCES", 16)
            patch.setattr(demo_module, "_BAG_SENTENCES", 40)
            patch.setattr(synthetic, "write_corpus", partial(write_corpus, sentences=16))
            return demo(out=out, every=every)

    return make


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, small: Callable[[Path], DemoResult]
) -> DemoResult:
    return small(tmp_path_factory.mktemp("demo") / "demo-run")


def test_everything_is_there(shown: DemoResult) -> None:
    assert shown.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert shown.settings.exists()
    assert {name: load_run(path).method for name, path in shown.runs.items()} == PLANS[0].runs
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


@pytest.mark.slow
def test_another_one_in_the_same_folder_replaces_it(
    shown: DemoResult, small: Callable[..., DemoResult]
) -> None:
    again = small(shown.folder)
    assert again.f1 == shown.f1
    assert again.examples == shown.examples


def test_every_part_has_its_runs_its_report_and_what_left(shown: DemoResult) -> None:
    assert [part.name for part in shown.parts] == [
        "entities",
        "own",
        "types",
        "relations",
        "distant",
    ]
    for part in shown.parts:
        assert part.report.exists()
        trained = load_run(part.folders[part.federated])
        assert trained.method == part.method
        assert part.bytes == trained.traffic.up and set(part.bytes) == SITES
        assert sum(field.bytes for field in part.left) == sum(part.bytes.values())
        assert all(field.what for field in part.left), part.name
        assert set(part.scores) == set(part.runs)


def test_what_the_plans_call_a_method_is_what_runs(shown: DemoResult) -> None:
    """The words of the wire table must be those of the pair that ran."""
    for plan, part in zip(PLANS, shown.parts, strict=True):
        up = {(row.step, row.field) for row in wire(plan.pair) if row.direction == "up"}
        left = {(field.step, field.field) for field in part.left if field.field != "(header)"}
        assert left <= up


def test_relations_send_no_weight(shown: DemoResult) -> None:
    relations = next(part for part in shown.parts if part.method == "feded")
    assert not any("weight" in field.field for field in relations.left)


def test_the_page_shows_every_part_and_loads_nothing(shown: DemoResult) -> None:
    page = shown.page.read_text(encoding="utf-8")
    assert shown.page == shown.folder / "index.html"
    assert "synthetic" in page and "What never leaves" in page
    assert (
        "default-src 'none'" in page
        and "<script" not in page
        and "http" not in page.replace("http-equiv", "")
    )
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == 5
    assert all((shown.folder / link).is_file() for link in links)
    for part in shown.parts:
        assert f'<section id="{part.name}">' in page and part.paper in page.replace("&amp;", "&")
    for example in shown.examples:
        assert example.site in page


def test_settings_of_a_part_can_be_run_again(shown: DemoResult) -> None:
    for plan in PLANS[1:]:
        settings = load_settings(shown.folder / plan.name / "settings.toml")
        assert (settings.method, settings.seed) == (plan.method, 1)


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("keep me")
    with pytest.raises(DataError, match=r"holds other files.*--out"):
        demo(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_picture_shows_scores_examples_and_what_left(shown: DemoResult) -> None:
    drawn = ElementTree.parse(
        shown.folder / "demo.svg"
    ).getroot()  # it is XML, whatever the text holds
    words = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for score in shown.parts[0].scores.values():
        assert f"{100 * score:.1f}" in words
    for example in shown.examples:
        assert example.site in words
        said = " ".join(line for line, _ in example_lines(example))
        assert said.split() == example.text.split() and set(said.split()) <= set(
            " ".join(words).split()
        )


def test_marks_are_where_their_words_are() -> None:
    text = "a " * WIDEST + "rash since sprofen 5mg"
    at = text.index("rash")
    example = DemoExample("north", text, (
        DemoMark("rash", "ADE", "ADE", 0.5, at),
        DemoMark("sprofen", "DRUG", "", None, at + 11),
        DemoMark("sprofen 5mg", "", "DOSE", 0.63, at + 11),
    ))  # fmt: skip
    found = [(line[m.at : m.at + m.length], m.said, m.right)
             for line, marks in example_lines(example) for m in marks]  # fmt: skip
    assert found == [("rash", "ADE 50", True), ("sprofen 5mg", "DOSE 63", False)]
    assert all(len(line) <= WIDEST for line, _ in example_lines(example))


def test_a_mark_may_go_over_the_end_of_a_line() -> None:
    text = "b" * (WIDEST - 6) + " chest pain"
    example = DemoExample("north", text, (DemoMark("chest pain", "ADE", "", None, WIDEST - 5),))
    (first, chest), (second, pain) = example_lines(example)
    assert [(first[m.at :], m.said) for m in chest] == [("chest", "not found")]
    assert [(second[: m.length], m.said) for m in pain] == [("pain", "")]


def test_words_below_two_marks_that_stand_close_together_do_not_overlap() -> None:
    words = [(0, "5mg", "DOSE"), (4, "rash", "ADE"), (30, "10 mg", "DOSE")]
    marks = tuple(DemoMark(word, kind, kind, 0.99, at) for at, word, kind in words)
    ((_, found),) = example_lines(DemoExample("here", "5mg rash " + "x" * 20 + " 10 mg", marks))
    assert [mark.said for mark in found] == ["DOSE", "ADE 99", "DOSE 99"]


def test_one_federation_is_shown_unless_all_are_asked_for(
    tmp_path: Path, small: Callable[..., DemoResult]
) -> None:
    one = small(tmp_path / "demo-run", every=False)
    assert [part.name for part in one.parts] == ["entities"]
    page = one.page.read_text(encoding="utf-8")
    assert "demo --all" in page and '<section id="own">' not in page
    assert not [name for name in ("own", "types", "relations", "distant")
                if (one.folder / name).exists()]  # fmt: skip


@pytest.mark.slow
def test_training_together_helps(tmp_path: Path) -> None:
    told: list[str] = []
    shown = demo(
        out=tmp_path / "demo-run", every=True, on_event=lambda event: told.append(event.kind)
    )
    everyone = {name: scores["all"] for name, scores in shown.f1.items()}
    assert everyone["alone"] + 0.05 < everyone["federated"] <= everyone["pooled"] + 0.01
    for site in SITES:
        assert shown.f1["federated"][site] > shown.f1["alone"][site]
    found = [mark for example in shown.examples for mark in example.marks if mark.marked]
    assert sum(mark.found == mark.marked for mark in found) > 0.6 * len(found)
    assert told.count("round") >= 36
    assert shown.seconds < 1200
    by_name = {part.name: part.scores for part in shown.parts}
    assert by_name["types"]["pseudo-complete"] > by_name["types"]["alone"] + 0.03
    assert by_name["relations"]["feded"] > 0.6
    assert by_name["distant"]["lazy-mil"] > by_name["distant"]["alone"]
    assert by_name["own"]["fedner"] > everyone["alone"]
