"""A frozen encoder: one contextual vector per word, from any Hugging Face encoder.

    words → word pieces → the encoder's last layer → mean over the pieces of each word

The encoder is never trained, so its states of a sentence depend only on the sentence and on its own
files; `confide.learning.context` keeps them on disk. Files come from a folder, from the package
that comes with confide, or from the hub. They are read as data only: weights as safetensors,
never a pickle, and no code.

The mean rather than the first piece: an encoder that is trained with the tagger learns to gather a
word in its first piece, a frozen one has not, and the words that matter here break into many pieces
of which the first says little (gas ##tro ##es ##op ##hage ##al).

Shapes: L words of a sentence, P pieces, B windows of a batch, X numbers of a state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from confide.errors import DataError, SettingsError
from confide.learning.cutting import Cutter, around, cutter_of, tokenizer_of
from confide.learning.devices import at_home, beside, predicting
from confide.learning.encoder_files import (
    ONE_AT_A_TIME,
    check_files,
    digest_of,
    find_folder,
    first_line,
    no_encoder,
    width,
)

_LONGEST = 512  # most pieces of a window; a longer sentence is cut into several
_LARGE = 2**28  # bytes of a model that is held once; a smaller one is quicker copied than read
_HOW = {"version": 1, "layer": "last", "pool": "mean", "no piece": 0, "longest": _LONGEST}


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder that has been found but not yet loaded; the first `states` loads it.

    `digest` is a SHA-256 of its configuration, weights and tokenizer and of how we use them: equal
    digests give the same states.
    """

    name: str
    folder: Path
    dim: int
    digest: str

    def states(
        self, sentences: Sequence[Sequence[str]], *, pieces_per_batch: int = 1024
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yields (index of a sentence, states_LX of its words), each sentence once, longest first.

        Sentences of similar length are batched, at most `pieces_per_batch` padded pieces at once; a
        sentence's states depend on the others only by rounding (1e-5). A sentence with more pieces
        than the encoder reads is cut into windows that overlap by a quarter, and each piece's state
        comes from the window that sees more context on its shorter side. A word without a piece (a
        control character, U+FEFF, an unusual space) gets zeros. Text that looks like a special
        piece, such as "[SEP]", is plain text.

        Raises SettingsError if this is not an encoder, and DataError if the files are damaged.
        """
        loaded = self.loaded
        cut = list(loaded.cutter.sentences(sentences))
        ids, words = [one.ids_P for one in cut], [one.words_P for one in cut]
        for sentence, pieces_P in enumerate(ids):
            if not len(pieces_P):
                yield sentence, np.zeros((len(sentences[sentence]), self.dim), np.float32)
        windows = [w for s, pieces_P in enumerate(ids) for w in _windows(s, len(pieces_P), loaded)]
        windows.sort(key=lambda window: window.start - window.end)
        begun: dict[int, list[NDArray[np.float32]]] = {}
        for batch in _batches(windows, loaded, pieces_per_batch):
            states_BPX = _forward(loaded, [ids[w.sentence][w.start : w.end] for w in batch])
            for row, window in enumerate(batch):
                shift = len(loaded.before) - window.start
                own = states_BPX[row, window.own_start + shift : window.own_end + shift]
                begun.setdefault(window.sentence, []).append(own)
                if window.own_end == len(ids[window.sentence]):
                    states_PX = np.concatenate(begun.pop(window.sentence))
                    length = len(sentences[window.sentence])
                    yield window.sentence, self._pooled(states_PX, words[window.sentence], length)

    def check_longest(self, longest: int) -> None:
        """Raise SettingsError if it cannot read that many pieces at once, special ones included."""
        most = self.loaded.most
        if longest > most:
            raise SettingsError(
                "the encoder cannot read that many pieces at once",
                expected=f"at most {most}",
                got=str(longest),
                where=str(self.folder),
            )

    def _pooled(
        self, states_PX: NDArray[np.float32], words_P: NDArray[np.int32], length: int
    ) -> NDArray[np.float32]:
        """states_LX: the mean over each word's pieces, which are adjacent."""
        if np.isnan(states_PX).any():
            raise DataError("the encoder's states are not finite", where=str(self.folder))
        present, starts, counts = np.unique(words_P, return_index=True, return_counts=True)
        states_LX = np.zeros((length, self.dim), np.float32)
        sums = np.add.reduceat(states_PX, starts, axis=0)
        states_LX[present] = sums / counts[:, None].astype(np.float32)
        return states_LX

    @cached_property
    def loaded(self) -> Loaded:
        """The model and its tokenizer, read once. Raises as `states` does."""
        return self._read()

    def _read(self) -> Loaded:
        loaded = _load(self.folder, self.dim, again=lambda: self._read().model)
        if digest_of(self.folder, _HOW) != self.digest:
            raise DataError(
                "the encoder's files changed while it was in use", where=str(self.folder)
            )
        return loaded


def load_encoder(name: str) -> FrozenEncoder:
    """The encoder of this name: "minilm", a folder, or else a model of the Hugging Face hub.

    Its files are checked and hashed (90 MB in 0.1 s); the model itself is loaded, and transformers
    imported, when it is first needed. A model of the hub is downloaded once.

    Raises MissingDataError if the encoder or a part of it is missing, SettingsError if it is not a
    usable encoder, and DataError if a file is damaged.
    """
    folder = find_folder(name)
    dim = width(folder)
    check_files(folder)
    return FrozenEncoder(name=name, folder=folder, dim=dim, digest=digest_of(folder, _HOW))


# --- the model ------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Loaded:
    """A model and its tokenizer.

    `before` and `after` are the special pieces around a text, `room` is how many fit between in a
    window, `most` how many the encoder reads at once, special ones included; `rows` is how many
    pieces its table has. `again` reads a model that was handed out.
    """

    cutter: Cutter
    held: Any
    again: Callable[[], Any]
    rows: int
    before: list[int]
    after: list[int]
    room: int
    most: int
    padding: int

    @property
    def model(self) -> Any:
        """The model, which nobody trains."""
        if self.held is None:
            self.held = self.again()
        return self.held

    def body(self) -> Any:
        """A model of one's own, without its pooler, which nothing reads.

        It is a copy or, so that a large one is not held twice, the very model that was read.
        """
        body = self.model
        if sum(one.nbytes for one in body.parameters()) < _LARGE:
            body = copy.deepcopy(body)
        else:
            self.held = None
        if getattr(body, "pooler", None) is not None:
            body.pooler = None
        return body


def read_pretrained(family: Any, folder: Path, *, what: str) -> tuple[Any, set[str]]:
    """The model that a class of transformers reads from a folder, and the weights that lack there.

    It is in float32, frozen and in evaluation mode; nothing in the folder runs. Raises DataError if
    `what` this is cannot be loaded.
    """
    with ONE_AT_A_TIME, _quiet():
        try:
            model, found = family.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are among those that lack
                dtype=torch.float32,
                output_loading_info=True,
            )
        except Exception as error:  # whatever transformers raises
            raise DataError(
                f"the {what} could not be loaded", got=first_line(error), where=str(folder)
            ) from error
    lacking = {*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])}
    return model.eval().requires_grad_(False), lacking


