"""Every pair sums whole numbers, with masks or without, to the same state bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import DataError, QuorumError, SettingsError
from confide.federation.combining import TOO_FAR, Pile
from confide.federation.engines import Hosting
from confide.federation.failures import Failure
from confide.federation.ledger import read_ledger
from confide.federation.messages import by_name, decode, encode, peek, values_of
from confide.federation.secure.messages import Offered, Opening
from confide.federation.site import Site, SiteHost
from confide.methods import METHODS, method_of
from confide.methods.fedavg import mean_of
from confide.runs.run import run
from confide.settings import parse
from contract.corpus import tiny, write_sites
from contract.entries import DEALT, ENTRIES, FAST, OPEN, SEES_EACH
from contract.runs import (
    Asking,
    Forging,
    Straight,
    bare_and_masked,
    breaking,
    differences,
    result,
    states,
    stopping_at,
    use_engine,
)
from contract.test_contract import first_score, moments
from contract.test_every_guard import SEEN

QUICK = (
    "fedavg-tagger",
    "fedner-tagger",
    "feded-relations",
    "pseudo-complete-tagger",
    "lazy-mil-bags",
    "fedatt-tagger",
)
MADE = Callable[..., Straight]
SEEN_ONE_BY_ONE = {
    "feddf": "the server distils from each site's model",
    "chain": "each site trains on from the weights of the one before",
    "fedex": "the server multiplies each site's factors",
}
"""Methods whose server has to read what each site learnt: they refuse masks."""


def forms() -> list[object]:
    found: list[object] = []
    for name in OPEN:
        if name not in FAST or name in SEES_EACH:
            continue
        marks = [] if name in (*QUICK[:2], "lazy-mil-bags") else [pytest.mark.slow]
        found.append(pytest.param(name, (), id=name, marks=marks))
        kept = [v for v in ENTRIES[name].variants if not any("fraction" in one for one in v)]
        found += [
            pytest.param(name, v, id="-".join((name, *v)), marks=[pytest.mark.slow]) for v in kept
        ]
    found.append(pytest.param("feded-relations", ("options.wire_dtype=int8",), id="feded-int8"))
    return found


@pytest.mark.parametrize(("method", "form"), forms())
def test_masks_change_no_bit_of_the_sum(
    method: str, form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of one site is in the clear but what `SEEN` names, and whether it has text."""
    told: dict[tuple[str, str], Any] = {}
    steps: set[str] = set()

    def look(engine: Asking, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        step = engine._hosts[site]._steps.get(name)
        if step is None or peek(reply).message == Offered.__name__:
            return
        steps.add(name)
        for field, form, value in values_of(decode(step.reply, reply)):
            empty = form.holds_arrays and not any(map(np.size, by_name(value).values()))
            if (name, field) not in SEEN and not empty and value not in (0, 1):
                told[name, field] = value

    use_engine(monkeypatch, Asking, look=look)
    folders = bare_and_masked(tmp_path, f"method={method}", *form, "rounds=2")
    assert states(folders["bare"]) == states(folders["masked"])
    rows = read_ledger(folders["masked"] / "ledger.jsonl")
    seen = {row.seen for row in rows if row.direction == "up"}
    assert "sum" not in seen and "masked" in seen
    assert steps and not told


def test_a_method_whose_server_reads_each_update_refuses_masks() -> None:
    """So does [privacy] with a method that has no noise."""
    refused = set()
    for name, pair in METHODS.items():
        table = {"task": pair.task, "method": pair.method, "federation": {"sums": "masked"}}
        tree = table | ({"model": {"kind": pair.kind.name}} if pair.task == "ner" else {})
        settings = parse(tree)
        assert settings.trained_by == name
        try:
            pair(settings)
        except SettingsError as error:
            if "masks let it read only sums" in str(error):
                refused.add(pair.method)
        if not pair.private:
            with pytest.raises(SettingsError, match="trains without noise"):
                method_of(parse(tree | {"privacy": {"unit": "document"}}))
        alone = {step.name for step in pair.steps if step.learnt and not step.summed}
        assert not alone or pair.method in (*SEEN_ONE_BY_ONE, "fedatt"), name
    assert refused == SEEN_ONE_BY_ONE.keys()


def test_a_site_under_masks_shows_no_update_whatever_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAtt's step for sums in the clear, asked of a site whose own guard `masked` is off."""
    codes: list[str] = []

    def look(engine: Asking, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if name == "measure" and not codes:
            inner = decode(Opening, ask).ask_B.tobytes()
            codes.append(decode(Failure, engine.again("train_alone", round, site, inner)).code)

    use_engine(monkeypatch, Asking, look=look)
    run(tiny(tmp_path, "method=fedatt-tagger", "federation.sums=masked"), out=tmp_path / "run")
    assert codes == ["only-masked"]


@pytest.mark.parametrize("every", [17, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(tmp_path: Path, every: int) -> None:
    """Stopped at events spread over greeting, offers, masks, agreements, unmasking and scores."""
    overrides = ("rounds=3", "options.weighting=examples", "federation.sums=masked")
    settings = tiny(tmp_path, *overrides)
    events: list[Any] = []
    straight = run(settings, out=tmp_path / "straight", on_event=events.append).folder
    points = moments(events)[::every]
    assert len(points) > 25 // every
    for point in points:
        out = tmp_path / f"stopped-{point}"
        with pytest.raises(KeyboardInterrupt):
            run(settings, out=out, on_event=stopping_at(point))
        run(settings, out=out, resume=(out / "settings.toml").exists())
        assert states(straight) == states(out)
        odd = list(differences(result(straight), result(out)))
        assert not [one for one in odd if "bytes" not in one]  # sites greet anew


@pytest.mark.slow
def test_workers_mask_as_one_process_does(tmp_path: Path) -> None:
    folders = [
        run(
            tiny(tmp_path, "rounds=2", f"workers={workers}", "federation.sums=masked"),
            out=tmp_path / f"{workers}",
        ).folder
        for workers in (1, 2)
    ]
    assert states(folders[0]) == states(folders[1])


EXCHANGED = ("train", "mask", "agree", "unmask")


@pytest.mark.parametrize("step", EXCHANGED)
@pytest.mark.parametrize("sites", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_site_lost_in_any_exchange_is_left_out_or_still_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: MADE, step: str, sites: int
) -> None:
    """The sum is that of the sites whose masked numbers came; the lost one is asked no more."""

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        lost = (name, site, round) == (step, "site-2", 1)
        return encode(Failure("lost", "", "", "")) if lost else reply

    everyone = straight("rounds=2", "federation.sums=masked", sites=sites)
    use_engine(monkeypatch, Forging, change=staticmethod(change))
    overrides = ("rounds=2", "federation.sums=masked", "federation.at_least=3")
    found = run(tiny(tmp_path, *overrides, sites=sites), out=tmp_path / "run").result
    assert "site-2" in found.history[0].failed
    summed = found.history[0].sentences
    assert (summed == result(everyone.folder)["history"][0]["sentences"]) == (
        step in ("agree", "unmask")
    )
    rows = read_ledger(tmp_path / "run" / "ledger.jsonl")
    asked = {row.step for row in rows if row.site == "site-2" and row.round == 2}
    assert ("train" in asked) == (step in ("agree", "unmask"))


@pytest.mark.parametrize(
    ("every", "lost", "then", "more"),
    [
        (3, ("mask", 1), ("ask", "train", 2), ()),  # between two checkpoints
        (1, ("score", 2), ("reply", "unmask", 2), ()),  # when one site has opened the sum
        pytest.param(1, ("mask", 2), ("ask", "score", 2), (), marks=pytest.mark.slow),  # in it
        pytest.param(
            3, ("mask", 2), ("ask", "improve", 3), ("method=fedner",), marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_that_has_lost_a_site_and_is_stopped_loses_it_in_the_same_sum_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    lost: tuple[str, int],
    then: tuple[str, str, int],
    more: tuple[str, ...],
) -> None:
    """Sites do not help to sum a set that has grown, and open each turn for one set only."""
    gone: list[bool] = []
    dies = True

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        if dies and site == "site-2" and ((name, round) == lost or gone):
            gone.append(True)
            return encode(Failure("lost", "", "", ""))
        return reply

    def stop(event: Any) -> None:
        if gone and (event.kind, event.step, event.round) == then:
            raise KeyboardInterrupt

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    overrides = ("federation.sums=masked", "federation.at_least=4", f"select.every={every}")
    settings = tiny(tmp_path, "rounds=3", *overrides, *more, sites=5)
    straight = run(settings, out=tmp_path / "straight").folder
    gone.clear()
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "stopped", on_event=stop)
    dies = False  # it is back, and is not asked
    resumed = run(settings, out=tmp_path / "stopped", resume=True).folder
    found, wanted = states(resumed), states(straight)
    assert found[max(found)] == wanted[max(wanted)]


def test_three_sites_cannot_lose_one_and_two_cannot_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="cannot hide"):
        run(tiny(tmp_path / "two", "federation.sums=masked", sites=2), out=tmp_path / "two")

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        lost = (name, site, round) == ("mask", "site-2", 1)
        return encode(Failure("lost", "", "", "")) if lost else reply

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    settings = tiny(tmp_path, "federation.sums=masked", "federation.at_least=2")
    with pytest.raises(QuorumError):
        run(settings, out=tmp_path / "run")


def test_a_reply_that_cannot_be_summed_is_zeros_and_nobody_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, "site-2", "train", DataError("Hiltrud"))
    settings = tiny(tmp_path, "federation.sums=masked", "rounds=1", "federation.at_least=2")
    found = run(settings, out=tmp_path / "run").result
    assert found.history[0].failed == {}
    assert "Hiltrud" in (tmp_path / "run" / "sites" / "site-2" / "site.log").read_text()
    settings = tiny(tmp_path, "federation.sums=masked", "rounds=1")
    with pytest.raises(QuorumError, match="1 had nothing that could be summed") as caught:
        run(settings, out=tmp_path / "strict")
    assert "site-2" not in str(caught.value)


@each(("key", "value"), [("combine", "median"), ("max_norm_ratio", "3"), ("fraction", "0.5")])
def test_rules_that_look_at_single_replies_are_refused_with_masks(
    tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(SettingsError, match=f"federation.{key} = "):
        tiny(tmp_path, "federation.sums=masked", f"federation.{key}={value}")


# --- robust and unreadable at once -----------------------------------------------------------

GROUPED = ("federation.groups=3", "federation.combine=median", "federation.colluding=1")


def too_far(found: Any) -> list[set[str]]:
    """By round, the sites whose group did not count."""
    every = [[one for one in turn.faults if one.code == "too-far"] for turn in found.history]
    for one in (fault for faults in every for fault in faults):
        assert one.why.count("site-") >= 3, "the whole group is named"
    return [{one.site for one in faults} for faults in every]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["median", "clipped"])
def test_a_group_with_a_liar_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The liar's change is times -10; of nine sites in three groups, two groups are honest."""
    learning = (*ENTRIES["fedavg-tagger"].learning, "federation.sums=masked")
    groups = (*GROUPED, f"federation.combine={how}")

    def reached(name: str, *overrides: str) -> tuple[float, Any]:
        settings = tiny(tmp_path, *learning, *overrides, sites=9)
        found = run(settings, out=tmp_path / name).result
        return first_score(settings.task, found), found

    honest, found = reached("honest", *groups)
    assert not any(too_far(found))
    real = Hosting.host

    def host(self: Hosting, spec: Site, scratch: dict[str, Any], **given: Any) -> SiteHost:
        found = real(self, spec, scratch, **given)
        if spec.name == "site-5":
            step = found._steps["train"]

            def lying(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
                reply, after = step.answer(site, memory, ask, turn)
                weights = {
                    name: ask.weights[name] - 10 * (array - ask.weights[name])
                    for name, array in reply.weights.items()
                }
                return dataclasses.replace(reply, weights=weights), after

            found._steps = {**found._steps, "train": dataclasses.replace(step, answer=lying)}
        return found

    monkeypatch.setattr(Hosting, "host", host)
    (grouped, found), (alone, _) = reached("grouped", *groups), reached("alone")
    assert grouped > honest - 0.1
    assert alone < grouped - 0.2
    assert too_far(found) == [{"site-2", "site-5", "site-8"}] * found.rounds
    last = ("train", "down", found.rounds)
    asked = [one for one in read_ledger(tmp_path / "grouped" / "ledger.jsonl")
             if (one.step, one.direction, one.round) == last]  # fmt: skip
    assert len({one.site for one in asked}) == 9, "who lied once is asked again"
    all_count = reached("median", *groups, "federation.max_norm_ratio=inf", "rounds=1")[1]
    assert not any(too_far(all_count))


def test_a_round_in_which_groups_do_not_count_needs_sites_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `at_least` the sites of a group that is too far off are too few, as single ones are."""
    real = Pile.leave_out

    def leave_out(pile: Pile) -> dict[str, tuple[str, str]]:
        found = real(pile)
        first = pile.sites[0]
        del pile._kept[first]
        return {**found, first: (TOO_FAR, "its update is too large")}

    monkeypatch.setattr(Pile, "leave_out", leave_out)
    settings = (*GROUPED, "federation.sums=masked", "rounds=1")
    site = write_sites(tmp_path / "small", 9, train=6, held_out=2)
    found = run(tiny(tmp_path, *settings, "federation.at_least=6", site=site), out=tmp_path / "six")
    assert too_far(found.result) == [{"site-1", "site-4", "site-7"}]
    with pytest.raises(QuorumError, match="7"):
        run(tiny(tmp_path, *settings, "federation.at_least=7", site=site), out=tmp_path / "seven")


def test_groups_that_are_too_few_or_compared_by_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="too few groups"):
        run(tiny(tmp_path, "federation.sums=masked", *GROUPED, sites=8), out=tmp_path / "run")
    with pytest.raises(SettingsError, match="whose groups are combined"):
        tiny(tmp_path, "federation.sums=masked", "federation.groups=3")


def test_a_site_that_knows_of_no_groups_is_summed_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that makes up groups would choose who hides whom."""
    site = write_sites(tmp_path / "small", 9, train=6, held_out=2)
    settings = tiny(tmp_path, "federation.sums=masked", *GROUPED, site=site)
    real = Hosting.host

    def host(self: Hosting, spec: Site, scratch: dict[str, Any], **given: Any) -> SiteHost:
        return real(dataclasses.replace(self, groups=0), spec, scratch, **given)

    monkeypatch.setattr(Hosting, "host", host)
    with pytest.raises(QuorumError, match="over too few sites, over strangers"):
        run(settings, out=tmp_path / "run")


def test_a_round_after_which_the_score_falls_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of round 4 are zeros; the state goes on from round 3."""
    real = mean_of

    def broken(total: Any, before: Any) -> Any:
        rounds.append(len(rounds) + 1)
        found = real(total, before)
        return {n: a * 0 for n, a in found.items()} if rounds[-1] == 4 else found

    monkeypatch.setattr("confide.methods.fedavg.mean_of", broken)
    learning = (*ENTRIES["fedavg-tagger"].learning, "rounds=5")
    found = {}
    for most in ("0", "0.2"):
        rounds: list[int] = []
        settings = tiny(tmp_path, *learning, f"federation.roll_back={most}")
        found[most] = run(settings, out=tmp_path / most).result.history
    assert [bool((one.model_extra or {}).get("rolled_back")) for one in found["0.2"]] == [
        False, False, False, True, False,
    ]  # fmt: skip
    assert found["0"][4].dev["strict"] < 0.3 < found["0.2"][4].dev["strict"]


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in DEALT if name not in SEES_EACH])
def test_a_pair_learns_from_whole_numbers(method: str, tmp_path: Path) -> None:
    """Fast is that of test_travelling.py, in narrow lanes."""
    entry = ENTRIES[method]
    overrides = (f"method={method}", *entry.learning, "federation.sums=masked")
    found = run(tiny(tmp_path, *overrides), out=tmp_path / "run")
    assert first_score(METHODS[method].task, found.result) >= entry.reaches
