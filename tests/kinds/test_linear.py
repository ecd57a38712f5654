"""The linear kind: one site is pooling, sites of one key, what a release needs, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.api import export, predict, run
from confide.errors import SettingsError
from confide.federation.keys import new_key
from confide.federation.messages import Arrays
from confide.kinds.linear import TABLE
from confide.methods import method_of
from confide.runs.loading import release
from confide.settings import Settings, parse
from contract.corpus import tiny
from contract.runs import states
from methods.relation_runs import started


def settings_for(folder: Path, *overrides: str, sites: int = 3) -> Settings:
    own = ("method=fedavg-linear", "training.optimiser=adagrad", "training.learning_rate=0.3")
    return tiny(folder, *own, *overrides, sites=sites)


def test_all_text_at_one_site_gives_the_pooled_model_bit_for_bit(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, sites=1)
    own = settings.site[0].model_copy(update={"name": "pooled"})  # a site draws by its name
    settings = settings.model_copy(update={"site": (own,)})
    found = []
    for method in ("fedavg", "pooled"):
        run(settings.model_copy(update={"method": method}), out=tmp_path / method)
        found.append(states(tmp_path / method))
    assert found[0]
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_three_sites_find_what_the_pooled_model_finds(tmp_path: Path, seed: int) -> None:
    scores = {}
    for method in ("fedavg", "pooled"):
        settings = settings_for(tmp_path, "rounds=6", f"seed={seed}")
        settings = settings.model_copy(update={"method": method})
        done = run(settings, out=tmp_path / f"{method} {seed}").result
        scores[method] = done.scores.overall["strict"]["f1"]
    assert scores["fedavg"] >= scores["pooled"] - 0.003
    assert scores["fedavg"] > 0.9


def learnt(settings: Settings, folder: Path, *, rounds: int = 2) -> Arrays:
    """The common weights after some rounds."""
    method, federation, _ = started(folder, settings)
    state = method.start(federation)
    for number in range(1, rounds + 1):
        state, _ = method.round(state, federation, number)
    weights: Arrays = state.weights
    return weights


def test_another_key_moves_other_rows_to_the_same_sums(tmp_path: Path) -> None:
    ours = learnt(settings_for(tmp_path / "ours"), tmp_path / "ours")
    other = settings_for(tmp_path / "theirs")
    Path(str(other.key)).unlink()
    new_key(Path(str(other.key)), bytes(range(32)))
    theirs = learnt(other, tmp_path / "theirs")
    moved = [{*np.flatnonzero(one[TABLE].any(1)).tolist()} for one in (ours, theirs)]
    assert len(moved[0] & moved[1]) < len(moved[0]) / 4
    for name in ours.keys() - {TABLE}:  # but for features that share a row
        np.testing.assert_allclose(ours[name], theirs[name], atol=0.02)


def test_a_row_counts_as_seen_where_the_text_reads_it(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, settings_for(tmp_path, "options.rows=seen"))
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    replies = [engine.replies["train", f"site-{n}"] for n in (1, 2, 3)]
    seen_SV = np.array([one.seen[TABLE] > 0 for one in replies])
    assert (seen_SV.sum(0) == 1).any()  # a row of one site alone
    assert (seen_SV.sum(0) == 3).any()
    moved_V = (after.weights[TABLE] != state.weights[TABLE]).any(1)
    assert not moved_V[~seen_SV.any(0)].any()


def test_a_release_finds_the_same_without_the_key(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "rounds=4")
    run(settings, out=tmp_path / "run")
    text = [Path(settings.site[0].test[0])]
    with_key = [one.entities for one in predict(tmp_path / "run", text)]
    assert any(with_key)
    release(tmp_path / "run", out=tmp_path / "copy")
    Path(str(settings.key)).unlink()
    assert [one.entities for one in predict(tmp_path / "copy", text)] == with_key
    key = bytes(range(100, 132)).hex().encode()
    assert not any(key in file.read_bytes() for file in (tmp_path / "copy").iterdir())
    with pytest.raises(SettingsError, match="cannot be written so"):
        export(tmp_path / "copy", to="onnx", out=tmp_path / "graph")


@each("method", ["feded", "feddf", "dp-fedsgd", "dp-feded", "dp-fedner"])
def test_methods_that_cannot_train_it_say_so(method: str) -> None:
    tree = {"method": method, "model": {"kind": "linear"}}
    with pytest.raises(SettingsError, match=f"{method} does not train linear"):
        method_of(parse(tree))


def test_word_vectors_are_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "model.vectors=glove.txt")
    with pytest.raises(SettingsError, match="reads no word vectors"):
        method_of(settings)(settings)


@pytest.mark.slow
def test_german_legal_text_in_three_sites(tmp_path: Path, corpora: Path) -> None:
    """Leitner et al. 2020: 780 sentences for training, 900 for testing, nineteen types.

    sklearn-crfsuite reaches 63.8 on the pooled text (benchmarks/defaults/init/peer_crf.py).
    """
    folder = corpora / "german_ler"
    for name, source, count in (("train", "ler_dev", 780), ("test", "ler_test", 900)):
        found = (folder / f"{source}.conll").read_text(encoding="utf-8").split("\n\n")
        every = [one.strip("\n") for one in found if one.strip()]
        text = "\n\n".join(every[:count]) + "\n"
        (tmp_path / f"{name}.conll").write_text(text, encoding="utf-8")
    tree = {
        "data": {"format": "conll"},
        "model": {"kind": "linear"},
        "select": {"by": "last"},
        "split": {
            "sites": 3,
            "train": str(tmp_path / "train.conll"),
            "test": str(tmp_path / "test.conll"),
        },
    }
    done = run(parse(tree), out=tmp_path / "run").result
    assert done.scores.overall["strict"]["f1"] >= 0.62
