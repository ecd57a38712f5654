"""FedAvg: the mean is the mean, rates fall by the round, and vectors land where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError, GuardError, KeyFileError, QuorumError, SettingsError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Delivery, Federation
from confide.federation.guards import check_reply
from confide.federation.keys import new_key
from confide.federation.ledger import Ledger
from confide.federation.messages import decode, peek
from confide.federation.quantising import restore_reply
from confide.kinds.protocol import State
from confide.kinds.tagger.site import TaggerSpec
from confide.methods import METHODS, wire
from confide.methods.fedavg import TRAIN, FedAvgSettings, Train, Update
from confide.methods.pseudo_complete import COMPLETE
from confide.runs.run import run
from confide.runs.sites import gather
from confide.settings import Settings
from confide.training.vocabulary import UNK, KeyedVocabulary, normalise
from contract.corpus import KEY, tiny, write_sites
from contract.runs import states
from kinds.configs import config
from methods import relation_runs

FedAvg = METHODS["fedavg-tagger"]


class Seen(SequentialEngine):
    """An engine that keeps what it carried."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asks: list[Train] = []
        self.replies: dict[str, Update] = {}

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            if peek(found.reply).message == "Update":
                ask = decode(Train, asks[found.site])
                self.asks.append(ask)
                self.replies[found.site] = restore_reply(TRAIN, ask, decode(Update, found.reply))
            yield found


def started(
    folder: Path, settings: Settings, engine: type[SequentialEngine] = Seen
) -> tuple[Any, Federation, Any]:
    """The method, a federation of the settings' sites, and its engine."""
    gathered = gather(settings, folder / "sites", key_file=folder / "shared.key")
    steps = {step.name: step for step in FedAvg.steps}
    found = engine(gathered.specs, Hosting(steps, FedAvg.Memory, settings.seed))
    ledger = Ledger()
    return FedAvg(settings), Federation(found, seed=settings.seed, ledger=ledger), found


def unequal(folder: Path) -> list[dict[str, Any]]:
    """Two sites, the second of half the size."""
    first = write_sites(folder / "data", 1, train=16)
    second = write_sites(folder / "half", 2, train=8)[1:]
    return [*first, *second]


@each("weighting", ["equal", "sentences"])
def test_the_next_state_is_the_mean_of_the_replies(tmp_path: Path, weighting: str) -> None:
    """The oracle is numpy's average of what the two sites really sent."""
    settings = tiny(tmp_path, f"options.weighting={weighting}", site=unequal(tmp_path))
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    one, two = engine.replies["site-1"], engine.replies["site-2"]
    weights = [1.0, 1.0] if weighting == "equal" else [16.0, 8.0]
    assert [one.weight, two.weight] == weights
    for name, array in after.weights.items():
        trained = [one.weights[name] / weights[0], two.weights[name] / weights[1]]
        mean = np.average(np.array(trained, np.float64), axis=0, weights=weights)
        assert not one.seen
        assert array.dtype == np.float32
        assert array.shape == state.weights[name].shape
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)
    loss = np.average([one.loss / weights[0], two.loss / weights[1]], weights=weights)
    assert facts["loss"] == pytest.approx(loss)
    assert facts["sentences"] == 24
    assert any((after.weights[n] != state.weights[n]).any() for n in after.weights)


@each("weighting", ["equal", "sentences"])
def test_a_row_may_be_the_mean_over_the_sites_that_have_its_word(
    tmp_path: Path, weighting: str
) -> None:
    """The oracle finds out by the key which words stand in whose text, and averages those rows."""
    site = unequal(tmp_path)
    overrides = (f"options.weighting={weighting}", "options.rows=seen", "training.word_dropout=0")
    settings = tiny(tmp_path, *overrides, site=site)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    words = KeyedVocabulary(state.form.word_digests_V16, "word", KEY)
    weights = [1.0, 1.0] if weighting == "equal" else [16.0, 8.0]
    rows = np.zeros_like(state.weights["word.weight"], np.float64)
    total = np.zeros(len(rows))
    for table, weight in zip(site, weights, strict=True):
        lines = Path(table["train"]).read_text().split("\n")
        tokens = {normalise(line.split("\t")[0], "lower-digits") for line in lines if line}
        ids = np.unique([UNK, *words.ids(sorted(tokens))])
        sent = engine.replies[table["name"]].weights["word.weight"]
        rows[ids] += sent[ids]
        total[ids] += weight
        assert not np.delete(sent, ids, axis=0).any()  # other rows do not leave the site
    expected = np.where(
        total[:, None] > 0, rows / np.maximum(total, 1)[:, None], state.weights["word.weight"]
    )
    np.testing.assert_allclose(after.weights["word.weight"], expected, rtol=1e-5, atol=1e-7)
    assert (total[2:] > 0).all()
    assert len(set(total[2:])) > 1  # some words are one site's, some are both's


