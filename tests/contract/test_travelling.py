"""Common weights and what sites learn travel in fewer bytes, whatever the method and kind."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import SettingsError
from confide.federation.broadcast import CACHED, COMMON, FIRST, GIVES, KEEP
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode, encode
from confide.federation.quantising import Quantiser, quantise_reply, restore_reply
from confide.federation.steps import Step
from confide.methods import METHODS, method_of
from confide.methods.fedavg import TRAIN, Train, Update
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import APART, OPEN, SEES_EACH
from contract.learned import LEARNING
from contract.runs import (
    Asking,
    Straight,
    bare_and_masked,
    but_bytes,
    same_run,
    states,
    stopping_at,
    use_engine,
)
from contract.test_contract import first_score, moments

LOSSY = ("federation.up=int4", "federation.down=int4")
QUICK = {"fedavg-tagger", "fedner-tagger", "pseudo-complete-tagger", "lazy-mil-bags"}


def gives(step: Step) -> bool:
    own = typing.get_origin(step.ask) or step.ask
    return COMMON in own.__dataclass_fields__


GIVING = [name for name, pair in OPEN.items() if any(map(gives, pair.steps))]


MADE = Callable[..., Straight]


def pairs(names: Collection[str], fast: Collection[str] = QUICK) -> list[Any]:
    """Of these pairs those that differ in what travels: a method's messages, or a kind's arrays."""
    return [
        pytest.param(name, marks=[] if name in fast else [pytest.mark.slow])
        for name in names
        if name in APART
    ]


def sent(folder: Path, way: str) -> int:
    rows = read_ledger(folder / "ledger.jsonl")
    return sum(row.bytes for row in rows if row.direction == way)


@pytest.mark.parametrize("method", pairs(GIVING))
def test_nothing_given_twice_changes_no_number(method: str, straight: MADE, tmp_path: Path) -> None:
    cached = tiny(tmp_path, f"method={method}", "federation.down=cached")
    found = {
        "whole": straight(f"method={method}").folder,
        "cached": run(cached, out=tmp_path / "cached").folder,
    }
    assert states(found["whole"]) == states(found["cached"])
    assert not but_bytes(found["whole"], found["cached"])
    assert sent(found["cached"], "down") <= sent(found["whole"], "down") + 10_000


@pytest.mark.parametrize("method", pairs(GIVING))
def test_first_weights_are_drawn_by_the_sites(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No site is given them, unless (in a chain) what another site has learnt comes first."""
    steps = {one.name: one for one in METHODS[method].steps if gives(one)}
    first: dict[str, set[str]] = {}

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if step in steps and (held := getattr(decode(steps[step].ask, ask), COMMON)):
            first.setdefault(site, set(held))

    use_engine(monkeypatch, Asking, look=staticmethod(look))
    settings = tiny(tmp_path, f"method={method}", "rounds=1", "federation.down=cached")
    assert not run(settings, out=tmp_path / "run").result.history[-1].failed
    assert {GIVES, FIRST} in first.values()
    assert all(held == {GIVES, FIRST} or GIVES not in held for held in first.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(QUICK))
def test_workers_code_as_one_process_does(method: str, tmp_path: Path) -> None:
    """What rounding left out is a site's, and stays in its process."""
    folders = [
        run(
            tiny(tmp_path, f"method={method}", "rounds=2", *LOSSY, f"workers={workers}"),
            out=tmp_path / f"{workers}",
        ).folder
        for workers in (1, 2)
    ]
    same_run(*folders)


def test_weights_that_a_site_has_are_named_by_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, str, set[str]]] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if step in ("train", "score"):
            kind = next(one.ask for one in METHODS["fedavg-tagger"].steps if one.name == step)
            held = getattr(decode(kind, ask), COMMON)
            form = (
                "digest"
                if held.keys() <= {GIVES, KEEP}
                else "seed"
                if FIRST in held
                else "codes"
                if "?from" in held
                else "whole"
            )
            seen.append((step, round, site, {form}))

    use_engine(monkeypatch, Asking, look=staticmethod(look))
    run(tiny(tmp_path, "rounds=3", "federation.down=int8"), out=tmp_path / "run")
    forms = [(step, round, *form) for step, round, site, form in seen if site == "site-1"]
    assert forms[:6] == [
        ("train", 1, "seed"), ("score", 1, "codes"),
        ("train", 2, "digest"), ("score", 2, "codes"),
        ("train", 3, "digest"), ("score", 3, "codes"),
    ]  # fmt: skip


