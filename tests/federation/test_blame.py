"""Whatever a site's reply raises at the server is that site's fault, and nobody else's."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import EngineError, GuardError, QuorumError, SettingsError, SiteFault, printable
from confide.federation.failures import CODES, Failure, blaming, fault
from confide.federation.federation import Delivery, Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import Learnt, decode, encode
from confide.federation.steps import Step
from federation.toys import MOVE, MULTIPLY, TELL, Tampering, ask, federation, sequential

EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp\r\nsite site-1, step train: all is well"
ERRORS: list[type[Exception]] = [
    TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, RecursionError,
    MemoryError, OverflowError, UnicodeEncodeError, AssertionError, FloatingPointError,
    SettingsError, GuardError,
]  # fmt: skip


def made(kind: type[Exception]) -> Exception:
    if kind is UnicodeEncodeError:
        return UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates")
    return kind("about a site's text")


def with_check(step: Step, check: Any) -> Step:
    return dataclasses.replace(step, check=check)


@each("kind", ERRORS)
@each("step", [MULTIPLY, TELL])
def test_any_error_of_one_reply_is_a_fault_of_its_site(
    tmp_path: Path, step: Step, kind: type[Exception]
) -> None:
    sites = federation(sequential(tmp_path), at_least=2)
    seen: list[Any] = []

    def check(asked: Any, reply: Any) -> None:
        seen.append(reply)
        if len(seen) == 2:  # sites answer in the order of their names
            raise made(kind)

    checked = with_check(step, check)
    (sites.sum if step.summed else sites.ask)(checked, ask(), round=3)
    (found,) = sites.take_faults()
    assert (found.site, found.step, found.round, found.code) == ("site-2", step.name, 3, "refused")
    if kind is not GuardError:
        assert "about" not in str(found)
        assert re.search(rf"\({kind.__name__} at [\w./]+:[0-9]+\)", str(found))
    assert len(seen) == 3


def test_what_ends_the_process_or_is_the_engines_is_nobodys_fault() -> None:
    for passing in (KeyboardInterrupt(), SystemExit(), EngineError("gone"), QuorumError("few")):
        with pytest.raises(type(passing)), blaming("site-1", step="train", round=1):
            raise passing


def test_start_and_restoring_are_guarded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(self: Learnt, asked: Any, reply: Any, name: str) -> Any:
        return {}[name] if "b?" in reply.weights else asked.weights[name]

    monkeypatch.setattr(Learnt, "begun", begun)

    def forge(site: str, data: bytes) -> bytes:
        reply = decode(MOVE.reply, data)
        odd = {**reply.weights, "b?": np.zeros(1, np.uint8)}
        changed = dataclasses.replace(reply, weights=odd)
        return encode(changed) if site == "site-3" else data

    sites = federation(Tampering(sequential(tmp_path), forge), at_least=2)
    assert sites.sum(MOVE, ask(), round=1)
    (found,) = sites.take_faults()
    assert (found.site, found.code) == ("site-3", "refused")
    assert "KeyError" in str(found)


def test_a_relay_goes_on_from_the_site_before_one_that_cannot_be_used(tmp_path: Path) -> None:
    sites = federation(sequential(tmp_path), at_least=2)
    asked: list[int] = []

    def then(one: Any, reply: Any) -> Any:
        asked.append(one.number)
        if len(asked) == 2:
            raise TypeError("len() of unsized object")
        return dataclasses.replace(one, number=one.number + 1)

    replies = sites.relay(TELL, ask(), round=1, sites=["site-3", "site-2", "site-1"], then=then)
    assert sorted(replies) == ["site-1", "site-3"]
    assert asked == [1, 2, 2]
    (found,) = sites.take_faults()
    assert (found.site, found.code) == ("site-2", "refused")


# --- failures that a site makes up ----------------------------------------------------------------


@each("code", [*CODES, "refused", "made-up", EVIL])
def test_a_failure_has_only_words_that_our_code_could_have_said(code: str) -> None:
    told = fault(Failure(code, EVIL, EVIL, EVIL * 9), site="site-1", step="train", round=1)
    words = str(told)
    assert words.isprintable()
    assert told.code in CODES
    assert len(words) < 650
    assert "[2J" not in words
    assert "(Exception at ?)" in words or told.code != "error"


@each("place", ["/etc/passwd\n:1", "a.py:x", "../../a:1" * 50, "a b.py:3", "x"])
def test_a_place_is_a_file_and_a_line(place: str) -> None:
    words = str(fault(Failure("error", "TypeError", place, ""), site="s", step="t", round=1))
    assert words.endswith("(TypeError at ?)")
    honest = Failure("error", "TypeError", "methods/fedavg.py:12", "")
    assert "(TypeError at methods/fedavg.py:12)" in str(fault(honest, site="s", step="t", round=1))


def test_a_field_that_a_guard_held_back_is_still_named() -> None:
    honest = Failure("guard", "GuardError", "federation/guards.py:9", "weights/word.weight is odd")
    assert "(weights/word.weight is odd)" in str(fault(honest, site="s", step="t", round=1))


def test_names_of_arrays_from_a_site_cannot_reach_a_terminal(tmp_path: Path) -> None:
    def forge(site: str, data: bytes) -> bytes:
        reply = decode(MULTIPLY.reply, data)
        odd = {**reply.weights, EVIL: np.array([np.nan])}
        return encode(dataclasses.replace(reply, weights=odd)) if site == "site-1" else data

    sites = federation(Tampering(sequential(tmp_path), forge), at_least=2)
    sites.sum(MULTIPLY, ask(), round=1)
    (found,) = sites.take_faults()
    assert str(found).isprintable()


def test_a_site_that_says_it_is_lost_has_answered(tmp_path: Path) -> None:
    """What it sent is in the ledger, and it is no lost site: that would be asked for again."""
    for heard, code, lines in ((True, "error", 1), (False, "lost", 0)):

        class Liar(Tampering):
            def deliver(self, step: str, round: int, *, heard: bool = heard, **how: Any) -> Any:
                for one in super().deliver(step, round, **how):
                    lost = encode(Failure("lost", "", "", ""))
                    first = one.site == "site-1"
                    yield Delivery(one.site, lost, 0.0, heard=heard) if first else one

        ledger = Ledger(tmp_path / f"{heard}.jsonl")
        sites = Federation(Liar(sequential(tmp_path)), seed=1, ledger=ledger, at_least=2)
        sites.ask(TELL, ask(), round=1)
        (found,) = sites.take_faults()
        assert found.code == code
        ledger.flush()
        text = (tmp_path / f"{heard}.jsonl").read_text()
        up = [one for one in text.splitlines() if '"up"' in one and '"site-1"' in one]
        assert bool(up) == bool(lines)


@each(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\x1b[31mb", "a?[31mb"),
        ("a\nb\tc\x00", "a?b?c?"),
        ("\u202eabc\u200b", "?abc?"),
        ("Größe ärztlich 重症", "Größe ärztlich 重症"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_words_from_elsewhere_are_made_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_faults_words_are_printable_whoever_makes_it() -> None:
    told = SiteFault(site="s\x1b[2J", step="t", round=1, code="refused", what="a\x1b]0;b\x07")
    assert str(told).isprintable()
