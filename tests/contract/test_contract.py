"""The contract that every method keeps: `entries.ENTRIES` names them, one entry a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import CheckpointError, DataError, QuorumError, RunError, SiteFault
from confide.federation.federation import Delivery, Federation
from confide.federation.messages import class_of, decode, encode, forms_of, peek
from confide.federation.steps import Step
from confide.kinds import KINDS, RELEASED
from confide.methods import METHODS, OURS
from confide.runs.run import run
from confide.settings import REFERENCES
from confide.tasks import TASKS
from contract.corpus import tiny
from contract.entries import (
    ANSWERED,
    APART,
    CARRIED,
    DEALT,
    ENTRIES,
    FAST,
    FEDAVG,
    METHOD,
    OPEN,
    OPTIONAL,
    STEPS,
    asking,
    first_steps,
    pairs,
)
from contract.runs import (
    Asking,
    Forging,
    Straight,
    breaking,
    but_bytes,
    memory_files,
    result,
    same_run,
    states,
    stopping_at,
    use_engine,
)

SECRET = "Hiltrud Ängström"

unlike = pytest.mark.parametrize("method", pairs(fast=CARRIED, of=APART))
MADE = Callable[..., Straight]


TYPICAL = (("fedavg-tagger", "train"), ("lazy-mil-bags", "bid"))
"""A step whose replies are summed and one whose replies are looked at one by one."""


def step_of(method: str, name: str) -> Step:
    return next(step for step in METHODS[method].steps if step.name == name)


def test_every_pair_has_an_entry() -> None:
    assert ENTRIES.keys() == OPEN.keys()
    assert all(pair.name == name for name, pair in METHODS.items())
    assert all(method.name == name for name, method in OURS.items())
    assert all(kind.name == name for name, kind in KINDS.items())
    assert {kind.release.file: name for name, kind in KINDS.items()} == RELEASED
    assert "fedavg-nobody" not in METHODS and "fedner-bags" not in METHODS
    assert all(f"{pair.method}-{pair.kind.name}" == name for name, pair in METHODS.items())


# --- messages ------------------------------------------------------------------------------


def test_state_and_memory_can_travel() -> None:
    for pair in METHODS.values():
        assert forms_of(pair.State)
        assert forms_of(pair.Memory)


@pytest.mark.parametrize(
    ("method", "form"),
    [
        pytest.param(name, form, marks=[pytest.mark.slow] * (name not in METHOD.values()))
        for name, entry in ENTRIES.items()
        for form in ((), *entry.asked.values())
    ],
)
def test_every_message_round_trips_and_a_re_ask_is_harmless(
    method: str,
    form: tuple[str, ...],
    straight: MADE,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each ask is asked twice; the run is the same as one that asks once."""
    once = straight(f"method={method}", *form)
    for one in once.crossed:
        declared = step_of(method, one.step)
        assert encode(decode(declared.ask, one.ask)) == one.ask
        assert encode(decode(declared.reply, one.reply)) == one.reply

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        memory = memory_files(tmp_path / "twice")
        assert engine.again(step, round, site, ask) == reply
        assert memory_files(tmp_path / "twice") == memory

    use_engine(monkeypatch, Asking, look=look)
    run(once.settings, out=tmp_path / "twice")
    others = {step for step, asked in ENTRIES[method].asked.items() if asked != form}
    steps = {one.step for one in once.crossed}
    assert steps == {step.name for step in METHODS[method].steps} - OPTIONAL - others
    same_run(once.folder, tmp_path / "twice")


# --- the same numbers, whoever computes -----------------------------------------------------


@pytest.mark.parametrize("method", pairs(fast=["fedner-tagger"], of=DEALT))
def test_both_engines_agree_whatever_workers_is(
    method: str, straight: MADE, tmp_path: Path
) -> None:
    """What a process of its own changes is where a site, its text and its memory are.

    That is the same for every method of a kind, and for every kind of a method.
    """
    agreeing(straight(f"method={method}"), 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "down"), [("feded-relations", "cached"), ("fedner-tagger", "float16")]
)
def test_engines_agree_on_what_a_process_keeps_between_asks(
    method: str, down: str, straight: MADE, tmp_path: Path
) -> None:
    """Cached weights, those in half precision, and what a site that misses rounds has of them."""
    travels = f"federation.down={down}"
    form = next(one for one in ENTRIES[method].variants if travels in one)
    agreeing(straight(f"method={method}", *form), 3, tmp_path)


def agreeing(one: Straight, workers: int, folder: Path) -> None:
    assert states(one.folder)
    settings = one.settings.model_copy(update={"workers": workers})
    same_run(one.folder, run(settings, out=folder / "workers").folder)