def check_whole(lacking: set[str], folder: Path, *, apart: tuple[str, ...]) -> None:
    """Raise DataError if weights lack whose names do not start with one of `apart`."""
    needed = {key for key in lacking if not key.startswith(apart)}
    if needed:
        raise DataError(
            "the weights do not match config.json",
            expected=f"{min(needed)} and {len(needed) - 1} more, each of its size",
            where=str(folder),
        )


def _load(folder: Path, dim: int, *, again: Callable[[], Any]) -> Loaded:
    from transformers import AutoModel

    with ONE_AT_A_TIME, _quiet():
        tokenizer = tokenizer_of(folder, fast=False)
    model, lacking = read_pretrained(AutoModel, folder, what="encoder")
    apart = ("pooler.", "decoder.") if model.config.is_encoder_decoder else ("pooler.",)
    check_whole(lacking, folder, apart=apart)
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    try:
        loaded = _assembled(tokenizer, model, folder, again=again)
        _check_states(loaded, folder, dim=dim)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise SettingsError(
            "this is not an encoder of text", got=first_line(error), where=str(folder)
        ) from error
    return loaded


def _assembled(tokenizer: Any, model: Any, folder: Path, *, again: Callable[[], Any]) -> Loaded:
    rows = model.get_input_embeddings().num_embeddings
    frame = around(tokenizer, rows)
    if frame is None:
        raise DataError("the tokenizer does not belong to the encoder", where=str(folder))
    before, after = frame
    positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
    # RoBERTa and its kin reserve the positions up to the padding piece's id (1) for padding.
    positions -= 2 if model.config.pad_token_id == 1 else 0
    most = min(positions, tokenizer.model_max_length)
    room = min(_LONGEST, most) - len(before) - len(after)
    if room < 3:
        raise SettingsError("the encoder reads too few pieces at once", where=str(folder))
    padding, cutter = tokenizer.pad_token_id or 0, cutter_of(tokenizer)
    return Loaded(cutter, model, again, rows, before, after, room=room, most=most, padding=padding)


