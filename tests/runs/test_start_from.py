"""Training that starts from the model of an earlier run."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cases import each
from confide import __version__
from confide.errors import ConfideError, RunError, SettingsError
from confide.federation.ledger import read_ledger
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.flare.joining import check_suited
from confide.flare.server import Conductor
from confide.kinds.agreement import with_new_rows
from confide.kinds.protocol import ModelSpec
from confide.kinds.steps import Start, first_weights
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.run import run, start_of
from confide.settings import Settings, dump, parse
from confide.settings.tables import SiteTable
from confide.training.vocabulary import SPECIALS
from contract.corpus import tiny
from contract.runs import states

FEDAVG = ("method=fedavg-encoder", "method=fedavg-tagger", "method=fedavg-relations")


def begun(folder: Path, *overrides: str) -> tuple[Settings, Path]:
    """A run of two rounds and the settings of one like it that starts from it."""
    settings = tiny(folder, "rounds=2", *overrides)
    run(settings, out=folder / "before")
    return settings.model_copy(update={"start_from": str(folder / "before")}), folder / "before"


def first_of(settings: Settings, out: Path) -> Arrays:
    """The weights that round 1 of a run began with."""
    found: dict[str, Arrays] = {}
    pair = method_of(settings)

    class Seen(pair.of):  # type: ignore[misc, name-defined]
        def round(self, state: Any, federation: Any, n: int) -> Any:
            found.setdefault("first", state.weights)
            return super().round(state, federation, n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("confide.runs.run.methods.method_of", lambda _: replace(pair, of=Seen))
        run(settings.model_copy(update={"rounds": 1}), out=out)
    return found["first"]


def last_of(folder: Path) -> Arrays:
    """The weights of a run's selected round."""
    found = RunFolder(folder)
    state, _ = found.trained(method_of(found.settings()), None)
    weights: Arrays = state.weights  # type: ignore[attr-defined]
    return weights


@pytest.mark.parametrize("method", FEDAVG)
def test_round_1_begins_where_the_other_run_ended(tmp_path: Path, method: str) -> None:
    settings, before = begun(tmp_path, method)
    expected, found = last_of(before), first_of(settings, tmp_path / "after")
    drawn = first_of(settings.model_copy(update={"start_from": ""}), tmp_path / "drawn")
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert np.array_equal(array, expected[name]), name
    assert any((drawn[name] != expected[name]).any() for name in expected)


def test_words_under_another_key_or_in_buckets_are_drawn(tmp_path: Path) -> None:
    settings, before = begun(tmp_path, "method=fedavg-tagger", "key=simulated")
    expected = last_of(before)
    other = settings.model_copy(update={"seed": 2})  # and so another key
    buckets = parse(tomllib.loads(dump(settings)) | {"federation": {"sums": "masked"}})
    for number, new in enumerate((other, buckets)):
        drawn = first_of(new.model_copy(update={"start_from": ""}), tmp_path / f"drawn-{number}")
        found = first_of(new, tmp_path / f"after-{number}")
        for name, array in found.items():
            if name in ("word.weight", "character.embedding.weight"):
                assert np.array_equal(array[:SPECIALS], expected[name][:SPECIALS])
                assert np.array_equal(array[SPECIALS:], drawn[name][SPECIALS:])
            else:
                assert np.array_equal(array, expected[name]), name


def test_rows_follow_their_words() -> None:
    """Words that both know keep their rows wherever they stand; others are drawn."""

    class Words:
        digest = ""
        labels = ("AE",)

        def __init__(self, *words: str) -> None:
            self.words = words

        def first(self, seed: int, *, site: Site | None = None) -> Arrays:
            return {"word": -np.arange(len(self.words) + SPECIALS, dtype=np.float32)[:, None]}

        def row_names(self) -> dict[str, tuple[str, ...]]:
            return {"word": self.words}

        def class_axes(self) -> dict[str, Any]:
            return {}

    old = np.array([[10], [11], [12], [13]], np.float32)
    start = Start(cast(ModelSpec, Words("a", "b")), {"word": old}, "there")
    form = cast(ModelSpec, Words("c", "b", "a"))
    found = first_weights(form, seed=1, start=start)
    assert found["word"][:, 0].tolist() == [10, 11, -2, 13, 12]


def test_a_digest_that_a_site_made_up_gives_no_word_another_row() -> None:
    """One of the old model's, under another key: its rows come behind, and belong to no word."""
    draw = np.random.default_rng(1)
    own, old = draw.integers(0, 256, (6, 16), np.uint8), draw.integers(0, 256, (5, 16), np.uint8)
    assert with_new_rows(own, old) is own
    lied = np.concatenate([own, old[2:3]])
    assert np.array_equal(with_new_rows(lied, old), np.concatenate([lied, np.delete(old, 2, 0)]))