@unlike
def test_another_seed_gives_other_numbers(method: str, straight: MADE, tmp_path: Path) -> None:
    one = straight(f"method={method}")
    two = run(one.settings.model_copy(update={"seed": 2}), out=tmp_path / "two").folder
    assert states(one.folder).keys() == states(two).keys()
    assert states(one.folder) != states(two)


@pytest.mark.slow
@pytest.mark.parametrize("method", pairs(of=FAST))
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(
    method: str, straight: MADE, tmp_path: Path
) -> None:
    """Stopped at events spread over setup, training, scoring and the end of a round."""
    found = straight(f"method={method}")
    stopped_and_resumed(found, range(1, len(found.events), 7), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "form", "turn"),
    [
        pytest.param(name, form, turn % 4, id="-".join((name, *form)))
        for turn, (name, form) in enumerate(
            (name, form) for name, entry in ENTRIES.items() for form in entry.variants
        )
    ],
)
def test_a_run_of_another_form_that_is_stopped_and_resumed_is_the_same_run(
    method: str, form: tuple[str, ...], turn: int, straight: MADE, tmp_path: Path
) -> None:
    """At every fourth of the moments, at others from form to form."""
    found = straight(f"method={method}", *form)
    points = moments(found.events)[turn::4]
    assert len(points) > 3
    stopped_and_resumed(found, points, tmp_path)


