"""Pretraining as a whole: what it writes, and that stopping it changes nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from confide.errors import (
    CheckpointError,
    ConfideError,
    DataError,
    MissingDataError,
    RunError,
    SettingsError,
)
from confide.jobs import pretrain as module
from confide.jobs.pretrain import Budget, Pretraining, pretrain
from confide.jobs.pretrain.keeping import CHECKPOINT
from confide.jobs.pretrain.plan import plain, planned
from confide.learning.encoder import load_encoder
from jobs.pretrain.texts import tiny_plan, write_text


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Pretraining:
    return tiny_plan(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "train.conll", sentences=120, seed=1)


class Whole:
    """A training that was never stopped."""

    def __init__(self, folder: Path, plan: Pretraining, text: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.done = pretrain(
            [text], out=folder, budget=Budget(steps=20), plan=plan, say=self.said.append
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, plan: Pretraining, text: Path) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "out", plan, text)


def curve(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_it_learns_and_writes_a_bart(whole: Whole, plan: Pretraining) -> None:
    found = curve(whole.folder)
    assert [line["steps"] for line in found] == [0, 5, 10, 15, 20]
    assert found[-1]["held_out_loss"] < 0.95 * found[0]["held_out_loss"]
    assert found[0]["loss"] is None and found[-1]["rate"] == 0.0
    assert (whole.folder / "curve.svg").read_text().count("held-out text") >= 1
    states = dict(load_encoder(str(whole.folder)).states([["the", "patient"]]))
    base = dict(load_encoder(plan.base).states([["the", "patient"]]))
    np.testing.assert_allclose(states[0], base[0], atol=1e-3)  # transformers' own epsilon
    assert whole.done.measure.loss == pytest.approx(found[-1]["held_out_loss"], rel=0.2)


def test_its_digest_as_an_encoder_does_not_depend_on_the_checkpoint(
    whole: Whole, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "training")
    assert (whole.folder / CHECKPOINT).is_file()
    one, other = (load_encoder(str(folder)) for folder in (whole.folder, tmp_path / "bare"))
    assert one.digest == other.digest


def test_the_facts_name_texts_and_hold_none(whole: Whole, text: Path) -> None:
    facts = json.loads((whole.folder / "pretraining.json").read_text())
    (one,) = facts["texts"]
    assert one["name"] == f"{text.parent.name}/train.conll"
    assert one["documents"] == 108 and one["passages"] <= 108 and one["pieces"] > 700
    assert facts["steps"] == 20 and facts["held_out"]["pieces"] > 50
    sentence = " ".join(w.split("\t")[0] for w in text.read_text().splitlines()[:4])
    said = "\n".join(whole.said)
    for name in ("pretraining.json", "curve.jsonl", "curve.svg", "config.json"):
        assert sentence not in (whole.folder / name).read_text()
    assert sentence not in said and "held-out loss" in said


class Stop(Exception):
    """The machine goes down."""


@pytest.mark.parametrize("after", [3, 11])
def test_killed_and_resumed_gives_the_same_numbers(
    whole: Whole,
    plan: Pretraining,
    text: Path,
    tmp_path: Path,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEEP_EVERY", -1.0)  # after every step
    step = module.Denoiser.step
    steps = 0

    def dies(self: Any, *args: Any, **options: Any) -> float:
        nonlocal steps
        steps += 1
        if steps == after + 2:
            raise Stop
        return step(self, *args, **options)

    budget = Budget(steps=20)
    with monkeypatch.context() as dying:
        dying.setattr(module.Denoiser, "step", dies)
        with pytest.raises(Stop):
            pretrain([text], out=tmp_path, budget=budget, plan=plan)
    assert not (tmp_path / "model.safetensors").exists()
    done = pretrain([text], out=tmp_path, budget=budget, plan=plan, resume=True)
    assert curve(tmp_path) == curve(whole.folder)
    assert done.measure == whole.done.measure
    one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path, whole.folder))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_finished_training_goes_on_with_a_larger_budget(
    whole: Whole, plan: Pretraining, text: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    same = pretrain([text], out=tmp_path, budget=Budget(steps=20), plan=plan, resume=True)
    assert same.steps == 20 and same.measure == whole.done.measure
    more = pretrain([text], out=tmp_path, budget=Budget(steps=60), plan=plan, resume=True)
    assert more.steps == 60 and more.measure.loss < same.measure.loss


def test_minutes_are_kept(plan: Pretraining, text: Path, tmp_path: Path) -> None:
    done = pretrain([text], out=tmp_path, budget=Budget(minutes=0.02), plan=plan)
    assert done.steps > 0 and 1.2 <= done.seconds < 20


def test_test_text_is_left_out(plan: Pretraining, text: Path, tmp_path: Path) -> None:
    other = write_text(tmp_path / "test.conll", sentences=40, seed=2)
    both = tmp_path / "both.conll"
    both.write_text(text.read_text() + "\n" + other.read_text())
    out = tmp_path / "out"
    pretrain([both], out=out, budget=Budget(steps=1), plan=plan, without=[other])
    facts = json.loads((out / "pretraining.json").read_text())
    assert facts["left_out"] == {"repeated": 40, "without": [f"{tmp_path.name}/test.conll"]}


# --- errors -----------------------------------------------------------------------------------


def test_a_folder_that_is_taken(whole: Whole, plan: Pretraining, text: Path) -> None:
    with pytest.raises(RunError, match="--resume"):
        pretrain([text], out=whole.folder, budget=Budget(steps=20), plan=plan)


def test_resuming_what_was_never_begun(plan: Pretraining, text: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="leave out --resume"):
        pretrain([text], out=tmp_path, budget=Budget(steps=20), plan=plan, resume=True)


def test_resuming_with_other_settings_or_text(
    whole: Whole, plan: Pretraining, text: Path, tmp_path: Path
) -> None:
    budget = Budget(steps=30)
    other = replace(plan, how=replace(plan.how, learning_rate=0.5))
    with pytest.raises(RunError, match=r"another how\.learning_rate.*0\.01.*0\.5"):
        pretrain([text], out=whole.folder, budget=budget, plan=other, resume=True)
    less = write_text(tmp_path / "less.conll", sentences=50, seed=1)
    with pytest.raises(RunError, match="another text"):
        pretrain([less], out=whole.folder, budget=budget, plan=plan, resume=True)


def test_a_damaged_checkpoint(whole: Whole, plan: Pretraining, text: Path, tmp_path: Path) -> None:
    content = (whole.folder / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).parent.mkdir()
    (tmp_path / CHECKPOINT).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        pretrain([text], out=tmp_path, budget=Budget(steps=20), plan=plan, resume=True)


@pytest.mark.parametrize(
    ("budget", "match"),
    [
        (Budget(), "either --steps or --minutes"),
        (Budget(steps=1, minutes=1.0), "either --steps or --minutes"),
        (Budget(steps=0), "nothing to train"),
        (Budget(minutes=-1.0), "nothing to train"),
    ],
    ids=["none", "both", "no step", "no minute"],
)
def test_budgets_that_make_no_sense(budget: Budget, match: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=match):
        pretrain(["x"], out=tmp_path, budget=budget)


def test_text_that_is_not_there_or_too_little(
    plan: Pretraining, text: Path, tmp_path: Path
) -> None:
    budget = Budget(steps=1)
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    cases: list[tuple[list[Path], type[ConfideError], str]] = [
        ([tmp_path / "none.txt"], MissingDataError, "no such file"),
        ([], MissingDataError, "no text"),
        ([short], DataError, "too little text"),
    ]
    for texts, error, match in cases:
        with pytest.raises(error, match=match):
            pretrain(texts, out=tmp_path / "out", budget=budget, plan=plan)
    with pytest.raises(DataError, match="too little text"):
        pretrain([text], out=tmp_path / "out", budget=budget, plan=plan, without=[text])


def test_a_device_that_is_not_there(plan: Pretraining, text: Path, tmp_path: Path) -> None:
    odd = replace(plan, how=replace(plan.how, device="cuda:99"))
    with pytest.raises(SettingsError, match=r"no such device.*cuda:99"):
        pretrain([text], out=tmp_path, budget=Budget(steps=1), plan=odd)


def test_settings_that_were_none_then_had_their_defaults(plan: Pretraining) -> None:
    then = plain(plan)
    del then["how.device"]
    plan.same_as(then, "here")
    with pytest.raises(RunError, match=r"another how\.device.*cpu.*cuda"):
        replace(plan, how=replace(plan.how, device="cuda")).same_as(then, "here")


def test_settings_by_name() -> None:
    found = planned(["learning_rate=1", "masked=0.2", "batch=512", 'train="all"'], base="x")
    assert found.how.learning_rate == 1.0 and found.noise.masked == 0.2
    assert (found.batch, found.base, found.how.train) == (512, "x", "all")
    for wrong, match in (
        ("learning_rat=1", "did you mean learning_rate"),
        ("batch", "has no setting"),
        ("batch=1.5", "the wrong type"),
        ("base=x", "has no setting"),
    ):
        with pytest.raises(SettingsError, match=match):
            planned([wrong])
    for out in ("masked=1.5", "train=encoder", "batch=64", "longest=900"):
        with pytest.raises(SettingsError):
            planned([out]).check()
