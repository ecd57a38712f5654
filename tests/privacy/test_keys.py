"""Who is drawn, and which noise: decided by a secret key and by what it is for."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from confide.errors import SettingsError
from confide.privacy.noise import draw_key, draw_units, keyed, noise_key

RUN, OTHER = b"k" * 32, b"o" * 32


def test_a_key_is_an_hmac_of_parts_with_their_lengths() -> None:
    said = b"".join(len(one).to_bytes(8, "little") + one for one in (b"draw", b"ab", b"c"))
    assert keyed(RUN, "draw", b"ab", b"c") == hmac.new(RUN, said, hashlib.sha256).digest()
    assert keyed(RUN, "draw", b"a", b"bc") != keyed(RUN, "draw", b"ab", b"c")
    with pytest.raises(SettingsError, match="at least 32 bytes"):
        keyed(b"short", "draw")


def test_the_same_vector_gets_the_same_noise_and_another_one_other_noise() -> None:
    clean = {"w": np.array([1, 2], np.int64), "b": np.array([[3]], np.int64)}

    def key(run: bytes = RUN, context: bytes = b"c", text: bytes = b"t", **arrays: object) -> bytes:
        return noise_key(run, context, text=text, clean={**clean, **arrays})

    first = key()
    assert key() == first
    others = [
        key(w=np.array([1, 3])), key(w=np.array([[1, 2]])), key(b2=np.array([3])), key(OTHER),
        key(context=b"d"), key(text=b"u"), draw_key(RUN, b"c", text=b"t"),
        noise_key(RUN, b"c", text=b"t", clean={"w": clean["b"], "b": clean["w"]}),
    ]  # fmt: skip
    assert len({first, *others}) == len(others) + 1


def test_who_is_drawn_depends_on_the_run_the_ask_and_the_text() -> None:
    first = draw_key(RUN, b"c", text=b"t")
    assert draw_key(RUN, b"c", text=b"t") == first
    others = [draw_key(OTHER, b"c", text=b"t"), draw_key(RUN, b"d", text=b"t"),
              draw_key(RUN, b"c", text=b"u")]  # fmt: skip
    assert len({first, *others}) == 4


def test_units_are_drawn_by_the_key_each_with_its_probability() -> None:
    key = draw_key(RUN, b"round 1", text=b"t")
    found = draw_units(key, 100_000, rate=0.03)
    assert abs(found.mean() - 0.03) < 5 * (0.03 * 0.97 / 100_000) ** 0.5
    assert (draw_units(key, 1000, rate=0.03) == found[:1000]).all()
    again = draw_units(draw_key(RUN, b"round 2", text=b"t"), 100_000, rate=0.03)
    both = (found & again).mean()
    assert abs(both - 0.0009) < 5 * (0.0009 / 100_000) ** 0.5
    assert draw_units(key, 1000, rate=1.0).all()
    assert not draw_units(key, 1000, rate=1e-19).any()
    assert (draw_units(key, 1000, rate=0.01) <= draw_units(key, 1000, rate=0.03)).all()