def later(folder: Path, *overrides: str) -> tuple[Settings, Path]:
    """A run of two sites that annotate drugs, and one of a third site that annotates effects."""
    settings = tiny(folder, "key=simulated", "rounds=1", *overrides)
    plain, (*old, new) = settings.model_dump(by_alias=True, exclude={"site"}), settings.site

    def of(sites: Sequence[SiteTable], kind: str) -> Settings:
        tables = [{**one.model_dump(), "annotates": [kind]} for one in sites]
        return parse({**plain, "site": tables})

    run(of(old, "Drug"), out=folder / "before")
    begun = {"start_from": str(folder / "before")}
    return of([new], "Effect").model_copy(update=begun), folder / "before"


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("fedavg-tagger", "crf.linear.weight"),
        ("fedavg-linear", "crf.linear.weight"),
        ("fedavg-encoder", "tag.weight"),
        pytest.param("fedavg-spans", "span.weight", marks=pytest.mark.slow),
    ],
)
def test_a_later_site_adds_its_types_and_the_old_ones_keep_their_rows(
    tmp_path: Path, method: str, head: str
) -> None:
    settings, _ = later(tmp_path, f"method={method}")
    started = start_of(settings)
    assert started is not None and started.form.labels == ["Drug"]
    done = RunFolder(run(settings, out=tmp_path / "after").folder)
    state, _ = done.trained(method_of(settings), None)
    form: Any = state.form  # type: ignore[attr-defined]
    assert form.types == ["Effect", "Drug"]
    found, drawn = first_weights(form, seed=1, start=started), form.first(1)
    own, old = form.class_axes()[head][0], started.form.class_axes()[head][0]
    for row, name in enumerate(own):
        expected = started.weights[head][old.index(name)] if name in old else drawn[head][row]
        assert np.array_equal(found[head][row], expected), name
    for name, axes in form.class_axes().items():
        if len(axes) == 2:  # moves between old tags stay, those from or to new ones are drawn
            kept = [own.index(one) for one in old]
            assert np.array_equal(found[name][np.ix_(kept, kept)], started.weights[name])
            assert not np.delete(found[name], kept, 0).any()


def test_words_of_the_old_sites_stay_known(tmp_path: Path) -> None:
    settings, before = later(tmp_path, "method=fedavg-tagger")
    drawn = first_of(settings.model_copy(update={"start_from": ""}), tmp_path / "drawn")
    found, old = first_of(settings, tmp_path / "after"), last_of(before)
    started = start_of(settings)
    assert started is not None
    state, _ = RunFolder(tmp_path / "after").trained(method_of(settings), None)
    form: Any = state.form  # type: ignore[attr-defined]
    for name, words in form.row_names().items():
        known = started.form.row_names()[name]
        assert {*known} <= {*words} and len({*words}) == len(words)
        rows = [words.index(word) + SPECIALS for word in known]
        assert np.array_equal(found[name][rows], old[name][SPECIALS:])
    assert len(found["word.weight"]) > max(len(drawn["word.weight"]), len(old["word.weight"]))


@each("teacher", ["common", "start"])
def test_who_teaches_what_a_later_site_lacks(tmp_path: Path, teacher: str) -> None:
    """A fixed teacher finds the same drugs in every round, the common model none in the first."""
    learns = ("training.local_epochs=12", "training.learning_rate=0.03", "model.dropout=0.1")
    options = ("options.warmup_rounds=1", f"options.teacher={teacher}")
    settings, _ = later(tmp_path, "method=fedavg-tagger", *learns)
    tree = settings.model_dump(by_alias=True) | {"method": "pseudo-complete", "rounds": 2}
    done = run(parse(tree, options), out=tmp_path / "after")
    first, second = (turn.pseudo for turn in done.result.history)
    assert first == second > 0 if teacher == "start" else first == 0


def test_a_fixed_teacher_under_masks_finds_what_it_finds_without(tmp_path: Path) -> None:
    """Only the sum of what it found is told, and training goes on from the same marks."""
    learns = ("training.local_epochs=12", "training.learning_rate=0.03", "model.dropout=0.1")
    settings, before = later(tmp_path, "method=fedavg-linear", *learns)
    tables = [
        {**one.model_dump(), "name": name, "annotates": ["Effect"]}
        for one, name in zip(settings.site * 3, ("a", "b", "c"), strict=True)
    ]
    tree = settings.model_dump(by_alias=True) | {"method": "pseudo-complete", "site": tables}
    tree |= {"rounds": 1, "start_from": str(before), "options": {"teacher": "start"}}
    found = {}
    for sums in ("plain", "masked"):
        settings = parse(tree, [f"federation.sums={sums}"])
        found[sums] = run(settings, out=tmp_path / sums).result.history[0].pseudo
        seen = {row.seen for row in read_ledger(tmp_path / sums / "ledger.jsonl")
                if (row.step, row.direction) == ("teach", "up")}  # fmt: skip
        assert seen == ({"sum"} if sums == "plain" else {"one by one"})
    assert found["plain"] == found["masked"] > 0


