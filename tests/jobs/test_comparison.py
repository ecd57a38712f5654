"""Two runs on the same sentences: known answers, what is paired with what, and every refusal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import RunError, SettingsError
from confide.federation.site import Site
from confide.jobs.comparison import RunComparison, compare
from confide.kinds.entities import entity_report
from confide.runs.folder import RunFolder, read_sentences
from confide.runs.run import keep, run
from confide.scoring import paired_bootstrap, sentence_counts
from confide.settings import dump, parse
from contract.corpus import tiny
from scoring.cases import corpora, document, sentences

Rows = Sequence[tuple[int, int, int]]
RIGHT, WRONG = (1, 1, 1), (0, 1, 1)
HALF = [RIGHT, WRONG] * 100


def counted(folder: Path, rows: Rows, *, site: str = "north", text: str = "") -> Path:
    """A site's own folder, as a run leaves it; `text` stands for the test text."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {"schema": 1, "site": site, "fingerprint": text, "strict": rows, "relaxed": rows}
    (folder / "sentences.json").write_text(json.dumps(body))
    return folder


def made(path: Path, *overrides: str, **sites: Rows) -> Path:
    """A finished run of these sites' counts; `name_text` gives a site andifferent test text."""
    folder, names = RunFolder(path), [name for name in sites if not name.endswith("_text")]
    tables = [{"name": name, "train": f"{name}.conll"} for name in names]
    chosen = parse({"site": tables}, overrides)
    folder.write("settings.toml", dump(chosen))
    for name in names:
        text = str(sites.get(f"{name}_text", name))
        counted(folder.sites / name, sites[name], site=name, text=text)
    scores = {name: {"sentences": len(sites[name])} for name in names}
    result = {"schema": 1, "method": chosen.method, "scores": {"sites": scores}}
    folder.write("result.json", result)
    return path


def brief(found: RunComparison) -> dict[str, tuple[float, str]]:
    rows = {**found.sites, "all": found.overall}
    return {name: (round(row.difference, 4), row.verdict) for name, row in rows.items()}


# --- known answers ------------------------------------------------------------------------


def test_each_site_and_all_of_them_have_a_verdict(tmp_path: Path) -> None:
    first = made(tmp_path / "a", "method=alone", north=HALF, south=[RIGHT] * 50, west=HALF)
    other_half = [*HALF[1:], HALF[0]]
    second = made(tmp_path / "b", north=[RIGHT] * 200, south=[WRONG] * 50, west=other_half)
    found = compare(first, second)
    assert (found.first, found.second) == ("alone", "fedavg")
    assert found.pairs == ((str(first), str(second)),) and found.same_text
    assert brief(found) == {
        "north": (0.5, "better"),
        "south": (-1.0, "worse"),
        "west": (0.0, "no clear difference"),
        "all": (round(300 / 450 - 250 / 450, 4), "better"),
    }
    south = found.sites["south"]
    assert (south.first.f1, south.second.f1, south.low, south.high) == (1, 0, -1, -1)
    assert (south.first.mean, south.first.deviation, south.sentences) == (1, None, 50)
    assert found.sites["west"].p > 0.5 > 0.05 > south.p
    assert found.overall.sentences == 450


def test_the_interval_is_that_of_a_mean_where_every_sentence_has_one_entity(tmp_path: Path) -> None:
    """F1 is then the share of right sentences: its interval is known from the normal law."""
    better = [RIGHT] * 140 + [WRONG] * 60
    first, second = counted(tmp_path / "a", HALF), counted(tmp_path / "b", better)
    row = compare(first, second).overall
    steps = np.array([b[0] - a[0] for a, b in zip(HALF, better, strict=True)])
    assert row.difference == pytest.approx(steps.mean())
    reach = 1.96 * steps.std() / len(steps) ** 0.5
    assert row.low == pytest.approx(steps.mean() - reach, abs=0.015)
    assert row.high == pytest.approx(steps.mean() + reach, abs=0.015)
    wider = compare(first, second, level=0.99).overall
    assert wider.low < row.low < row.high < wider.high


def test_sentences_are_paired_so_a_small_steady_gain_is_seen(tmp_path: Path) -> None:
    """The same F1 is no clear difference where the errors fall on other sentences."""
    gain = [RIGHT if place < 14 else row for place, row in enumerate(HALF)]
    first = counted(tmp_path / "a", HALF)
    steady = compare(first, counted(tmp_path / "b", gain)).overall
    mixed = compare(first, counted(tmp_path / "c", gain[1:] + gain[:1])).overall
    assert steady.second.f1 == mixed.second.f1
    assert (steady.verdict, mixed.verdict) == ("better", "no clear difference")