def test_pseudo_complete_averages_the_rows_of_words_over_the_sites_that_have_them(
    tmp_path: Path,
) -> None:
    pair = "method=pseudo-complete-tagger"
    settings = tiny(tmp_path, pair, "options.rows=seen", site=unequal(tmp_path))
    method, federation, engine = relation_runs.started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    sent = [
        restore_reply(COMPLETE, engine.asks["complete", site], engine.replies["complete", site])
        for site in ("site-1", "site-2")
    ]
    assert facts["loss"] == pytest.approx(sum(one.loss for one in sent) / 2)
    seen = [one.seen["word.weight"] > 0 for one in sent]
    for one, own, other in ((0, *seen), (1, *seen[::-1])):
        alone = own & ~other
        assert alone.any()
        rows = sent[one].weights["word.weight"][alone]
        np.testing.assert_allclose(after.weights["word.weight"][alone], rows, rtol=1e-6)
        assert not sent[1 - one].weights["word.weight"][alone].any()
    both = seen[0] & seen[1]
    mean = sum(one.weights["word.weight"][both] for one in sent) / 2
    np.testing.assert_allclose(after.weights["word.weight"][both], mean, rtol=1e-5)


def test_a_site_trains_from_the_common_weights_only(tmp_path: Path) -> None:
    """What a site sends depends on the ask, not on what another site did before it."""
    settings = tiny(tmp_path)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    method.round(state, federation, 1)
    together = dict(engine.replies)
    only, federation_of_one, other = started(tmp_path, settings)
    federation_of_one = Federation(other, seed=1, ledger=Ledger(), sites=["site-3"])
    only.round(state, federation_of_one, 1)
    for name, array in together["site-3"].weights.items():
        assert np.array_equal(array, other.replies["site-3"].weights[name])


def test_the_learning_rate_falls_by_the_global_round(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "training.decay=0.5", "training.learning_rate=0.1", sites=1)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    for number in (1, 2, 3):
        state, facts = method.round(state, federation, number)
        assert facts["learning_rate"] == pytest.approx(0.1 * 0.5 ** (number - 1))
    assert [ask.config.learning_rate for ask in engine.asks] == pytest.approx([0.1, 0.05, 0.025])


def test_the_first_weights_depend_on_the_seed_and_the_agreement_only(tmp_path: Path) -> None:
    def first(*overrides: str, sites: int = 3) -> State[TaggerSpec]:
        method, federation, _ = started(tmp_path, tiny(tmp_path, *overrides, sites=sites))
        found: State[TaggerSpec] = method.start(federation)
        return found

    one, again, other = first(), first(), first("seed=2")
    assert all(np.array_equal(one.weights[n], again.weights[n]) for n in one.weights)
    assert any((one.weights[n] != other.weights[n]).any() for n in one.weights)
    assert one.form.sizes["words"] == len(one.form.word_digests_V16) + 2
    assert one.weights["word.weight"].shape == (one.form.sizes["words"], 8)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'weihgting'.*did you mean 'weighting'"):
        FedAvg(tiny(tmp_path, "options.weihgting=equal"))
    with pytest.raises(SettingsError, match="weighting is wrong"):
        FedAvg(tiny(tmp_path, "options.weighting=loud"))


ROWS = np.array([0.0, 1.0], np.float32)


