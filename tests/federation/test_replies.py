"""Finished replies on a site's disk: for the same ask only, sealed, bounded, and soon gone."""

from __future__ import annotations

import random
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.federation import replies
from confide.federation.memory import MemoryStore
from confide.federation.messages import encode
from confide.federation.replies import KeptReplies
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Step, Turn
from federation.toys import Ask, Memory, Said, tell

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ASK, OTHER = bytes(32), bytes([1] * 32)


def kept(folder: Path, *, key: Ed25519PrivateKey = KEY, binding: bytes = b"run") -> KeptReplies:
    return KeptReplies(folder / "replies", key, binding=binding)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "replies").iterdir())


def test_a_reply_is_found_for_the_same_ask_of_the_same_turn_and_for_no_other(
    tmp_path: Path,
) -> None:
    kept(tmp_path).keep(3, "train", ASK, reply=b"what was learnt")
    assert kept(tmp_path).find(3, "train", ASK) == b"what was learnt"
    assert kept(tmp_path).find(3, "train", OTHER) is None
    assert kept(tmp_path).find(4, "train", ASK) is None
    assert kept(tmp_path).find(3, "score", ASK) is None
    assert kept(tmp_path, binding=b"other guards").find(3, "train", ASK) is None
    assert kept(tmp_path, key=Ed25519PrivateKey.generate()).find(3, "train", ASK) is None
    [path] = (tmp_path / "replies").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(path.with_name("round-000004.train.reply"))
    assert kept(tmp_path).find(4, "train", ASK) is None, "the turn is sealed too"


def test_nothing_that_was_changed_on_the_disk_leaves(tmp_path: Path) -> None:
    kept(tmp_path).keep(3, "train", ASK, reply=b"what was learnt")
    [path] = (tmp_path / "replies").iterdir()
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept(tmp_path).find(3, "train", ASK) is None, at
        path.write_bytes(whole[:at])
        assert kept(tmp_path).find(3, "train", ASK) is None, at
    path.write_bytes(whole)
    assert kept(tmp_path).find(3, "train", ASK) is not None


def test_replies_are_bounded_and_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "MOST", 3)
    for round in range(5):
        kept(tmp_path).keep(round, "train", ASK, reply=b"x")
    assert names(tmp_path) == [f"round-{n:06d}.train.reply" for n in (2, 3, 4)]
    size = sum(path.stat().st_size for path in (tmp_path / "replies").iterdir())
    monkeypatch.setattr(replies, "ROOM", size)
    kept(tmp_path).keep(5, "train", ASK, reply=b"xx")
    assert names(tmp_path) == [f"round-{n:06d}.train.reply" for n in (4, 5)]
    kept(tmp_path).keep(6, "train", ASK, reply=bytes(size))
    assert "round-000006.train.reply" not in names(tmp_path), "one that is too large is not kept"
    (tmp_path / "replies" / "notes.txt").touch()
    kept(tmp_path).drop_up_to(4)
    assert names(tmp_path) == ["notes.txt", "round-000005.train.reply"]
    kept(tmp_path).clear()
    assert names(tmp_path) == ["notes.txt"]


def add(site: Site, memory: Memory | None, ask: Ask, turn: Turn) -> tuple[Said, Memory]:
    """Remembers what was asked, and says what it remembers."""
    turns = memory.turns if memory else 0
    after = Memory((31 * turns + 7 * turn.round + ask.number) % 10_007, [])
    return Said([site.name], after.turns), after


def test_whatever_is_asked_again_the_reply_is_the_one_that_would_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that keeps replies beside one that does not: asks, restarts, and a full disk."""
    steps = {name: replace(Step.of(add), name=name) for name in ("add", "more")}
    steps["tell"] = Step.of(tell)
    draw, done, plain = random.Random(1), Counter[bool](), KeptReplies.keep
    work = SiteHost._worked

    def worked(host: SiteHost, *turn: Any) -> Any:
        done[host.kept is not None] += 1
        return work(host, *turn)

    monkeypatch.setattr(SiteHost, "_worked", worked)

    def host(name: str) -> SiteHost:
        site, folder = Site("site-1", []), tmp_path / name
        store: MemoryStore[Any] = MemoryStore(folder / "memory", Memory)
        own = kept(folder) if name.startswith("keeps") else None
        return SiteHost(site, steps, memory=store, seed=7, kept=own)

    for number in range(20):
        names = [f"keeps-{number}", f"computes-{number}"]
        hosts, asked = [host(name) for name in names], list[tuple[str, int, bytes]]()
        for _ in range(15):
            if draw.random() < 0.1:
                hosts = [host(name) for name in names]
            full = draw.random() < 0.2
            monkeypatch.setattr(KeptReplies, "keep", (lambda *_, **__: None) if full else plain)
            if draw.random() < 0.5 or not asked:
                ask = encode(Ask({}, "", draw.randint(1, 2)))
                asked.append((draw.choice([*steps]), draw.randint(1, 2), ask))
            turn = draw.choice(asked[-4:])
            one, other = (each.answer(*turn) for each in hosts)
            assert one == other and b"Said" in one
    assert done[False] - done[True] > 10, f"{done}: some were sent from the disk"
