"""FedNER: one site learns as without a federation, gradients are averaged, tops stay private."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cases import each
from confide.errors import FederationError, GuardError, QuorumError, RunError, SettingsError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.failures import Failure
from confide.federation.federation import Delivery, Federation
from confide.federation.guards import check_reply
from confide.federation.ledger import Ledger
from confide.federation.messages import decode, encode, peek
from confide.federation.quantising import restore_reply
from confide.jobs.predict import predict
from confide.kinds.tagger.site import TaggerSpec
from confide.methods import METHODS
from confide.methods.fedner import (
    IMPROVE,
    TAKE_SHARE,
    Enrolled,
    Improve,
    Improved,
    ShareTaken,
    TakeShare,
    shares_of_batch,
)
from confide.runs.folder import memory_of
from confide.runs.run import run
from confide.runs.sites import gather
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.text.formats import write
from confide.training.tagger import PARTS
from confide.training.trainer import gradients
from confide.training.weights import arrays, load_weights
from contract.corpus import sentences, tiny, write_conll, write_sites
from contract.runs import use_engine
from training.corpora import drawn_batch, tagging_loss

FedNER = METHODS["fedner-tagger"]
Memory = Enrolled[TaggerSpec]


class Seen(SequentialEngine):
    """An engine that keeps the gradients that it carried."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: dict[str, Improved] = {}
        self.updates: dict[str, Improved] = {}

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            if peek(found.reply).message == "Improved":
                self.sent[found.site] = decode(Improved, found.reply)
                ask = decode(Improve, asks[found.site])
                whole: Any = restore_reply(IMPROVE, ask, self.sent[found.site])
                self.updates[found.site] = whole
            yield found

    def memory(self, site: str) -> Enrolled[TaggerSpec]:
        """What a site remembers now."""
        found: Enrolled[TaggerSpec] = self._hosts[site]._memory.latest()
        return found


def fedner(folder: Path, *overrides: str, **tree: Any) -> Settings:
    """Settings of a tiny run."""
    return tiny(
        folder, "method=fedner-tagger", "base=fedner-tagger", "select.every=1", *overrides, **tree
    )


def started(folder: Path, settings: Settings) -> tuple[Any, Federation, Seen]:
    """The method, a federation of the settings' sites, and its engine."""
    gathered = gather(settings, folder / "sites", key_file=folder / "shared.key")
    steps = {step.name: step for step in FedNER.steps}
    engine = Seen(gathered.specs, Hosting(steps, FedNER.Memory, settings.seed))
    return FedNER(settings), Federation(engine, seed=settings.seed, ledger=Ledger()), engine


def with_types(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Sites of which each calls its drugs by a type of its own."""
    tables = write_sites(folder / "data", len(names))
    for table, name in zip(tables, names, strict=True):
        for part in ("train", "dev", "test"):
            path = Path(table[part])
            path.write_text(path.read_text().replace("B-Drug", f"B-{name}"))
    return tables


@each("private", [["bilstm", "crf"], [], list(PARTS), ["crf", "word"]])
def test_one_site_learns_what_it_would_without_a_federation(
    tmp_path: Path, private: list[str]
) -> None:
    """The oracle is a plain loop with torch's own Adam over one model, whatever is shared."""
    settings = fedner(tmp_path, f"options.private={json.dumps(private)}", sites=1)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    memory = engine.memory("site-1")
    site_model = memory.form.at(engine._hosts["site-1"].site)
    model: Any = site_model.trainer.initial(0)
    load_weights(model, {**state.weights, **memory.own})
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.training.learning_rate)
    encoded = site_model.own.text
    for number in range(1, 5):
        state, facts = method.round(state, federation, number)
        seed = derive_seed(derive_seed(settings.seed, number, "site-1", "improve"), 0)
        batch = drawn_batch(encoded, 6, seed=seed, word_dropout=settings.training.word_dropout)
        loss, slope = gradients(
            model,
            lambda batch=batch: tagging_loss(model, batch),  # type: ignore[misc]
            seed=seed,
            clip=settings.training.clip,
        )
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(slope[name])
        optimiser.step()
        assert facts["loss"] == pytest.approx(loss, rel=1e-4)
    trained = {**state.weights, **engine.memory("site-1").own}
    for name, value in arrays(model).items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-4, atol=1e-5)


def test_the_server_follows_the_mean_of_the_gradients(tmp_path: Path) -> None:
    """Eq. 2: sites weigh by their sentences. The first step of Adam is the sign of the mean."""
    first = write_sites(tmp_path / "data", 1, train=20)
    second = write_sites(tmp_path / "small", 2, train=5)[1:]
    settings = fedner(tmp_path, site=[*first, *second])
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    one, two = engine.updates["site-1"], engine.updates["site-2"]
    assert (one.share, two.share) == (0.8, 0.2)
    assert facts["sentences"] == one.sentences + two.sentences == 6
    moved = 0
    for name, value in after.weights.items():
        mean = one.update[name] + two.update[name]
        clear = np.abs(mean) > 1e-5
        step = value - state.weights[name]
        np.testing.assert_allclose(step[clear], -0.02 * np.sign(mean)[clear], rtol=2e-3)
        assert not step[mean == 0].any()
        moved += int(clear.sum())
    assert moved > 100
    assert not any(name.startswith(("bilstm", "crf")) for name in after.weights)


