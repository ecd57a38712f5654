"""The form of a BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) whose words are keyed.

What leaves a site at the start: names of the entity types that it annotates, that it holds the
common key, keyed digests of its words and characters with counts, how many training sentences it
has, and a keyed check value of its frozen encoder, if the tagger reads one's states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.batches.encoding import Encoded, TagSet
from confide.data.batches.examples import Example
from confide.data.batches.vectors import VectorFile
from confide.data.batches.vocabulary import (
    SPECIALS,
    UNK,
    KeyedVocabulary,
    Vocabulary,
    rows_of_digests,
)
from confide.errors import KeyFileError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.kinds.context import NONE, find_encoder, with_features
from confide.kinds.entities import EntityExtractor, EntitySiteModel, extractor_with
from confide.kinds.how import How
from confide.kinds.protocol import SharedModel, SiteModel, desk_at
from confide.kinds.types import types_in_text
from confide.kinds.vocabulary import MOST_COMMON, Agreed, common_key, file_check, vectors_of
from confide.learning.crf_modelling import EncodedSplit, TaggerTrainer
from confide.learning.trainer import EntityTrainer
from confide.learning.weights import initial, set_words, trained
from confide.models.tagger import Tagger, TaggerSizes
from confide.settings import Settings as RunSettings

CHARACTER_ROWS = ("character.embedding.weight",)
"""The parameters with a row for each character, as `WORD_ROWS` have one for each word."""
WORD_ROWS = "word.weight"


@dataclass(frozen=True)
class TaggerShape:
    """What a tagger's shape depends on, and how the tagger reads text."""

    types: list[str] = carries("names of the entity types", rule="varies")
    tag_scheme: str = carries("tag scheme that the tagger learns: iobes or iob2")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the tagger")
    character: str = carries("the tagger's character part")
    context: str = carries("name of the frozen encoder; empty without one")
    cnn_widths: list[int] = carries("widths of the word CNN")
    dropout: float = carries("share of features dropped in training")

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of the whole tagger: all of it is trained."""
        return trained(initial(tagger_sizes(self), seed))

    def tables(self) -> Sequence[str]:
        """The tables of words and, if the tagger reads them, of characters."""
        return (WORD_ROWS,) if self.character == NONE else (WORD_ROWS, *CHARACTER_ROWS)


@dataclass(frozen=True)
class TaggerForm(TaggerShape):
    """The form of a tagger: its shape, and the keyed digests of the common vocabulary."""

    private: ClassVar[Sequence[str]] = ("bilstm", "crf")
    head: ClassVar[str] = "crf"
    word_table: ClassVar[str] = "word.weight"
    slope: ClassVar[str] = "crf.linear.weight"

    nonce: str = carries("this run's nonce, by which the sites compared keys", rule="varies")
    check: str = carries("the nonce's HMAC under the common key: verifies a key", rule="varies")
    word_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common words, in order of ids", most=MOST_COMMON
    )
    character_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common characters, in order of ids", legend="C16", most=MOST_COMMON
    )

    def parameters(self, first: Arrays) -> int:
        """The number of parameters: all are trained."""
        return sum(array.size for array in first.values())

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """The keyed digests of words and characters."""
        names = (self.word_digests_V16, self.character_digests_V16)
        return dict(zip(self.tables(), map(rows_of_digests, names), strict=False))

    def at(self, site: Site) -> SiteModel:
        """The desk of this form at a site."""
        return desk_at(site, self, TaggerSiteModel)

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own tagger, with its own tag scheme.

        With `types`, it has only the types of the site's text. Raises Refusal if the CRF is shared
        and the site's tag scheme differs.
        """
        scheme = site.tag_scheme or self.tag_scheme
        if scheme != self.tag_scheme and self.head not in private:
            raise Refusal("tag-scheme")
        own = types_in_text(site) if types else self.types
        form = replace(self, types=own, tag_scheme=scheme)
        return replace(form, sizes={**form.sizes, "tags": len(tag_set(form))})

    def bench(self, site: Site) -> SharedModel:
        """The process's bench. Raises Refusal if the site's key is not the common one."""
        place = (tagger_sizes(self), tag_set(self), site.key(), self.check, self._words)

        def make() -> SharedModel:
            return SharedModel(trainer_of(self, vocabulary_at(site, self)))

        return site.once("tagger", *place, make=make)

    @cached_property
    def _words(self) -> str:
        """Tells vocabularies of one key apart: sites that train alone have one each."""
        digests = (self.word_digests_V16, self.character_digests_V16)
        return hashlib.sha256(b"|".join(array.tobytes() for array in digests)).hexdigest()

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained tagger; `encoder` is the folder of its frozen encoder.

        Raises KeyFileError, and what `find_encoder` raises.
        """
        frozen = None if self.context == NONE else find_encoder(encoder or self.context)
        return extractor_with(trainer_of(self, vocabulary_for(self, key)), weights, encoder=frozen)


def shape_for(
    run: RunSettings, types: Sequence[str], *, words: int, characters: int, dim: int
) -> TaggerShape:
    """The shape of the settings' tagger; `words` and `characters` count ids with the special ones.

    `dim` is the width of its frozen encoder's states; 0 without one.
    """
    sizes = {
        "words": words,
        "characters": characters,
        "tags": len(TagSet(tuple(types), run.model.tag_scheme)),
        "context_dim": dim,
    }
    settled = settled_shape(run)
    return TaggerShape(types=list(types), **settled | {"sizes": sizes | settled["sizes"]})


def settled_shape(run: RunSettings) -> dict[str, Any]:
    """The values of a tagger's shape that the settings alone decide, and some of its sizes."""
    model = run.model
    return {
        "tag_scheme": model.tag_scheme,
        "how": run.vocabulary.how,
        "sizes": {name: getattr(model, name) for name in _SIZES},
        "character": model.character,
        "context": model.context,
        "cnn_widths": list(model.cnn_widths),
        "dropout": model.dropout,
    }


