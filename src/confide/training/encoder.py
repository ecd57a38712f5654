"""An encoder of transformers: its files, word pieces, frozen states, and how much is trained.

A frozen one gives one contextual vector per word:

    words → word pieces → the encoder's last layer → mean over the pieces of each word

It is never trained, so its states of a sentence depend only on the sentence and on its own
files; `confide.training.context` keeps them on disk. Files come from a folder, from the package
that comes with confide, or from the hub. They are read as data only: weights as safetensors,
never a pickle, and no code.

The mean rather than the first piece: an encoder that is trained with the tagger learns to gather a
word in its first piece, a frozen one has not, and the words that matter here break into many pieces
of which the first says little (gas ##tro ##es ##op ##hage ##al).

Shapes: L words of a sentence, P pieces, B windows of a batch, X numbers of a state.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from confide import models
from confide.errors import (
    ConfideError,
    DataError,
    MissingDataError,
    SettingsError,
    os_errors_as,
    printable,
)
from confide.files import MOST_JSON, decode_json, file_bytes, must_be_files, sha256_of
from confide.seeds import derive_seed, seeded
from confide.training.batches import Window
from confide.training.bert import Bert
from confide.training.devices import at_home, beside, most_read, predicting

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# --- The files of a frozen encoder
#
# Finding, checking and hashing them.
#
# Nothing here runs or imports these files: configurations are JSON, weights are safetensors.
# Pickled weights are refused.


MINILM = "minilm"
"""The name of all-MiniLM-L6-v2, which comes with confide: 6 layers, 384 numbers a word."""

_READ = (  # files of a folder that transformers may read
    "config.json", "*.safetensors", "model.safetensors.index.json", "adapter_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "*.model",
)  # fmt: skip
ONE_AT_A_TIME = threading.Lock()
"""Held while transformers loads, since meanwhile every thread makes tensors without memory."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_WIDTHS = ("hidden_size", "d_model", "dim", "emb_dim")  # configurations' names for it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?")
Config = dict[str, Any]
"""A model's configuration, as its config.json has it."""


def is_encoder_name(name: str) -> bool:
    """Return whether this is the name of a model, not a path."""
    return _NAME.fullmatch(name) is not None


def find_folder(name: str) -> Path:
    """The folder of the encoder of this name; the hub's is downloaded unless it is here complete.

    Raises MissingDataError or SettingsError, with what to do, if there is none, and DataError if
    the files of a public model (`confide.models`) are not those that were tested.
    """
    if name in models.known():
        return models.find(name, patterns=_READ)
    folder = Path(name).expanduser()
    if is_encoder_name(name):
        folder = Path(os.environ.get(models.MODELS, "")) / name
    if folder.is_dir():
        return folder
    if folder.exists() or not is_encoder_name(name):
        raise MissingDataError(
            "there is no such folder",
            expected=f"{', '.join(models.names(vectors=False))}, a folder, or the name of a model"
            " on the hub",
            got=repr(name),
        )
    return _from_hub(name)


def width(folder: Path) -> int:
    """The width of the encoder's states, from its configuration.

    Raises MissingDataError if the configuration is missing, DataError if it is damaged, and
    SettingsError if it is not an encoder's.
    """
    if not (folder / "config.json").is_file():
        raise MissingDataError(
            "this folder is not an encoder: it has no config.json",
            expected=f"config.json, {_WEIGHTS} and a tokenizer, as `save_pretrained` writes them",
            where=str(folder),
        )
    config = read_json(folder / "config.json")
    kind, classes = str(config.get("model_type")), config.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else kind
    if kind.startswith("gpt") or name.endswith("ForCausalLM") or config.get("is_decoder"):
        raise no_encoder(folder, got=name)
    widths = [config[key] for key in _WIDTHS if isinstance(config.get(key), int)]
    if not widths:
        raise SettingsError(
            "this is not an encoder: its config.json does not say how wide a state is",
            expected=" or ".join(_WIDTHS),
            where=str(folder),
        )
    return int(widths[0])


