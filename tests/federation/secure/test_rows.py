"""Rows are summed over the sites whose rows they are, or not at all; or a lost site shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import DroppedError, QuorumError
from confide.federation.engine import Delivery
from confide.federation.failures import Failure
from confide.federation.messages import Arrays, carries, decode, decode_one_of, encode
from confide.federation.secure import once
from confide.federation.secure.lanes import layout_of
from confide.federation.secure.messages import Masked, Offered, Opening
from confide.federation.secure.once import Once
from confide.federation.secure.repeats import Sets
from confide.federation.secure.rows import ROWS, VALUES, Values, packed, tables_of
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from federation.secure.plays import named
from federation.secure.summed import (
    CODE,
    Kept,
    Lost,
    Sites,
    ask,
    federation_of,
    sites_of,
    summing_of,
)

TABLE = "weights/table"
OWN = {"site-01": [0, 1], "site-02": [1], "site-03": [3], "site-04": [1]}
"""Which rows of the table each site has; row 3 is that of one site alone, row 2 and 4 nobody's."""


@dataclass(frozen=True)
class Sparse:
    """A change of which most rows are zero."""

    weights: Arrays = carries("a change")
    share: float = carries("the site's share")


def nudge(site: Site, memory: Kept | None, ask: Any, turn: Turn) -> tuple[Sparse, Kept]:
    """A change of the rows that the site has, and of everything that is no table."""
    if ask.moods.get(site.name) == "raise":
        raise RuntimeError("the site's text is odd")
    draw = np.random.default_rng(turn.seed)
    change = {n: draw.normal(size=a.shape).astype(np.float32) for n, a in ask.weights.items()}
    others = [row for row in range(5) if row not in OWN[site.name]]
    change["table"][others] = 0
    share = np.float32(0.25)
    scaled = {name: array * share for name, array in change.items()}
    return Sparse(scaled, 0.25), Kept((memory.turns if memory else 0) + 1)


nudge.__annotations__ |= {"ask": type(ask())}
LEARNT = Learnt("weights", "share", whole=lambda ask, sites, examples: 1.0)
DENSE = Step.of(nudge, summed=True, like=(("weights", "weights"),), learnt=LEARNT)
BY_ROWS = replace(DENSE, learnt=replace(LEARNT, by_rows=lambda ask: True))


@dataclass
class Lying(Sites):
    """An engine that tells sites something else than the server says; `heard` in all exchanges."""

    tell: Callable[[str, str, bytes], bytes] = lambda site, step, data: data

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        told = {site: self.tell(site, step, data) for site, data in asks.items()}
        yield from super().deliver(step, round, asks=told, timeout=timeout)


def sites(folder: Path, step: Step = BY_ROWS, **parts: Any) -> Lying:
    made = sites_of(4, folder, **parts)
    for host in made.hosts.values():
        host._steps = {step.name: step}
    return Lying(made.hosts, made.members)


def part_of(step: str, data: bytes) -> str:
    """Which sum an ask opens; nothing for other exchanges."""
    return decode(Opening, data).part if step == "nudge" else ""


def losing(engine: Lying, site: str, *, part: str) -> None:
    """Lose a site once this part is asked for, for good."""

    def tell(name: str, step: str, data: bytes) -> bytes:
        if part_of(step, data) == part:
            engine.lost = [Lost(site, "work")]
        return data

    engine.tell = tell


# --- exact -------------------------------------------------------------------------------------


@each("sums", ["integers", "masked"])
@each("moods", [{}, {"site-02": "raise"}])
def test_the_sum_of_the_union_is_the_whole_sum_bit_for_bit(
    sums: str, moods: dict[str, str], tmp_path: Path
) -> None:
    totals = []
    for step in (DENSE, BY_ROWS):
        engine = sites(tmp_path / str(len(totals)), step, masked=sums == "masked")
        federation = federation_of(engine, summing_of(engine, sums))
        totals.append(federation.sum(step, ask(moods), round=1))
    for name, array in totals[0].weights.items():
        assert np.array_equal(array, totals[1].weights[name])
    assert totals[0].share == totals[1].share
    assert totals[1].weights["table"][[2, 4]].any() == np.False_
    assert totals[1].weights["table"][3].all()


