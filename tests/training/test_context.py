"""Contextual features on disk: found again, never another's, never half."""

from __future__ import annotations

import os
import resource
import stat
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cases import each
from confide.errors import DataError
from confide.files import cache_folder
from confide.training import context as context_module
from confide.training.context import contextual
from confide.training.encoder import FrozenEncoder, load_encoder

SENTENCES = [["the", "patient"], [], ["took", "pain", "\ufeff"], ["naïve"]]


@dataclass(frozen=True)
class Fake(FrozenEncoder):
    """Gives states that depend on the words alone; remembers how many sentences it was asked."""

    name: str = "fake"
    folder: Path = Path("nowhere")
    dim: int = 4
    digest: str = "d" * 64
    seen: list[int] = field(default_factory=list, compare=False)
    scale: float = 1.0

    def states(
        self, sentences: Sequence[Sequence[str]], *, pieces_per_batch: int = 0
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for place in reversed(range(len(sentences))):
            self.seen.append(place)
            yield (
                place,
                np.array([self.of(word) for word in sentences[place]]).reshape(-1, self.dim),
            )

    def of(self, word: str) -> NDArray[np.float32]:
        seed = int.from_bytes(word.encode("utf-8", "surrogatepass")[:8], "big")
        drawn = np.random.default_rng(seed).standard_normal(self.dim)
        return (drawn * self.scale).astype(np.float32)


def expected(encoder: Fake, sentences: Sequence[Sequence[str]]) -> NDArray[np.float16]:
    rows = [encoder.of(word) for words in sentences for word in words]
    return np.array(rows, np.float32).reshape(-1, encoder.dim).astype(np.float16)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


class Made(NamedTuple):
    """Features, where they are kept, and whether the encoder ran."""

    states_NX: NDArray[np.float16]
    from_S1: NDArray[np.int64]
    path: Path
    made: bool


def made(folder: Path, encoder: Fake, sentences: Sequence[Sequence[str]] = SENTENCES) -> Made:
    before = len(encoder.seen)
    states_NX, from_S1 = contextual(sentences, encoder, folder=folder)
    assert np.array_equal(states_NX, expected(encoder, sentences))
    path = folder / f"{context_module._key(sentences, encoder)}.context"
    return Made(states_NX, from_S1, path, len(encoder.seen) > before)


def test_states_stand_in_the_order_of_the_text(tmp_path: Path) -> None:
    found = made(tmp_path, Fake())
    assert found.from_S1.tolist() == [0, 2, 2, 5, 6]
    assert found.states_NX.dtype == np.float16 and found.states_NX.shape[1] == 4
    assert found.made and kept(tmp_path) == [found.path]


def test_the_second_time_the_encoder_does_not_run(tmp_path: Path) -> None:
    made(tmp_path, Fake())
    again = Fake()
    found = made(tmp_path, again)
    assert not again.seen and not found.made
    assert len(kept(tmp_path)) == 1


def test_what_is_mapped_cannot_be_written_and_is_copied_by_taking_rows(tmp_path: Path) -> None:
    found = made(tmp_path, Fake())
    with pytest.raises(ValueError, match="read-only"):
        found.states_NX[0, 0] = 1
    rows_KX = torch.from_numpy(found.states_NX[np.array([4, 0])])  # a warning would be an error
    rows_KX[:] = 0
    assert np.array_equal(found.states_NX, expected(Fake(), SENTENCES))


def test_another_encoder_or_another_text_has_another_file(tmp_path: Path) -> None:
    texts = [
        SENTENCES,
        [["the", "patient"], ["took", "pain", "\ufeff"], ["naïve"]],
        [["the"], ["patient"], ["took", "pain", "\ufeff"], ["naïve"]],
        [["the patient"], [], ["took", "pain", "\ufeff"], ["naïve"]],
        [["thepatient", ""], [], ["took", "pain", "\ufeff"], ["naïve"]],
        [["the", "patient"], [], ["took", "pain", "\ufeff"], ["nai\u0308ve"]],
        [["the", "patient"], [], ["took", "pain"], ["naïve", "\ufeff"]],
    ]
    for encoder in (Fake(), Fake(digest="e" * 64, scale=2.0)):
        for text in texts:
            assert made(tmp_path, encoder, text).made
    assert len(kept(tmp_path)) == 2 * len(texts)


words = st.text(st.characters(codec=None, exclude_categories=()), max_size=3)
texts = st.lists(st.lists(words, max_size=3), max_size=3)


@given(texts, texts)
def test_two_texts_never_share_a_key(one: list[list[str]], other: list[list[str]]) -> None:
    keys = [context_module._key(text, Fake()) for text in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_surrogates_are_not_the_character_that_they_spell() -> None:
    keys = {context_module._key([[text]], Fake()) for text in ("\U0001f600", "\ud83d\ude00")}
    assert len(keys) == 2


# --- files that cannot be used ------------------------------------------------------------------


def remade(folder: Path) -> None:
    assert made(folder, Fake()).made
    assert not made(folder, Fake()).made


@each("share", [0.0, 0.1, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_made_again(tmp_path: Path, share: float) -> None:
    path = made(tmp_path, Fake()).path
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    remade(tmp_path)
    assert path.read_bytes() == whole


def test_a_file_that_is_too_long_is_made_again(tmp_path: Path) -> None:
    path = made(tmp_path, Fake()).path
    path.write_bytes(path.read_bytes() + b"\0\0")
    remade(tmp_path)


def test_any_bit_that_flips_is_seen(tmp_path: Path) -> None:
    path = made(tmp_path, Fake()).path
    whole = path.read_bytes()
    assert len(whole) == 512 + 6 * 4 * 2
    kept = context_module._File(path, path.stem, (6, 4), context_module._DTYPE)
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        with pytest.raises(DataError, match="changed"):
            context_module._opened(kept)
    remade(tmp_path)


def test_the_file_of_another_encoder_or_text_is_not_used_under_this_name(tmp_path: Path) -> None:
    path = made(tmp_path, Fake()).path
    for other in (
        made(tmp_path / "other", Fake(digest="e" * 64, scale=9.0)),
        made(tmp_path / "other", Fake(), [*SENTENCES[::-1]]),
    ):
        path.write_bytes(other.path.read_bytes())
        remade(tmp_path)


def test_a_reader_keeps_what_it_has_while_the_file_is_replaced(tmp_path: Path) -> None:
    found = made(tmp_path, Fake())
    found.path.unlink()
    made(tmp_path, Fake())
    assert np.array_equal(found.states_NX, expected(Fake(), SENTENCES))


# --- writing ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Lets this process write no file beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path,
    small_disk: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    reserves: bool,
) -> None:
    if not reserves:
        monkeypatch.delattr(os, "posix_fallocate")
    encoder, text = Fake(dim=64), [["pain"] * 50] * 20
    small_disk(50_000)
    with pytest.raises(DataError, match="could not be kept") as raised:
        contextual(text, encoder, folder=tmp_path / "cache")
    assert "0.1 MB" in str(raised.value) and "$CONFIDE_CACHE" in str(raised.value)
    assert bool(encoder.seen) is not reserves  # where it can be told, it is told before the work
    assert kept(tmp_path / "cache") == []
    small_disk(10_000_000)
    assert made(tmp_path / "cache", encoder, text).made


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="could not be kept"):
        contextual(SENTENCES, Fake(), folder=tmp_path / "cache")


@dataclass(frozen=True)
class Failing(Fake):
    """Fails in the middle."""

    error: type[BaseException] = KeyboardInterrupt

    def states(
        self, sentences: Sequence[Sequence[str]], *, pieces_per_batch: int = 0
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        yield from list(super().states(sentences))[:2]
        raise self.error("stop")


@each("error", [KeyboardInterrupt, DataError, MemoryError])
def test_what_is_stopped_half_way_leaves_nothing(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error, match="stop"):
        contextual(SENTENCES, Failing(error=error), folder=tmp_path)
    assert kept(tmp_path) == []


@dataclass(frozen=True)
class Forgetful(Fake):
    """Leaves a sentence out."""

    def states(
        self, sentences: Sequence[Sequence[str]], *, pieces_per_batch: int = 0
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        yield from list(super().states(sentences))[1:]


def test_rows_that_nobody_gave_are_no_features(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5 states for 6 tokens"):
        contextual(SENTENCES, Forgetful(), folder=tmp_path)
    assert kept(tmp_path) == []


@dataclass(frozen=True)
class Meeting(Fake):
    """Waits, in the middle, until another one is there too."""

    barrier: Any = None

    def states(
        self, sentences: Sequence[Sequence[str]], *, pieces_per_batch: int = 0
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        yield from list(super().states(sentences))[:2]
        self.barrier.wait(10)
        yield from list(super().states(sentences))[2:]


def test_two_that_make_the_same_file_at_once_both_end_well(tmp_path: Path) -> None:
    encoder = Meeting(barrier=threading.Barrier(2))
    found: list[NDArray[np.float16]] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(contextual(SENTENCES, encoder, folder=tmp_path)[0])
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and len(kept(tmp_path)) == 1
    for one in found:
        assert np.array_equal(one, expected(encoder, SENTENCES))


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = made(tmp_path / "new" / "cache", Fake()).path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_neither_the_name_nor_the_header_tells_a_word(tmp_path: Path) -> None:
    path = made(tmp_path, Fake(), [["gastroparesis"]]).path
    assert b"gastro" not in path.read_bytes() and "gastro" not in path.name


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / "a.unfinished", tmp_path / "b.unfinished"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    made(tmp_path, Fake())
    assert not old.exists() and fresh.exists()


def test_states_are_never_all_in_memory(tmp_path: Path) -> None:
    encoder, text = Fake(dim=1000), [["pain"] * 20] * 200
    tracemalloc.start()
    try:
        states_NX, _ = contextual(text, encoder, folder=tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert states_NX.nbytes == 8_000_000 and peak < 3_000_000


@each("value", [1e6, -1e6, np.inf, -np.inf])
def test_states_are_clipped_to_what_float16_holds(tmp_path: Path, value: float) -> None:
    encoder = Fake(scale=value)
    for folder in (tmp_path, None):
        states_NX = contextual([["pain", "took"]], encoder, folder=folder)[0]
        assert np.isfinite(states_NX).all() and np.abs(states_NX).max() == 65504
        signs = np.sign(encoder.of("pain")) if np.isfinite(value) else np.sign(states_NX[0])
        assert np.array_equal(np.sign(states_NX[0]), signs)


def test_nothing_is_left_where_no_folder_is_given(in_tmp: Path) -> None:
    encoder = Fake()
    states_NX, _ = contextual(SENTENCES, encoder, folder=None)
    assert np.array_equal(states_NX, expected(encoder, SENTENCES))
    assert encoder.seen and kept(in_tmp) == []
    assert not states_NX.flags.writeable


@each("text", [[], [[]], [[], []]])
def test_no_token_needs_no_file(tmp_path: Path, text: list[list[str]]) -> None:
    encoder = Fake()
    states_NX, from_S1 = contextual(text, encoder, folder=tmp_path)
    assert states_NX.shape == (0, 4) and from_S1.tolist() == [0] * (len(text) + 1)
    assert kept(tmp_path) == [] and not encoder.seen


def test_where_features_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CONFIDE_CACHE", raising=False)
    for shared, folder in (
        ("", tmp_path / ".cache" / "confide"),
        ("relative", tmp_path / ".cache" / "confide"),  # the standard says to ignore it
        ("/somewhere", Path("/somewhere/confide")),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert cache_folder() == folder
    monkeypatch.setenv("CONFIDE_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


# --- with a real encoder ------------------------------------------------------------------------


def test_features_of_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.encoders import Reference, tiny_bert

    folder = tiny_bert(tmp_path / "encoder")
    states_NX, from_S1 = contextual(SENTENCES, load_encoder(str(folder)), folder=tmp_path / "cache")
    reference = Reference(folder)
    for words, start in zip(SENTENCES, from_S1.tolist(), strict=False):
        states_LX = states_NX[start : start + len(words)].astype(np.float32)
        np.testing.assert_allclose(states_LX, reference.states(words), atol=2e-3)

    monkeypatch.setitem(sys.modules, "transformers", None)  # nor is it imported again
    again, _ = contextual(SENTENCES, load_encoder(str(folder)), folder=tmp_path / "cache")
    assert np.array_equal(again, states_NX)

    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(ModuleNotFoundError, match="transformers"):
        contextual(SENTENCES, load_encoder(str(folder)), folder=tmp_path / "cache")
