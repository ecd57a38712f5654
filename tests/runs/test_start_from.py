"""Training that starts from the model of an earlier run."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cases import each
from confide import __version__
from confide.errors import ConfideError, RunError, SettingsError
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.flare.joining import check_suited
from confide.flare.server import Conductor
from confide.kinds.protocol import ModelSpec
from confide.kinds.steps import Start, first_weights
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.run import run, start_of
from confide.settings import Settings, dump, parse
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

    old = np.array([[10], [11], [12], [13]], np.float32)
    start = Start(cast(ModelSpec, Words("a", "b")), {"word": old}, "there")
    form = cast(ModelSpec, Words("c", "b", "a"))
    found = first_weights(form, seed=1, start=start)
    assert found["word"][:, 0].tolist() == [10, 11, -2, 13, 12]


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
        (["method=fedavg-encoder", 'data.types=["Drug", "Effect", "Odd"]'], "cannot start from"),
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
