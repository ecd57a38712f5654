"""Runs over bags: the curve of precision over recall, areas, wrong bags with their sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from confide.errors import RunError
from confide.report.folder import errors_of, load_runs, results
from confide.report.page import render_report, report
from confide.report.sections import (
    by_site,
    by_type,
    learning_curves,
    precision_recall_plot,
    view_of,
)
from confide.words import count, points
from report.folders import bag_errors, bag_result, ledger, relation_result, result, write_run


def runs(folder: Path) -> list[Path]:
    first = write_run(
        folder / "lazy",
        bag_result("lazy-mil", 3.0),
        ledger=ledger(),
        errors=[bag_errors("practice")],
    )
    return [first, write_run(folder / "avg", bag_result("fedavg", 2.0))]


@pytest.mark.usefixtures("drawn")
def test_every_run_has_its_curve_in_one_drawing(tmp_path: Path) -> None:
    views = [view_of(n, run) for n, run in enumerate(load_runs(runs(tmp_path)))]
    found = precision_recall_plot(views)
    assert found is not None
    assert found.count("<svg") == 1 and found.count("stroke-dasharray") >= 1
    assert "lazy-mil: precision" in found and "fedavg: precision" in found
    html = " ".join(render_report([view.run for view in views]).split())
    rows = re.findall(r'<td data-label="AUC">(.*?)</tr>', html)
    for row, view in zip(rows, views, strict=True):
        own = view.run.overall
        shown = [
            own["auc"],
            own["auc_2000"],
            *(own["precision_at"][n] for n in ("100", "200", "300")),
        ]
        cells = [cell.strip() for cell in re.sub(r"<[^>]+>", "|", row).split("|") if cell.strip()]
        assert cells[:5] == [points(one) for one in shown]
        assert cells[6:] == ["900", count(own["facts"])]


def test_other_tasks_have_no_curve(tmp_path: Path) -> None:
    for made in (result("fedavg", 0.8), relation_result("feded", 40)):
        (run,) = load_runs([write_run(tmp_path / made["method"], made)])
        assert precision_recall_plot([view_of(0, run)]) is None


@pytest.mark.usefixtures("drawn")
def test_sites_have_areas_and_relations_f1(tmp_path: Path) -> None:
    views = [view_of(n, run) for n, run in enumerate(load_runs(runs(tmp_path)))]
    sites, types = by_site(views), by_type(views)
    assert sites is not None and types is not None
    assert [column.title for column in sites.columns] == ["AUC", "mean P@N"]
    scored = views[0].run.site_scores("oncology")
    row = next(row for row in sites.rows if row.name == "oncology")
    assert row.cells[0] == (scored["auc"], scored["precision_at"]["mean"])
    assert row.support == scored["facts"]
    assert [one.name for one in sites.whole] == [one.name for one in types.whole] == ["all"]
    rates = views[1].run.overall["micro"]["types"]["causes"]
    first = next(row for row in types.rows if row.name == "causes")
    assert first.cells[1] == (rates["f1"], rates["precision"], rates["recall"])
    assert all("dev AUC" in drawing for drawing in learning_curves(views))


def test_the_page_shows_bags_and_keeps_their_text_out_when_asked(tmp_path: Path) -> None:
    paths = runs(tmp_path)
    page = report(paths, out=tmp_path / "all.html").read_text()
    for said in ("P@300", "RX:35296", "dry cough", "and 12 more", "321 training documents", "AUC"):
        assert said in page
    assert "F1, auc" not in page and "None" not in page
    assert "dry cough" not in report(paths, out=tmp_path / "no.html", text=False).read_text()


def test_a_wrong_bag_has_its_sentences_marked() -> None:
    wrong, spurious, silent = errors_of(bag_errors("practice")).worst
    assert (wrong.predicted, wrong.gold, wrong.more) == ("treats", ["causes"], 12)
    assert [s.score for s in wrong.sentences] == [0.91, 0.42]
    assert {p.type: p.text for p in wrong.sentences[0].pieces if p.type} == {
        "head DRUG": "Ramopril", "tail ADE": "dry cough"
    }  # fmt: skip
    assert spurious.gold == [] and silent.sentences[0].score is None


def test_the_terminal_has_areas(tmp_path: Path) -> None:
    found = load_runs(runs(tmp_path))
    table = results({run.label: run for run in found})
    assert table.caption == "AUC, and mean P@N in brackets; on test text"
    assert len(table.rows) == 4


def test_bags_are_not_compared_with_relations(tmp_path: Path) -> None:
    other = write_run(tmp_path / "re", relation_result("feded", 40))
    with pytest.raises(RunError, match="cannot be compared"):
        load_runs([*runs(tmp_path), other])