@pytest.mark.parametrize("method", CARRIED)
def test_a_run_that_is_stopped_twice_is_the_same_run(
    method: str, straight: MADE, tmp_path: Path
) -> None:
    """At two of these moments."""
    found = straight(f"method={method}")
    points = moments(found.events)
    stopped_and_resumed(found, points[len(points) // 4 :: len(points) // 2], tmp_path)


def stopped_and_resumed(straight: Straight, points: Iterable[int], folder: Path) -> None:
    """Stop the run at each of these events, again on the way, and resume it to its end.

    A site that has been stopped is given weights whole again that would travel in fewer bytes.
    """
    whole = straight.settings.sharing.down == "whole"
    for point in points:
        out = folder / f"stopped-{point}"
        for stop in (point, point // 2 + 5):
            try:
                resume = (out / "settings.toml").exists()
                run(straight.settings, out=out, resume=resume, on_event=stopping_at(stop))
            except KeyboardInterrupt:
                continue
        run(straight.settings, out=out, resume=(out / "settings.toml").exists())
        if whole:
            same_run(straight.folder, out)
        else:
            assert states(straight.folder) == states(out)
            assert not but_bytes(straight.folder, out)


def moments(events: list[Any]) -> list[int]:
    """One event of each kind, step and round, now before one site, now before another."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, event in enumerate(events[1:], 1):
        found.setdefault((event.kind, event.step, event.round), []).append(number)
    return [group[turn % len(group)] for turn, group in enumerate(found.values())]


@unlike
def test_a_finished_run_that_is_resumed_stays_as_it_is(
    method: str, straight: MADE, tmp_path: Path
) -> None:
    done = straight(f"method={method}")
    out = done.copy(tmp_path / "run")
    run(done.settings, out=out, resume=True)
    assert (result(out), states(out)) == (result(done.folder), states(done.folder))


@unlike
def test_more_rounds_can_be_added_later(method: str, straight: MADE, tmp_path: Path) -> None:
    two = straight(f"method={method}")
    settings = two.settings.model_copy(update={"rounds": 4})
    four = run(settings, out=tmp_path / "four").folder
    longer = run(settings, out=two.copy(tmp_path / "two"), resume=True).folder
    assert result(longer) == result(four)
    assert states(longer) == states(four)
    assert "rounds = 4" in (longer / "settings.toml").read_text()


# --- faults ----------------------------------------------------------------------------------


# A fault at a site is met where the server asks a step: what answers it, and of which text, is
# another matter, so each step is broken once a task.
@pytest.mark.parametrize(("method", "step"), first_steps(ANSWERED))
def test_a_site_that_fails_is_skipped_if_enough_are_left(
    method: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, "site-2", step, DataError(SECRET))
    events: list[Any] = []
    settings = tiny(tmp_path, *asking(method, step), "federation.at_least=2")
    done = run(settings, out=tmp_path / "run", on_event=events.append)
    failed = [event for event in events if event.kind == "failed"]
    assert failed
    assert {event.site for event in failed} == {"site-2"}
    assert step in {event.step for event in failed}
    assert not any(SECRET in str(event) for event in events)
    assert [set(round.failed) for round in done.result.history] in (
        [{"site-2"}, {"site-2"}],
        [{"site-2"}, set()],  # of a step that only the first round asks
        [set(), set()],
    )
    assert {"site-1", "site-3"} <= done.result.scores.sites.keys()


@pytest.mark.parametrize(("method", "step"), first_steps(TYPICAL))
def test_a_site_that_fails_ends_the_run_in_words_if_it_is_needed(
    method: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, "site-2", step, DataError(SECRET, got=SECRET, where=SECRET))
    with pytest.raises(QuorumError) as caught:
        run(tiny(tmp_path, *asking(method, step)), out=tmp_path / "run")
    words = str(caught.value)
    assert f"site site-2, step {step}" in words
    assert "the site raised an error; its own log holds the traceback (DataError at " in words
    chain: BaseException | None = caught.value
    while chain is not None:
        assert not any(part in str(chain) for part in SECRET.split())
        chain = chain.__cause__ or chain.__context__
    assert SECRET in (tmp_path / "run" / "sites" / "site-2" / "site.log").read_text()


def poisons(step: Step) -> dict[str, Any]:
    """Ways to spoil a reply of this step: a function of its bytes each."""
    spoiled: dict[str, Any] = {
        "garbage": lambda data: b"garbage",
        "cut short": lambda data: data[: len(data) // 2],
        "another message": lambda data: data.replace(
            class_of(step.reply).__name__.encode(), b"Nonsense"
        ),
    }

    def change(name: str, value: Any) -> Any:
        def changed(data: bytes) -> bytes:
            message = decode(step.reply, data)
            return encode(dataclasses.replace(message, **{name: value(getattr(message, name))}))

        return changed

    def first(spoil: Any) -> Any:
        def spoiled_one(arrays: dict[str, Any]) -> dict[str, Any]:
            name = min(arrays, default="odd")
            return {**arrays, name: spoil(arrays.get(name, np.ones((2, 2))))}

        return spoiled_one

    for name, form in forms_of(step.reply).items():
        if form.kind == "number":
            spoiled[f"absurd {name}"] = change(name, lambda old: type(old)(10**15))
            spoiled[f"negative {name}"] = change(name, lambda old: type(old)(-(10**15)))
        if form.kind == "array":
            spoiled[f"shape of {name}"] = change(name, lambda old: np.zeros((7, 7), old.dtype))
        if form.kind == "array" and step.summed:
            spoiled[f"absurd {name}"] = change(name, lambda old: np.full_like(old, _least(old)))
            spoiled[f"type of {name}"] = change(name, lambda old: old.astype(np.float64))
            spoiled[f"NaN in {name}"] = change(name, lambda old: np.full(old.shape, np.nan))
        if form.kind == "arrays":
            spoiled[f"NaN in {name}"] = change(name, first(lambda a: np.full_like(a, np.nan)))
            spoiled[f"shape of {name}"] = change(name, first(lambda a: a[..., :-1].copy()))
            spoiled[f"other {name}"] = change(name, lambda old: {**old, "odd": np.ones(3)})
    return spoiled


def _least(array: np.ndarray) -> float:
    """What no honest number of this type is."""
    return (np.finfo if array.dtype.kind == "f" else np.iinfo)(array.dtype).min


ALONE = list(dict.fromkeys(asking(*one) for one in sorted(ANSWERED)))
"""The runs that ask every step of `ANSWERED`."""


@pytest.mark.parametrize(
    ("method", "form"),
    [
        pytest.param(chosen[0].removeprefix("method="), chosen[1:], marks=marks)
        for chosen in dict.fromkeys(asking(*one) for one in STEPS)
        for marks in [[] if chosen in ALONE else [pytest.mark.slow]]
    ],
)
def test_every_poison_of_a_reply_is_refused(
    method: str, form: tuple[str, ...], straight: MADE
) -> None:
    """By the server's check of the reply alone, with no other reply beside it."""
    chosen = (f"method={method}", *form)
    tried = set()
    for one in straight(*chosen).crossed:
        if one.step in tried:
            continue
        tried.add(one.step)
        step = step_of(method, one.step)
        ask, data = decode(step.ask, one.ask), one.reply
        assert isinstance(opened(step, ask, data), class_of(step.reply))
        for name, spoil in poisons(step).items():
            odd = spoil(data)
            assert odd != data, name
            with pytest.raises(SiteFault, match="the server refused"):
                opened(step, ask, odd)
                pytest.fail(f"{one.step}: {name}")
    assert tried >= {step for one, step in STEPS if asking(one, step) == chosen}


def opened(step: Step, ask: object, reply: bytes) -> object:
    """The reply as the server takes it."""
    server: Any = None  # which only notes what it hears
    return Federation._open(server, step, Delivery("site-1", reply, 0.0, heard=False), ask, round=1)


@pytest.mark.parametrize(("method", "step"), first_steps(TYPICAL))
def test_a_poisoned_reply_is_refused_and_the_round_goes_on(
    method: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without the site, as without one that fails."""
    poisoned_run(method, step, poisons(step_of(method, step))["garbage"], tmp_path, monkeypatch)


def poisoned_run(
    method: str, step: str, spoil: Any, folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """A run without the site whose replies are spoiled."""

    def change(asked: str, site: str, round: int, reply: bytes) -> bytes:
        if asked != step or site != "site-1" or peek(reply).message == "Failure":
            return reply
        return bytes(spoil(reply))

    use_engine(patch, Forging, change=staticmethod(change))
    events: list[Any] = []
    settings = tiny(folder, *asking(method, step), "federation.at_least=2", "rounds=1")
    done = run(settings, out=folder / "run", on_event=events.append)
    refused = [e for e in events if e.kind == "failed" and "the server refused" in e.message]
    assert [(event.site, event.step) for event in refused][:1] == [("site-1", step)]
    state = decode(METHODS[method].State, states(folder / "run").popitem()[1])
    for name, form in forms_of(METHODS[method].State).items():
        if form.kind == "arrays":
            assert all(np.isfinite(array).all() for array in attrgetter(name)(state).values())
    assert done.result.scores.overall[TASKS[settings.task].unit] > 0


# --- what it is for ----------------------------------------------------------------------------


QUICKEST = {**METHOD, "fedatt": "fedatt-tagger", "feded": "feded-tagger"}.values()
"""By method one pair that learns in a second or two."""


def first_score(task: str, done: Any) -> float:
    scoring = TASKS[task]
    found = scoring.value(done.scores.overall, scoring.kinds[0])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("method", "sites"),
    [
        *(pytest.param(*one.values, 2, marks=one.marks) for one in pairs(fast=QUICKEST)),
        *(
            pytest.param(*one.values, sites, marks=one.marks)
            for one in pairs(fast=(), of=DEALT)
            for sites in (1, 5)
        ),
    ],
)
def test_it_learns_with_any_number_of_sites(method: str, sites: int, tmp_path: Path) -> None:
    entry = ENTRIES[method]
    settings = tiny(tmp_path, f"method={method}", *entry.learning, sites=sites)
    done = run(settings, out=tmp_path / "run").result
    assert first_score(settings.task, done) >= entry.reaches
    assert len(done.scores.sites) == sites
    assert done.history[-1].loss < done.history[0].loss


REFERRED = {
    ("fedavg-tagger", "pooled"),
    ("fedavg-tagger", "alone"),
    ("feded-relations", "public-only"),
}


@pytest.mark.parametrize(
    ("method", "reference"),
    [
        pytest.param(
            name, reference, marks=[pytest.mark.slow] * ((name, reference) not in REFERRED)
        )
        for name in DEALT
        for reference in REFERENCES
        if OPEN[name].task == "re" or reference != "public-only"
    ],
)
def test_its_references_learn_too(method: str, reference: str, tmp_path: Path) -> None:
    entry = ENTRIES[method]
    settings = tiny(tmp_path, f"method={reference}", f"base={method}", *entry.learning)
    done = run(settings, out=tmp_path / "run").result
    assert done.method == reference
    assert first_score(settings.task, done) >= min(0.8, entry.reaches)
    assert sorted(done.scores.sites) == ["site-1", "site-2", "site-3"]


@pytest.mark.parametrize("method", pairs(fast=["fedavg-tagger", "fedner-tagger"], of=APART))
def test_a_fraction_of_the_sites_takes_part_in_a_round(method: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, f"method={method}", "federation.fraction=0.5", "rounds=4", sites=4)
    done = run(settings, out=tmp_path / "run").result
    drawn = [tuple(round.sites) for round in done.history]
    assert {len(sites) for sites in drawn} == {2}
    assert len(set(drawn)) > 1
    assert len(done.scores.sites) == 4


@pytest.mark.parametrize("method", pairs(fast=["fedavg-tagger"], of=FEDAVG))
def test_other_settings_are_not_resumed(method: str, tmp_path: Path) -> None:
    """Of each kind's files; the method is not asked."""
    out = run(tiny(tmp_path, f"method={method}"), out=tmp_path / "run").folder
    with pytest.raises(RunError, match=r"another training\.batch_size; expected 6; got 7"):
        run(tiny(tmp_path, f"method={method}", "training.batch_size=7"), out=out, resume=True)
    (file,) = (tmp_path / "data" / "site-1").glob("train.*")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[len(lines) // 2 :]))
    settings = tiny(tmp_path, f"method={method}", site=tables(tmp_path))
    with pytest.raises(CheckpointError, match="other settings or other data"):
        run(settings, out=out, resume=True)


def tables(folder: Path) -> list[dict[str, Any]]:
    """The site tables of files that are there already."""
    return [
        {"name": site.name, **{file.stem: str(file) for file in site.iterdir()}}
        for site in sorted((folder / "data").iterdir())
    ]
