"""Whether a run has learnt, from made histories and from real tiny runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import each
from confide.report.folder import load_runs
from confide.report.page import headline
from confide.runs.result import FASTER, Advice, Result, advice_on_run
from confide.runs.run import run
from confide.settings import Settings, parse
from contract.corpus import tiny

SITE = {"site": [{"name": "a", "train": "a.conll"}]}


def entities(f1: float, support: int = 100) -> dict[str, Any]:
    rates = {"f1": f1, "precision": f1, "recall": f1, "support": support, "true": 0}
    return {"strict": rates, "relaxed": rates, "sentences": support and 50, "malformed": 0}


def made(
    f1s: Sequence[float | None],
    losses: Sequence[float | None] = (),
    *,
    test: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """A result whose development text scored so, round by round."""
    history = [
        {
            "round": n,
            "loss": losses[n - 1] if losses else None,
            "dev": None if f1 is None else {"strict": f1, "relaxed": f1},
        }
        for n, f1 in enumerate(f1s, start=1)
    ]
    scored = [one for one in f1s if one is not None]
    overall = entities(scored[-1] if scored else 0.5) if test is None else test
    tree = {"schema": 1, "history": history, "scores": {"overall": overall, "sites": {}}}
    return Result.model_validate({**tree, "rounds": len(history), **more})


def settings(**tree: Any) -> Settings:
    return parse({**SITE, **tree})


def rising(rounds: int, tau: float) -> list[float]:
    return [0.8 * (1 - math.exp(-n / tau)) for n in range(1, rounds + 1)]


@each(
    ("dev", "learning"),
    [
        ([0.2, 0.4, 0.6], True),
        ([0.2, 0.4, 0.6, 0.595], False),  # one round is the last fifth of four
        ([0.1, 0.3, 0.4, 0.5, 0.55, 0.6, 0.63, 0.66, 0.69, 0.68], True),  # a dip at the end
        ([0.7, 0.8, 0.805, 0.803, 0.807], False),  # the best is the last, by less than GAIN
        ([0.7, 0.8, 0.75, 0.74, 0.7], False),
        ([0.5], False),  # nothing to compare with
        (rising(20, tau=20), True),
        (rising(20, tau=3), False),
    ],
)
def test_a_run_is_still_learning_if_its_last_fifth_brought_a_point(
    dev: list[float], learning: bool
) -> None:
    found = advice_on_run(made(dev), settings())
    assert (found is not None) == learning
    if found is not None:
        assert found.resumes and found.changes == {"rounds": 2 * len(dev)}
        assert "on development text rose from" in found.said


@each("rounds", [10, 20, 100])
def test_without_development_text_the_loss_decides(rounds: int) -> None:
    """By what is left to fall: of exp(-n / tau) the last fifth brings 5 % when N = 2.7 tau."""
    for share, learning in ((1.0, True), (2.0, True), (4.0, False), (8.0, False)):
        losses = [1 + 5 * math.exp(-share * n / rounds) for n in range(rounds)]
        found = advice_on_run(made([None] * rounds, losses), settings())
        assert (found is not None) == learning, share
        if found is not None:
            assert "of its whole fall" in found.said and found.changes == {"rounds": 2 * rounds}


def test_a_falling_loss_says_nothing_where_development_text_falls_too() -> None:
    losses = [6 - 0.5 * n for n in range(10)]
    assert advice_on_run(made([0.5, 0.6, 0.59, 0.58, *[0.57] * 6], losses), settings()) is None


def test_a_bound_on_bytes_that_ended_the_run_is_raised_too() -> None:
    bounded = settings(federation={"max_upload_mb": 3.0})
    found = advice_on_run(made([0.2, 0.4, 0.6]), bounded)
    assert found is not None and found.changes == {"rounds": 6, "federation.max_upload_mb": 6.0}


def nothing(losses: Sequence[float], own: Settings | None, **more: Any) -> Advice:
    found = advice_on_run(made([0.0, 0.01, 0.02], losses, **more), own)
    assert found is not None and found.said.startswith("this model has learnt next to nothing")
    assert not found.resumes
    return found


def test_a_model_that_has_learnt_nothing_is_told_what_to_set_by_its_loss() -> None:
    sgd = settings()
    if sgd.training.optimiser == "sgd":
        assert nothing([9, 7, 6], sgd).changes == FASTER
    own = {"optimiser": "adam", "learning_rate": 0.001, "decay": 1.0}
    adam = settings(training=own)
    assert nothing([9, 7, 6], adam).changes == {"training.learning_rate": 0.003, "rounds": 6}
    for losses in ([9, 12, 80], [9, math.inf, math.nan]):
        large = nothing(losses, adam)
        assert large.changes == {"training.learning_rate": 0.00033} and "too large" in large.said
    faded = settings(training={**own, "decay": 0.3})
    assert nothing([9, 7, 6], faded).changes["training.decay"] == 1.0
    assert nothing([9, 7, 6], None).changes == {}


def test_few_marked_answers_say_nothing_and_no_test_text_leaves_development_text() -> None:
    losses = [9.0, 7.0, 6.0]
    flat = [9.0, 1.0, 1.0]
    assert advice_on_run(made([0.0] * 3, flat, test=entities(0.0, 9)), settings()) is None
    bare = entities(0.0, 0) | {"sentences": 0}
    found = nothing(losses, None, test=bare, dev=entities(0.02))
    assert "2.0 on development text" in found.said
    assert advice_on_run(made([None] * 3, flat, test=bare, dev={}), None) is None


def test_a_ranking_is_nothing_if_it_is_little_better_than_chance() -> None:
    """The area of a random ranking is the share of facts, here 30 %."""
    for auc, is_nothing in ((0.4, True), (0.5, False)):
        scored = {"auc": auc, "auc_2000": 0.0, "precision_at": {}, "bags": 100, "facts": 30}
        found = advice_on_run(made([None] * 2, test={**scored, "candidates": 100}, task="bags"))
        assert (found is not None) == is_nothing


def test_under_noise_more_rounds_cost_more_so_none_are_proposed() -> None:
    spent = {"unit": "document", "epsilon": 3.0, "delta": 1e-5, "noise": 5.0, "clip": 1.0}
    spent |= {"rate": 0.5, "rounds": 3, "units": 500}
    assert advice_on_run(made([0.2, 0.4, 0.6], privacy=spent), settings()) is None
    found = nothing([9, 8, 8], settings(), privacy=spent)
    assert "confide privacy plan" in found.said and found.changes == {}


def test_real_runs_that_learn_nothing_that_still_learn_and_that_have_learnt(tmp_path: Path) -> None:
    """The changes that are proposed work: the run goes on, and has learnt in the end."""
    slow = tiny(tmp_path, "rounds=3", "training.learning_rate=0.005")
    none = advice_on_run(run(slow, out=tmp_path / "slow").result, slow)
    assert none is not None and "next to nothing" in none.said and not none.resumes

    short = tiny(tmp_path, "rounds=4", "training.learning_rate=0.04")
    folder = tmp_path / "short"
    some = advice_on_run(run(short, out=folder).result, short)
    assert some is not None and some.resumes and some.changes == {"rounds": 8}
    shown = headline(load_runs([folder]))
    assert shown is not None and shown.facts[-1].startswith("This model was still learning")

    longer = tiny(tmp_path, "rounds=8", "training.learning_rate=0.04")
    assert advice_on_run(run(longer, out=folder, resume=True).result, longer) is None