def test_private_parts_never_leave_and_differ_between_sites(tmp_path: Path) -> None:
    settings = fedner(tmp_path)
    method, federation, engine = started(tmp_path, settings)
    method.round(method.start(federation), federation, 1)
    parts = {name.partition(".")[0] for one in engine.updates.values() for name in one.update}
    assert parts == {"word", "character", "cnn"}
    one, two = engine.memory("site-1").own, engine.memory("site-2").own
    assert {name.partition(".")[0] for name in one} == {"bilstm", "crf"}
    assert not np.array_equal(one["crf.linear.weight"], two["crf.linear.weight"])


def test_every_site_keeps_its_own_tags(tmp_path: Path) -> None:
    tables = with_types(tmp_path, "Drug", "Medication", "Chemical")
    tables[2]["tag_scheme"] = "iobes"
    settings = fedner(tmp_path, "rounds=40", "select.every=20", site=tables)
    done = run(settings, out=tmp_path / "run")
    sites = {
        name: memory_of(tmp_path / "run" / "sites" / name, Memory)
        for name in ("site-1", "site-2", "site-3")
    }
    assert [sites[name].form.types for name in sites] == [
        ["Drug", "Effect"], ["Effect", "Medication"], ["Chemical", "Effect"],
    ]  # fmt: skip
    assert [sites[name].form.sizes["tags"] for name in sites] == [5, 5, 9]
    text = tmp_path / "note.txt"
    text.write_text("the patient took warda aspirin today .")
    found = predict(tmp_path / "run", [text], site="site-2")
    assert {e.type for document in found for e in document.entities} <= {"Effect", "Medication"}
    with pytest.raises(RunError, match="model of its own") as refused:
        predict(tmp_path / "run", [text])
    assert "site-1, site-2, site-3" in str(refused.value)
    assert set(done.result.scores.overall["strict"]["types"]) == {
        "Chemical", "Drug", "Effect", "Medication",
    }  # fmt: skip


def test_a_shared_crf_needs_one_tag_set(tmp_path: Path) -> None:
    tables = with_types(tmp_path, "Drug", "Medication")
    shared = 'options.private=["bilstm"]'
    with pytest.raises(FederationError, match="tag sets differ") as refused:
        run(fedner(tmp_path, shared, site=tables), out=tmp_path / "clash")
    assert "site-2 has Effect, Medication" in str(refused.value)
    assert "options.private" in str(refused.value)
    run(fedner(tmp_path, shared, "options.types=common", site=tables), out=tmp_path / "common")
    tables[1]["tag_scheme"] = "iobes"
    with pytest.raises(QuorumError, match="the CRF is shared"):
        run(fedner(tmp_path, shared, "options.types=common", site=tables), out=tmp_path / "schemes")
    run(fedner(tmp_path, "options.types=common", site=tables), out=tmp_path / "private")
    kept = memory_of(tmp_path / "private" / "sites" / "site-2", Memory).form
    assert (kept.types, kept.tag_scheme) == (["Drug", "Effect", "Medication"], "iobes")


