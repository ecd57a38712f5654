"""Each site keeps the best of three models that its development text can tell, and uses it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import RunError
from confide.jobs import personalise as module
from confide.jobs.personalise import personalise
from confide.jobs.predict import evaluate, predict
from confide.methods import METHODS
from confide.report.page import report
from confide.runs.folder import HOME, KEPT, RunFolder, compared_at_home
from confide.runs.loading import release
from confide.runs.run import run
from confide.settings import dump
from contract.corpus import sentences, tiny, write_conll
from contract.entries import APART, pairs

FEW = ("rounds=2", "select.every=1")


def made(tmp_path: Path, method: str, *overrides: str, **tree: Any) -> Path:
    settings = tiny(tmp_path, f"method={method}", *FEW, *overrides, **tree)
    return run(settings, out=tmp_path / "run").folder


@pytest.mark.parametrize(
    "method", pairs(fast=("fedavg-tagger", "fedner-tagger", "lazy-mil-bags"), of=APART)
)
def test_every_method_and_kind_can_be_compared_at_home(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST", 0)
    folder = made(tmp_path, method)
    found = personalise(folder, site="site-1", passes=1)
    assert found.keys() == {"site-1"}
    candidates = found["site-1"].candidates
    assert list(candidates) == ["federated", "tuned", "alone"]
    scores = [one.dev for one in candidates.values()]
    assert None not in scores
    kept_name = found["site-1"].kept
    if kept_name == "federated":
        assert found["site-1"].undecided == (max(scores) > scores[0])
    else:
        assert candidates[kept_name].dev == max(scores) > scores[0]
        assert not found["site-1"].undecided
    whole = RunFolder(folder).result()
    assert candidates["federated"].test == pytest.approx(
        _score(whole.scores.sites["site-1"], whole.task)
    )
    kept = RunFolder(folder).home("site-1")
    assert json.loads((kept / HOME).read_text())["kept"] == found["site-1"].kept
    assert (kept / KEPT).exists() == (found["site-1"].kept != "federated")


def _score(scores: Any, task: str) -> float | None:
    from confide.tasks import TASKS

    return TASKS[task].value(scores, TASKS[task].kinds[0])


def best_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, dev: int = 90
) -> tuple[Path, Any]:
    """A run that learnt next to nothing, so that a site with `dev` sentences does better alone."""
    settings = tiny(tmp_path, "method=fedavg", *FEW, "training.learning_rate=0.0001", *overrides)
    write_conll(Path(settings.site[0].dev[0]), sentences("site-1", "dev", dev))
    folder = run(settings, out=tmp_path / "run").folder
    settings = RunFolder(folder).settings()
    table = settings.training.model_copy(update={"learning_rate": 0.02, "local_epochs": 15})
    monkeypatch.setattr(
        RunFolder, "settings", lambda *_, **__: settings.model_copy(update={"training": table})
    )
    return folder, personalise(folder, site="site-1", passes=0)["site-1"]


def test_a_site_that_is_better_alone_keeps_its_own_and_predicts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = best_alone(tmp_path, monkeypatch)
    assert (found.kept, found.undecided) == ("alone", False)
    assert found.candidates["alone"].dev > found.candidates["federated"].dev + 0.3
    assert "better on " in found.why and "(p = 0.002)" in found.why
    assert list(found.candidates) == ["federated", "alone"]
    text = RunFolder(folder).settings().site[0].test[0]
    own, common = (evaluate(folder, [text], site=name) for name in ("site-1", "site-2"))
    assert own["strict"]["f1"] == pytest.approx(found.candidates["alone"].test)
    assert common == evaluate(folder, [text])
    assert predict(folder, [text], site="site-1") != predict(folder, [text])
    copy = release(folder, out=tmp_path / "copy", site="site-1")
    assert evaluate(copy, [text])["strict"]["f1"] == own["strict"]["f1"]


@pytest.mark.parametrize(
    ("dev", "why"),
    [
        pytest.param(18, "at least 50 needed", marks=pytest.mark.slow),
        (60, "by luck with p = 0.016, at most 0.01"),
    ],
)
def test_with_little_development_text_a_site_keeps_the_runs_model_however_much_better_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: int, why: str
) -> None:
    """Six blocks of ten sentences cannot tell: 1 of 2 ** 6 exchanges is the gain itself."""
    folder, found = best_alone(tmp_path, monkeypatch, dev=dev)
    assert found.candidates["alone"].dev > found.candidates["federated"].dev + 0.3
    assert (found.kept, found.undecided) == ("federated", True)
    assert found.why.startswith("too little to tell: ") and why in found.why
    assert not (RunFolder(folder).home("site-1") / KEPT).exists()
    assert "too little to tell" in report([folder]).read_text()


def test_what_is_kept_is_the_best_on_the_way_and_passes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Development scores rise and fall: the second pass is kept, the fifth is the last."""
    monkeypatch.setattr(module, "LEAST", 0)
    monkeypatch.setattr(module, "exchange_test", lambda *_, **__: 0.0)
    folder = made(tmp_path, "fedavg")
    says = iter([0.5, 0.5, 0.6, 0.7, 0.7, 0.2, 0.65, 0.1, 0.1])
    monkeypatch.setattr(
        module._SiteChoice, "_score", lambda self, _, part: next(says) if part == "dev" else 0.4
    )
    found = personalise(folder, site="site-1", passes=9, alone=False)["site-1"]
    assert found.kept == "tuned"
    assert found.candidates["tuned"].passes == 2
    assert found.candidates["tuned"].dev == 0.7
    assert next(says) == 0.1
    assert next(says) == 0.1