def check_files(folder: Path) -> None:
    """Check that there are complete weights as safetensors, and a tokenizer.

    Raises MissingDataError, DataError for damage, and SettingsError for a pickle.
    """
    try:
        must_be_files(path for pattern in _READ for path in folder.glob(pattern))
    except OSError as error:
        raise DataError(
            f"the encoder's folder has something that is not a file: {error.strerror}",
            expected="regular files",
            got=Path(str(error.filename)).name,
            where=str(folder),
            fix="copy or download the encoder again",
        ) from error
    _check_weights(folder)
    if not any(list(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise MissingDataError(
            "the encoder has no tokenizer", expected=" or ".join(_TOKENIZERS), where=str(folder)
        )


def digest_of_files(folder: Path, how: Mapping[str, object]) -> str:
    """A SHA-256 of `how` the files are used and of every file's name and bytes."""
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode())
    with os_errors_as(DataError, "the encoder cannot be read", where=folder):
        for path in sorted({path for pattern in _READ for path in folder.glob(pattern)}):
            content = bytes.fromhex(sha256_of(path))
            digest.update(json.dumps(path.name).encode() + content)
    return digest.hexdigest()


def no_encoder(folder: Path, *, got: str) -> SettingsError:
    """The error for a model whose states do not depend on later words."""
    return SettingsError(
        "this model reads from left to right only: a decoder",
        expected="an encoder, of BERT's kin",
        got=got,
        where=str(folder),
    )


def first_line(error: BaseException) -> str:
    """Another library's error in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=list(_READ), ignore_patterns="*/*", local_files_only=True
        )
        check_files(Path(folder))
        return Path(folder)
    except (OSError, ValueError, ConfideError):
        pass  # missing here, or incomplete
    try:
        return Path(snapshot_download(name, allow_patterns=list(_READ), ignore_patterns="*/*"))
    except Exception as error:  # any network failure
        raise MissingDataError(
            f"there is no folder {name!r}, and no model of this name could be downloaded",
            got=first_line(error),
            fix="download the model where there is a network and give the path of its folder; "
            f"{MINILM!r} needs no network",
        ) from error


def _check_weights(folder: Path) -> None:
    files = [folder / _WEIGHTS]
    if not files[0].is_file():
        if (folder / _INDEX).is_file():
            files = weight_files(folder / _INDEX) or files
        elif pickles := [path.name for path in folder.iterdir() if path.suffix in _PICKLES]:
            raise SettingsError(
                "the encoder's weights are a pickle, which could run code when it is read",
                expected=_WEIGHTS,
                got=sorted(pickles)[0],
                where=str(folder),
                fix="take a model that comes as safetensors, or convert it on a machine where "
                "that does no harm: `AutoModel.from_pretrained(...).save_pretrained(...)`",
            )
    for file in files:
        if not file.is_file():
            raise MissingDataError(
                "the encoder's weights are not there", expected=file.name, where=str(folder)
            )
        try:
            with safe_open(file, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{file.name} is damaged or cut short",
                got=first_line(error),
                where=str(folder),
                fix="copy or download the encoder again",
            ) from error


def weight_files(index: Path) -> list[Path]:
    """The weight files that an index names, all in its own folder.

    Raises DataError if it names a file elsewhere, or is damaged.
    """
    places = read_json(index).get("weight_map")
    names = sorted({str(name) for name in places.values()} if isinstance(places, dict) else ())
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise DataError(
                f"{index.name} names a file that is not beside it",
                expected="names of files, as `save_pretrained` writes them",
                got=printable(repr(name)),
                where=str(index.parent),
                fix="copy or download the encoder again",
            )
    return [index.parent / name for name in names]


def read_json(path: Path) -> Config:
    """The object in a model's JSON file. Raises DataError if it is damaged."""
    try:
        tree = decode_json(file_bytes(path, MOST_JSON))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)
        raise DataError(
            f"{path.name} is damaged" + (f" ({reason})" if reason else ""), where=str(path.parent)
        ) from error
    if not isinstance(tree, dict):
        raise DataError(f"{path.name} is damaged", expected="an object", where=str(path.parent))
    return tree


