"""Taggers at a site: what the methods that train one share.

The form of the model and the common vocabulary are a site's memory; encoded text is its cache; one
model instance serves all sites of a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.data.encoding import Encoded, TagSet, encode
from confide.data.vectors import VectorFile, read_vectors
from confide.data.vocabulary import SPECIALS, UNK, KeyedVocabulary
from confide.errors import ConfideError, FederationError, KeyFileError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.learning.encoder import FrozenEncoder
from confide.learning.predict import Prepared, annotate, prepare
from confide.learning.weights import initial, load
from confide.methods.context import (
    NONE,
    agree_on_encoder,
    find_encoder,
    with_cached,
    with_features,
)
from confide.methods.vocabulary import (
    MOST_COMMON,
    Agreed,
    agree,
    common_key,
    file_check,
    training_examples,
)
from confide.models.tagger import Tagger, TaggerSizes
from confide.settings import Settings as RunSettings
from confide.text.document import Document

CHARACTER_ROWS = ("character.embedding.weight",)
"""The parameters that have a row per character, as `word.weight` has one per word."""


@dataclass(frozen=True)
class TaggerForm:
    """What the shape of a tagger depends on, and how it reads text."""

    types: list[str] = carries("names of the entity types")
    tag_scheme: str = carries("scheme of the tags that it learns: iobes or iob2")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the tagger")
    character: str = carries("which character part the tagger has")
    context: str = carries("name of the frozen encoder; none without one")
    cnn_widths: list[int] = carries("widths of the word CNN")
    dropout: float = carries("share of features dropped in training")


@dataclass(frozen=True)
class TaggerMemory(TaggerForm):
    """What a site keeps: the common vocabulary, whose key it needs, and the form of the model."""

    nonce: str = carries("the number of this run that sites compared their keys by")
    check: str = carries("what the common key makes of it: tells whether a key is the common one")
    word_digests_V16: NDArray[np.uint8] = carries(
        "digests of the common words, in order of ids", most=MOST_COMMON
    )
    character_digests_V16: NDArray[np.uint8] = carries(
        "the same for characters", legend="C16", most=MOST_COMMON
    )


class TaggerModel(NamedTuple):
    """A trained tagger before it is built."""

    form: TaggerMemory
    weights: Arrays


@dataclass(frozen=True)
class Extractor:
    """A trained tagger with its vocabulary, and the encoder that it needs, if it needs one."""

    model: Tagger
    vocabulary: Mapping[str, Any]
    encoder: FrozenEncoder | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """The entity types that it finds."""
        found: tuple[str, ...] = self.vocabulary["tags"].types
        return found

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, a confidence on each entity."""
        prepared = prepare(documents, **self.vocabulary)
        if self.encoder is not None:
            encoded = with_cached(prepared.encoded, prepared.examples, self.encoder, keep=False)
            prepared = prepared._replace(encoded=encoded)
        return annotate(self.model, prepared)


def extractor_of(
    trained: TaggerModel, *, key: bytes | None, encoder: str | None = None
) -> Extractor:
    """What a trained tagger is for who holds the key.

    `encoder` is where its frozen encoder lies, if not where the settings of the run say.
    Raises KeyFileError; and what `find_encoder` raises.
    """
    form, weights = trained
    found = None if form.context == NONE else find_encoder(encoder or form.context)
    return Extractor(tagger_of(form, weights), vocabulary_for(form, key), found)


def vocabulary_for(memory: TaggerMemory, key: bytes | None) -> dict[str, Any]:
    """What turns text into the model's numbers, for who holds the key.

    Raises KeyFileError where this is not the key that the sites shared: no word would be known.
    """
    key = common_key(key, nonce=memory.nonce, check=memory.check)
    characters = KeyedVocabulary(memory.character_digests_V16, "character", key)
    return {
        "words": KeyedVocabulary(memory.word_digests_V16, "word", key),
        "characters": None if memory.character == "none" else characters,
        "tags": tag_set(memory),
        "how": memory.how,
    }


def forget_text(site: Site) -> None:
    """Forget all that was made of text with another vocabulary."""
    for part in ("train", "dev", "test", "vectors"):
        site.cache.pop(part, None)


def encoded_text(site: Site, memory: TaggerMemory) -> Encoded:
    """The site's training text as numbers, made once."""
    if "train" not in site.cache:
        examples = training_examples(site)
        encoded = encode(examples, **vocabulary_at(site, memory))
        site.cache["train"] = with_features(encoded, examples, site=site, name=memory.context)
    found: Encoded = site.cache["train"]
    return found


def prepared_text(site: Site, memory: TaggerMemory, part: str) -> Prepared:
    """A part of the site's held-out text, ready to be annotated, made once."""
    if part not in site.cache:
        made = prepare(site.documents(part), **vocabulary_at(site, memory))
        encoded = with_features(made.encoded, made.examples, site=site, name=memory.context)
        site.cache[part] = made._replace(encoded=encoded)
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