def test_it_is_the_paired_bootstrap_of_both_ways_to_match(tmp_path: Path) -> None:
    rows = {"strict": [(0, 2, 1), (3, 3, 4)] * 9, "relaxed": [(1, 2, 1), (3, 3, 4)] * 9}
    for name, first in (("a", True), ("b", False)):
        folder = counted(tmp_path / name, [])
        body = json.loads((folder / "sentences.json").read_text())
        tables = rows if first else {how: [(1, 1, r[2]) for r in rows[how]] for how in rows}
        (folder / "sentences.json").write_text(json.dumps({**body, **tables}))
    for how in ("strict", "relaxed"):
        found = compare(tmp_path / "a", tmp_path / "b", matching=how, seed=5, samples=300)
        one = np.array(rows[how])
        two = np.stack([np.ones(18), np.ones(18), one[:, 2]], axis=1).astype(np.int64)
        known = paired_bootstrap(one, two, seed=5, samples=300)
        row = found.overall
        assert (row.difference, row.low, row.high) == (known.difference, known.low, known.high)
        assert row.p == known.p


def test_the_same_seed_gives_the_same_interval(tmp_path: Path) -> None:
    first = counted(tmp_path / "a", [(1, 2, 1), WRONG, (3, 3, 4)] * 30)
    second = counted(tmp_path / "b", [(1, 1, 1), RIGHT, (2, 3, 4)] * 30)
    assert compare(first, second) == compare([first], [str(second)])
    assert compare(first, second).overall.low != compare(first, second, seed=1).overall.low


# --- repeats ------------------------------------------------------------------------------


def repeats(folder: Path, *of: tuple[Rows, str], method: str = "fedavg") -> list[Path]:
    """Runs of one method with other seeds: counts, and the test text."""
    return [
        made(folder / f"{method}-{n}", f"method={method}", f"seed={n}", north=rows, north_text=text)
        for n, (rows, text) in enumerate(of, 1)
    ]


def test_repeats_on_one_text_are_one_unit_a_sentence(tmp_path: Path) -> None:
    """A run that is named twice tells nothing new: the interval stays as wide."""
    worse = [WRONG, RIGHT, WRONG, WRONG] * 50
    first, second = made(tmp_path / "a", north=worse), made(tmp_path / "b", north=HALF)
    once, twice = compare(first, second), compare([first] * 2, [second] * 2)
    assert len(twice.pairs) == 2 and twice.same_text
    one, two = once.overall, twice.overall
    assert (one.low, one.high, one.p) == (two.low, two.high, two.p)
    assert two.sentences == 200 and two.first.deviation == 0


def test_a_side_shows_mean_and_deviation_of_its_repeats(tmp_path: Path) -> None:
    first = repeats(tmp_path, (HALF, "t"), ([RIGHT] * 200, "t"), method="alone")
    second = repeats(tmp_path, ([WRONG] * 200, "t"), ([(0, 3, 1)] * 200, "t"))
    row = compare(first, second).overall
    assert row.first.f1 == row.first.mean == 0.75
    assert row.first.deviation == pytest.approx(0.125**0.5)  # of 0.5 and 1: (2 * 0.25²) / (2 - 1)
    assert (row.second.f1, row.second.deviation, row.verdict) == (0, 0, "worse")


def test_repeats_that_hold_out_other_text_stand_beside_each_other(tmp_path: Path) -> None:
    worse, few = [WRONG, RIGHT, WRONG, WRONG] * 50, [RIGHT, (0, 0, 2)] * 20
    first = repeats(tmp_path, (worse, "one"), ([WRONG] * 40, "two"), method="alone")
    second = repeats(tmp_path, (HALF, "one"), ([RIGHT] * 40, "two"))
    found = compare(first, second)
    assert found.overall.sentences == 240 and not found.same_text
    assert found.overall.second.f1 == 140 / 240
    with pytest.raises(RunError, match=r"different test text.*runs of the same seed"):
        compare(first, second[::-1])
    # three repeats, two of them on one text: added up there, beside the third
    more = repeats(tmp_path / "m", (worse, "one"), (few, "two"), (worse, "one"), method="alone")
    wrong_gold = [(0, 0, gold) for _, _, gold in few]
    other = repeats(tmp_path / "m", (HALF, "one"), (wrong_gold, "two"), (HALF, "one"))
    assert compare(more, other).overall.sentences == 240


