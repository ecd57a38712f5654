"""Faults that other libraries' secure sums have had, each as an attack on ours.

One mask for several vectors and sums that overflow from ten nodes on: Fed-BioMed, issues 1250 and
1210. Numbers clipped without a word: Flower, issue 7522 and pull request 4982. Masks from PCG64 or
the Mersenne Twister, masks of floats, no drop-out, unsigned keys, one secret key in every kit.
Clipping and overflow are in test_lanes.py, drop-out is in test_summing.py, greetings that nobody
signed are in test_roster.py.
"""

from __future__ import annotations

import ast
import inspect
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.federation import secure
from confide.federation.failures import Refusal
from confide.federation.secure import crypto
from confide.federation.secure.lanes import LaneLayout
from federation.secure.plays import LAYOUT, honest_play, member, named, plus, ring
from federation.secure.summed import COUNT, Lost, ask, federation_of, sites_of, summing_of

FIVE = named(5)
MODULES = sorted(Path(inspect.getfile(secure)).parent.glob("*.py"))


def test_no_two_vectors_of_a_reply_are_under_one_mask() -> None:
    """Known numbers in one part say nothing of the mask of any other part."""
    parts = (*LAYOUT.parts, *(replace(LAYOUT.parts[1], name=name) for name in "bcd"))
    layout = LaneLayout(tuple(sorted(parts, key=lambda part: -part.width)), 8.0)
    zeros = {name: np.zeros(layout.length, np.uint8) for name in FIVE}
    made = ring(5, layout=layout, numbers=zeros)
    views = layout.views(made.members[FIVE[0]].mask(made.mask_for(FIVE[0], FIVE)).lanes_B)
    seen = [tuple(view.tolist()) for view in views.values()]
    assert len(set(seen)) == len(seen)
    words = np.concatenate([views["weights", name] for name in "abcd"])
    assert len(set(words.tolist())) == len(words)


def test_no_two_sums_of_a_site_are_under_one_mask() -> None:
    """Of the same numbers, sites, round and ask; and under the same context, were it offered to
    again."""
    members = [member(name) for name in FIVE]
    zeros = {name: np.zeros(LAYOUT.length, np.uint8) for name in FIVE}
    seen = set()
    for attempt in (1, 1, 2):
        for one in members:
            one._offered.clear()
        made = ring(5, members=members, numbers=zeros, attempt=attempt)
        lanes = made.members[FIVE[0]].mask(made.mask_for(FIVE[0], FIVE)).lanes_B
        seen.add(lanes.tobytes())
    assert len(seen) == 3


def test_masks_do_not_depend_on_any_seed() -> None:
    """Neither the run's, nor numpy's, nor random's: a server knows the run's seed."""
    zeros = {name: np.zeros(LAYOUT.length, np.uint8) for name in FIVE}
    seen = set()
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        made = ring(5, numbers=zeros, attempt=1)
        seen.add(made.members[FIVE[0]].mask(made.mask_for(FIVE[0], FIVE)).lanes_B.tobytes())
    assert len(seen) == 2


@each("path", MODULES)
def test_no_other_source_of_chance_is_even_imported(path: Path) -> None:
    """Only the operating system's, by `secrets` and `cryptography`; never `random` or numpy's."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
            assert "random" not in names, path
        assert not (isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random"))


def test_secrets_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fake(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(crypto.secrets, "token_bytes", fake)
    assert crypto.fresh_secret() == bytes(32) and asked == [32]
    assert crypto.secrets is crypto.secrets


def test_masked_sums_are_exact_where_floats_would_round() -> None:
    """Masks of floats leave dust, and the dust tells of the numbers beneath."""
    numbers = {name: np.zeros(LAYOUT.length, np.uint8) for name in FIVE}
    for place, lanes in enumerate(numbers.values()):
        LAYOUT.views(lanes)["weights", "a"][:] = [1, 2**31, 2**32 - 1, place, 0]
    made = ring(5, numbers=numbers)
    heard = honest_play(made, FIVE, FIVE)
    total = plus(LAYOUT, list(numbers.values()))
    assert LAYOUT.views(total)["weights", "a"].tolist() == [5, 2**31, 2**32 - 5, 10, 0]
    assert plus(LAYOUT, list(heard.masked.values())).tobytes() != total.tobytes()


def test_one_lost_site_does_not_end_a_run(tmp_path: Path) -> None:
    """declearn's masked sums have no way to go on without a site."""
    for exchange in ("work", "mask", "agree", "unmask"):
        engine = sites_of(5, tmp_path / exchange)
        engine.lost = [Lost("site-02", exchange)]
        federation_of(engine, summing_of(engine)).sum(COUNT, ask(), round=1)


def test_keys_that_nobody_signed_are_not_used() -> None:
    """A server that gives sites keys of its own would sit between all of them."""
    made = ring(5)
    own = crypto.public_key(bytes(range(32))).hex()
    ask_ = made.mask_for(FIVE[0], FIVE)
    with pytest.raises(Refusal) as raised:
        made.members[FIVE[0]].mask(replace(ask_, keys=[ask_.keys[0], *[own] * 4]))
    assert raised.value.code == "bad-offer"


def test_no_key_is_known_to_two_sites() -> None:
    """One secret key in every kit lets each site, and whoever made the kits, open all others'."""
    made = ring(5)
    secrets = []
    for name in FIVE:
        now, session = made.inside(name), made.members[name]._session
        assert session is not None
        secrets += [now.secret, now.seed, session.box_secret, session.signer.private_bytes_raw()]
    assert len(set(secrets)) == 20