def test_a_site_trains_from_the_weights_that_the_server_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sites have after the last score is the state, bit for bit; they keep the best, too."""
    held: list[list[dict[str, np.ndarray]]] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        held.append([*engine._hosts[site].site.scratch.get(CACHED, {}).values()])

    use_engine(monkeypatch, Asking, look=staticmethod(look))
    found = run(tiny(tmp_path, "rounds=3", *LOSSY), out=tmp_path / "run")
    there = [{n: a.tobytes() for n, a in one.items()} for one in held[-1]]
    pair = METHODS["fedavg-tagger"]
    for round in {3, found.result.best_round}:
        data = states(found.folder)[f"checkpoints/round-{round:06}.ckpt"]
        kept = decode(pair.State, data).weights
        assert {n: a.tobytes() for n, a in kept.items()} in there


def test_the_best_round_is_tested_without_being_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[set[str]] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        kind = METHODS["fedavg-tagger"].steps[-2]
        assert kind.name == "score"
        if step == "score" and decode(kind.ask, ask).part == "test":
            sent.append(set(decode(kind.ask, ask).weights))

    use_engine(monkeypatch, Asking, look=staticmethod(look))
    done = run(tiny(tmp_path, *LEARNING, "rounds=6", "federation.down=int8"), out=tmp_path / "run")
    assert done.result.best_round is not None and done.result.best_round < 6  # nothing is better
    assert sent == [{GIVES}] * 3


@pytest.mark.parametrize(
    ("up", "every"),
    [
        ("top", 9),
        pytest.param("int4", 4, marks=pytest.mark.slow),
        pytest.param("top", 4, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(
    tmp_path: Path, up: str, every: int
) -> None:
    """But that weights are given whole again: what rounding left out is kept on both sides."""
    overrides = ("rounds=3", f"federation.up={up}", "federation.down=int2", "federation.top=0.1")
    settings = tiny(tmp_path, *overrides)
    events: list[Any] = []
    straight = run(settings, out=tmp_path / "straight", on_event=events.append).folder
    for point in moments(events)[1::every]:
        out = tmp_path / f"stopped-{point}"
        with pytest.raises(KeyboardInterrupt):
            run(settings, out=out, on_event=stopping_at(point))
        run(settings, out=out, resume=(out / "settings.toml").exists())
        assert states(straight) == states(out)
        assert not but_bytes(straight, out)


@pytest.mark.parametrize(
    "method",
    pairs([n for n in GIVING if n not in SEES_EACH], fast=("fedavg-tagger", "fedner-tagger")),
)
def test_under_masks_weights_are_given_in_codes(
    method: str, tmp_path: Path, straight: MADE
) -> None:
    """The sum is that of whole numbers in the clear, bit for bit, and sites summed the same ask."""
    overrides = (f"method={method}", "federation.down=int4")
    found = bare_and_masked(tmp_path, *overrides)
    assert states(found["bare"]) == states(found["masked"])
    whole = straight(f"method={method}", "federation.sums=masked").folder
    assert sent(found["masked"], "down") < sent(whole, "down") + 10_000


def test_under_masks_a_site_without_the_weights_is_given_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sums in ("plain", "masked"):
        folders = []
        for forget in (False, True):

            def look(
                engine: Any,
                step: str,
                round: int,
                site: str,
                ask: bytes,
                reply: bytes,
                forget: bool = forget,
            ) -> None:
                if forget and (step, round, site) == ("score", 1, "site-3"):
                    engine._hosts[site].site.scratch[CACHED].clear()

            with monkeypatch.context() as patch:
                use_engine(patch, Asking, look=staticmethod(look))
                settings = tiny(tmp_path, "federation.down=int8", f"federation.sums={sums}")
                folders.append(run(settings, out=tmp_path / f"{sums}-{forget}").folder)
        assert states(folders[0]) == states(folders[1])
        assert sent(folders[0], "down") < sent(folders[1], "down")


@pytest.mark.parametrize(
    "coding",
    [
        "int4",
        "top",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("float16", "int8", "int2")),
    ],
)
def test_every_coding_learns_and_saves(tmp_path: Path, coding: str, straight: MADE) -> None:
    overrides = ("rounds=8", "training.local_epochs=2", "training.learning_rate=0.03")
    overrides += ("model.dropout=0.1", "federation.top=0.2", "model.word_dim=64")
    whole = straight(*overrides)
    found = run(
        tiny(tmp_path, *overrides, f"federation.up={coding}", f"federation.down={coding}"),
        out=tmp_path / coding,
    )
    assert first_score("ner", found.result) > 0.8
    assert sent(found.folder, "up") < sent(whole.folder, "up")
    assert sent(found.folder, "down") < 0.6 * sent(whole.folder, "down")


def test_the_same_ask_gets_the_same_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[bool] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if step == "train":
            again.append(engine.again(step, round, site, ask) == reply)

    use_engine(monkeypatch, Asking, look=staticmethod(look))
    for up in ("int8", "top"):
        run(tiny(tmp_path, "rounds=3", f"federation.up={up}"), out=tmp_path / up)
    assert len(again) == 18
    assert all(again)


def test_what_a_site_may_send_bounds_its_codes(tmp_path: Path) -> None:
    weights = {"table": np.ones((20, 30), np.float32), "bias": np.zeros(5, np.float32)}
    ask: Any = Train(weights, None, "examples", [])  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    moved = {
        n: (a + rng.standard_normal(a.shape).astype(np.float32)) * 7 for n, a in weights.items()
    }
    reply = Update(moved, 7.0, {}, 1.0, 1)
    for coding in ("float16", "int8", "int4", "int2", "top"):
        coded, _ = quantise_reply(
            TRAIN, ask, reply, quantiser=Quantiser(coding, 0.5), seed=None, residual={}, most=0.5
        )
        back: Any = restore_reply(TRAIN, ask, decode(Update, encode(coded)))
        change = [back.weights[n] / 7 - weights[n] for n in weights]
        assert 0.2 < np.sqrt(sum(float(np.square(c).sum()) for c in change)) <= 0.5 + 1e-4


@each("method", ["feded-relations", "feded-tagger"])
def test_what_uploads_no_weights_refuses_codes(method: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no weights travel up"):
        method_of(tiny(tmp_path, f"method={method}", "federation.up=int8"))


def test_references_send_nothing_and_so_nothing_in_codes(tmp_path: Path) -> None:
    folders = [
        run(tiny(tmp_path, "method=pooled", *more), out=tmp_path / f"{len(more)}").folder
        for more in ((), LOSSY)
    ]
    assert states(folders[0]) == states(folders[1])


@pytest.mark.parametrize(
    ("method", "up"),
    [
        pytest.param(
            method,
            up,
            marks=[]
            if (method, up) in (("fedavg-tagger", "int8"), ("lazy-mil-bags", "float16"))
            else [pytest.mark.slow],
        )
        for method in ("fedavg-tagger", "lazy-mil-bags", "fedavg-encoder")
        for up in ("float16", "int8")
    ],
)
def test_narrow_lanes_are_summed_alike_in_the_clear_and_under_masks(
    method: str, up: str, tmp_path: Path, straight: MADE
) -> None:
    overrides = (f"method={method}", f"federation.up={up}")
    found = bare_and_masked(tmp_path, *overrides)
    assert states(found["bare"]) == states(found["masked"])
    wide = straight(f"method={method}", "federation.sums=masked").folder
    assert sent(found["masked"], "up") < sent(wide, "up")


@pytest.mark.parametrize("up", [pytest.param("float16", marks=pytest.mark.slow), "int8"])
def test_narrow_lanes_learn(tmp_path: Path, up: str) -> None:
    overrides = ("rounds=7", "training.local_epochs=2", "training.learning_rate=0.03")
    overrides += ("model.dropout=0.1", "federation.sums=masked", f"federation.up={up}")
    assert first_score("ner", run(tiny(tmp_path, *overrides), out=tmp_path / up).result) > 0.8


@pytest.mark.parametrize("every", [15, pytest.param(6, marks=pytest.mark.slow)])
def test_narrow_lanes_are_the_same_after_a_stop(tmp_path: Path, every: int) -> None:
    settings = tiny(tmp_path, "federation.up=float16", "federation.sums=masked")
    events: list[Any] = []
    straight = run(settings, out=tmp_path / "straight", on_event=events.append).folder
    for point in moments(events)[12::every]:
        out = tmp_path / f"stopped-{point}"
        with pytest.raises(KeyboardInterrupt):
            run(settings, out=out, on_event=stopping_at(point))
        run(settings, out=out, resume=(out / "settings.toml").exists())
        assert states(straight) == states(out)
