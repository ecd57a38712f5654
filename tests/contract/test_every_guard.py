"""Every guard, asked of every step of every method and kind, with what breaks it.

One run of each pair; before a site answers a step for the first time, it is tempted: by its own
guards, set to what the step would break; by asks of a server with other code; by replies that break
a guard. The pairs, steps and guards are those of the dicts, so a new one is tempted too, and what
nothing here can tempt has to be named, with a reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import GuardError, SmallBatchError
from confide.federation.engines import SequentialEngine
from confide.federation.failures import Failure, Refusal
from confide.federation.federation import Delivery
from confide.federation.guards import (
    Guards,
    Within,
    check_bounded,
    check_expected,
    check_open,
    check_reply,
    unbounded,
)
from confide.federation.messages import LEVELS, by_name, decode, forms_of, made_of, peek, values_of
from confide.federation.secure.messages import Opening
from confide.federation.site import SiteHost, ask_in
from confide.federation.steps import Step
from confide.flare.joining import CLOSE, JOIN, LEAVE
from confide.methods import METHODS
from confide.methods.fedatt import totals_of
from confide.privacy.accountant import Limit, PrivacyBudget
from confide.runs.run import run
from confide.training import batches
from contract.corpus import reader, tiny
from contract.entries import ENTRIES, OPTIONAL, pairs
from contract.runs import use_engine

SITE = "site-1"

ELSEWHERE = {
    "min_sites": "a site counts the sites of a run when it joins and when it meets them"
    " (tests/flare/test_agreements.py, tests/federation/secure/test_roster.py)",
    "reply_every": "is of time (tests/methods/test_dp_fedsgd.py)",
    "delta": "is of the account, as max_epsilon is (tests/privacy/test_accountant.py)",
}
"""Guards that no ask and no reply can break."""

NO_GRADIENT = {
    "weigh": "a gradient that is taken without training: of too few rows it is zero",
    "attend": "what `measure` trained, which covers enough",
    "shift_control": "what `train_controlled` trained, which covers enough",
    "predict_noisily": "under noise; the account bounds it",
}
"""Steps that upload what a site learnt and train nothing themselves, or nothing that is bounded."""

NAMES = "names, which the model's form needs"
ENCODER = "of the public files of an encoder"
VECTORS = "of the site's file of word vectors, under the key"
SEEN = {
    ("check_key", "check"): "whether all hold the same key",
    ("describe", "types"): NAMES,
    ("describe", "digest"): ENCODER,
    ("describe_encoder", "check"): ENCODER,
    ("describe_encoder", "dim"): ENCODER,
    **{
        (step, name): NAMES if name in ("relations", "pairs", "types") else ENCODER
        for step in ("count_bags", "describe_relations")
        for name in ("encoder", "dim", "relations", "pairs", "types")
    },
    ("take", "vectors"): VECTORS,
    ("enrol", "vectors"): VECTORS,
    ("take_public_set", "vectors"): VECTORS,
    ("take_share", "batch_size"): "the size that it was asked for",
    ("bid", "digests_G16"): "the server chooses who wins (docs/methods/lazy-mil.md)",
    ("bid", "values_G"): "the same: one of 32 values",
    ("hear_winners", "sentences"): "how many win, of those whose bids the server has",
    ("join", "fingerprint"): "of the text, under a secret of the site's own",
}
"""What the server sees of one site where that site's guard `masked` holds, and why."""

VARIES = {
    "nonce", "check", "types", "digest", "context_dim", "relations", "known_types", "pairs",
    "told_apart", "words", "characters", "part", "tables", "private", "shared",
    "public", "examples", "classes", "sentences", "texts", "heads", "tails", "head_types",
    "tail_types",
}  # fmt: skip
"""Fields of asks that no site can work out: they depend on what sites said before."""


def every_step() -> Iterator[tuple[str, Step]]:
    """Every pair with each of its steps, and those around them."""
    for name, pair in METHODS.items():
        for step in pair.steps:
            yield name, step
    for step in (JOIN, LEAVE, CLOSE):
        yield "", step


# --- what is declared -----------------------------------------------------------------------------


def test_every_guard_is_tempted_or_named() -> None:
    named = {one.name for one in dataclasses.fields(Guards)}
    assert named == TEMPTED.keys() | ELSEWHERE.keys()


def test_what_is_seen_of_one_site_under_masks_is_named() -> None:
    found = {
        (step.name, field)
        for _, step in every_step()
        if not step.summed and step.tables is None
        for field, form in forms_of(step.reply).items()
        if form.rule == "open"
    }
    assert found == SEEN.keys()


