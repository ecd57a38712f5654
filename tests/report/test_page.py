"""The page: one file, whole, honest about what is missing, silent about text when asked."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from confide.errors import RunError
from confide.report.page import report
from report.folders import (
    RELATIONS,
    SITES,
    TYPES,
    errors,
    ledger,
    relation_errors,
    relation_result,
    result,
    right,
    write_run,
)

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks nesting, and collects what a browser would load, ids, cells and words."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids.update(value or "" for name, value in attrs if name == "id")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.words += " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    made = [("alone", 0.661), ("fedavg", 0.782), ("pooled", 0.813)]
    return [
        write_run(
            tmp_path / method,
            result(method, f1),
            ledger=ledger(),
            errors=[errors(site) for site in SITES] if method == "fedavg" else [],
        )
        for method, f1 in made
    ]


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def words_of(path: Path) -> str:
    return re.sub(r"\s+", " ", page_of(path).words)


def test_runs_are_compared_on_one_page(runs: list[Path]) -> None:
    path = report(runs)
    words = words_of(path)
    assert path == runs[0] / "comparison.html"
    for told in ("66.1", "78.2", "81.3", "12", "best: 11", "55.5 s", "10.8 MB", "9f8e7d6c5b4a"):
        assert told in words
    assert "each site by itself reaches 66.1; all text in one place, 81.3" in words
    for name in (*SITES, *TYPES):
        assert name in words


def test_the_best_of_a_row_is_marked(runs: list[Path]) -> None:
    html = report(runs).read_text()
    best = re.findall(r'<td class="best"[^>]*>([\d.]+) ', html)
    assert best == ["78.3", "81.3", "84.3", "81.3", "71.3", "76.3", "81.3", "66.3", "81.3"]


def test_one_run_has_its_own_page(runs: list[Path], tmp_path: Path) -> None:
    assert report(runs[1:2]) == runs[1] / "report.html"
    assert report(runs[1:2], out=tmp_path / "new" / "here.html").exists()


@pytest.mark.usefixtures("drawn")
def test_the_page_is_self_contained_and_well_formed(runs: list[Path]) -> None:
    page = page_of(report(runs))
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    for name in ("src", "href", "xlink:href", "action", "data"):
        assert all(value.startswith("#") for value in page.values(name))
    assert not re.search(r"url\((?!#)|@import", report(runs).read_text())
    assert [id for id, times in page.ids.items() if times > 1] == []
    for value in page.values("xlink:href"):
        assert value[1:] in page.ids


def test_figures_have_words_and_tables_have_heads(runs: list[Path]) -> None:
    page = page_of(report(runs))
    drawings = [a for a in page.attributes if a[:2] == ("svg", "role")]
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(drawings) == len(labels) == 2 + 3 + 2 + 3
    assert "fedavg: cardiology 75.2, oncology 78.2, practice 81.2" in " ".join(labels)
    heads = [name for tag, name, _ in page.attributes if tag == "th" and name == "scope"]
    assert len(heads) == page.tags["th"]


@pytest.mark.usefixtures("drawn")
def test_the_same_runs_give_the_same_page(runs: list[Path]) -> None:
    assert report(runs).read_bytes() == report(runs).read_bytes()


def test_the_ledger_is_shown_by_field(runs: list[Path]) -> None:
    words = words_of(report(runs[1:2]))
    assert "count_words 3 20.5 kB – train 6 300.0 kB 300.0 kB" in words
    assert "count_words word_counts array one by one 3 20.5 kB 61.4 kB" in words
    left, reached = words.split("What reached them")
    assert "train weights arrays sum 6 300.0 kB 1.8 MB" in left
    assert "train weights arrays 6 300.0 kB 1.8 MB" in reached


def test_errors_are_shown_with_a_warning_or_left_out(runs: list[Path]) -> None:
    words = words_of(report(runs))
    assert "This section shows the sites' text." in words
    assert "dry cough" in words
    assert "REASON 0.81 wrong" in words
    assert "cardiology-test-003:2" in words
    without = report(runs, text=False).read_text()
    for gone in ("dry cough", "ramopril", "test-003", "shows text", "0.81"):
        assert gone not in without


def test_right_answers_are_shown_beside_wrong_ones(tmp_path: Path) -> None:
    found = {**errors("cardiology"), "right": [right("cardiology")] * 5}
    folder = write_run(tmp_path, result("fedavg", 0.8), errors=[found])
    words = words_of(report([folder]))
    assert "Right RashADE 0.97 after varelozil, sleeps well. cardiology-test-001:1" in words
    assert words.count("sleeps well") == 5 and "2 more" in words
    assert "sleeps well" not in report([folder], text=False).read_text()


def test_what_people_look_at_comes_first_and_is_open(runs: list[Path]) -> None:
    html = report(runs[1:2]).read_text()
    order = [
        'class="verdict"', "h-glance", "h-curves", "Each site</h3>", "h-errors", "h-confusion",
        "h-site", "h-type", "h-map", "h-left", "h-made", "h-means",
    ]  # fmt: skip
    places = [html.index(mark) for mark in order]
    assert places == sorted(places)
    before = html[: html.index('<h2 id="h-site"')]
    folded = re.findall(r"<details>\s*<summary>([^<]*)", before)
    assert folded == [f"Confusion at {site}" for site in SITES]


def test_the_confusion_of_all_sites_is_their_sum(runs: list[Path]) -> None:
    words = words_of(report(runs[1:2]))
    table = words[words.index("Which type was found as which") :]
    assert "ADE 90 0 12 18 DRUG 0 264 0 6 REASON 9 0 60 0 nothing 15 3 0" in table
    assert "Which type was found" not in words_of(report(runs[1:2], text=False))


@pytest.mark.usefixtures("drawn")
def test_axes_of_scores_end_at_100(runs: list[Path]) -> None:
    high = write_run(runs[0].parent / "high", result("fedavg", 0.999))
    ticks = re.findall(r">(\d+(?:\.\d+)?)</text>", report([high]).read_text())
    assert ticks and not [tick for tick in ticks if 100 < float(tick) < 110]


def test_damaged_errors_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    broken = {**errors("a"), "worst": [{"where": "nowhere"}]}
    folder = write_run(tmp_path, result("fedavg", 0.8, sites=("a",)), errors=[broken])
    with pytest.raises(RunError, match=r"a site's errors\.json is damaged"):
        report([folder])
    assert report([folder], text=False).exists()


@pytest.mark.usefixtures("drawn")
def test_what_sites_write_is_escaped(tmp_path: Path) -> None:
    made = result("fedavg", 0.8, sites=("a",))
    evil = "<script>alert(1)</script>"
    made["name"] = evil
    made["scores"]["overall"]["strict"]["types"] = {
        f"{evil}$x^$": {"f1": 0.5, "precision": 0.5, "recall": 0.5, "support": 2},
        "疾病": {"f1": 0.5, "precision": 0.5, "recall": 0.5, "support": 2},
    }
    folder = write_run(tmp_path, made, errors=[errors("a", secret=evil)])
    path = report([folder])
    assert page_of(path).tags["script"] == 0
    assert evil in page_of(path).words


def test_what_must_be_known_is_said(runs: list[Path], tmp_path: Path) -> None:
    other = result("fedavg", 0.7)
    other["name"], other["data"]["fingerprint"] = "other", "0000"
    other["history"][0]["failed"] = {"oncology": "timeout"}
    other["scores"]["overall"]["malformed"] = 7
    words = words_of(report([runs[1], write_run(tmp_path / "other", other)]))
    assert "used different data" in words
    assert "other: fedavg: site oncology failed in 1 of 12 rounds" in words
    assert "7 predicted tag sequences were malformed" in words
    assert "0000" in words


def test_a_bare_run_still_gives_a_page(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"schema": 1, "method": "fedavg", "name": "bare"}')
    words = words_of(report([tmp_path]))
    assert "nothing was held out for testing" in words
    assert "Nothing crossed the wall" in words
    assert "Learning curves" not in words


def test_a_run_of_one_site_without_dev(tmp_path: Path) -> None:
    made = result("fedavg", 0.8, sites=("ward",), rounds=1)
    made["history"][0]["dev"] = None
    made["best_round"] = None
    words = words_of(report([write_run(tmp_path, made)]))
    assert "Learning curves" not in words
    assert "One site trained one model" in words


def test_many_sites_are_all_in_the_table(tmp_path: Path) -> None:
    sites = tuple(f"site-{n:03d}" for n in range(100))
    words = words_of(report([write_run(tmp_path, result("fedavg", 0.4, sites=sites, rounds=40))]))
    assert "site-099" in words
    assert "The first 30 of 100." in words
    assert "70 more sites are not drawn" in words


# --- relations ----------------------------------------------------------------------------


@pytest.fixture
def relation_runs(tmp_path: Path) -> list[Path]:
    made = [("feded", 30, 42_000), ("fedavg", 31, 4_200_000), ("public-only", 9, 0)]
    return [
        write_run(
            tmp_path / "relations" / method,
            relation_result(method, right, up=up),
            ledger=ledger(),
            errors=[relation_errors("oncology")] if method == "feded" else [],
        )
        for method, right, up in made
    ]


def test_a_page_of_relations_speaks_of_relations(relation_runs: list[Path]) -> None:
    words = words_of(report(relation_runs))
    for told in (
        "F1, micro", "macro", "Each relation", "Which relation was found as which",
        "trained on the public set alone", "feded, fedavg, public-only: 6 marked relations",
        "55 documents with treats 9; lost or changed in reading: nothing.",
        "causes 70, prevents 70, treats 70", *SITES, *RELATIONS,
    ):  # fmt: skip
        assert told in words, told
    for other in ("strict", "relaxed", "Each type", "sentences/s", "marked entity"):
        assert other not in words, other


def test_relations_have_precision_recall_and_two_means(relation_runs: list[Path]) -> None:
    words = words_of(report(relation_runs[:1]))
    assert "relation F1 precision recall relations" in words
    assert "treats 81.6 79.5 83.8 111" in words  # 93 right of 117 predicted and 111 marked
    assert "micro 84.5 85.3 83.8 333" in words and "macro 84.6 85.5 83.9 –" in words
    assert "cardiology 84.1 84.2 108" in words and "all 84.5 84.6 333" in words


def test_the_confusion_of_relations_needs_no_text(relation_runs: list[Path]) -> None:
    path = report(relation_runs, text=False)
    words = words_of(path)
    assert "marked causes prevents treats no-relation not looked at" in words
    assert "treats 0 0 93 12 6 no-relation 12 12 12 2700 0" in words
    assert "dry cough" not in path.read_text() and "0.93" not in words


def test_wrong_pairs_are_shown_with_head_and_tail(relation_runs: list[Path]) -> None:
    words = words_of(report(relation_runs))
    assert "Ramoprilhead DRUG 5 mg caused dry coughtail ADE." in words
    assert "marked causes model treats 0.93 n1:T1:T2" in words
    assert "marked causes model no-relation n7:T1:T2" in words


def test_runs_of_two_methods_are_compared_by_bytes(relation_runs: list[Path]) -> None:
    labels = " ".join(page_of(report(relation_runs)).values("aria-label"))
    assert "Micro F1 on development text by bytes that left the sites. feded: from" in labels
    assert "by bytes" not in " ".join(page_of(report(relation_runs[::2])).values("aria-label"))


def test_the_lede_of_one_federated_relation_run(relation_runs: list[Path]) -> None:
    words = words_of(report(relation_runs[::2]))
    assert "84.5 F1; the public set alone, 63.8." in words


def test_runs_of_two_tasks_are_refused(runs: list[Path], relation_runs: list[Path]) -> None:
    with pytest.raises(RunError, match=r"different tasks.*page for each task"):
        report([runs[1], relation_runs[0]])


def test_a_page_that_cannot_be_written_is_named(runs: list[Path]) -> None:
    with pytest.raises(RunError, match=r"result\.json/x\.html: the page cannot be written"):
        report(runs, out=runs[0] / "result.json" / "x.html")


def test_the_report_needs_no_torch(runs: list[Path]) -> None:
    code = (
        "import sys; from confide import api; from confide.report import folder;"
        "assert 'matplotlib' not in sys.modules and 'jinja2' not in sys.modules;"
        f"api.report([{str(runs[0])!r}]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _refused_run(folder: Path, whys: list[str], *, site: str = "oncology") -> str:
    told = result("fedavg", 0.7)
    for turn, why in zip(told["history"], whys, strict=False):
        if why:
            turn["failed"] = {site: "TooFarError"}
            fault = {"site": site, "code": "too-far", "why": why, "step": "train"}
            turn["faults"] = [fault]
    return words_of(report([write_run(folder, told)]))


def test_every_round_that_was_refused_is_told_once(tmp_path: Path) -> None:
    """The same reason with another number each round was shown three times, and then no more."""
    whys = [f"its update is {9 + n / 7:.3g} times as large, at most 5" for n in range(9)]
    whys[5] = ""
    words = _refused_run(tmp_path, whys)
    assert "site oncology failed in 8 of 12 rounds" in words
    assert "rounds 1 to 5, 7 to 9, step train" in words
    assert words.count("its update is") == 1
    assert "9 times as large, at most 5 (round 1; later with other numbers)." in words


def test_other_reasons_are_told_apart_and_those_that_are_left_out_counted(tmp_path: Path) -> None:
    words = _refused_run(tmp_path, ["one", "two", "two", "three", "four", "five"])
    assert "round 1, step train one. rounds 2 to 3, step train two. round 4" in words
    assert "2 other reasons: see result.json" in words and "four" not in words


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def test_a_browser_is_told_to_load_nothing_and_to_run_nothing(tmp_path: Path) -> None:
    html = report([write_run(tmp_path / "run", result("fedavg", 0.8))]).read_text()
    page = Page(html)
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    assert ("meta", "content", POLICY) in page.attributes
    assert html.index(POLICY) < html.index("<title>")


def test_a_page_with_text_is_its_owners_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", result("fedavg", 0.8))
    before = os.umask(0o022)
    try:
        modes = {
            out: stat.S_IMODE(report([run], out=tmp_path / out, text=text).stat().st_mode)
            for out, text in (("with.html", True), ("without.html", False))
        }
        (tmp_path / "with.html").chmod(0o640)  # its owner's wish
        report([run], out=tmp_path / "with.html")
    finally:
        os.umask(before)
    assert modes == {"with.html": 0o600, "without.html": 0o644}
    assert stat.S_IMODE((tmp_path / "with.html").stat().st_mode) == 0o640
