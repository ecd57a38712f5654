"""One site that has something else than the others is left out by name; the run is the others'."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import ConfideError, DataError, FederationError, QuorumError, SiteFault
from confide.federation.engines import SequentialEngine
from confide.federation.federation import DIFFERS, Delivery, Federation, Parted, alike
from confide.federation.messages import decode, encode
from confide.kinds.agreement import CHECK_KEY
from confide.methods import METHODS
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import FIRST, OPEN
from contract.runs import Forging, use_engine
from federation.toys import TELL, ask, federation, sequential


class Saying:
    """A federation's engine in name only."""

    def __init__(self, *sites: str) -> None:
        self.sites = sites

    def deliver(self, *_: Any, asks: Mapping[str, bytes], **__: Any) -> Iterator[Delivery]:
        raise AssertionError("nobody is asked")


def parted(said: dict[str, Any], at_least: int, ours: Any = None) -> tuple[Any, Federation]:
    def error(parted: Parted) -> ConfideError:
        return FederationError(
            f"odd: {parted.differing}; tied: {not parted.differing}; groups: {parted.groups}"
        )

    sites = federation(Saying(*sorted(said)), at_least=at_least)
    return alike(sites, said, step=CHECK_KEY, why="other", error=error, ours=ours), sites


@each(
    ("said", "at_least", "ours", "kept"),
    [
        ({"a": 1, "b": 1}, 0, None, "a b"),
        ({"a": 1, "b": 1, "c": 2}, 2, None, "a b"),
        ({"a": 2, "b": 1, "c": 1}, 1, None, "b c"),
        ({"a": 1, "b": 1, "c": 2, "d": 3, "e": 4}, 2, None, "a b"),
        ({"a": 1, "b": 2, "c": 3}, 1, 2, "b"),
        ({"a": 2, "b": 2}, 0, 2, "a b"),
    ],
)
def test_most_go_on(said: dict[str, Any], at_least: int, ours: Any, kept: str) -> None:
    found, sites = parted(said, at_least, ours)
    assert found == kept.split()
    assert sites.sites == tuple(kept.split())
    faults = sites.take_faults()
    assert [(one.site, one.code, one.step) for one in faults] == [
        (site, DIFFERS, "check_key") for site in sorted(said) if site not in kept.split()
    ]


@each(
    ("said", "at_least", "ours", "words"),
    [
        ({"a": 1, "b": 1, "c": 2}, 0, None, r"odd: \('c',\); tied: False"),
        ({"a": 1, "b": 1, "c": 2}, 3, None, r"odd: \('c',\); tied: False"),
        ({"a": 1, "b": 2}, 1, None, r"tied: True; groups: \(\('a',\), \('b',\)\)"),
        ({"a": 1, "b": 1, "c": 2, "d": 2, "e": 3}, 1, None, "tied: True"),
        ({"a": 1, "b": 1}, 1, 2, r"odd: \('a', 'b'\); tied: False"),
    ],
)
def test_too_few_or_a_tie_end_the_run(
    said: dict[str, Any], at_least: int, ours: Any, words: str
) -> None:
    with pytest.raises(FederationError, match=words):
        parted(said, at_least, ours)


def test_a_site_that_is_left_out_is_asked_nothing_more(tmp_path: Path) -> None:
    sites = federation(sequential(tmp_path), at_least=2)
    fault = SiteFault(site="site-2", step="tell", round=0, code=DIFFERS, what="other")
    sites.leave_out(fault)
    assert sites.take_faults() == [fault]
    every = ["site-1", "site-2", "site-3"]
    asks = dict.fromkeys(every, ask())
    assert sorted(sites.ask(TELL, ask(), round=1, sites=every)) == ["site-1", "site-3"]
    assert sorted(sites.ask(TELL, asks, round=1)) == ["site-1", "site-3"]
    assert set(sites.draw(1.0, 1)) == {"site-1", "site-3"}
    assert sites.take_faults() == []
    assert sites.enough(2)
    assert not sites.enough(1)  # of the three that it began with


# --- every value that sites must have in common ---------------------------------------------------

CASES = [
    (method, step.name, field)
    for method, kind in OPEN.items()
    for step in kind.steps
    for field in ("check", "vectors", "digest", "encoder")
    if (method, step.name) in FIRST and field in getattr(step.reply, "__dataclass_fields__", {})
]
"""Every field of a reply that says whether a site has what the others have, once a task."""


def forging(
    method: str, step: str, field: str, value: Any = "0123456789abcdef" * 2
) -> Callable[[str, str, int, bytes], bytes]:
    """What site-2 says becomes another value."""
    steps = {one.name: one for one in METHODS[method].steps}

    def change(asked: str, site: str, round: int, reply: bytes) -> bytes:
        if (asked, site) != (step, "site-2"):
            return reply
        message: Any = decode(steps[step].reply, reply)
        return encode(replace(message, **{field: value}))

    return change


def test_there_are_cases() -> None:
    assert {field for _, _, field in CASES} == {"check", "vectors", "digest", "encoder"}