def test_what_varies_in_an_ask_is_named() -> None:
    found = {
        field.rpartition(".")[2]
        for _, step in every_step()
        for field, form in forms_of(step.ask).items()
        if form.rule == "varies"
    }
    assert found == VARIES


def test_what_a_site_learnt_is_bounded() -> None:
    """Or `max_norm` would refuse the whole step, and a run with it."""
    assert not [(name, step.name) for name, step in every_step() if unbounded(step)]


# --- what tempts a site ---------------------------------------------------------------------------


@dataclasses.dataclass
class Tried:
    """One ask of a step, as it comes to a site's host, to be tried with other guards and asks."""

    host: SiteHost
    step: Step
    round: int
    data: bytes
    ask: Any
    folder: Path

    def worked(self, ask: Any = None, **guards: Any) -> Any:
        """The reply under other guards or to another ask; nothing is committed."""
        with self._with(**guards):
            return self.host._worked(self.step, self.ask if ask is None else ask, self.round)[0]

    def sent(self, **guards: Any) -> str:
        """The code of the failure that leaves under other guards; empty if a reply leaves."""
        with self._with(**guards):
            reply = self.host.answer(self.step.name, self.round, self.data)
        return decode(Failure, reply).code if peek(reply).message == "Failure" else ""

    def refused(self, code: str, ask: Any = None, **guards: Any) -> None:
        """The site refuses, with this code."""
        with pytest.raises((Refusal, GuardError)) as caught:
            self.worked(ask, **guards)
        found = caught.value
        said = "small-batch" if isinstance(found, SmallBatchError) else getattr(found, "code", "")
        assert said == code, f"{self.step.name}: {found}"

    @contextmanager
    def _with(self, **guards: Any) -> Iterator[None]:
        site = self.host.site
        before, cache = site.guards, dict(site.cache)
        site.guards = dataclasses.replace(before, **guards)
        try:
            yield
        finally:
            site.guards = before
            site.cache.clear()
            site.cache.update(cache)

    @property
    def trains(self) -> bool:
        """Whether the step uploads what it takes gradients for."""
        return self.step.learnt is not None or self.step.name == "measure"


def other(ask: Any, **values: Any) -> Any:
    """The ask with other values of some fields, by the names of `forms_of`."""
    if not dataclasses.is_dataclass(ask):
        return ask
    own = {}
    for one in dataclasses.fields(ask):
        inner = {
            name.partition(".")[2]: value
            for name, value in values.items()
            if name.startswith(f"{one.name}.")
        }
        value = values.get(one.name, getattr(ask, one.name))
        own[one.name] = other(value, **inner) if inner else value
    return dataclasses.replace(ask, **own)  # type: ignore[type-var]