def test_a_side_is_repeats_of_one_run(tmp_path: Path) -> None:
    alone = repeats(tmp_path, (HALF, "t"), (HALF, "t"), method="alone")
    fedavg = repeats(tmp_path, (HALF, "t"), (HALF, "t"))
    with pytest.raises(RunError, match=r"another method.*'alone' and 'fedavg'.*first side, then"):
        compare([alone[0], fedavg[0]], [alone[1], fedavg[1]])
    slow = made(tmp_path / "c", "seed=3", "training.learning_rate=0.1", north=HALF, north_text="t")
    with pytest.raises(RunError, match=r"another training\.learning_rate"):
        compare([*alone, alone[0]], [*fedavg, slow])
    other = made(tmp_path / "d", "seed=4", "model.vectors=v.txt", north=HALF, north_text="t")
    with pytest.raises(RunError, match=r"another model\.vectors.*got None and .*v\.txt"):
        compare(alone, [fedavg[0], other])
    with pytest.raises(RunError, match=r"more runs than the other.*got 2 and 1"):
        compare(alone, fedavg[:1])
    with pytest.raises(RunError, match=r"more runs than the other.*got 0 and 1"):
        compare([], fedavg[:1])


# --- refusals -----------------------------------------------------------------------------


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    done = made(tmp_path / "a", north=HALF)
    for path in (tmp_path, tmp_path / "nowhere", done / "result.json"):
        with pytest.raises(RunError, match="not the folder of a run"):
            compare(done, path)
    (done / "result.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        compare(done, done)


def test_runs_of_other_sites_or_other_text(tmp_path: Path) -> None:
    done = made(tmp_path / "a", north=HALF, south=HALF)
    with pytest.raises(RunError, match=r"not scored at the same sites.*north, south; got north$"):
        compare(done, made(tmp_path / "b", north=HALF))
    other = made(tmp_path / "c", north=HALF, south=HALF, south_text="other")  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"site south of .*different test text"):
        compare(done, other)
    cut = made(tmp_path / "d", north=HALF, south=[(2, 2, 2), (0, 2, 2)] * 50)
    with pytest.raises(RunError, match=r"site south of .*cut into different sentences"):
        compare(done, cut)


def test_a_site_without_test_text_is_left_out_and_a_run_without_any_is_refused(
    tmp_path: Path,
) -> None:
    first, second = (made(tmp_path / name, north=HALF, south=[]) for name in "ab")
    for path in (first, second):
        (path / "sites" / "south" / "sentences.json").unlink()
    assert list(compare(first, second).sites) == ["north"]
    empty = made(tmp_path / "c", north=[])
    with pytest.raises(RunError, match="no site of the run has test text"):
        compare(empty, empty)


def test_a_run_of_an_older_confide_and_a_site_that_is_elsewhere(tmp_path: Path) -> None:
    done, old = (made(tmp_path / name, north=HALF) for name in "ab")
    (old / "sites" / "north" / "sentences.json").unlink()
    with pytest.raises(RunError, match=r"own folder is not here.*let the site compare"):
        compare(done, old)
    (old / "sites" / "north" / "errors.json").write_text("{}")
    with pytest.raises(RunError, match=r"an older confide.*--resume"):
        compare(done, old)
    shutil.rmtree(old / "sites")
    with pytest.raises(RunError, match="own folder is not here"):
        compare(done, old)