def test_only_the_rows_of_the_union_travel(tmp_path: Path) -> None:
    engine = sites(tmp_path)
    asked: list[tuple[str, Opening]] = []

    def tell(site: str, step: str, data: bytes) -> bytes:
        if site == "site-01" and step == "nudge":
            asked.append((step, decode(Opening, data)))
        return data

    engine.tell, engine.keep = tell, True
    federation_of(engine, summing_of(engine)).sum(BY_ROWS, ask(), round=1)
    assert [one.part for _, one in asked] == [ROWS, VALUES]
    values = decode(Values, asked[1][1].ask_B.tobytes())
    assert set(values.rows) == {TABLE, "weights/b"}
    assert np.unpackbits(values.rows[TABLE]).tolist() == [1, 1, 0, 1, 0, 0, 0, 0]
    assert len(asked[1][1].ask_B) < len(asked[0][1].ask_B)  # the weights go down once
    lanes = [
        decode(Masked, data).lanes_B.size
        for site, step, data in engine.heard
        if (site, step) == ("site-01", "mask")
    ]
    assert lanes == [8 + 4 * (2 + 5), 8 + 8 + 4 * (2 * 3 + 3 * 2 + 1)]


def test_a_row_tells_that_some_site_has_it_and_not_how_many(tmp_path: Path) -> None:
    """Lanes of rows are random numbers, new ones in every sum; 0 is none of them."""
    engine = sites(tmp_path, masked=False)
    engine.keep = True
    for round in range(1, 9):
        federation = federation_of(engine, summing_of(engine, "integers"))
        federation.sum(BY_ROWS, ask(), round=round)
    said: dict[str, list[list[int]]] = {name: [] for name in named(4)}
    for site, _, data in engine.heard[::1]:
        lanes = decode(Masked, data).lanes_B
        if lanes.size == 8 + 4 * 7:
            said[site].append(lanes[8:].view("<u4")[-5:].tolist())
    for site, flags in said.items():
        assert len(flags) == 8
        for row in range(5):
            found = {one[row] for one in flags}
            assert (found == {0}) == (row not in OWN[site])
            assert len(found) in (1, 8)
    firsts = [one[1] for site in ("site-01", "site-02", "site-04") for one in said[site]]
    assert len(set(firsts)) == 24 and max(firsts) > 2**30  # no site says what another does


# --- a site that is lost in between ------------------------------------------------------------


def blindly(patch: pytest.MonkeyPatch) -> None:
    """The server goes on with whoever is left, whatever the union's own set."""
    real = Once.sum_of

    def any_set(self: Once, opening: Opening, sent: Any, names: Any, **said: Any) -> Any:
        return real(self, opening, sent, names, layout=said["layout"])

    patch.setattr(once.Once, "sum_of", any_set)


def believing(engine: Lying) -> None:
    """Sites that take part in a sum over any set: the rule is taken out."""
    for one in engine.members.values():
        real = one.offer
        object.__setattr__(
            one, "offer", lambda *a, real=real, **given: real(*a, **{**given, "then": None})
        )


def test_the_attack_a_site_lost_in_between_shows_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 3 is in the union and zero in the sum: the lost site has it, and nobody else."""
    blindly(monkeypatch)
    engine = sites(tmp_path)
    believing(engine)
    rows: dict[str, Any] = {}

    def tell(site: str, step: str, data: bytes) -> bytes:
        if part_of(step, data) == VALUES:
            engine.lost = [Lost("site-03", "work")]
            rows.update(decode(Values, decode(Opening, data).ask_B.tobytes()).rows)
        return data

    engine.tell = tell
    total = federation_of(engine, summing_of(engine, colluding=1)).sum(BY_ROWS, ask(), round=1)
    union = np.unpackbits(rows[TABLE])[:5].astype(bool)
    zeros = ~total.weights["table"].any(1)
    assert np.flatnonzero(union & zeros).tolist() == OWN["site-03"]


def test_sites_sum_values_with_the_rows_own_sites_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same server as in the attack, and nothing but the sites' own rule in its way."""
    blindly(monkeypatch)
    engine = sites(tmp_path)
    losing(engine, "site-03", part=VALUES)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises((QuorumError, DroppedError)):
        federation.sum(BY_ROWS, ask(), round=1)
    refused = {one.site: one.code for one in federation.faults}
    assert refused == {"site-03": "lost"} | dict.fromkeys(
        ("site-01", "site-02", "site-04"), "other-set"
    )