@each(
    ("override", "words"),
    [
        ('options.private=["lstm"]', "no part 'lstm' to keep private.*bilstm, character"),
        ("options.local_steps=0", "local_steps"),
        ("training.optimiser=sgd", "Adam"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        method, federation, _ = started(tmp_path, fedner(tmp_path, override))
        method.start(federation)


@each("size", [1, 5, 64, 1000])
def test_shares_of_a_batch_are_whole_and_nobody_is_left_out(size: int) -> None:
    sentences = {"a": 6000, "b": 2500, "c": 1499, "d": 1}
    shares = shares_of_batch(sentences, size)
    assert min(shares.values()) >= 1
    for site, count in sentences.items():
        assert abs(shares[site] - size * count / 10_000) <= 1
    if size >= 64:
        assert sum(shares.values()) in (size, size + 1)  # d is rounded up from nothing


def test_a_site_that_would_draw_another_batch_is_refused() -> None:
    ask = TakeShare(batch_size=4, share=0.25, total=0)
    check_reply(TAKE_SHARE, ask, ShareTaken(4))
    with pytest.raises(GuardError, match="batch_size must be the one that was asked for"):
        check_reply(TAKE_SHARE, ask, ShareTaken(5))


@each("sums", ["plain", "masked"])
def test_sites_keep_the_share_that_their_text_is_of_all(sums: str, tmp_path: Path) -> None:
    """Masks hide how much text a site has, so each works out its own."""
    sites = write_sites(tmp_path / "data", 1, train=20)
    sites += write_sites(tmp_path / "small", 3, train=5)[1:]
    settings = fedner(tmp_path, "rounds=1", f"federation.sums={sums}", site=sites)
    folder = run(settings, out=tmp_path / "run").folder / "sites"
    kept = [memory_of(folder / table["name"], FedNER.Memory) for table in sites]
    assert [(one.batch_size, one.share) for one in kept] == [(4, 2 / 3), (1, 1 / 6), (1, 1 / 6)]


def test_a_site_that_was_away_for_ten_rounds_comes_back_with_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, bytes] = {}

    class Away(Seen):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            here = {s: ask for s, ask in asks.items() if s != "site-2" or not 5 <= round < 15}
            yield from super().deliver(step, round, asks=here, timeout=timeout)
            if len(here) < len(asks):
                yield Delivery("site-2", encode(Failure("timeout", "", "", "")), 0.0)
            elif step == "improve":
                seen[round] = self.memory("site-2").own["crf.linear.weight"].tobytes()

    use_engine(monkeypatch, Away)
    settings = fedner(tmp_path, "rounds=18", "federation.at_least=2")
    result = run(settings, out=tmp_path / "run").result
    away = [entry.round for entry in result.history if entry.failed]
    assert away == list(range(5, 15))
    assert sorted(seen) == [1, 2, 3, 4, 15, 16, 17, 18]
    before, after = (np.frombuffer(seen[n], np.float32) for n in (4, 15))
    assert 0 < np.abs(after - before).max() <= 0.021  # one step of Adam from where it was


@each("more", [(), ("options.local_steps=2",)])
def test_rows_of_zeros_stay_at_the_site(tmp_path: Path, more: tuple[str, ...]) -> None:
    options = ("training.batch_size=3", "select.every=2", *more)
    method, federation, engine = started(tmp_path, fedner(tmp_path, *options))
    state = method.start(federation)
    method.round(state, federation, 1)
    sent = engine.sent["site-1"].update
    bits = np.unpackbits(sent["word.weight?"])[: len(state.weights["word.weight"])]
    assert 0 < bits.sum() == len(sent["word.weight"]) < len(bits)
    assert sent["word.weight"].any(1).all()


def test_several_steps_in_a_round_send_how_far_the_shared_parts_moved(tmp_path: Path) -> None:
    settings = fedner(tmp_path, "options.local_steps=3")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    assert facts["sentences"] == 3 * 6
    for name, value in after.weights.items():
        mean = sum(one.update[name] for one in engine.updates.values())
        np.testing.assert_allclose(value - state.weights[name], mean, atol=1e-6)
    assert engine.memory("site-1").steps == 3
    assert set(engine.memory("site-1").means) > set(engine.memory("site-1").own)


@each("private", [["bilstm", "crf"], ["word", "crf"]])
def test_word_vectors_are_used_and_never_sent(tmp_path: Path, private: list[str]) -> None:
    vectors = tmp_path / "vectors.txt"
    rows = {"aspirin": np.full(8, 3.0), "nausea": np.arange(8.0)}
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()]
    vectors.write_text("".join(lines))
    settings = fedner(
        tmp_path, f"options.private={json.dumps(private)}", f'model.vectors="{vectors}"'
    )
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    method.score(state, federation, part="dev", round=1)
    table = engine.memory("site-1").best["word.weight"]
    ids = {int(np.abs(table - row).sum(1).argmin()) for row in rows.values()}
    assert len(ids) == 2
    for row in rows.values():
        assert np.abs(table - row).sum(1).min() < 1e-4
    if "word" not in private:
        sent = state.weights["word.weight"]
        assert np.abs(sent).max() < 1.0  # nothing of the file


def test_a_site_keeps_the_tagger_that_was_best_on_its_own_text(tmp_path: Path) -> None:
    settings = fedner(tmp_path)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    kept = []
    for number in range(1, 9):
        state, _ = method.round(state, federation, number)
        counts = method.score(state, federation, part="dev", round=number)
        memory = engine.memory("site-1")
        kept.append((memory.best_round, memory.best_score))
        assert set(memory.best) == {*state.weights, *memory.own}
        assert counts["site-1"].sentences == 6
    assert [score for _, score in kept] == sorted(score for _, score in kept)
    assert all(round <= number for number, (round, _) in enumerate(kept, 1))


def test_or_the_tagger_of_the_last_round(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, fedner(tmp_path, "select.by=last"))
    state = method.start(federation)
    for number in (1, 2, 3):
        method.score(state, federation, part="dev", round=number)
        assert engine.memory("site-1").best_round == number


def test_alone_and_pooled_are_federations_of_one(tmp_path: Path) -> None:
    for method in ("alone", "pooled"):
        settings = tiny(
            tmp_path, f"method={method}", "base=fedner-tagger", "rounds=2", "select.every=1"
        )
        result = run(settings, out=tmp_path / method).result
        assert set(result.scores.sites) == {"site-1", "site-2", "site-3"}
    text = tmp_path / "note.conll"
    write_conll(text, sentences("site-1", "test", 2))
    assert len(predict(tmp_path / "alone", [text], site="site-3")) == 2
    found = predict(tmp_path / "pooled", [text])
    write(found, tmp_path / "found.jsonl", "jsonl")
    assert (tmp_path / "found.jsonl").read_text()


def test_a_tagger_without_a_part_that_is_private_by_itself_trains(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedner-tagger", "model.bilstm_layers=0", "rounds=1")
    assert run(settings, out=tmp_path / "run").result.rounds == 1