@each(
    "changes",
    [
        {"weight": 0.0},
        {"weight": -3.0},
        {"weight": 2.0},
        {"examples": 0},
        {"seen": {}},
        {"seen": {"word.weight": np.ones(3, np.float32)}},
        {"seen": {"word.weight": ROWS, "crf.weight": ROWS}},
        {"seen": {"crf.weight": ROWS}},
        {"seen": {"word.weight": ROWS - 1}},
        {"seen": {"word.weight": ROWS * 2}},
        {"seen": {"word.weight": ROWS.astype(np.float64)}},
        {"seen": {"word.weight": ROWS / 2}},  # the row as it is, but hardly a weight
        {"weights": {"word.weight": np.ones((2, 3), np.float32), "crf.weight": ROWS}},
    ],
)
def test_a_reply_that_would_turn_the_mean_over_is_refused(changes: dict[str, Any]) -> None:
    weights = {"word.weight": np.ones((2, 3), np.float32), "crf.weight": np.ones(2, np.float32)}
    asked = Train(weights, config(), "equal", ["word.weight"])
    sent = {**weights, "word.weight": weights["word.weight"] * ROWS[:, None]}
    good = Update(sent, 1.0, {"word.weight": ROWS}, loss=0.0, examples=1)
    check_reply(TRAIN, asked, good)
    check_reply(TRAIN, replace(asked, tables=[]), replace(good, seen={}))
    by_size = replace(asked, weighting="examples")
    check_reply(TRAIN, by_size, replace(good, weight=7.0, seen={"word.weight": ROWS * 7}))
    with pytest.raises(GuardError):
        check_reply(TRAIN, asked, replace(good, **changes))


# --- what a site needs --------------------------------------------------------------------------


