"""The losses of a site model are what training minimises, without dropout, for every kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.jobs.audit import _attack, _opened
from confide.kinds import KINDS
from confide.runs.run import run
from confide.text.segment import segmented
from confide.training.batches import only
from contract.corpus import tiny
from kinds.configs import config
from methods.relation_runs import started

QUIET = {
    "tagger": ("model.dropout=0",),
    "encoder": ("classifier.dropout=0",),
    "spans": ("classifier.dropout=0",),
    "lightner": ("lightner.dropout=0",),
    "relations": ("classifier.dropout=0",),
    "bags": ("pcnn.dropout=0", "bags.reader=pcnn"),
}
"""What turns a kind's own dropout off; an encoder's is in its files."""


def bench_of(kind: str, folder: Path, *overrides: str):
    settings = tiny(folder, f"method=fedavg-{kind}", "rounds=1", *overrides, sites=1)
    return _attack(opened := _opened(run(settings, out=folder / "run").folder, None),
                  opened.gathered.specs[0], {})  # fmt: skip


@each("kind", KINDS)
def test_nothing_is_dropped(kind: str, tmp_path: Path) -> None:
    bench = bench_of(kind, tmp_path)
    site_model, config = bench._site_model, bench.at_home(1)
    documents = [*bench.spec.train, *bench.spec.test]
    first, again = (site_model.losses(bench.weights, config, documents) for _ in range(2))
    assert len(first.losses_U) == len(first.documents_U) == len(first.marks) > 0
    assert np.array_equal(first.losses_U, again.losses_U)
    assert (first.losses_U > 0).all()
    assert first.documents_U.max() < len(documents)
    # one document after another gives the same: batches do not matter
    if first.units != "bags":
        alone = [site_model.losses(bench.weights, config, [one]).losses_U for one in documents[:4]]
        joined = np.concatenate(alone)
        assert joined == pytest.approx(first.losses_U[: len(joined)], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", sorted(QUIET))
def test_it_is_what_training_minimises(kind: str, tmp_path: Path) -> None:
    bench = bench_of(kind, tmp_path, *QUIET[kind], "training.word_dropout=0")
    config = replace(
        bench.at_home(1), learning_rate=1e-12, optimiser="sgd", momentum=0.0,
        batch_size=10_000, word_dropout=0.0,
    )  # fmt: skip
    spec, weights = bench.spec, bench.weights
    site_model = bench.form.at(spec.in_process({}))
    found = site_model.losses(weights, config, spec.train)
    sizes = np.ones(len(found.losses_U))
    if found.units == "sentences":
        sizes = np.array([len(s.tokens) for d in spec.train for s in segmented(d).sentences])
    fitted = site_model.fit(weights, config, seed=1)
    loose = 0.1 if kind in ("encoder", "spans", "relations") else 1e-4  # dropout of its files
    assert (found.losses_U * sizes).mean() == pytest.approx(fitted.loss, rel=loose)


def test_types_that_a_site_does_not_annotate_make_no_loss(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=pseudo-complete-tagger"))
    state, site = method.start(federation), engine.site("site-3")
    assert set(state.form.types) == {"Drug", "Effect"} and site.annotates == ("Drug",)
    documents = engine.site("site-1").train
    drugs = only(documents, {"Drug"})
    assert drugs != documents
    whole, own = (
        state.form.at(site).losses(state.weights, config(), text).losses_U
        for text in (documents, drugs)
    )
    assert np.array_equal(whole, own)