def test_between_equals_the_federated_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, "fedavg")
    monkeypatch.setattr(module._SiteChoice, "_score", lambda *_: 0.5)
    assert personalise(folder, passes=1)["site-2"].kept == "federated"


def test_a_site_without_development_text_keeps_the_federated_model_and_says_why(
    tmp_path: Path,
) -> None:
    settings = tiny(tmp_path, "method=fedavg", "data.dev_share=0.001", *FEW)
    tables = [one.model_copy(update={"dev": ()}) for one in settings.site]
    folder = run(settings.model_copy(update={"site": tuple(tables)}), out=tmp_path / "run").folder
    found = personalise(folder)
    assert {one.kept for one in found.values()} == {"federated"}
    assert "no development text" in found["site-1"].why


def test_what_was_kept_beside_another_model_of_the_run_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a run is continued, and ends with a better round."""
    folder, _ = best_alone(tmp_path, monkeypatch)
    monkeypatch.undo()
    text = RunFolder(folder).settings().site[0].test[0]
    assert predict(folder, [text], site="site-1") != predict(folder, [text])
    before = RunFolder(folder).result()
    after = {"": before.best_rounds[""] % 2 + 1}
    before.model_copy(update={"best_rounds": after}).write(folder)
    assert predict(folder, [text], site="site-1") == predict(folder, [text])


def test_what_was_compared_is_read_back_checked_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, "fedavg")
    assert "Which model each site keeps" not in report([folder]).read_text()
    found = personalise(folder, site="site-1", passes=1, alone=False)["site-1"]
    assert compared_at_home(RunFolder(folder), "site-1") == found
    assert compared_at_home(RunFolder(folder), "site-2") is None
    page = report([folder]).read_text()
    assert "Which model each site keeps" in page
    assert page.count(f'<td data-label="keeps">{found.kept}</td>') == 1
    kept = RunFolder(folder).home("site-1") / HOME
    kept.write_text(kept.read_text().replace(f'"{found.kept}"', "[]", 1))
    with pytest.raises(RunError, match="kept"):
        report([folder])
    kept.write_text(found.model_dump_json())
    monkeypatch.setattr("confide.runs.folder.round_of", lambda *_: found.round + 1)
    assert compared_at_home(RunFolder(folder), "site-1") is None, "the run went on since"


def test_a_run_may_end_with_it(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedavg", *FEW)
    file = tmp_path / "settings.toml"
    file.write_text(dump(settings))
    done = CliRunner().invoke(
        app, ["run", str(file), "--out", str(tmp_path / "run"), "--personalise"]
    )
    assert done.exit_code == 0, done.output
    for site in ("site-1", "site-2"):
        assert compared_at_home(RunFolder(tmp_path / "run"), site) is not None
    assert "keeps" in done.output


def test_a_damaged_file_and_an_unknown_site_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = best_alone(tmp_path, monkeypatch)
    with pytest.raises(RunError, match="no site 'nowhere'"):
        personalise(folder, site="nowhere")
    (RunFolder(folder).home("site-1") / KEPT).write_bytes(b"nothing")
    with pytest.raises(RunError, match="confide personalise"):
        predict(folder, [RunFolder(folder).settings().site[0].test[0]], site="site-1")


def test_the_same_again_gives_the_same(tmp_path: Path) -> None:
    folder = made(tmp_path, "fedavg")
    first, second = (personalise(folder, site="site-2", passes=2)["site-2"] for _ in range(2))
    assert first.kept == second.kept
    for name, one in first.candidates.items():
        assert (one.dev, one.test, one.passes) == (
            second.candidates[name].dev, second.candidates[name].test,
            second.candidates[name].passes,
        )  # fmt: skip


SERVER = (
    "training.optimiser=sgd", "training.momentum=0", "training.learning_rate=1",
    "training.local_steps=1", "training.local_epochs=1", "options.server=adam",
    "options.server_rate=0.02", "options.server_decay=0.5", "options.server_floor=1e-8",
)  # fmt: skip


def test_a_site_at_home_steps_as_the_server_did_and_in_whole_passes(tmp_path: Path) -> None:
    settings = tiny(tmp_path, *SERVER)
    config = METHODS["fedavg-tagger"](settings).config_alone(3)
    assert (config.optimiser, config.learning_rate) == ("adam", 0.005)
    assert (config.epochs, config.batches, config.keep) == (1, 0, False)
    plain = METHODS["fedavg-tagger"](tiny(tmp_path, "training.decay=0.5")).config_alone(3)
    assert plain.learning_rate == tiny(tmp_path).training.learning_rate / 4
    assert plain.optimiser == tiny(tmp_path).training.optimiser


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow), 0])
def test_a_site_alone_takes_as_many_passes_as_its_part_of_the_run(
    tmp_path: Path, steps: int
) -> None:
    settings = tiny(tmp_path, *SERVER, "rounds=8", f"training.local_steps={steps}")
    folder = run(settings, out=tmp_path / "run").folder
    site = RunFolder(folder).result().data.sites["site-1"]
    trained: list[int] = []
    real = module._SiteChoice._trained

    def counting(bench: Any, name: str, start: Any, configs: Any, *, patience: int) -> Any:
        if name == "alone":
            trained.append(len(configs))
        return real(bench, name, start, configs[:1], patience=patience)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._SiteChoice, "_trained", counting)
        personalise(folder, site="site-1", passes=0)
    a_pass = math.ceil(site.train / settings.training.batch_size)
    assert a_pass > 2
    taken = min(steps or a_pass, a_pass)
    assert trained == [math.ceil(8 * taken / a_pass)]
