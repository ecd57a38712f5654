"""What `confide pretrain` hands on, how it shows, and how it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from confide import api
from confide.cli.screen import STOPPED
from confide.cli.verbs import app
from confide.jobs.pretrain import Pretrained
from confide.jobs.pretrain.delta import Delta
from confide.jobs.pretrain.plan import Budget
from confide.learning.denoising import Measure


class Verb:
    """Stands in for a public function: remembers how it was called."""

    def __init__(self, gives: Any, raises: BaseException | None = None) -> None:
        self.gives, self.raises = gives, raises
        self.args: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.args, self.options = args, options
        if self.raises is not None:
            raise self.raises
        return self.gives


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pretrain", *words])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Verb:
    verb = Verb(Pretrained(Path("out"), 7, 900, 83.0, Measure(2.5, 0.5, 0.25, 80)))
    monkeypatch.setattr(api, "pretrain", verb, raising=False)
    return verb


def test_text_without_a_verb(trained: Verb) -> None:
    words = ("--out", "out", "--steps", "7", "--without", "c", "--from", "x", "--resume")
    done = run("a", "b", *words, "--decoder-layers", "2", "--set", "train=all", "--set", "seed=4")
    assert done.exit_code == 0, done.output
    assert trained.args == (["a", "b"],)
    options = trained.options
    assert (
        options["budget"] == Budget(steps=7) and options["resume"] and options["without"] == ["c"]
    )
    plan = options["plan"]
    assert (plan.base, plan.decoder_layers, plan.how.train, plan.how.seed) == ("x", 2, "all", 4)
    expected = "out: 7 steps, 900 pieces in 1:23; held-out loss 2.500, 50.0 % of pieces right"
    assert expected in done.stdout


def test_with_the_verb_and_options_first(trained: Verb) -> None:
    assert run("run", "a", "--out", "o", "--minutes", "1.5").exit_code == 0
    assert trained.options["budget"] == Budget(minutes=1.5)
    assert run("--out", "o", "--minutes", "2", "a").exit_code == 0
    assert trained.options["plan"].base == "minilm"


def test_a_setting_that_is_none(trained: Verb) -> None:
    done = run("a", "--out", "o", "--steps", "1", "--set", "bacth=3")
    assert done.exit_code == 2 and "did you mean batch" in done.output and not trained.args


def test_stopping_says_how_to_go_on(trained: Verb) -> None:
    trained.raises = KeyboardInterrupt()
    done = run("a", "--out", "o", "--steps", "1")
    assert done.exit_code == STOPPED and "--resume" in done.output


def test_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    out, back = Verb(Delta(Path("d"), 12, 2_500_000)), Verb(Path("o"))
    monkeypatch.setattr(api, "export_delta", out, raising=False)
    monkeypatch.setattr(api, "import_delta", back, raising=False)
    done = run("export", "run", "--out", "d")
    assert done.exit_code == 0 and "d: 12 weights, 2.5 MB" in done.stdout
    assert out.args == (Path("run"),) and out.options == {"out": Path("d"), "base": None}
    assert run("import", "d", "--out", "o", "--from", "x").stdout == "o\n"
    assert back.args == (Path("d"),) and back.options == {"out": Path("o"), "base": "x"}


def test_help_names_the_three_verbs() -> None:
    shown = run("--help")
    assert shown.exit_code == 0
    for verb in ("run", "export", "import"):
        assert verb in shown.output
    assert "--set KEY=VALUE" in run("run", "--help").output
