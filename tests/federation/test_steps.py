"""Steps: annotations declare the messages, and the turn's seed depends on its name only."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from confide.errors import MessageError
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn, WireRow, wire_table
from confide.seeds import derive_seed
from federation.toys import MULTIPLY, TELL, Ask, Reply, Said


@dataclass(frozen=True)
class Bytes:
    """No message: bytes cannot travel."""

    raw: bytes = carries("bytes")


def say(site: Site, memory: None, ask: Ask, turn: Turn) -> tuple[Said, None]: ...  # type: ignore[empty-body]


def leak(site: Site, memory: None, ask: Ask, turn: Turn) -> tuple[Bytes, None]: ...  # type: ignore[empty-body]


def test_a_step_is_what_its_function_declares() -> None:
    assert (MULTIPLY.name, MULTIPLY.ask, MULTIPLY.reply) == ("multiply", Ask, Reply)
    assert MULTIPLY.summed
    assert not TELL.summed


def test_text_cannot_be_summed() -> None:
    with pytest.raises(MessageError, match="say: only numbers and arrays can be summed"):
        Step.of(say, summed=True)


def test_a_reply_that_cannot_travel_is_refused_when_the_step_is_made() -> None:
    with pytest.raises(MessageError, match="cannot travel"):
        Step.of(leak)


def test_the_wire_table_lists_every_field_both_ways() -> None:
    rows = wire_table([MULTIPLY, TELL])
    assert [(row.step, row.direction, row.field, row.kind, row.seen) for row in rows] == [
        ("multiply", "down", "weights", "arrays", "by the site"),
        ("multiply", "down", "mood", "text", "by the site"),
        ("multiply", "down", "number", "number", "by the site"),
        ("multiply", "up", "weights", "arrays", "sum"),
        ("multiply", "up", "vector_3", "array", "sum"),
        ("multiply", "up", "count", "number", "sum"),
        ("multiply", "up", "loss", "number", "sum"),
        ("tell", "down", "weights", "arrays", "by the site"),
        ("tell", "down", "mood", "text", "by the site"),
        ("tell", "down", "number", "number", "by the site"),
        ("tell", "up", "words", "list", "one by one"),
        ("tell", "up", "turns", "number", "one by one"),
    ]
    assert rows[0] == WireRow("multiply", "down", "weights", "arrays", "any arrays", "by the site")


def test_seeds_have_names() -> None:
    names = [(1, 0, "a", "train"), (1, 1, "a", "train"), (1, 0, "b", "train"), (1, 0, "a", "score")]
    seeds = {derive_seed(*name) for name in [*names, (2, 0, "a", "train")]}
    assert len(seeds) == 5