@pytest.mark.parametrize(("method", "step", "field"), CASES)
def test_one_site_that_differs_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, step: str, field: str
) -> None:
    use_engine(monkeypatch, Forging, change=staticmethod(forging(method, step, field)))
    settings = tiny(tmp_path, f"method={method}", "federation.at_least=2", "rounds=1")
    if field == "encoder" and settings.task == "bags":
        settings = tiny(
            tmp_path, f"method={method}", "federation.at_least=2", "rounds=1", "bags.reader=encoder"
        )
    done = run(settings, out=tmp_path / "run").result
    assert done.left_out == {"site-2": DIFFERS}
    assert sorted(done.scores.sites) == ["site-1", "site-3"]
    assert done.history[0].failed == {}  # it was asked nothing more
    if method in ("fedavg-tagger", "fedavg-encoder") and step != "check_key":
        strict = tiny(tmp_path, f"method={method}", "rounds=1")
        with pytest.raises(FederationError, match=r"site-2 (differs|has a different)"):
            run(strict, out=tmp_path / "strict")


@each("types", [["Drug", "the Pain", "pain the"], ["Drug", "drug"]])
def test_a_site_whose_types_the_model_cannot_tell_apart_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: list[str]
) -> None:
    """The run ended for everybody, and nobody was named."""
    forged = forging("fedavg-lightner", "describe", "types", sorted(types))
    use_engine(monkeypatch, Forging, change=staticmethod(forged))
    settings = tiny(tmp_path, "method=fedavg-lightner", "federation.at_least=2", "rounds=1")
    done = run(settings, out=tmp_path / "run").result
    assert done.left_out == {"site-2": DIFFERS}
    assert sorted(done.scores.overall["strict"]["types"]) == ["Drug", "Effect"]
    strict = tiny(tmp_path, "method=fedavg-lightner", "rounds=1")
    with pytest.raises(FederationError, match=r"cannot tell them apart: site-2"):
        run(strict, out=tmp_path / "strict")


def test_a_resumed_run_goes_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(
        monkeypatch, Forging, change=staticmethod(forging("fedavg-tagger", "check_key", "check"))
    )
    settings = tiny(tmp_path, "federation.at_least=2", "rounds=1")
    run(settings, out=tmp_path / "run")
    asked: list[str] = []

    class Looking(SequentialEngine):
        def deliver(self, *how: Any, asks: Mapping[str, bytes], **more: Any) -> Iterator[Delivery]:
            asked.extend(asks)
            yield from super().deliver(*how, asks=asks, **more)

    monkeypatch.setattr("confide.runs.run.SequentialEngine", Looking)
    longer = tiny(tmp_path, "federation.at_least=2", "rounds=2")
    done = run(longer, out=tmp_path / "run", resume=True)
    assert set(asked) == {"site-1", "site-3"}
    assert json.loads((done.folder / "result.json").read_text())["left_out"] == {"site-2": DIFFERS}


def test_a_type_that_was_not_declared_is_left_out_with_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "pseudo-complete-encoder"
    step = METHODS[method].steps[0]

    def change(asked: str, site: str, round: int, reply: bytes) -> bytes:
        if (asked, site) != (step.name, "site-2"):
            return reply
        return encode(replace(decode(step.reply, reply), types=["Dose", "Drug"]))

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    usual = (f"method={method}", 'data.types=["Drug","Effect"]', "rounds=1")
    done = run(tiny(tmp_path, *usual, "federation.at_least=2"), out=tmp_path / "run").result
    assert done.left_out == {"site-2": DIFFERS}
    with pytest.raises(DataError, match="a site annotates 'Dose'"):
        run(tiny(tmp_path, *usual), out=tmp_path / "strict")


# --- one array without dimensions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "step", "field"),
    [
        ("fedavg-tagger", "count_vocabulary", "word_digests_W16"),
        ("fedavg-tagger", "count_vocabulary", "word_counts_W"),
        ("fedavg-bags", "count_bags", "word_counts_W"),
        ("lazy-mil-bags", "bid", "values_G"),
        ("lazy-mil-bags", "bid", "digests_G16"),
    ],
)
@pytest.mark.parametrize(
    "value",
    [np.array(3), *(pytest.param(np.zeros(s), marks=pytest.mark.slow) for s in ((0,), (1, 1, 1)))],
    ids=str,
)
def test_an_odd_array_of_one_site_ends_nobodys_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    step: str,
    field: str,
    value: np.ndarray,
) -> None:
    kind = next(one for one in METHODS[method].steps if one.name == step)

    def change(asked: str, site: str, round: int, reply: bytes) -> bytes:
        if (asked, site) != (step, "site-1"):
            return reply
        message: Any = decode(kind.reply, reply)
        odd = value.astype(getattr(message, field).dtype)
        return encode(replace(message, **{field: odd}))

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    settings = tiny(tmp_path, f"method={method}", "federation.at_least=2", "rounds=1")
    events: list[Any] = []
    run(settings, out=tmp_path / "run", on_event=events.append)
    failed = [event for event in events if event.kind == "failed"]
    assert {event.site for event in failed} == {"site-1"}
    assert "the server refused" in failed[0].message
    with pytest.raises(QuorumError, match=rf"site site-1, step {step}"):
        run(tiny(tmp_path, f"method={method}", "rounds=1"), out=tmp_path / "strict")
