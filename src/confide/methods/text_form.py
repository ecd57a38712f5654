"""A BART that many sites train to write their text again: its form, and text as it reads it.

What leaves a site: which public encoder it has (a digest of that encoder's files, the same at all
sites), and how many training sentences it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.data.corpora import locate
from confide.data.denoising import DenoisingBatch
from confide.data.noise import Noise
from confide.data.passages import Passages, passages
from confide.errors import ConfideError, GuardError
from confide.federation.failures import Refusal
from confide.federation.guards import check_mark
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.bart_making import base_digest
from confide.learning.encoder_files import find_folder
from confide.learning.seeds import derive_seed
from confide.learning.texts import MadeBart, Reading, made_bart
from confide.text.document import Document

_MEASURE = derive_seed(1, "measure")
"""Of the noise in text that is measured on: the same in every round and every run."""


@dataclass(frozen=True)
class TextMemory:
    """What a site keeps: what the BART is made of, and how text is noised."""

    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files")
    decoder_layers: int = carries("of the BART that is made of it")
    train: str = carries("what is trained: decoder or all")
    longest: int = carries("word pieces of a passage")
    sampled: int = carries("rows of the table that stand for all others in a step's loss; 0: all")
    measured: int = carries("pieces of held-out text that are looked at; 0: all")
    masked: float = carries("share of words that are masked")
    mean_span: float = carries("words of a masked span, in the mean")
    permuted: float = carries("share of passages whose sentences come in any order")
    dropout: float = carries("share of features dropped in training")


@dataclass(frozen=True)
class TextTaken:
    """What the site has of it."""

    digest: str = carries("digest of the encoder's files, the same at all who have it")
    sentences: int = carries("number of its training sentences")


def take_text_form(
    site: Site, memory: TextMemory | None, ask: TextMemory, turn: Turn
) -> tuple[TextTaken, TextMemory]:
    """Keep the form of the BART, look its encoder up, and cut the training text."""
    for part in ("train", "dev", "test"):
        site.cache.pop(_key(part), None)
    _, digest = base_of(site, ask.encoder)
    sentences = passages_at(site, ask, "train").sentences_N.sum() if digest == ask.digest else 0
    return TextTaken(digest, int(sentences)), ask


def check_text_taken(ask: object, reply: TextTaken) -> None:
    """Raise GuardError where no site can be like that."""
    if reply.sentences < 0:
        raise GuardError("the description of the text cannot be")
    check_mark("digest", reply.digest)


TAKE_TEXT_FORM = Step.of(take_text_form, check=check_text_taken)


def find_base(place: str) -> tuple[Path, str]:
    """The folder of an encoder of BERT's form, and the digest of its files.

    Raises what `find_folder` and `base_digest` raise.
    """
    folder = find_folder(str(locate(place)) if place.startswith("$") else place)
    return folder, base_digest(folder)


def base_of(site: Site, name: str) -> tuple[Path, str]:
    """The site's own, looked up once in a process. Raises Refusal where it cannot be used."""
    place = site.model_place(name)
    bases: dict[str, tuple[Path, str]] = site.scratch.setdefault("bases", {})
    if place not in bases:
        try:
            bases[place] = find_base(place)
        except ConfideError as error:
            raise Refusal("encoder-missing") from error
    return bases[place]


def bart_at(site: Site, memory: TextMemory) -> MadeBart:
    """The one BART of this form in this process. Raises Refusal where its encoder is another."""
    folder, digest = base_of(site, memory.encoder)
    if digest != memory.digest:
        raise Refusal("other-encoder")
    made: dict[Any, MadeBart] = site.scratch.setdefault("made barts", {})
    form = (digest, memory.decoder_layers, memory.dropout)
    if form not in made:
        made[form] = made_bart(folder, decoder_layers=memory.decoder_layers, dropout=memory.dropout)
    return made[form]


def reading_of(memory: TextMemory, made: MadeBart) -> Reading:
    """How this BART reads text."""
    noise = Noise(memory.masked, memory.mean_span, memory.permuted)
    return Reading(made.pieces, noise, memory.longest)


def passages_at(site: Site, memory: TextMemory, part: str) -> Passages:
    """The passages of a part of the site's text, cut once; annotation is ignored.

    Training text has no sentence of the site's held-out text. Raises Refusal where it has fewer
    sentences than the site's own guard asks for.
    """
    key = _key(part)
    if key not in site.cache:
        without = [*site.dev, *site.test] if part == "train" else []
        reading = reading_of(memory, bart_at(site, memory))
        found = cut(reading, site.documents(part), without=without)
        if part == "train" and 0 < found.sentences_N.sum() < site.guards.min_sentences:
            raise Refusal("too-few-sentences")
        site.cache[key] = found
    kept: Passages = site.cache[key]
    return kept


def cut(
    reading: Reading, documents: Sequence[Document], *, without: Sequence[Document] = ()
) -> Passages:
    """The passages of documents, without the sentences of some others."""
    cutter = reading.cutter()
    cutter.leave_out(without)
    return passages(cutter.cut(documents))


def batches_at(site: Site, memory: TextMemory, part: str) -> list[DenoisingBatch]:
    """Held-out text with the same noise each time."""
    reading = reading_of(memory, bart_at(site, memory))
    found = passages_at(site, memory, part)
    return reading.measured(found, seed=_MEASURE, most=memory.measured)


def batches_of(
    memory: TextMemory, made: MadeBart, documents: Sequence[Document]
) -> list[DenoisingBatch]:
    """The same for documents at hand."""
    reading = reading_of(memory, made)
    return reading.measured(cut(reading, documents), seed=_MEASURE, most=memory.measured)


def _key(part: str) -> str:
    return f"passages {part}"
