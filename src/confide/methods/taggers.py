"""Taggers at a site: what the methods that train one share.

The form of the model and the common vocabulary are a site's memory; encoded text is its cache; one
model instance serves all sites of a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.data.encoding import Encoded, TagSet, encode
from confide.data.vectors import VectorFile, read_vectors
from confide.data.vocabulary import SPECIALS, UNK, KeyedVocabulary
from confide.errors import ConfideError, FederationError, KeyFileError
from confide.federation.failures import Refusal
from confide.federation.keys import key_check
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.learning.predict import Prepared, annotate, prepare
from confide.learning.weights import initial, load
from confide.methods.vocabulary import Agreed, training_examples
from confide.models.tagger import Tagger, TaggerSizes
from confide.settings import Settings as RunSettings
from confide.text.document import Document

CHARACTER_ROWS = ("character.embedding.weight",)
"""The parameters that have a row per character, as `word.weight` has one per word."""


class Form(Protocol):
    """What the shape of a tagger depends on."""

    @property
    def types(self) -> list[str]: ...  # noqa: D102
    @property
    def sizes(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def character(self) -> str: ...  # noqa: D102
    @property
    def dropout(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class TaggerMemory:
    """What a site keeps: the common vocabulary, whose key it needs, and the form of the model."""

    nonce: str = carries("the number of this run that sites compared their keys by")
    check: str = carries("what the common key makes of it: tells whether a key is the common one")
    word_digests_V16: NDArray[np.uint8] = carries("digests of the common words, in order of ids")
    character_digests_V16: NDArray[np.uint8] = carries("the same for characters")
    types: list[str] = carries("names of the common entity types")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the tagger")
    character: str = carries("which character part the tagger has")
    dropout: float = carries("share of features dropped in training")


@dataclass(frozen=True)
class Extractor:
    """A trained tagger with its vocabulary."""

    model: Tagger
    vocabulary: Mapping[str, Any]

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, a confidence on each entity."""
        return annotate(self.model, prepare(documents, **self.vocabulary))


def known(memory: TaggerMemory | None) -> TaggerMemory:
    """The memory; a site without one cannot go on. Raises Refusal."""
    if memory is None:
        raise Refusal("memory-missing")
    return memory


def vocabulary_for(memory: TaggerMemory, key: bytes) -> dict[str, Any]:
    """What turns text into the model's numbers, for who holds the key.

    Raises KeyFileError where this is not the key that the sites shared: no word would be known.
    """
    if key_check(key, memory.nonce) != memory.check:
        raise KeyFileError(
            "this is not the key that the sites trained with, so no word would be recognised",
            fix="name the key file that the sites shared then",
        )
    characters = KeyedVocabulary(memory.character_digests_V16, "character", key)
    return {
        "words": KeyedVocabulary(memory.word_digests_V16, "word", key),
        "characters": None if memory.character == "none" else characters,
        "tags": TagSet(tuple(memory.types)),
        "how": memory.how,
    }


def encoded_text(site: Site, memory: TaggerMemory) -> Encoded:
    """The site's training text as numbers, made once."""
    if "train" not in site.cache:
        site.cache["train"] = encode(training_examples(site), **_vocabulary(site, memory))
    found: Encoded = site.cache["train"]
    return found


def prepared_text(site: Site, memory: TaggerMemory, part: str) -> Prepared:
    """A part of the site's held-out text, ready to be annotated, made once."""
    if part not in site.cache:
        site.cache[part] = prepare(site.documents(part), **_vocabulary(site, memory))
    found: Prepared = site.cache[part]
    return found


def rows_seen(encoded: Encoded, memory: TaggerMemory) -> Arrays:
    """For each parameter with a row per word or character: 1 where the text has it, else 0."""
    words_V = np.zeros(memory.sizes["words"], np.float32)
    words_V[encoded.words_F] = 1.0
    words_V[UNK] = 1.0
    characters_V = np.zeros(memory.sizes["characters"], np.float32)
    characters_V[encoded.characters_M] = 1.0
    has_characters = memory.character != "none"
    return {"word.weight": words_V} | {
        name: characters_V.copy() for name in CHARACTER_ROWS if has_characters
    }


def model_of(site: Site, memory: TaggerMemory, weights: Arrays) -> Tagger:
    """The one model of this process, with these weights."""
    form = (tuple(memory.sizes.items()), memory.character, memory.dropout)
    if site.scratch.get("form") != form:
        site.scratch.update(form=form, model=tagger_of(memory, {}))
    model: Tagger = site.scratch["model"]
    load(model, weights)
    return model


def tagger_of(memory: Form, weights: Arrays) -> Tagger:
    """A tagger of this form; parameters that `weights` does not name are as at the start."""
    rules = TagSet(tuple(memory.types)).rules
    model = initial(tagger_sizes(memory), 0, rules=rules)
    load(model, weights)
    return model


def vectors_of(site: Site, memory: TaggerMemory) -> VectorFile | None:
    """Rows of the site's own file of vectors for the common words that it knows, read once."""
    if site.vectors is None:
        return None
    if "vectors" not in site.cache:
        words = KeyedVocabulary(memory.word_digests_V16, "word", site.key())
        try:
            found = read_vectors(site.vectors, words, how=memory.how)  # type: ignore[arg-type]
        except (OSError, ConfideError) as error:
            raise Refusal("vectors-missing") from error
        if found.dims != memory.sizes["word_dim"]:
            raise Refusal("vectors-dimension")
        site.cache["vectors"] = found
    kept: VectorFile = site.cache["vectors"]
    return kept


def sizes_from(run: RunSettings, agreed: Agreed) -> dict[str, int]:
    """The sizes of a tagger for what the sites agreed on."""
    model = run.model
    return {
        "words": len(agreed.word_digests_V16) + SPECIALS,
        "characters": len(agreed.character_digests_V16) + SPECIALS,
        "tags": len(TagSet(tuple(agreed.types))),
        "word_dim": model.word_dim,
        "character_dim": model.character_dim,
        "character_filters": model.character_filters,
        "character_width": model.character_width,
        "character_hidden": model.character_hidden,
        "bilstm_hidden": model.bilstm_hidden,
        "bilstm_layers": model.bilstm_layers,
    }


def tagger_sizes(memory: Form) -> TaggerSizes:
    """The same for the model's constructor."""
    return TaggerSizes(
        **memory.sizes,
        character=memory.character,  # type: ignore[arg-type]
        dropout=memory.dropout,
    )


def _vocabulary(site: Site, memory: TaggerMemory) -> dict[str, Any]:
    """The same at a site, which must still have the key that it had at the start."""
    try:
        return vocabulary_for(memory, site.key())
    except KeyFileError as error:
        raise Refusal("other-key") from error


def compare_vectors(checks: Mapping[str, str]) -> None:
    """Raise FederationError where sites start from different files of word vectors."""
    if len(set(checks.values())) <= 1:
        return
    common = Counter(checks.values()).most_common(1)[0][0]
    odd = ", ".join(site for site, check in checks.items() if check != common)
    raise FederationError(
        f"the sites do not start from the same file of word vectors: {odd} has another one or none",
        fix="give every site the same file, or none",
    )