@each(
    ("options", "words"),
    [
        ({"level": 1.0}, "level of an interval.*less than 1; got 1.0"),
        ({"level": float("nan")}, "level of an interval"),
        ({"samples": 99}, "too few samples.*at least 100"),
        ({"matching": "lenient"}, "strict or relaxed; got 'lenient'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    done = counted(tmp_path, HALF)
    with pytest.raises(SettingsError, match=words):
        compare(done, done, **options)


# --- the file -----------------------------------------------------------------------------


@settings(max_examples=25)
@given(corpora())
def test_the_file_holds_what_sentence_counts_says(tmp_path_factory: Any, sides: Any) -> None:
    gold, predicted = sides
    folder = tmp_path_factory.mktemp("site")
    spec = Site("north", [], folder, test=gold)
    keep(spec, entity_report(gold, predicted), task="ner")
    for how in ("strict", "relaxed"):
        known = sentence_counts(gold, predicted, matching=how)
        found = json.loads((folder / "sentences.json").read_text())[how]
        assert found == known.tolist()
        if len(known):
            assert read_sentences(folder / "sentences.json", how).counts_N3.tolist() == found


def test_the_fingerprint_is_that_of_text_and_annotation(tmp_path: Path) -> None:
    def printed(**options: Any) -> str:
        base = {"spans": [("Drug", 2, 4)], "text": "a" * 24}
        one, text = {**base, **options}["spans"], {**base, **options}["text"]
        gold = document(*one, sentences=sentences(0, 12, 16, 24))
        gold = type(gold)(gold.id, text, gold.entities, sentences=gold.sentences)
        spec = Site("north", [], tmp_path, test=[gold])
        keep(spec, entity_report([gold], [gold]), task="ner")
        return read_sentences(tmp_path / "sentences.json").fingerprint

    assert printed() == printed()
    others = [printed(text="b" * 24), printed(spans=[("Test", 2, 4)]), printed(spans=[])]
    assert len({printed(), *others}) == 4


@each(
    "change",
    [
        {"schema": "1"}, {"schema": 0}, {"schema": None}, {"site": 3}, {"fingerprint": None},
        {"strict": None}, {"strict": []}, {"strict": [1, 1, 1]}, {"strict": [[1, 1]]},
        {"strict": [[1, 1, 1], [1, 1]]}, {"strict": [[0.5, 1, 1]]}, {"strict": [["1", "1", "1"]]},
        {"strict": [[True, True, True]]}, {"strict": [[2, 1, 2]]}, {"strict": [[2, 2, 1]]},
        {"strict": [[-1, 1, 1]]}, {"strict": [[0, -1, 1]]}, {"strict": [[1, 2**70, 1]]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = counted(tmp_path, HALF) / "sentences.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(
        RunError, match=re.escape(str(file)) + ": this file does not hold the counts"
    ):
        compare(tmp_path, tmp_path)


def test_a_file_of_a_newer_schema_is_refused_in_words(tmp_path: Path) -> None:
    file = counted(tmp_path, HALF) / "sentences.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(RunError, match=r"newer confide.*schema 1 or older; got schema 2"):
        compare(tmp_path, tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["schema", "site", "fingerprint", "strict", "x"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(JSON.map(json.dumps).map(str.encode) | st.binary(max_size=40))
def test_whatever_is_in_the_file_it_is_counts_or_refused(tmp_path_factory: Any, raw: bytes) -> None:
    file = tmp_path_factory.mktemp("file") / "sentences.json"
    file.write_bytes(raw)
    try:
        found = read_sentences(file)
    except RunError:
        return
    assert found.counts_N3.dtype == np.int64 and found.counts_N3.shape[1] == 3


# --- real runs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Each site by itself, and all of them together. Do not write there."""
    folder = tmp_path_factory.mktemp("two")
    together = tiny(folder, "rounds=6", "training.learning_rate=0.05", "training.decay=1.0")
    alone = together.model_copy(update={"method": "alone"})
    return (run(alone, out=folder / "alone").folder, run(together, out=folder / "fedavg").folder)


def test_two_runs_from_end_to_end(two: tuple[Path, Path]) -> None:
    for how in ("strict", "relaxed"):
        found = compare(*two, matching=how, samples=200)
        assert (found.first, found.second) == ("alone", "fedavg")
        scores = [RunFolder(path).result().scores for path in two]
        for name, row in {"": found.overall, **found.sites}.items():
            for side, body in zip((row.first, row.second), scores, strict=True):
                known = body.sites[name] if name else body.overall
                assert side.f1 == pytest.approx(known[how]["f1"])
            assert row.low <= row.difference <= row.high
        assert list(found.sites) == ["site-1", "site-2", "site-3"]
        assert (found.overall.sentences, found.sites["site-1"].sentences) == (18, 6)


def test_a_site_compares_its_own_folders(two: tuple[Path, Path]) -> None:
    whole = compare(*two, samples=200)
    own = compare(*(path / "sites" / "site-2" for path in two), samples=200)
    assert own.sites == {"site-2": whole.sites["site-2"]}
    assert own.overall == own.sites["site-2"]
    assert (own.first, own.second) == tuple(map(str, two))


def test_resuming_a_finished_run_writes_what_is_missing(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    alone, fedavg = two
    folder = Path(shutil.copytree(fedavg, tmp_path / "fedavg"))
    files = sorted(folder.glob("sites/*/sentences.json"))
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    with pytest.raises(RunError, match=r"older confide.*--resume"):
        compare(alone, folder)
    run(RunFolder(folder).settings(), out=folder, resume=True)
    assert [file.read_bytes() for file in files] == before and len(before) == 3


def test_every_key_of_the_file_is_documented(two: tuple[Path, Path], root: Path) -> None:
    page = (root / "docs" / "result.md").read_text(encoding="utf-8")
    section = page.partition("## sites/NAME/sentences.json")[2]
    found = json.loads((two[0] / "sites" / "site-1" / "sentences.json").read_text())
    assert found and not [key for key in found if f"`{key}`" not in section]
