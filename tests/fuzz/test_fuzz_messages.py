"""Short runs of the fuzzers of messages and of hostile replies (benchmarks/security/fuzz)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from confide.federation.failures import Failure
from contract.entries import OPEN, OPTIONAL

QUICK = ("fedavg-tagger", "fedavg-bags")
"""Methods whose steps are recorded in a second or two."""


def fuzzer(name: str, root: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    patch.syspath_prepend(str(root / "benchmarks" / "security" / "fuzz"))
    return importlib.import_module(name)


def test_bytes_give_a_message_or_a_message_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = fuzzer("messages", root, monkeypatch)
    tally = messages.attack(400, 1)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == 400
    assert tally.refused > 200
    assert tally.accepted > 10  # or nothing would have been decoded at all
    assert Failure in messages.classes()


def test_a_codec_that_raises_something_else_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer can fail: it sees an error that is no MessageError."""
    messages = fuzzer("messages", root, monkeypatch)

    def careless(*_: object) -> None:
        raise TypeError("len() of unsized object")

    monkeypatch.setattr("confide.federation.messages.check_arrays", careless)
    tally = messages.attack(300, 1)
    assert "TypeError" in tally.failures[0]


def test_a_hostile_reply_is_the_fault_of_its_site(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    replies = fuzzer("replies", root, monkeypatch)
    tally = replies.attack(150, 1, methods=QUICK)
    assert tally.failures == ()
    assert tally.inputs == tally.refused + tally.accepted == 150
    assert tally.refused > 75
    assert tally.accepted > 3


def test_a_check_that_is_missing_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer can fail: without the guards odd replies reach what adds them up."""
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    replies = fuzzer("replies", root, monkeypatch)
    replies.targets(QUICK)
    monkeypatch.setattr("confide.federation.federation.check_reply", lambda *_: None)
    monkeypatch.setattr("confide.federation.messages.check_arrays", lambda *_: None)
    assert replies.attack(150, 1, methods=QUICK).failures


@pytest.mark.slow
def test_every_step_of_every_method_stands_hostile_replies(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method whose steps were not all recorded would raise LookupError."""
    replies = fuzzer("replies", root, monkeypatch)
    tally = replies.attack(1500, 2, methods=(*OPEN,))
    assert tally.failures == ()
    met = {(phase.name.split()[0], phase.heard[n][0]) for phase, n in replies.targets((*OPEN,))}
    unseen = OPTIONAL - {"describe_encoder"}  # asked only where sums are secure
    wanted = {(name, step.name) for name, kind in OPEN.items() for step in kind.steps}
    assert met >= {one for one in wanted if one[1] not in unseen}