# --- Word pieces
#
# Words and texts are cut by a fast tokenizer or a slow one.
#
# A fast one (of the library tokenizers) cuts whole sentences at once and says which word each
# piece is of; a slow one (Python code of transformers itself) is given one word at a time. Either
# way every piece belongs to exactly one word, in order. Text that looks like a special piece,
# such as "[SEP]", is plain text.


SURROGATES = re.compile("[\ud800-\udfff]")
"""Unpaired halves of characters, which no tokenizer accepts."""

_CHUNK = 1024  # sentences, or texts, that are tokenised at once


class CutSentence(NamedTuple):
    """The ids of a sentence's pieces, and the word that each belongs to."""

    ids_P: NDArray[np.int32]
    words_P: NDArray[np.int32]


def by_word(cutter: Cutter, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The ids of the pieces of each word of each sentence."""
    found: list[list[list[int]]] = []
    for words, cut in zip(sentences, cutter.sentences(sentences), strict=True):
        own: list[list[int]] = [[] for _ in words]
        for number, word in zip(cut.ids_P.tolist(), cut.words_P.tolist(), strict=True):
            own[word].append(number)
        found.append(own)
    return found


@dataclass(frozen=True)
class FastCutter:
    """Cuts with a tokenizer of the library tokenizers.

    `special` are pieces that no text has: where its letters are those of one, as in a vocabulary of
    sentencepiece they may be, the piece is unknown.
    """

    backend: Tokenizer
    special: frozenset[int] = frozenset()
    unknown_piece: int | None = None

    @property
    def size(self) -> int:
        """The number of pieces."""
        return int(self.backend.get_vocab_size())

    @property
    def unknown(self) -> int | None:
        """The unknown piece, if there is one."""
        name = getattr(self.backend.model, "unk_token", None)
        own = self.backend.token_to_id(name) if isinstance(name, str) else None
        return self.unknown_piece if own is None else own

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Iterator[CutSentence]:
        """The pieces of each sentence."""
        for chunk in _chunks([[_clean(word) for word in words] for words in sentences]):
            for cut in self.backend.encode_batch(
                chunk, is_pretokenized=True, add_special_tokens=False
            ):
                ids = np.array(self._without_special(cut.ids), np.int32)
                yield CutSentence(ids, np.array(cut.word_ids, np.int32))

    def texts(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each text's pieces."""
        for chunk in _chunks([_clean(text) for text in texts]):
            for cut in self.backend.encode_batch(chunk, add_special_tokens=False):
                yield self._without_special(cut.ids)

    def _without_special(self, ids: list[int]) -> list[int]:
        unknown = self.unknown
        if unknown is None or self.special.isdisjoint(ids):
            return ids
        return [unknown if number in self.special else number for number in ids]


@dataclass(frozen=True)
class SlowCutter:
    """Cuts with a tokenizer that is Python code; a word that was cut is remembered."""

    tokenizer: Any

    @cached_property
    def _known(self) -> dict[str, list[int]]:
        return {}

    @property
    def size(self) -> int:
        """The number of pieces."""
        return len(self.tokenizer)

    @property
    def unknown(self) -> int | None:
        """The unknown piece, if there is one."""
        number: int | None = self.tokenizer.unk_token_id
        return number

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Iterator[CutSentence]:
        """The pieces of each sentence."""
        for words in sentences:
            cut = [self._cut(word) for word in words]
            ids = [number for word in cut for number in word]
            yield CutSentence(
                np.array(ids, np.int32),
                np.repeat(np.arange(len(words), dtype=np.int32), [len(word) for word in cut]),
            )

    def texts(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each text's pieces."""
        for text in texts:
            yield self._pieces(text)

    def _cut(self, word: str) -> list[int]:
        if word not in self._known:
            self._known[word] = self._pieces(word)
        return self._known[word]

    def _pieces(self, text: str) -> list[int]:
        pieces = self.tokenizer.tokenize(_clean(text), split_special_tokens=True)
        ids: list[int] = self.tokenizer.convert_tokens_to_ids(pieces)
        return ids


Cutter = FastCutter | SlowCutter
"""Cuts text into pieces, without special ones."""


def _clean(text: str) -> str:
    return SURROGATES.sub("�", text)


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def tokenizer_of(folder: Path, *, fast: bool = True) -> Any:
    """The folder's tokenizer, as transformers loads it; nothing in the folder runs.

    Raises DataError if it cannot be loaded, and SettingsError if it is not a fast one where one is
    needed.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, add_prefix_space=True
        )
    except Exception as error:  # whatever transformers raises
        raise DataError(
            "the tokenizer could not be loaded", got=first_line(error), where=str(folder)
        ) from error
    if fast and not tokenizer.is_fast:
        raise SettingsError("the model has no fast tokenizer", where=str(folder))
    return tokenizer


def cutter_of(tokenizer: Any) -> Cutter:
    """Find how this tokenizer of transformers cuts text."""
    if not tokenizer.is_fast:
        return SlowCutter(tokenizer)
    unknown = tokenizer.unk_token_id
    special = frozenset(tokenizer.all_special_ids) - {unknown}
    backend = plain(tokenizer)
    # pairs of bytes know every text
    knows_all = type(backend.model).__name__ == "BPE"
    return FastCutter(backend, special, None if knows_all else unknown)


def around(tokenizer: Any, rows: int) -> tuple[list[int], list[int]] | None:
    """The special pieces before and behind a text; None if a piece has no row in the table."""
    if max(tokenizer.get_vocab().values(), default=0) >= rows:
        return None
    if tokenizer.is_fast:
        probe = tokenizer(["a"], is_split_into_words=True)
        inner = [place for place, word in enumerate(probe.word_ids()) if word is not None]
        ids: list[int] = probe["input_ids"]
    else:
        own = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("a"))
        ids = tokenizer.build_inputs_with_special_tokens(own)
        starts = range(len(ids) - len(own) + 1)
        first = next((at for at in starts if own and ids[at : at + len(own)] == own), None)
        inner = [] if first is None else list(range(first, first + len(own)))
    return (ids[: inner[0]], ids[inner[-1] + 1 :]) if inner else None


def plain(tokenizer: Any) -> Tokenizer:
    """Its backend: texts stay whole and unpadded, and "[SEP]" in them is plain text.

    Words of byte-level pieces begin with a space, as within a text.
    """
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    before: Any = backend.pre_tokenizer
    if type(before).__name__ == "ByteLevel" and not before.add_prefix_space:
        before.add_prefix_space = True
        backend.pre_tokenizer = before
    return backend


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
        loaded = self.reader
        cut = list(loaded.cutter.sentences(sentences))
        ids, words = [one.ids_P for one in cut], [one.words_P for one in cut]
        for sentence, pieces_P in enumerate(ids):
            if not len(pieces_P):
                yield sentence, np.zeros((len(sentences[sentence]), self.dim), np.float32)
        windows = [w for s, pieces_P in enumerate(ids) for w in _windows(s, len(pieces_P), loaded)]
        windows.sort(key=lambda window: window.start - window.end)
        begun: dict[int, list[NDArray[np.float32]]] = {}
        for batch in _batches(windows, loaded, most_read(loaded.model, pieces_per_batch)):
            states_BPX = _forward(loaded, [ids[w.example][w.start : w.end] for w in batch])
            for row, window in enumerate(batch):
                shift = len(loaded.before) - window.start
                own = states_BPX[row, window.own_start + shift : window.own_end + shift]
                begun.setdefault(window.example, []).append(own)
                if window.own_end == len(ids[window.example]):
                    states_PX = np.concatenate(begun.pop(window.example))
                    length = len(sentences[window.example])
                    yield window.example, self._pooled(states_PX, words[window.example], length)

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

    @cached_property
    def reader(self) -> Loaded:
        """The reader of `states`: for MiniLM, whose files are known, without transformers."""
        if self.name != MINILM:
            return self.loaded
        return self._unchanged(_minilm(self.folder, again=lambda: self.reader.model))

    def _read(self) -> Loaded:
        return self._unchanged(_load(self.folder, self.dim, again=lambda: self._read().model))

    def _unchanged(self, loaded: Loaded) -> Loaded:
        if digest_of_files(self.folder, _HOW) != self.digest:
            raise DataError(
                "the encoder's files changed while it was in use", where=str(self.folder)
            )
        return loaded


def load_encoder(name: str) -> FrozenEncoder:
    """The encoder of this name: a public model's, a folder, or else one of the Hugging Face hub.

    Its files are checked and hashed (90 MB in 0.1 s); the model itself is loaded, and transformers
    imported, when it is first needed. A model of the hub is downloaded once.

    Raises MissingDataError if the encoder or a part of it is missing, SettingsError if it is not a
    usable encoder, and DataError if a file is damaged.
    """
    folder = find_folder(name)
    dim = width(folder)
    check_files(folder)
    return FrozenEncoder(name=name, folder=folder, dim=dim, digest=digest_of_files(folder, _HOW))


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


@cache
def _lay_out_masks_unread() -> None:
    """Let transformers lay out a mask that is on a GPU without a look at it.

    It looks whether a mask hides anything, and the processor waits for the GPU until then; what
    hides nothing is no mask here (`kinds.pieces`).
    """
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def laid_out(*sizes: Any, **how: Any) -> Tensor | None:
        mask = how.get("attention_mask")
        if mask is not None and mask.device.type != "cpu":
            how["allow_is_bidirectional_skip"] = False
        found: Tensor | None = sdpa_mask(*sizes, **how)
        return found

    AttentionMaskInterface.register("sdpa", laid_out)


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
    # where nothing is padded there is no mask, and no need to look at the pieces
    model.warn_if_padding_and_no_attention_mask = _unwarned
    return model.eval().requires_grad_(False), lacking


def _unwarned(*_: object) -> None:
    """Warn of nothing."""


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

    _lay_out_masks_unread()
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


def _minilm(folder: Path, *, again: Callable[[], Any]) -> Loaded:
    """MiniLM by torch and tokenizers alone: the import of transformers takes longer than its use.

    Its files are those of `confide.models`, so nothing of them can be odd.
    """
    from tokenizers import Tokenizer

    config, weights = read_json(folder / "config.json"), load_file(folder / _WEIGHTS)
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    model = Bert({key: one.float() for key, one in weights.items()}, layers=layers, heads=heads)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    around = backend.encode("").ids
    backend.encode_special_tokens = True
    unknown = backend.token_to_id("[UNK]")
    added = backend.get_added_tokens_decoder().items()
    special = frozenset(number for number, one in added if one.special) - {unknown}
    most = config["max_position_embeddings"]
    return Loaded(
        FastCutter(backend, special, unknown), model.eval(), again, config["vocab_size"],
        around[:1], around[1:], room=most - len(around), most=most, padding=config["pad_token_id"],
    )  # fmt: skip


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


def _windows(sentence: int, length: int, loaded: Loaded) -> Iterator[Window]:
    """Windows of one size, the last one up to the end; none without pieces.

    Its own part is the pieces that a window gives the states of.
    """
    room = loaded.room
    starts = [0] if length else []
    while starts and starts[-1] + room < length:
        starts.append(min(starts[-1] + room - room // 4, length - room))
    for place, start in enumerate(starts):
        own_start = (start + starts[place - 1] + room) // 2 if place else 0
        last = place == len(starts) - 1
        own_end = length if last else (starts[place + 1] + start + room) // 2
        yield Window(sentence, start, min(start + room, length), own_start, own_end)


def _batches(
    windows: Sequence[Window], loaded: Loaded, pieces_per_batch: int
) -> Iterator[Sequence[Window]]:
    """Batches, longest windows first, so the first window of a batch sets its padded length."""
    start = 0
    while start < len(windows):
        longest = windows[start].end - windows[start].start
        longest += len(loaded.before) + len(loaded.after)
        rows = max(1, pieces_per_batch // longest)
        yield windows[start : start + rows]
        start += rows


# --- Reading text with an encoder of transformers
#
# The one place where models call theirs.
#
# Shapes: B texts, P pieces, D numbers of a state.


def states_of(encoder: Any, ids_BP: Tensor, mask_BP: Tensor | None) -> Tensor:
    """states_BPD of the last layer; `mask_BP` is None if nothing is padded.

    An encoder that says `never_trained` is read without dropout and without gradients, so that its
    states of a text never change.
    """
    if not getattr(encoder, "never_trained", False):
        states_BPD: Tensor = encoder(input_ids=ids_BP, attention_mask=mask_BP).last_hidden_state
        return states_BPD
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            states_BPD = encoder(input_ids=ids_BP, attention_mask=mask_BP).last_hidden_state
            return states_BPD
    finally:
        encoder.train(was_training)


# --- Tuning of an encoder
#
# All of it is trained, its top layers, low-rank updates, biases, or nothing.
#
# One implementation for all kinds whose model has an encoder. What is not trained stays as the
# encoder's public files have it, so it never travels: a model's weights are those parameters that
# require a gradient, and whatever lies behind the encoder (the head) always does.
#
# - `top`: the last `layers` layers (Howard & Ruder, ACL 2018, unfreeze in this order).
# - `lora`: updates of low rank of the attention's queries and values (Hu et al., ICLR 2022, 4.2
#   and 7.1), by the library peft: W + (alpha / rank) B A, with A drawn and B zero. A is averaged,
#   and B: the mean of products is not the product of means, as all federated averaging of LoRA
#   has it (Zhang et al., "FedPETuning", Findings of ACL 2023, 3.2). With `factors = "b"` A stays
#   as it was drawn, the same everywhere, and only B is trained: the mean of B is the mean of
#   updates, under masks and noise too (Sun et al., "Improving LoRA in Privacy-preserving Federated
#   Learning", ICLR 2024, FFA-LoRA).
# - `bias`: the biases alone (Ben Zaken et al., "BitFit", ACL 2022).
# - `frozen`: nothing. Features are computed once and kept (`kinds.pieces`).
#
# The rows of marks around entities, which no public file has, are trained unless the encoder is
# frozen; then they are drawn from a fixed seed, the same everywhere.


Tune = Literal["all", "top", "lora", "bias", "frozen"]
Factors = Literal["both", "b", "exact"]
"""The factors of an update of low rank that are trained; `exact`: both, and the weight below them
travels, since the server corrects it.
"""
CORRECTED = ".base_layer.weight"
"""The end of the name of a weight below an update of low rank."""

MARKS = derive_seed("marks of a frozen encoder")
"""The seed of the rows of marks that nobody trains."""
FACTORS = derive_seed("factors A that stay as they are")
"""The seed of the factors A that nobody trains."""

_UPDATED = re.compile(
    r"(query|value|query_proj|value_proj|q_lin|v_lin|q_proj|v_proj|Wqkv|in_proj|q|v)$"
)
"""Names of the linear layers of queries and values in transformers' families."""


@dataclass(frozen=True)
class Tuning:
    """The part of an encoder that is trained.

    As text, its `str`, it stands in a form: "all", "top 2", "lora 8 16", "lora 8 16 b", "lora 8 16
    exact", "bias", "frozen".
    """

    tune: Tune = "all"
    layers: int = 2
    rank: int = 8
    alpha: int = 16
    factors: Factors = "both"

    def __str__(self) -> str:
        factors = "" if self.factors == "both" else f" {self.factors}"
        numbers = {"top": f" {self.layers}", "lora": f" {self.rank} {self.alpha}{factors}"}
        return self.tune + numbers.get(self.tune, "")

    @classmethod
    def of(cls, text: str) -> Tuning:
        """The tuning of this text; the empty text of older forms is "all". Raises SettingsError."""
        found = re.fullmatch(
            r"(all|bias|frozen|)|top ([1-9]\d{0,3})|lora ([1-9]\d{0,3}) ([1-9]\d{0,3})( b| exact)?",
            text,
        )
        if found is None:
            raise SettingsError("nobody knows what of the encoder is trained", got=repr(text[:40]))
        plain, layers, rank, alpha, factors = found.groups()
        if layers:
            return cls("top", layers=int(layers))
        if rank:
            kept: Any = (factors or " both").strip()
            return cls("lora", rank=int(rank), alpha=int(alpha), factors=kept)
        return cls(plain or "all")  # type: ignore[arg-type]

    @property
    def frozen(self) -> bool:
        """True if the encoder never changes."""
        return self.tune == "frozen"

    @property
    def whole(self) -> bool:
        """True if all of the encoder is trained."""
        return self.tune == "all"


WHOLE = Tuning()
"""All of the encoder is trained."""


def tune(model: nn.Module, body: Any, tuning: Tuning) -> None:
    """Choose what is trained of a model whose encoder is `body`; the rest requires no gradient.

    Updates of low rank are drawn by torch's generator. Raises SettingsError if the encoder has no
    such part, or peft is missing.
    """
    model.requires_grad_(True)
    if tuning.whole:
        return
    body.requires_grad_(False)
    if tuning.frozen:
        body.never_trained = True
    elif tuning.tune == "lora":
        kept = tuning.factors == "b"
        with seeded(FACTORS) if kept else nullcontext():
            add_low_rank(body, updated(body), rank=tuning.rank, alpha=tuning.alpha)
        for name, parameter in body.named_parameters() if kept else ():
            if ".lora_A." in name:
                parameter.requires_grad_(False)
        body.corrected = tuning.factors == "exact"
    else:
        for part in _top(body, tuning.layers) if tuning.tune == "top" else _biases(body):
            part.requires_grad_(True)
    for name, parameter in body.named_parameters():
        if name.rpartition(".")[2] == "marks_KD":
            parameter.requires_grad_(not tuning.frozen)


def _top(body: Any, count: int) -> list[nn.Module]:
    layers = list(layers_of(body))
    if count > len(layers):
        raise SettingsError(
            "the encoder has fewer layers than are to be trained",
            expected=f"encoder.layers of at most {len(layers)}",
            got=str(count),
        )
    return layers[len(layers) - count :]


def layers_of(body: Any) -> nn.ModuleList:
    """The layers of a transformer, from bottom to top. Raises SettingsError if it has none."""
    count = getattr(body.config, "num_hidden_layers", None)
    lists = [one for one in body.modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    if not lists:
        raise SettingsError("the encoder has no stack of layers", got=type(body).__name__)
    return lists[0]


def _biases(body: Any) -> list[nn.Parameter]:
    found = [p for name, p in body.named_parameters() if name.rpartition(".")[2] == "bias"]
    if not found:
        raise SettingsError(
            "this encoder has no biases to train",
            got=type(body).__name__,
            fix='set encoder.tune = "lora", "top" or "all"',
        )
    return found


def add_low_rank(body: nn.Module, layers: list[str], *, rank: int, alpha: int) -> None:
    """Give the linear layers of these names an update, drawn by torch's generator; only it trains.

    A name may also be the last part of a layer's. Raises SettingsError if peft is not installed.
    """
    peft = peft_library()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=layers, bias="none"
    )
    peft.inject_adapter_in_model(config, body)


def updated(body: Any) -> list[str]:
    """The names of the linear layers that get an update. Raises SettingsError if there are none."""
    inside = {id(module) for module in layers_of(body).modules()}
    found = [
        name
        for name, module in body.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) in inside
        and _UPDATED.fullmatch(name.rpartition(".")[2])
    ]
    if not found:
        raise SettingsError(
            "the encoder's queries and values are not where any known family has them",
            got=type(body).__name__,
            fix='set encoder.tune = "top", "bias" or "all"',
        )
    return found


def peft_library() -> Any:
    """The library peft. Raises SettingsError if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise SettingsError(
            "updates of low rank need the library peft", fix="pip install 'confide[lora]'"
        ) from error
    return peft


class MarkedEmbedding(nn.Embedding):
    """A table of pieces with rows for marks behind it, which are parameters of their own.

    `marks_KD` has the rows of ids from `num_embeddings` on, so the table may stay frozen.
    """

    def __init__(self, table: nn.Embedding, marks_KD: torch.Tensor) -> None:
        super().__init__(
            table.num_embeddings,
            table.embedding_dim,
            padding_idx=table.padding_idx,
            _weight=table.weight.detach(),
        )
        self.marks_KD = nn.Parameter(marks_KD)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """values_BPD."""
        first = self.num_embeddings
        plain_BPD = super().forward(input.clamp(max=first - 1))
        marks_BPD = self.marks_KD[(input - first).clamp(min=0)]
        return torch.where((input >= first)[..., None], marks_BPD, plain_BPD)