@each(
    ("overrides", "words"),
    [
        (["method=pseudo-complete-tagger"], "start_from, the folder"),
        (["method=pseudo-complete-relations", "start_from=there"], "only entities"),
    ],
)
def test_a_fixed_teacher_that_there_is_not(
    tmp_path: Path, overrides: list[str], words: str
) -> None:
    settings = tiny(tmp_path, *overrides, "options.teacher=start")
    with pytest.raises(SettingsError, match=words):
        run(settings, out=tmp_path / "out")


def test_a_teacher_of_other_settings_is_named(tmp_path: Path) -> None:
    settings, _ = later(tmp_path, "method=fedavg-tagger")
    tree = settings.model_dump(by_alias=True) | {"method": "pseudo-complete"}
    other = parse(tree, ["options.teacher=start", "model.dropout=0.3"])
    with pytest.raises(SettingsError, match=r"cannot teach.*dropout.*got 0\.2"):
        run(other, out=tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    [
        "feded-relations",
        *(
            pytest.param(f"{m}-relations", marks=pytest.mark.slow)
            for m in ("fedatt", "chain", "feddf")
        ),
    ],
)
def test_every_method_with_one_model_can_start_so(name: str, tmp_path: Path) -> None:
    _, place = begun(tmp_path / "b", "method=fedavg-relations")
    settings = tiny(tmp_path, f"method={name}", "rounds=1")
    run(settings, out=tmp_path / "plain")
    run(settings.model_copy(update={"start_from": str(place)}), out=tmp_path / "started")
    assert states(tmp_path / "plain") != states(tmp_path / "started")


@each(
    ("overrides", "words"),
    [
        (["method=fedavg-tagger"], "another kind.*encoder"),
        (["method=fedavg-encoder", "encoder.tune=lora"], "cannot start from"),
        (["method=fedavg-encoder", "model.tag_scheme=iob2"], "cannot start from"),
    ],
)
def test_a_model_that_does_not_fit(tmp_path: Path, overrides: list[str], words: str) -> None:
    _, before = begun(tmp_path / "one", "method=fedavg-encoder")
    settings = tiny(tmp_path / "two", *overrides).model_copy(update={"start_from": str(before)})
    with pytest.raises(SettingsError, match=words):
        run(settings, out=tmp_path / "out")


def test_no_run_there_and_runs_with_many_models(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedavg-encoder", "rounds=1")
    lost = settings.model_copy(update={"start_from": str(tmp_path / "nothing")})
    with pytest.raises(RunError, match="nothing"):
        run(lost, out=tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    alone = settings.model_copy(update={"method": "alone", "base": "fedavg"})
    run(alone, out=tmp_path / "alone")
    with pytest.raises(RunError, match="its own"):
        start_of(settings.model_copy(update={"start_from": str(tmp_path / "alone")}))


def test_another_start_is_another_run(tmp_path: Path) -> None:
    settings, _ = begun(tmp_path, "method=fedavg-encoder")
    run(settings.model_copy(update={"start_from": ""}), out=tmp_path / "out")
    with pytest.raises(ConfideError, match="start_from"):
        run(settings, out=tmp_path / "out", resume=True)


@each("name", ["/srv/run", "../run", "$CONFIDE_DATA/run", "a//b", "~"])
def test_a_server_opens_no_folder_but_its_own(tmp_path: Path, name: str) -> None:
    settings = parse({"start_from": name, "federation": {"sums": "masked"}})
    with pytest.raises(SettingsError, match=r"start_from: a run over real sites.*`public`"):
        check_suited(settings)


def test_a_server_reads_it_from_its_own_folder(tmp_path: Path) -> None:
    settings, before = begun(tmp_path, "method=fedavg-encoder")
    before.rename(tmp_path / "kept")
    named = settings.model_copy(update={"start_from": "kept"})
    given: dict[str, Any] = {"version": __version__, "engine": None, "folder": tmp_path / "r"}
    conductor = Conductor("run-1", dump(named), public=tmp_path, **given)
    found = conductor._start(named)
    assert found is not None and found.weights.keys() == last_of(tmp_path / "kept").keys()
    (tmp_path / "linked").symlink_to(tmp_path / "kept")
    with pytest.raises(ConfideError, match="link"):
        conductor._start(settings.model_copy(update={"start_from": "linked"}))
    with pytest.raises(SettingsError, match="no folder of public files"):
        Conductor("run-1", dump(named), **given)._start(named)