def test_what_a_site_wrote_down_stops_the_same_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sums are of one turn, and a turn has one set: even without the rule in the exchange."""
    blindly(monkeypatch)
    engine = sites(tmp_path, record=Sets)
    believing(engine)
    losing(engine, "site-03", part=VALUES)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises((QuorumError, DroppedError)):
        federation.sum(BY_ROWS, ask(), round=1)
    assert {one.code for one in federation.faults} == {"lost", "other-set"}


@each("sums", ["integers", "masked"])
@each("at_least", [3, 0])
def test_both_sums_are_dropped_and_the_next_round_goes_on_without(
    at_least: int, sums: str, tmp_path: Path
) -> None:
    engine = sites(tmp_path, masked=sums == "masked", record=Sets, every=1)
    losing(engine, "site-03", part=VALUES)
    federation = federation_of(engine, summing_of(engine, sums), at_least=at_least)
    with pytest.raises(DroppedError if at_least else QuorumError):
        federation.sum(BY_ROWS, ask(), round=1)
    kept = len(list(tmp_path.rglob("*.memory")))
    assert kept == (0 if sums == "masked" else 3) and not federation.took_part
    if not at_least:
        return
    assert ("site-03" in federation.sites) == (sums == "integers")
    total = federation.sum(BY_ROWS, ask({"other": "ask"}), round=2)
    assert total.share == 0.75 and not total.weights["table"][3].any()


def test_a_site_lost_with_the_rows_is_in_neither_sum(tmp_path: Path) -> None:
    engine = sites(tmp_path, record=Sets)
    losing(engine, "site-03", part=ROWS)
    total = federation_of(engine, summing_of(engine)).sum(BY_ROWS, ask(), round=1)
    assert total.share == 0.75 and not total.weights["table"][3].any()


@pytest.mark.parametrize("exchange", ["agree", "unmask"])
def test_a_site_lost_after_its_masked_values_is_summed(exchange: str, tmp_path: Path) -> None:
    engine = sites(tmp_path, record=Sets)
    seen: list[str] = []

    def tell(site: str, step: str, data: bytes) -> bytes:
        seen.append(step)
        if step == exchange and seen.count("nudge") > 4:
            engine.lost = [Lost("site-03", exchange)]
        return data

    engine.tell = tell
    total = federation_of(engine, summing_of(engine)).sum(BY_ROWS, ask(), round=1)
    assert total.share == 1.0 and total.weights["table"][3].all()


def test_a_process_that_restarts_in_between_begins_both_sums_again(tmp_path: Path) -> None:
    engine = sites(tmp_path, record=Sets)
    done: list[str] = []

    def tell(site: str, step: str, data: bytes) -> bytes:
        if part_of(step, data) == VALUES and not done:
            done.append(site)
            member, host = engine.members["site-02"], engine.hosts["site-02"]
            member._session = member._roster = member._sum = None
            host._sums._held = None
        return data

    engine.tell = tell
    total = federation_of(engine, summing_of(engine)).sum(BY_ROWS, ask(), round=1)
    assert done and total.share == 1.0 and total.weights["table"][3].all()


# --- a server that asks for something else -----------------------------------------------------


def test_sites_that_are_asked_for_different_rows_add_up_nothing(tmp_path: Path) -> None:
    """One for row 3, all others for a row that nobody has: the sum would be that one's row."""
    engine = sites(tmp_path)

    def tell(site: str, step: str, data: bytes) -> bytes:
        if part_of(step, data) != VALUES:
            return data
        opening = decode(Opening, data)
        values = decode(Values, opening.ask_B.tobytes())
        bits = np.zeros(5, bool)
        bits[3 if site == "site-03" else 4] = True
        values = replace(values, rows=values.rows | packed({TABLE: bits}))
        return encode(replace(opening, ask_B=np.frombuffer(encode(values), np.uint8)))

    engine.tell = tell
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises((QuorumError, DroppedError)):
        federation.sum(BY_ROWS, ask(), round=1)
    assert not any(one._sum.signed for one in engine.members.values() if one._sum)