def model_of(site: Site, memory: TaggerMemory, weights: Arrays, *, lent: bool = False) -> Tagger:
    """The one model of this form in this process, with these weights.

    `lent`: it computes with these very arrays, so it must not be trained.
    """
    models: dict[Any, Tagger] = site.scratch.setdefault("models", {})
    form = (tagger_sizes(memory), tag_set(memory))
    if form not in models:
        models[form] = tagger_of(memory, {})
    model = models[form]
    load(model, weights, lent=lent)
    return model


def keep_private(site: Site, private: Set[str]) -> None:
    """Raise Refusal where a part of the tagger would be shared that the site's guards keep."""
    if not set(site.guards.private) <= private:
        raise Refusal("private-part")


def tag_set(form: TaggerForm) -> TagSet:
    """The tags of a tagger of this form."""
    return TagSet(tuple(form.types), form.tag_scheme)  # type: ignore[arg-type]


def tagger_of(form: TaggerForm, weights: Arrays) -> Tagger:
    """A tagger of this form; parameters that `weights` does not name are as at the start."""
    model = initial(tagger_sizes(form), 0, rules=tag_set(form).rules)
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


def form_from(
    run: RunSettings, types: Sequence[str], *, words: int, characters: int, context_dim: int
) -> TaggerForm:
    """The form of the settings' tagger; `words` and `characters` count ids with the specials."""
    model = run.model
    sizes = {
        "words": words,
        "characters": characters,
        "tags": len(TagSet(tuple(types), model.tag_scheme)),
        "context_dim": context_dim,
    }
    return TaggerForm(
        types=list(types),
        tag_scheme=model.tag_scheme,
        how=run.vocabulary.how,
        sizes=sizes | {name: getattr(model, name) for name in _SIZES},
        character=model.character,
        context=model.context,
        cnn_widths=list(model.cnn_widths),
        dropout=model.dropout,
    )


def settle(run: RunSettings, federation: Federation) -> tuple[Agreed, TaggerMemory]:
    """Let the sites agree on vocabulary, tags and encoder: what they did, and will remember.

    Raises what `agree` and `agree_on_encoder` raise.
    """
    agreed = agree(
        federation,
        how=run.vocabulary.how,
        types=run.data.types,
        min_count=run.vocabulary.min_count,
        min_sites=run.vocabulary.min_sites,
    )
    form = form_from(
        run,
        agreed.types,
        words=len(agreed.word_digests_V16) + SPECIALS,
        characters=len(agreed.character_digests_V16) + SPECIALS,
        context_dim=agree_on_encoder(federation, run.model.context),
    )
    return agreed, TaggerMemory(
        **vars(form),
        nonce=agreed.nonce,
        check=agreed.check,
        word_digests_V16=agreed.word_digests_V16,
        character_digests_V16=agreed.character_digests_V16,
    )


_SIZES = (
    "word_dim", "character_dim", "character_filters", "character_width", "character_hidden",
    "cnn_filters", "bilstm_hidden", "bilstm_layers",
)  # fmt: skip


def tagger_sizes(form: TaggerForm) -> TaggerSizes:
    """The sizes of a tagger of this form."""
    return TaggerSizes(
        **form.sizes,
        character=form.character,  # type: ignore[arg-type]
        cnn_widths=tuple(form.cnn_widths),
        dropout=form.dropout,
    )


def vocabulary_at(site: Site, memory: TaggerMemory) -> dict[str, Any]:
    """The same at a site, which must still have the key that it had at the start."""
    try:
        return vocabulary_for(memory, site.key())
    except KeyFileError as error:
        raise Refusal("other-key") from error


def vectors_check(site: Site, found: VectorFile | None) -> str:
    """A keyed check value of the site's file of vectors; empty without one."""
    return file_check(site.key(), found.digest) if found else ""


def check_vectors(ask: object, reply: Any) -> None:
    """Raise GuardError where this is no check value of a file of vectors."""
    check_mark("vectors", reply.vectors)


def compare_vectors(federation: Federation, step: Step, replies: Mapping[str, Any]) -> list[str]:
    """The sites that start from the file of word vectors that most have, or like most from none.

    The others are left out. Raises FederationError where too few have the same.
    """
    return alike(
        federation,
        {site: reply.vectors for site, reply in replies.items()},
        step=step,
        why="its file of word vectors is not that of the other sites, or it has none",
        error=_other_vectors,
    )


def _other_vectors(parted: Parted) -> FederationError:
    who = f"{', '.join(parted.odd)} has another one or none"
    if parted.tied:
        who = f"these groups have different ones: {' | '.join(map(', '.join, parted.groups))}"
    return FederationError(
        f"the sites do not start from the same file of word vectors: {who}",
        fix="give every site the same file, or none",
    )