def _check_states(loaded: Loaded, folder: Path, *, dim: int) -> None:
    """Raise if states are not as wide as config.json says, or do not depend on later words."""
    last = loaded.cutter.size - 1
    texts = [np.array([last, last, other], np.int32) for other in (last, last - 1)]
    one_PX, other_PX = (_forward(loaded, [text])[0] for text in texts)
    if one_PX.shape[1] != dim:
        raise SettingsError(
            "the states are not as wide as config.json says",
            expected=str(dim),
            got=str(one_PX.shape[1]),
            where=str(folder),
        )
    ahead = len(loaded.before) + 2
    if np.array_equal(one_PX[:ahead], other_PX[:ahead]):
        raise no_encoder(folder, got=type(loaded.model).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports; what matters in them is checked here."""
    reports = import_module("transformers.utils.logging")
    level, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(level)
        if bars:
            reports.enable_progress_bar()


def _forward(loaded: Loaded, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
    """states_BPX of the last layer, special pieces included; padding has no meaning."""
    rows = [[*loaded.before, *text.tolist(), *loaded.after] for text in texts]
    ids_BP = torch.full((len(rows), max(map(len, rows))), loaded.padding)
    mask_BP = torch.zeros_like(ids_BP)
    for place, row in enumerate(rows):
        ids_BP[place, : len(row)] = torch.tensor(row)
        mask_BP[place, : len(row)] = 1
    with predicting(loaded.model):
        ids_BP, mask_BP = beside(ids_BP, loaded.model), beside(mask_BP, loaded.model)
        answer = loaded.model(input_ids=ids_BP, attention_mask=mask_BP)
        states_BPX: NDArray[np.float32] = at_home(answer.last_hidden_state)
    return states_BPX


# --- pieces and windows -------------------------------------------------------------------------


class _Window(NamedTuple):
    """Pieces `start` to `end` of a sentence, and which of them this window gives the states of."""

    sentence: int
    start: int
    end: int
    own_start: int
    own_end: int


def _windows(sentence: int, length: int, loaded: Loaded) -> Iterator[_Window]:
    """Windows of one size, the last one up to the end; none without pieces."""
    room = loaded.room
    starts = [0] if length else []
    while starts and starts[-1] + room < length:
        starts.append(min(starts[-1] + room - room // 4, length - room))
    for place, start in enumerate(starts):
        own_start = (start + starts[place - 1] + room) // 2 if place else 0
        last = place == len(starts) - 1
        own_end = length if last else (starts[place + 1] + start + room) // 2
        yield _Window(sentence, start, min(start + room, length), own_start, own_end)


def _batches(
    windows: Sequence[_Window], loaded: Loaded, pieces_per_batch: int
) -> Iterator[Sequence[_Window]]:
    """Batches, longest windows first, so the first window of a batch sets its padded length."""
    start = 0
    while start < len(windows):
        longest = windows[start].end - windows[start].start
        longest += len(loaded.before) + len(loaded.after)
        rows = max(1, pieces_per_batch // longest)
        yield windows[start : start + rows]
        start += rows