def answered(engine: Sites, opening: Opening) -> Any:
    data = engine.hosts["site-01"].answer("nudge", 1, encode(opening))
    return decode_one_of((Offered, Masked, Failure), data)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda v: replace(v, of="00" * 32), "no-sum"),
        (lambda v: replace(v, rows={}), "bad-ask"),
        (lambda v: replace(v, rows=v.rows | {TABLE: np.zeros(2, np.uint8)}), "bad-ask"),
        (lambda v: replace(v, rows=v.rows | {"weights/other": np.zeros(1, np.uint8)}), "bad-ask"),
        (lambda v: v, ""),
    ],
)
@pytest.mark.parametrize("sums", ["integers", "masked"])
def test_values_of_another_sum_or_of_no_rows_are_refused(
    change: Any, code: str, sums: str, tmp_path: Path
) -> None:
    engine = sites(tmp_path, masked=sums == "masked")
    heard: list[Opening] = []

    def tell(site: str, step: str, data: bytes) -> bytes:
        heard.extend([decode(Opening, data)] if part_of(step, data) == VALUES else [])
        return data

    engine.tell = tell
    federation_of(engine, summing_of(engine, sums)).sum(BY_ROWS, ask(), round=1)
    values = change(decode(Values, heard[0].ask_B.tobytes()))
    opening = replace(heard[0], ask_B=np.frombuffer(encode(values), np.uint8), attempt=7)
    found = answered(engine, opening)
    assert (found.code if isinstance(found, Failure) else "") == code


def test_values_are_given_only_once_the_rows_are_open(tmp_path: Path) -> None:
    """Or the server would choose rows before it knows who is in the sum."""
    engine = sites(tmp_path)
    rows: list[Opening] = []

    def tell(site: str, step: str, data: bytes) -> bytes:
        rows.extend([decode(Opening, data)] if part_of(step, data) == ROWS else [])
        if step == "agree":
            engine.lost = [Lost(name, "agree") for name in named(4)]
        return data

    engine.tell = tell
    with pytest.raises(QuorumError):
        federation_of(engine, summing_of(engine)).sum(BY_ROWS, ask(), round=1)
    held = engine.hosts["site-01"]._sums._held
    bits = {TABLE: np.ones(5, bool), "weights/b": np.ones(2, bool)}
    values = encode(Values(held.of[2], packed(bits)))
    found = answered(engine, replace(rows[0], ask_B=np.frombuffer(values, np.uint8), part=VALUES))
    assert isinstance(found, Failure) and found.code == "early-ask"


@each("part", ["rows", "other", ""])
def test_parts_that_a_step_does_not_have_are_refused(part: str, tmp_path: Path) -> None:
    engine = sites(tmp_path, DENSE)
    heard: list[Opening] = []
    engine.tell = lambda site, step, data: (
        (heard.append(decode(Opening, data)) if step == "nudge" else None) or data
    )
    federation_of(engine, summing_of(engine)).sum(DENSE, ask(), round=1)
    found = answered(engine, replace(heard[0], part=part, attempt=5))
    assert isinstance(found, Failure) and found.code == "bad-ask"


def test_numbers_that_share_lanes_have_no_rows() -> None:
    """A lane of theirs holds numbers of several rows."""
    learnt = replace(CODE.learnt, by_rows=lambda asked: True)  # type: ignore[type-var]
    step = replace(CODE, learnt=learnt, shapes=lambda asked: {"said_N": {"": (4, 3)}})
    layout = layout_of(step, ask(), sites=5, examples=0.0)
    assert any(part.base for part in layout.parts)
    assert tables_of(step, ask(), layout) == []
