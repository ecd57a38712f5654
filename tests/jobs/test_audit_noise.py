"""Canaries of a run under noise show less than was promised, and more if the noise is left out.

One site that sums by itself, so that the noise in its sum is the least that the account counts. Its
text is noise, too: there is nothing to learn but the documents themselves.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from confide.federation.secure import messages
from confide.jobs.audit import audit
from confide.methods import noise as noises
from confide.runs import run as runs
from confide.runs.folder import audit_sentences
from confide.runs.run import run
from contract.corpus import tiny
from jobs.test_audit import noise

ROUNDS = 60


@pytest.fixture(autouse=True)
def alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of one site, which confide refuses: nothing but the noise hides what it sends."""
    monkeypatch.syspath_prepend(str(root / "benchmarks" / "security"))
    for module, name in ((messages, "threshold"), (runs, "threshold"), (messages, "colluders")):
        monkeypatch.setattr(module, name, getattr(module, name))  # undone at the end
    import_module("by_itself").allow()


HEART = (
    f"rounds={ROUNDS}", "options.server_rate=0.05", "select.by=last", "select.every=1000",
    "model.bilstm_hidden=48", "model.word_dim=4", "model.dropout=0", "data.canaries=105",
    "key=simulated",
)  # fmt: skip
"""A tagger on a frozen encoder, that knows its documents by heart in so many rounds."""


def ran(folder: Path, epsilon: float) -> Path:
    """A run of one site that promises this ε of a document."""
    site: dict[str, Any] = {"name": "site-1", "dev": []}
    site |= {"train": str(noise(folder / "train.conll", 120))}
    site |= {"test": str(noise(folder / "held.conll", 60))}
    privacy = {
        "unit": "document", "epsilon": epsilon, "rate": 0.5, "rounds": ROUNDS, "units": 60,
        "clip": 1.0,
    }  # fmt: skip
    settings = tiny(folder, "method=dp-fedsgd-tagger", *HEART, site=[site], privacy=privacy)
    return run(settings, out=folder / "run").folder


@pytest.mark.parametrize("epsilon", [pytest.param(8.0, marks=pytest.mark.slow), 1.0])
def test_less_is_measured_than_was_promised(epsilon: float, tmp_path: Path) -> None:
    found = audit(ran(tmp_path, epsilon))
    assert found.promised is not None and found.promised.epsilon == epsilon
    assert found.promised.simulated
    assert "(δ = 1e-5), if keys were not from the seed; ε measured" in "\n".join(
        audit_sentences(found)
    )
    assert found.measured is not None and found.measured.epsilon < epsilon
    assert not found.broken
    one = found.sites["site-1"]
    assert one.canaries is not None
    assert one.membership.auc.high < 0.85 and one.canaries.auc.high < 0.85


def test_without_its_noise_the_promise_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack finds what there is: units are clipped and drawn, but nothing hides them."""

    def without(total: Any, key: bytes, *, variance: int) -> Any:
        return dict(total)

    monkeypatch.setattr(noises, "with_noise", without)
    found = audit(ran(tmp_path, 1.0))
    assert found.sites["site-1"].membership.auc.value > 0.85
    assert found.broken
    assert "The promise was broken" in "\n".join(audit_sentences(found))