@contextmanager
def gradients(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each gradient covers that is taken within."""
    seen: list[int] = []

    def look(rows: int, real: Callable[[int], None] = batches.check_covers) -> None:
        seen.append(rows)
        real(rows)

    with patch.context() as own:
        for room in ("training.trainer",):
            own.setattr(f"confide.{room}.check_covers", look)
        yield seen


def max_rounds(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    assert tried.sent(max_rounds=tried.round - 1) == "too-many-rounds"


def masked(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    """Without masks nothing leaves; and what is not summed shows nothing that counts text."""
    with patch.context() as own:
        own.setattr(tried.host.site, "member", None)
        assert tried.sent(masked=True) == "only-masked"
    if tried.step.summed or tried.step.tables is not None:
        return
    reply = tried.worked()
    for name, form in forms_of(tried.step.reply).items():
        if form.rule != "open":
            told = with_field(tried.step.reply, reply, name, _something(form.kind, reply, name))
            with pytest.raises(Refusal):
                check_open(told, Guards(masked=True))


def min_sentences(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    """Under noise a refusal would tell of the text: the site adds its noise to zeros instead."""
    site = tried.host.site
    if site.under_noise:
        looked: list[object] = []
        with patch.context() as own:
            own.setattr(site, "budget", PrivacyBudget(tried.folder / "few", Limit(1e6, 1e-5)))
            own.setattr("confide.methods.noise.clipped_sum", lambda *a, **k: looked.append(a))
            tried.worked(min_sentences=site.sentences + 1)
        assert not looked
        return
    tried.refused("too-few-sentences", min_sentences=site.sentences + 1)
    assert site.size is None or tried.trains or tried.step.noisy or site.size() >= 0
    if site.size is not None and site.size() < site.sentences:
        tried.refused("too-few-sentences", min_sentences=site.size() + 1)


def min_batch(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    sizes = {name: value for name, form, value in values_of(tried.ask) if form.rule == "min_batch"}
    for size in sizes.values():
        tried.refused("small-batch", min_batch=size + 1)
    if not tried.trains:
        return
    with gradients(patch) as seen:
        tried.worked()
    assert bool(seen) is (tried.step.name not in NO_GRADIENT), f"{tried.step.name} says nothing"
    assert tried.host.site.size is not None
    if not seen:
        return
    every, size = tried.host.site.size(), min(seen) + 1
    with patch.context() as own:
        own.setattr(tried.host, "_expects", None)  # the site is alone with its guard
        larger = other(tried.ask, **dict.fromkeys(sizes, size))
        if "local_steps" in forms_of(tried.step.ask):  # the site's part of a batch is in its memory
            tried.refused("small-batch", larger, min_batch=size)
        elif min(seen) < every and sizes:
            with gradients(patch) as again:
                tried.worked(larger, min_batch=size)
            assert min(again) >= size
            assert sum(again) == sum(seen), "no row is left out"
        many = other(tried.ask, **dict.fromkeys(sizes, 10000))
        tried.refused("small-batch", many, min_batch=every + 1)


def max_norm(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    most = 1e-3
    if tried.step.wraps or not tried.trains:
        return
    reply = tried.worked(max_norm=most)
    if tried.step.name == "measure":
        assert (totals_of(reply.powers_LP) <= np.exp(most * 1.01)).all()
        return
    learnt = tried.step.learnt
    assert learnt is not None
    weight = getattr(reply, learnt.weight) if learnt.weight else 1.0
    square = 0.0
    for name, array in by_name(getattr(reply, learnt.field)).items():
        start = learnt.begun(tried.ask, reply, name) if learnt.start else 0
        step = tried.ask.most / LEVELS if array.dtype == np.int8 else 1.0
        scale = 1024.0 if array.dtype == np.float16 and tried.step.name == "improve" else 1.0
        moved = (array.astype(np.float64) - start) * step / scale / weight
        square += float((moved**2).sum())
    assert square**0.5 <= most * 1.01 + 1e-6


def private(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    if tried.step.like or tried.step.wraps:
        tried.refused("private-part", private=("no-such-part",))


def min_token_count(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    for name, form in forms_of(tried.step.reply).items():
        if form.rule == "min_token_count":
            reply = tried.worked(min_token_count=3)
            check_bounded(values_of(reply), Guards(min_token_count=3))
            rare = np.full(4, 2, getattr(reply, name).dtype)
            with pytest.raises(Refusal):
                spoiled = with_field(tried.step.reply, reply, name, rare)
                check_bounded(values_of(spoiled), Guards(min_token_count=3))


def max_epsilon(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    if "noise.rate" not in forms_of(tried.step.ask):
        return
    with patch.context() as own:
        own.setattr(
            tried.host.site, "budget", PrivacyBudget(tried.folder / "poor", Limit(1e-9, 1e-5))
        )
        tried.refused("spent")


def unit(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    if "noise.unit" in forms_of(tried.step.ask):
        tried.refused("other-unit", unit="patient")


def patients(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    if "noise.unit" in forms_of(tried.step.ask):
        with patch.context() as own:
            own.setattr(tried.host, "_expects", None)
            asked = other(tried.ask, **{"noise.unit": "patient"})
            tried.refused("other-unit", asked, unit="patient", patients="-")


Tempt = Callable[[Tried, pytest.MonkeyPatch], None]
TEMPTED: Mapping[str, Tempt] = {
    one.__name__: one
    for one in (
        max_rounds,
        masked,
        min_sentences,
        min_batch,
        max_norm,
        private,
        min_token_count,
        max_epsilon,
        unit,
        patients,
    )
}


def finite(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    """No reply holds a number that is not finite."""
    reply = tried.worked()
    for name, form, value in values_of(reply):
        odd: Any = None
        if form.kind == "number" and not isinstance(value, bool):
            odd = float("nan")
        elif form.kind == "array" and value.dtype.kind == "f":
            odd = np.full_like(value if value.size else np.zeros(1, value.dtype), np.nan)
        elif form.kind == "arrays" and value and next(iter(value.values())).dtype.kind == "f":
            odd = {key: np.full_like(array, np.nan) for key, array in value.items()}
        if odd is not None:
            with pytest.raises(GuardError):
                check_reply(tried.step, tried.ask, with_field(tried.step.reply, reply, name, odd))


def agreed(tried: Tried, patch: pytest.MonkeyPatch) -> None:
    """A server with other code may change nothing that the settings decide."""
    assert tried.host._expects is not None
    expected = tried.host._expects(tried.step.name, tried.round)
    for name, form, value in values_of(tried.ask):
        if form.holds_arrays or (form.rule == "varies" and name not in expected):
            continue
        odd = 10**18 if isinstance(expected.get(name), Within) else _else(value)
        tried.refused("not-agreed", other(tried.ask, **{name: odd}))
        if form.rule == "varies":
            continue
        with pytest.raises(Refusal):  # and what nothing declares is not free
            check_expected(tried.ask, {key: one for key, one in expected.items() if key != name})


def _else(value: Any) -> Any:
    """Another value than this, of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(value + 10**14) if value < float("inf") else 1.0
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, dict):
        return {key: _else(one) for key, one in value.items()} or {"x": 1}
    return [*value, *(value[:1] or ["x"])]