def form_of(run: RunSettings, types: Sequence[str], agreed: Agreed, *, dim: int) -> TaggerForm:
    """The form of this shape with the common vocabulary."""
    shape = shape_for(
        run,
        types,
        words=len(agreed.word_digests_V16) + SPECIALS,
        characters=len(agreed.character_digests_V16) + SPECIALS,
        dim=dim,
    )
    return TaggerForm(
        **vars(shape),
        nonce=agreed.nonce,
        check=agreed.check,
        word_digests_V16=agreed.word_digests_V16,
        character_digests_V16=agreed.character_digests_V16,
    )


_SIZES = (
    "word_dim", "character_dim", "character_filters", "character_width", "character_hidden",
    "cnn_filters", "bilstm_hidden", "bilstm_layers",
)  # fmt: skip


def tagger_sizes(form: TaggerShape) -> TaggerSizes:
    """The sizes of a tagger of this form."""
    return TaggerSizes(
        **form.sizes,
        character=form.character,  # type: ignore[arg-type]
        cnn_widths=tuple(form.cnn_widths),
        dropout=form.dropout,
    )


def tag_set(form: TaggerShape) -> TagSet:
    """The tags of a tagger of this form."""
    return TagSet(tuple(form.types), form.tag_scheme)  # type: ignore[arg-type]


class Vocabularies(NamedTuple):
    """What turns words and characters into ids; a tagger may read no characters."""

    words: Vocabulary
    characters: Vocabulary | None


def trainer_of(form: TaggerShape, vocabulary: Vocabularies) -> TaggerTrainer:
    """The trainer of this form, with the words that `vocabulary_for` gives."""
    return TaggerTrainer(
        sizes=tagger_sizes(form),
        tags=tag_set(form),
        how=form.how,  # type: ignore[arg-type]
        words=vocabulary.words,
        characters=vocabulary.characters,
    )


def taught(trainer: EntityTrainer, how: How) -> TaggerTrainer:
    """The trainer that trains a tagger as `how` says."""
    assert isinstance(trainer, TaggerTrainer)
    return replace(trainer, word_dropout=how.word_dropout, open=how.outside)


def vocabulary_for(form: TaggerForm, key: bytes | None) -> Vocabularies:
    """The vocabularies that turn words and characters into ids, for a holder of the key.

    Raises KeyFileError if this is not the key that the sites share: no word would be known.
    """
    key = common_key(key, nonce=form.nonce, check=form.check)
    characters = KeyedVocabulary(form.character_digests_V16, "character", key)
    return Vocabularies(
        KeyedVocabulary(form.word_digests_V16, "word", key),
        None if form.character == NONE else characters,
    )


def vocabulary_at(site: Site, form: TaggerForm) -> Vocabularies:
    """The vocabularies at a site. Raises Refusal if its key has changed since the start."""
    try:
        return vocabulary_for(form, site.key())
    except KeyFileError as error:
        raise Refusal("other-key") from error


class TaggerSiteModel(EntitySiteModel):
    """A tagger at a site, with its word vectors and the states of its frozen encoder."""

    @cached_property
    def file(self) -> VectorFile | None:
        """The rows of the site's own vector file, read once; None without a file."""
        form, site = self.form, self.site
        if site.vectors is None:
            return None
        words = KeyedVocabulary(form.word_digests_V16, "word", site.key())
        return vectors_of(site.vectors, words, how=form.how, dim=form.sizes["word_dim"])

    def vectors(self) -> str:
        """A keyed check value of the vector file; empty without one."""
        return file_check(self.site.key(), self.file.digest) if self.file else ""

    def trained_by(self, how: How) -> TaggerTrainer:
        """The trainer that trains as `how` says."""
        return taught(self.trainer, how)

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of the frozen encoder."""
        assert isinstance(text, Encoded)
        return with_features(text, examples, site=self.site, name=self.form.context)

    def fill(self, model: nn.Module, how: How) -> None:
        """Fill the vector file's rows into the word table, if `how` says so."""
        if how.vectors and self.file:
            assert isinstance(model, Tagger)
            set_words(model, self.file)

    def lift(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The vector file's rows: ids and rows of the word table."""
        if self.file is None:
            return {}
        return {WORD_ROWS: (self.file.ids_K.astype(np.int64), self.file.rows_KD)}

    def rows_seen(self, how: How) -> Arrays:
        """For each row of the word and character tables: 1 if it counts, else 0.

        What counts are rows that the training text has, and those of vectors that are filled in.
        """
        assert isinstance(self.own, EncodedSplit)
        encoded = self.own.text
        words_V = np.zeros(self.form.sizes["words"], np.float32)
        words_V[encoded.words_F] = 1.0
        words_V[UNK] = 1.0
        if how.vectors and self.file:
            words_V[self.file.ids_K] = 1.0
        characters_V = np.zeros(self.form.sizes["characters"], np.float32)
        characters_V[encoded.characters_M] = 1.0
        own = {name: characters_V.copy() for name in CHARACTER_ROWS if name in self.form.tables()}
        return {WORD_ROWS: words_V} | own
