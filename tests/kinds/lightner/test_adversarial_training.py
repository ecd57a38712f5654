"""LightNER with an adversary: both are trained, and the model learns its task beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.kinds.lightner.adversaries import AdversarialTrainer, Kind, Opposed, reversal_at
from confide.kinds.lightner.model import LightnerTrainer, load_bart
from confide.kinds.lightner.site import LightnerSpec
from confide.training.batches import Example
from confide.training.optimisers import Optimiser
from confide.training.weights import arrays
from training.encoders import tiny_bart

FORM = LightnerSpec(types=("head", "pain"), prompts=3, hidden=8, longest=30, dropout=0.0)
ADAM = Optimiser("adamw", learning_rate=1e-2)
KINDS: tuple[Kind, ...] = ("dann", "fada", "fade")


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bart(tmp_path_factory.mktemp("bart") / "bart")


def trainer(folder: Path, kind: Kind = "dann", **changes: Any) -> AdversarialTrainer:
    own = {"site", "reversal"}
    form = {name: changes.pop(name) for name in {*changes} - own}
    made = LightnerTrainer(load_bart(str(folder)), replace(FORM, **form))
    return AdversarialTrainer(made.bart, made.form, kind, sites=3, **changes)


EXAMPLES = [
    Example(0, number, ("the", "took", *("a",) * (number % 3), "head", "b", "pain"))
    for number in range(12)
]
SPANS = [
    [(2 + number % 3, 3 + number % 3, "head"), (4 + number % 3, 5 + number % 3, "pain")]
    for number in range(12)
]


def run(made: AdversarialTrainer, model: Opposed, **changes: Any) -> Any:
    encoded = made.annotated(made.prepared(EXAMPLES), SPANS, source={"head"})
    settings = {
        "weights_S": None,
        "epochs": 2,
        "batch_size": 4,
        "optimiser": ADAM,
        "seed": 1,
    } | changes
    return made.fit(model, encoded, **settings)


@each("kind", KINDS)
def test_what_is_trained_of_both_travels_and_moves(kind: Kind, bart: Path) -> None:
    made = trainer(bart, kind, site=2)
    assert made.types == ("head", "pain")
    model = made.initial(1)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "adversary.sites_NKD" in trained
    assert ("adversary.site_KD" in trained) == (kind == "fada")
    assert "model.prompts.q_QD" in trained
    before = arrays(model)
    report = run(made, model)
    assert (report.sentences, report.steps) == (24, 6)
    moved = {name for name, value in arrays(model).items() if (value != before[name]).any()}
    assert moved == trained
    found = made.find(model, made.prepared(EXAMPLES))
    assert len(found) == 12
    slopes = made.row_gradients(model, made.annotated(made.prepared(EXAMPLES), SPANS, source=set()))
    assert slopes.target_SG.any()


def test_the_seed_draws_both_and_the_model_is_that_without_an_adversary(bart: Path) -> None:
    made = trainer(bart)
    one, same, other = (arrays(made.initial(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["adversary.sites_NKD"], other["adversary.sites_NKD"])
    plain = arrays(LightnerTrainer(made.bart, made.form).initial(1))
    assert all(np.array_equal(one[f"model.{name}"], value) for name, value in plain.items())


def test_without_reversal_the_model_learns_as_if_alone(bart: Path) -> None:
    """With λ = 0 only discriminators hear of the sites; a step of the model is LightNER's own."""
    made = trainer(bart, "dann", reversal=0.0)
    both, alone = made.initial(1), LightnerTrainer(made.bart, made.form).initial(1)
    still = {"optimiser": Optimiser("adamw", learning_rate=1e-3, clip=0.0), "epochs": 1}
    run(made, both, **still)
    run(LightnerTrainer(made.bart, made.form), alone, **still)  # type: ignore[arg-type]
    for name, value in arrays(alone).items():
        np.testing.assert_allclose(arrays(both)[f"model.{name}"], value, atol=1e-6)
    turned = made.initial(1)
    run(replace(made, reversal=5.0), turned, **still)
    moved = arrays(turned)["model.prompts.q_QD"] - arrays(both)["model.prompts.q_QD"]
    assert np.abs(moved).max() > 1e-5


def test_reversal_hides_the_site(bart: Path) -> None:
    """After training with reversal, a discriminator is less sure of the site than without."""

    def told(reversal: float) -> float:
        made = trainer(bart, reversal=reversal, site=1)
        model = made.initial(1)
        run(made, model, epochs=10, optimiser=Optimiser("sgd", learning_rate=0.05, momentum=0.0))
        encoded = made.annotated(made.prepared(EXAMPLES), SPANS, source={"head"})
        batch = LightnerTrainer(made.bart, made.form).batch(
            model.model, encoded.text, np.arange(12), own=encoded
        )
        with torch.no_grad():
            _, against = made._losses(model, batch, None)
        return float(against)

    assert told(3.0) > told(0.0)


def test_weights_are_those_of_the_source(bart: Path) -> None:
    made = trainer(bart, reversal=0.0)
    none, nothing = made.initial(1), made.initial(1)
    still = {"optimiser": Optimiser("sgd", learning_rate=0.1, clip=0.0), "epochs": 1}
    first = run(made, none, weights_S=np.ones(12, np.float32), **still)
    second = run(made, nothing, weights_S=np.zeros(12, np.float32), **still)
    assert second.loss < first.loss
    weights = [arrays(model)["model.prompts.q_QD"] for model in (none, nothing)]
    assert not np.array_equal(*weights)


def test_the_same_seed_trains_the_same_bits(bart: Path) -> None:
    made = trainer(bart, "fada")
    found = []
    for seed in (1, 1, 2):
        model = made.initial(1)
        run(made, model, seed=seed)
        found.append(arrays(model))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert any(not np.array_equal(found[0][name], found[2][name]) for name in found[0])


def test_what_cannot_be_is_refused(bart: Path) -> None:
    with pytest.raises(SettingsError, match="an encoder that is trained"):
        trainer(bart, where="decoder").initial(1)
    made = trainer(bart, site=3)
    with pytest.raises(SettingsError, match="has no number among"):
        run(made, made.initial(1))


def test_the_schedule_is_ganins() -> None:
    rises = [reversal_at(p / 10, most=0.5) for p in range(11)]
    assert rises[0] == 0.0
    assert rises == sorted(rises)
    assert rises[-1] == pytest.approx(0.5, abs=1e-4)
    assert rises[3] == pytest.approx(0.5 * np.tanh(10 * 0.3 / 2))