def _something(kind: str, reply: Any, name: str) -> Any:
    """What counts text, in a field of this kind."""
    values = {found: value for found, _, value in values_of(reply)}
    if kind == "array":
        shape = tuple(max(1, size) for size in values[name].shape)
        return np.ones(shape, values[name].dtype)
    if kind == "arrays":
        return {"x": np.ones(1, np.float32)}
    return {"number": 2, "text": "x", "list": ["x"], "table": {"x": 1}}[kind]


def with_field(kind: Any, message: Any, name: str, value: Any) -> Any:
    """The message with another value of a field that may be nested."""
    values = {found: one for found, _, one in values_of(message)}
    return made_of(kind, values | {name: value})


# --- every pair -----------------------------------------------------------------------------------


def tempted(patch: pytest.MonkeyPatch, folder: Path, pair: str, *overrides: str) -> set[str]:
    """The steps that were tempted in a run of this pair."""
    steps = {step.name: step for step in METHODS[pair].steps}
    done: set[str] = set()

    def deliver(
        self: Any, name: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        if name in steps and name not in done and SITE in asks:
            done.add(name)
            host = self._hosts[SITE]
            step, data = host._steps[name], asks[SITE]
            if host._sums is not None and (step.summed or step.tables is not None):
                inner = ask_in(Opening, data).ask_B.data
            else:
                inner = data
            ask = host.site.whole(ask_in(step.ask, inner))
            tried = Tried(host, step, round, data, ask, folder / f"tried-{name}")
            for tempt in (agreed, finite, *TEMPTED.values()):
                with patch.context() as own:
                    tempt(tried, own)
        yield from SequentialEngine.deliver(self, name, round, asks=asks, timeout=timeout)

    use_engine(patch, SequentialEngine, deliver=deliver)
    run(tiny(folder, f"method={pair}", *overrides), out=folder / "run")
    return done


PRIVATE = [
    pytest.param(
        name, marks=[pytest.mark.slow] * (name.partition("-")[0] != "dp" or "tagger" not in name)
    )
    for name, pair in METHODS.items()
    if pair.private
]


@pytest.mark.parametrize("pair", [*pairs(), *PRIVATE])
def test_every_step_keeps_every_guard(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    variants: list[tuple[str, ...]] = [()]
    if pair in ENTRIES:
        variants += dict.fromkeys(ENTRIES[pair].asked.values())
    for number, overrides in enumerate(variants):
        with monkeypatch.context() as patch:
            found |= tempted(patch, tmp_path / str(number), pair, *overrides)
    left = {step.name for step in METHODS[pair].steps} - found
    assert left <= OPTIONAL | {"count_vocabulary"} if METHODS[pair].private else OPTIONAL


SUMMED = {
    "count_examples": ("fedavg-encoder", ("federation.sums=masked",)),
    "count_buckets": ("fedavg-tagger", ("federation.sums=masked",)),
    "count_bag_buckets": ("fedavg-bags", ("federation.sums=masked",)),
    "measure": ("fedatt-tagger", ("federation.sums=masked",)),
    "attend": ("fedatt-tagger", ("federation.sums=masked",)),
    "describe_encoder": ("fedavg-linear", ("model.context=",)),
    "teach": ("pseudo-complete-tagger", ("options.teacher=start", "start_from=")),
}
"""What asks the optional steps."""


@pytest.mark.parametrize("step", sorted(OPTIONAL))
def test_optional_steps_keep_every_guard(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, overrides = SUMMED[step]
    if step == "teach":
        run(tiny(tmp_path, "method=fedavg-tagger", "rounds=1"), out=tmp_path / "before")
        overrides = tuple(f"{o}{tmp_path / 'before'}" if o[-1] == "=" else o for o in overrides)
    overrides = tuple(f"{o}{reader('encoder')}" if o.endswith("context=") else o for o in overrides)
    assert step in tempted(monkeypatch, tmp_path, pair, *overrides)