def test_a_site_whose_memory_is_gone_says_so(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    for path in (tmp_path / "sites" / "site-2" / "memory").iterdir():
        path.unlink()
    method, federation, _ = started(tmp_path, settings)
    with pytest.raises(QuorumError, match=r"site-2.*the site has no memory of this run"):
        method.round(state, federation, 1)


def test_a_site_whose_key_changed_in_the_middle_says_so(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    method, federation, engine = started(tmp_path, settings)
    engine._hosts["site-2"].site.key_file = new_key(tmp_path / "other.key")
    with pytest.raises(QuorumError, match=r"site-2.*not the one that the sites agreed on"):
        method.round(state, federation, 1)


def test_only_the_right_key_makes_an_extractor(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path))
    state = method.start(federation)
    assert callable(method.pair.extractor(state, None, key=KEY))
    with pytest.raises(KeyFileError, match="not the key that the sites trained with"):
        method.pair.extractor(state, None, key=bytes(32))


# --- word vectors ---------------------------------------------------------------------------------


def vectors(path: Path, words: list[str], dims: int = 8) -> Path:
    draw = np.random.default_rng(0)
    lines = (f"{word} {' '.join(f'{x:.4f}' for x in draw.normal(size=dims))}" for word in words)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_words_of_sites_that_are_not_drawn_first_get_their_vectors_too(tmp_path: Path) -> None:
    """Also with rows = "seen", where a row counts only at sites that have the word."""
    site, known = unequal(tmp_path), list[str]()
    for table, letter in zip(site, "xy", strict=True):
        own = [letter + other for other in "abcdefgh"]
        file = Path(table["train"])
        file.write_text(file.read_text() + "\n" + "".join(f"{word}\tO\n" for word in own) + "\n")
        known += own
    path = vectors(tmp_path / "v.txt", known)
    overrides = (
        "training.learning_rate=1e-12", f"model.vectors={path}", "training.optimiser=sgd",
        "options.rows=seen", "federation.fraction=0.5",
    )  # fmt: skip
    method, federation, engine = started(tmp_path, tiny(tmp_path, *overrides, site=site))
    state = method.start(federation)
    engine.replies.clear()
    after, _ = method.round(state, federation, 1)
    assert len(engine.replies) < len(site)
    ids = KeyedVocabulary(state.form.word_digests_V16, "word", KEY).ids(known)
    assert (np.asarray(ids) > UNK).all()
    rows = np.array([line.split()[1:] for line in path.read_text().splitlines()], np.float32)
    np.testing.assert_allclose(after.weights["word.weight"][ids], rows, atol=1e-6)


def test_sites_fill_in_the_rows_that_the_file_knows_in_the_first_round(tmp_path: Path) -> None:
    """Trained for (almost) nothing, the rows of known words are the file's; others did not move."""
    path = vectors(tmp_path / "v.txt", ["aspirin", "nausea", "unheard-of"])
    overrides = ["training.learning_rate=1e-12", f"model.vectors={path}", "training.optimiser=sgd"]
    method, federation, _ = started(tmp_path, tiny(tmp_path, *overrides))
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    ids = KeyedVocabulary(state.form.word_digests_V16, "word", KEY).ids(["aspirin", "nausea"])
    lines = [line.split() for line in path.read_text().splitlines()]
    rows = np.array([line[1:] for line in lines[:2]], np.float32)
    np.testing.assert_allclose(after.weights["word.weight"][ids], rows, atol=1e-6)
    others = np.setdiff1d(np.arange(len(state.weights["word.weight"])), ids)
    before = state.weights["word.weight"][others]
    np.testing.assert_allclose(after.weights["word.weight"][others], before, atol=1e-6)
    second, _ = method.round(state, federation, 2)  # not again in later rounds
    np.testing.assert_allclose(
        second.weights["word.weight"], state.weights["word.weight"], atol=1e-6
    )


def test_all_sites_start_from_one_file(tmp_path: Path) -> None:
    site = write_sites(tmp_path / "data", 3)
    site[0]["vectors"] = site[1]["vectors"] = str(vectors(tmp_path / "v.txt", ["aspirin"]))
    site[2]["vectors"] = str(vectors(tmp_path / "w.txt", ["codeine"]))
    method, federation, _ = started(tmp_path, tiny(tmp_path, site=site))
    with pytest.raises(FederationError, match="word vectors: site-3 has a different one or none"):
        method.start(federation)


@each(
    ("dims", "content", "words"),
    [(5, None, "word vectors is not `word_dim`"), (8, "", "cannot read its file of word vec")],
)
def test_a_file_of_vectors_that_does_not_fit(
    tmp_path: Path, dims: int, content: str | None, words: str
) -> None:
    path = vectors(tmp_path / "v.txt", ["aspirin", "nausea"], dims)
    if content is not None:
        path.write_text(content)
    method, federation, _ = started(tmp_path, tiny(tmp_path, f"model.vectors={path}"))
    with pytest.raises(QuorumError, match=words):
        method.start(federation)


@each(("server", "rate"), [("mean", 1), ("momentum", 1), ("adam", 0.01), ("yogi", 0.01)])
def test_a_servers_rate_without_a_setting(server: str, rate: float) -> None:
    assert FedAvgSettings(server=server).step(1).rate == rate
    halved = FedAvgSettings(server=server, server_decay=0.5).step(3)
    assert halved.rate == rate / 4


# --- moments that a site keeps -----------------------------------------------------------


def kept_moments(folder: Path) -> list[dict[str, np.ndarray]]:
    """The moments in every memory that the sites of a run have written."""
    kind = METHODS["fedavg-tagger"].Memory
    return [decode(kind, path.read_bytes()).moments for path in folder.rglob("*.memory")]


def test_a_site_that_keeps_its_moments_goes_on_from_them(tmp_path: Path) -> None:
    own = ("training.optimiser=adam", "training.local_epochs=1")
    one = run(
        tiny(tmp_path, *own, "training.optimiser_state=keep", "rounds=1"), out=tmp_path / "1"
    ).folder
    two = run(
        tiny(tmp_path, *own, "training.optimiser_state=keep", "rounds=3"), out=tmp_path / "3"
    ).folder
    fresh = run(tiny(tmp_path, *own, "rounds=3"), out=tmp_path / "fresh").folder
    first = {float(moments["0/step"][0]) for moments in kept_moments(one) if moments}
    last = max(float(moments["0/step"][0]) for moments in kept_moments(two) if moments)
    assert last == 3 * max(first)
    assert not any(kept_moments(fresh))
    assert states(two) != states(fresh)
    assert not any(row.field == "moments" for row in wire("fedavg-tagger"))


def test_a_run_that_keeps_moments_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    own = ("training.optimiser=adam", "training.optimiser_state=keep", "select.every=2")
    straight = run(tiny(tmp_path, *own, "rounds=4"), out=tmp_path / "straight").folder
    again = run(tiny(tmp_path, *own, "rounds=2"), out=tmp_path / "again").folder
    (again / "result.json").unlink()
    run(tiny(tmp_path, *own, "rounds=4"), out=again, resume=True)
    assert states(straight) == states(again)


def test_fedner_keeps_its_own_moments(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="always goes on from Adam's running means"):
        run(tiny(tmp_path, "method=fedner", "training.optimiser_state=keep"), out=tmp_path / "run")
