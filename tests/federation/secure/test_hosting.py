"""What a site answers where it sums: odd replies say nothing, and nothing secret is on its disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import QuorumError
from confide.federation.failures import Failure, Refusal
from confide.federation.messages import decode, encode
from confide.federation.seals import digest
from confide.federation.secure import steps
from confide.federation.secure.messages import Masked, Offered, Opening
from confide.federation.secure.site import Sets
from federation.secure.summed import (
    COUNT,
    EXCHANGES,
    MOVE,
    SCORE,
    SENT,
    Kept,
    Lost,
    Sites,
    ask,
    by_hand,
    federation_of,
    same,
    sites_of,
    summing_of,
    without_masks,
)
from federation.toys import undeclared

ODD_MOODS = [
    "raise", "nan", "inf", "-inf", "both-infs", "large", "just-out", "shape", "loss-nan",
    "loss-inf", "loss-large",
]  # fmt: skip


# --- what depends on text ------------------------------------------------------------------


@each("mood", ODD_MOODS)
def test_an_odd_reply_is_zeros_and_a_one_and_never_a_refusal(mood: str, tmp_path: Path) -> None:
    engine = sites_of(5, tmp_path)
    federation = federation_of(engine, summing_of(engine))
    asked = ask({"site-03": mood})
    total = federation.sum(MOVE, asked, round=1)
    replies = [SENT[1, "move", site] for site in engine.sites if site != "site-03"]
    assert same(total, by_hand(MOVE, asked, replies, whole=200.0))
    assert not federation.faults
    assert federation.sites == engine.sites
    log = (tmp_path / "site-03" / "site.log").read_text()
    assert "round 1 step move" in log


@each("mood", ODD_MOODS)
def test_an_odd_reply_looks_like_any_other(mood: str, tmp_path: Path) -> None:
    """As many bytes, field by field, in every exchange; what differs is noise."""
    forms = []
    for asked in (ask(), ask({"site-03": mood})):
        engine = sites_of(3, tmp_path / str(len(forms)))
        engine.keep = True
        at_least = 1
        federation_of(engine, summing_of(engine), at_least=at_least).sum(MOVE, asked, round=1)
        forms.append([(site, step, len(data)) for site, step, data in engine.heard])
    assert forms[0] == forms[1]


def test_without_that_rule_a_refusal_would_be_a_bit_of_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = type("Everything", (tuple,), {"__contains__": lambda self, code: True})()
    monkeypatch.setattr(steps, "OPEN", everything)

    def refuse(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
        raise Refusal("too-few-sentences")

    engine = sites_of(4, tmp_path)
    step = replace(COUNT, answer=refuse)
    engine.hosts["site-03"]._steps = {"count": step}
    federation = federation_of(engine, summing_of(engine))
    federation.sum(COUNT, ask(), round=1)
    assert [(one.site, one.code) for one in federation.faults] == [("site-03", "too-few-sentences")]
    monkeypatch.undo()
    engine = sites_of(4, tmp_path / "again")
    engine.hosts["site-03"]._steps = {"count": step}
    federation = federation_of(engine, summing_of(engine))
    federation.sum(COUNT, ask(), round=1)
    assert not federation.faults


def test_if_all_are_odd_the_sum_fails_as_a_quorum_does(tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(QuorumError, match="4 had nothing that could be summed"):
        federation.sum(MOVE, ask(dict.fromkeys(engine.sites, "nan")), round=1)


def test_odd_sites_are_counted_and_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_masks(monkeypatch)
    engine = sites_of(5, tmp_path)
    seen: dict[str, int] = {}

    def look(site: str, step: str, data: bytes) -> bytes:
        if step == "mask":
            seen[site] = int(decode(Masked, data).lanes_B[:8].view("<u8")[0])
        return data

    engine.change = look
    federation_of(engine, summing_of(engine)).sum(
        MOVE, ask({"site-02": "nan", "site-04": "raise"}), round=1
    )
    assert [site for site, empty in seen.items() if empty] == ["site-02", "site-04"]


# --- memory --------------------------------------------------------------------------------


def kept(engine: Sites, site: str, round: int) -> int:
    memory = engine.hosts[site]._memory.before(round, "move")
    return memory.turns if isinstance(memory, Kept) else 0


@each("exchange", EXCHANGES)
@each("late", [False, True])
def test_memory_is_written_only_when_the_sum_has_settled(
    exchange: str, late: bool, tmp_path: Path
) -> None:
    engine = sites_of(5, tmp_path, every=1)
    summing = summing_of(engine)
    federation_of(engine, summing).sum(MOVE, ask(), round=1)
    engine.lost = [Lost("site-03", exchange, late=late)]
    federation_of(engine, summing).sum(MOVE, ask(), round=2)
    engine.lost = []
    settled = exchange == "unmask" and late
    assert kept(engine, "site-03", 3) == (2 if settled else 1)
    assert [kept(engine, site, 3) for site in ("site-01", "site-02")] == [2, 2]


def test_memory_of_a_sum_that_stays_closed_is_not_written(tmp_path: Path) -> None:
    engine = sites_of(3, tmp_path, every=1)
    engine.lost = [Lost("site-03", "agree")]
    with pytest.raises(QuorumError):
        federation_of(engine, summing_of(engine)).sum(MOVE, ask(), round=1)
    assert not list(tmp_path.rglob("*.memory"))
    engine.lost = []
    federation_of(engine, summing_of(engine)).sum(MOVE, ask(), round=1)
    assert len(list(tmp_path.rglob("*.memory"))) == 3


def test_memory_of_an_odd_reply_is_not_written(tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path, every=1)
    federation_of(engine, summing_of(engine)).sum(MOVE, ask({"site-02": "nan"}), round=1)
    assert kept(engine, "site-02", 2) == 0 and kept(engine, "site-01", 2) == 1


# --- disk ----------------------------------------------------------------------------------


def secrets_of(engine: Sites) -> list[bytes]:
    """All that must not be on a disk: keys, seeds, shares, session keys, and bare lanes."""
    found = []
    for one in engine.members.values():
        now, session = one._sum, one._session
        assert now is not None and session is not None
        found += [now.secret, now.seed, now.own_shares[:66], now.own_shares[66:]]
        found += [now.lanes.tobytes()] if now.lanes is not None else []
        found += [session.box_secret, session.signer.private_bytes_raw()]
        found += [box for box in now.held.values() if box is not None]
    return [one for one in found if one]


def test_nothing_secret_is_written(tmp_path: Path) -> None:
    """In any exchange, before or after it, in any file of any site: raw, hexadecimal, base 64."""
    import base64

    engine = sites_of(4, tmp_path, every=1, record=Sets)
    kept_secrets: set[bytes] = set()

    def look(site: str, step: str, data: bytes) -> bytes:
        if all(one._sum is not None for one in engine.members.values()):
            kept_secrets.update(secrets_of(engine))
        return data

    engine.change = look
    federation = federation_of(engine, summing_of(engine))
    federation.sum(MOVE, ask({"site-02": "nan"}), round=1)
    federation.sum(MOVE, ask(), round=2)
    assert len(kept_secrets) > 60
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("sums" in str(path) for path in files)
    assert any(path.suffix == ".memory" for path in files)
    for path in files:
        data = path.read_bytes()
        for secret in kept_secrets:
            for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
                assert form not in data, path


def test_the_search_of_the_disk_sees_what_it_should(tmp_path: Path) -> None:
    engine = sites_of(3, tmp_path)
    engine.lost = [Lost("site-03", "mask")]
    with pytest.raises(QuorumError):
        federation_of(engine, summing_of(engine)).sum(MOVE, ask(), round=1)
    found = secrets_of(engine)
    assert {len(one) for one in found} >= {32, 66, 132}
    assert any(len(one) not in (32, 66, 132) for one in found)  # lanes that were never masked


# --- asks ----------------------------------------------------------------------------------


def opening_of(engine: Sites, data: bytes, **parts: Any) -> Opening:
    summing = summing_of(engine)
    federation_of(engine, summing).sum(COUNT, ask(), round=1)
    assert summing._roster is not None
    fields = {
        "roster": summing._roster.id.hex(), "group": False, "attempt": 1, "sites": 4,
        "examples": 1.0, "labels": [],
    }  # fmt: skip
    return Opening(ask_B=np.frombuffer(data, np.uint8), **fields | parts)


def answered(engine: Sites, opening: Opening, step: str = "count", *, round: int = 2) -> Any:
    data = engine.hosts["site-01"].answer(step, round, encode(opening))
    return decode((Offered, Failure), data)


def other_spelling(data: bytes) -> bytes:
    """The same message in other bytes: a blank at the end of the header."""
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip(b" ")
    longer = header + b" " * (len(data[8 : 8 + size]) - len(header) + 8)
    return len(longer).to_bytes(8, "little") + longer + data[8 + size :]


def test_an_ask_in_another_spelling_is_refused(tmp_path: Path) -> None:
    """Its digest would differ, and so the same ask could be summed over another set."""
    engine = sites_of(4, tmp_path)
    data = encode(ask())
    odd = other_spelling(data)
    assert odd != data and decode(type(ask()), odd).many == ask().many
    assert isinstance(answered(engine, opening_of(engine, data)), Offered)
    refused = answered(engine, opening_of(engine, odd))
    assert isinstance(refused, Failure) and refused.code == "bad-ask"


def test_the_digest_of_an_ask_names_its_sum(tmp_path: Path) -> None:
    """Of the ask as it came, and not of one that another site of the process has heard."""
    engine = sites_of(4, tmp_path)
    opening = opening_of(engine, encode(ask()))
    for many in (7, 8):
        data = encode(ask(many=many))
        answered(engine, replace(opening, ask_B=np.frombuffer(data, np.uint8), attempt=many))
        now = engine.members["site-01"]._sum
        assert now is not None and now.ask.asked == digest(data)
        assert not now.ask.opening.ask_B.size


def test_the_messages_of_exchanges_declare_their_arrays() -> None:
    for step in (steps.OFFER, *steps.EXCHANGES.values()):
        assert not undeclared(step.ask) and not undeclared(step.reply)


@each("data", [b"", b"x", b"\0" * 64, json.dumps({}).encode()])
def test_an_opening_around_nothing_is_refused(data: bytes, tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path)
    refused = answered(engine, opening_of(engine, data))
    assert isinstance(refused, Failure) and refused.code == "bad-ask"


@each(
    "parts",
    [
        {"sites": 0}, {"sites": -5}, {"sites": 2**40}, {"examples": float("nan")},
        {"examples": float("inf")}, {"examples": -1.0}, {"examples": 0.0},
        {"labels": ["a"] * 3}, {"labels": ["", "\n"]},
    ],
)  # fmt: skip
def test_odd_openings_get_an_offer_like_any_other(parts: dict[str, Any], tmp_path: Path) -> None:
    """What a server chooses badly spoils its own sum; it learns nothing from who refuses."""
    engine = sites_of(4, tmp_path)
    for step in ("move", "count", "score"):
        found = answered(engine, opening_of(engine, encode(ask()), **parts), step)
        assert isinstance(found, Offered), found


def test_a_summed_step_is_never_answered_plainly(tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path)
    for step in (MOVE, COUNT, SCORE):
        data = engine.hosts["site-01"].answer(step.name, 1, encode(ask()))
        assert decode(Failure, data).code == "bad-ask"
