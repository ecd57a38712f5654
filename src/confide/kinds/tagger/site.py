"""The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) as a kind: `model.kind = "tagger"`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.errors import KeyFileError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries, decode_file
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds.agreement import (
    CHARACTER_BITS,
    CHECK_KEY,
    COUNT_BUCKETS,
    COUNT_VOCABULARY,
    DESCRIBE_ENCODER,
    DESCRIBE_TYPES,
    MOST_COMMON,
    NONE,
    WORD_BITS,
    AgreedWords,
    CountBuckets,
    TypesDescribed,
    agree,
    agree_on_encoder,
    agree_on_types,
    agreed,
    asked_of_types,
    common_buckets,
    common_key,
    compare_keys,
    file_check,
    find_encoder,
    types_in_text,
    vectors_of,
    with_features,
)
from confide.kinds.encoder import DESCRIBE
from confide.kinds.entities import EntityExtractor, EntityKind, EntitySiteModel, extractor_with
from confide.kinds.protocol import (
    Agreed,
    Holders,
    SharedModel,
    SiteModel,
    TrainConfig,
    desk_at,
    named,
    shape_of,
    write_release,
)
from confide.kinds.public import (
    MIB,
    OfTags,
    PublicSentences,
    SentenceStudent,
    no_public_set,
    public_sentences,
)
from confide.kinds.tagger.model import EncodedSplit, TaggerTrainer
from confide.settings import Settings as RunSettings
from confide.text.document import Document
from confide.training.batches import Encoded, Example, TagSet, examples_from
from confide.training.tagger import Tagger, TaggerSizes
from confide.training.trainer import EntityTrainer
from confide.training.vocabulary import (
    DIGEST_BYTES,
    SPECIALS,
    UNK,
    ClearVocabulary,
    KeyedVocabulary,
    VectorFile,
    Vocabulary,
    count_characters,
    count_words,
    numbered,
    rows_of_digests,
)
from confide.training.weights import initial, set_words, trained

# --- The form of a keyed tagger
#
# A BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) whose words are keyed.
#
# What leaves a site at the start: names of the entity types that it annotates, that it holds the
# common key, keyed digests of its words and characters with counts, how many training sentences it
# has, and a keyed check value of its frozen encoder, if the tagger reads one's states.


CHARACTER_ROWS = ("character.embedding.weight",)
"""The parameters with a row for each character, as `WORD_ROWS` have one for each word."""
WORD_ROWS = "word.weight"


@dataclass(frozen=True)
class TaggerShape:
    """The facts that a tagger's shape depends on, and its way to read text."""

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
        """The site model of this form."""
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
        """The process's shared model. Raises Refusal if the site's key is not the common one."""
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
        "how": run.vocabulary.normalise,
        "sizes": {name: getattr(model, name) for name in _SIZES},
        "character": model.character,
        "context": model.context,
        "cnn_widths": list(model.cnn_widths),
        "dropout": model.dropout,
    }


def form_of(run: RunSettings, types: Sequence[str], agreed: AgreedWords, *, dim: int) -> TaggerForm:
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
    """Maps of words and characters to ids; a tagger may read no characters."""

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


def taught(trainer: EntityTrainer, config: TrainConfig) -> TaggerTrainer:
    """The tagger's trainer with the settings of `config`."""
    assert isinstance(trainer, TaggerTrainer)
    return replace(trainer, word_dropout=config.word_dropout, open=config.outside)


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

    def trained_by(self, config: TrainConfig) -> TaggerTrainer:
        """The trainer with the settings of `config`."""
        return taught(self.trainer, config)

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of the frozen encoder."""
        assert isinstance(text, Encoded)
        return with_features(text, examples, site=self.site, name=self.form.context)

    def fill(self, model: nn.Module, config: TrainConfig) -> None:
        """Fill the vector file's rows into the word table, if `config` says so."""
        if config.vectors and self.file:
            assert isinstance(model, Tagger)
            set_words(model, self.file)

    def lift(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The vector file's rows: ids and rows of the word table."""
        if self.file is None:
            return {}
        return {WORD_ROWS: (self.file.ids_K.astype(np.int64), self.file.rows_KD)}

    def rows_seen(self, config: TrainConfig) -> Arrays:
        """For each row of the word and character tables: 1 if it counts, else 0.

        What counts are rows that the training text has, and those of vectors that are filled in.
        """
        assert isinstance(self.own, EncodedSplit)
        encoded = self.own.text
        words_V = np.zeros(self.form.sizes["words"], np.float32)
        words_V[encoded.words_F] = 1.0
        words_V[UNK] = 1.0
        if config.vectors and self.file:
            words_V[self.file.ids_K] = 1.0
        characters_V = np.zeros(self.form.sizes["characters"], np.float32)
        characters_V[encoded.characters_M] = 1.0
        own = {name: characters_V.copy() for name in CHARACTER_ROWS if name in self.form.tables()}
        return {WORD_ROWS: words_V} | own


# --- A released tagger
#
# Its words are in the clear, so it needs no key.


RELEASED_AS = "model.safetensors"


@dataclass(frozen=True)
class Released(TaggerShape):
    """A tagger that needs no key."""

    words: list[str] = carries("the words, in order of ids")
    characters: list[str] = carries("the characters, in order of ids")
    weights: Arrays = carries("weights of the tagger")
    apart: int = carries("number of its sites that annotated only some types")


def in_clear(form: TaggerForm, weights: Arrays, holders: Holders) -> Released:
    """The tagger with these sites' words in the clear. Raises KeyFileError."""
    examples, _ = examples_from(holders.train)
    known = common_key(holders.secret(), nonce=form.nonce, check=form.check)
    tokens = [token for example in examples for token in example.tokens]
    words, word_ids = named(
        KeyedVocabulary(form.word_digests_V16, "word", known),
        sorted(count_words(tokens, form.how)),  # type: ignore[arg-type]
    )
    characters, character_ids = named(
        KeyedVocabulary(form.character_digests_V16, "character", known),
        sorted(count_characters(tokens)),
    )
    weights = dict(weights)
    weights[WORD_ROWS] = weights[WORD_ROWS][word_ids]
    for name in CHARACTER_ROWS:
        if name in weights:
            weights[name] = weights[name][character_ids]
    shape = shape_of(form, TaggerShape)
    shape["sizes"] = {**form.sizes, "words": len(word_ids), "characters": len(character_ids)}
    return Released(
        **shape, words=words, characters=characters, weights=weights, apart=holders.apart
    )


def reads_clear(
    shape: TaggerShape, words: Sequence[str], characters: Sequence[str]
) -> TaggerTrainer:
    """The trainer of a tagger that reads these words and characters."""
    spelled = None if shape.character == NONE else ClearVocabulary(tuple(characters), "character")
    return trainer_of(shape, Vocabularies(ClearVocabulary(tuple(words), "word"), spelled))


def released(file: Path) -> EntityExtractor:
    """The extractor of a released tagger; with contextual features, it needs their encoder too."""
    model = decode_file(Released, file.read_bytes())
    encoder = None if model.context == NONE else find_encoder(model.context)
    trainer = reads_clear(model, model.words, model.characters)
    extract = extractor_with(trainer, model.weights, encoder=encoder)
    return replace(extract, apart=bool(model.apart))


def agree_unseen(
    run: RunSettings,
    federation: Federation,
    types: list[str],
    *,
    told: Mapping[str, TypesDescribed],
) -> AgreedWords:
    """The common vocabulary where no site's digests may be seen: by buckets."""
    nonce, check, holders = compare_keys(federation)
    own = run.vocabulary
    counted = federation.sum(COUNT_BUCKETS, asked_of_buckets(run), round=0, sites=holders)
    sites = min(own.min_sites, len(federation.sites))
    return AgreedWords(
        nonce=nonce,
        check=check,
        word_digests_V16=common_buckets(
            counted.word_counts_B, counted.word_sites_B, min_count=own.min_count, min_sites=sites
        ),
        character_digests_V16=common_buckets(
            counted.character_counts_C, counted.character_sites_C, min_count=1, min_sites=sites
        ),
        types=types,
        types_by_site={site: sorted(told[site].types) for site in holders if site in told},
        sentences={site: told[site].sentences for site in holders if site in told},
    )


def asked_of_buckets(run: RunSettings) -> CountBuckets:
    """The ask to count words and characters by bucket."""
    return CountBuckets(run.vocabulary.normalise, WORD_BITS, CHARACTER_BITS)


def without_words(
    federation: Federation, types: list[str], *, told: Mapping[str, TypesDescribed]
) -> AgreedWords:
    """No vocabulary: counting words would spend what noise is to save."""
    nonce, check, holders = compare_keys(federation)
    nothing_V16 = np.zeros((0, DIGEST_BYTES), np.uint8)
    return AgreedWords(
        nonce=nonce,
        check=check,
        word_digests_V16=nothing_V16,
        character_digests_V16=nothing_V16,
        types=types,
        types_by_site={site: types for site in holders if site in told},
        sentences={site: told[site].sentences for site in holders if site in told},
    )


class TaggerKind(EntityKind):
    """The tagger. Its words are keyed, so only holders of the sites' key can use the model."""

    name: ClassVar[str] = "tagger"
    keyed: ClassVar[bool] = True
    released_as: ClassVar[str] = RELEASED_AS
    release_tells: ClassVar[str] = "anyone who has this folder can read its word list"
    Form: ClassVar[type] = TaggerForm
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_TYPES,
        CHECK_KEY,
        COUNT_VOCABULARY,
        COUNT_BUCKETS,
        DESCRIBE_ENCODER,
    )

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError also for a tagger that would have to count words under noise."""
        super().check(run)
        own = run.model
        if run.privacy is not None and (own.context == NONE or own.character != NONE):
            raise SettingsError(
                "under noise no site counts its words, so a tagger reads the states of a public"
                " encoder alone",
                expected='model.context = an encoder, and model.character = "none"',
                got=f"context = {own.context!r}, character = {own.character!r}",
            )

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide, and some of its sizes."""
        return settled_shape(run)

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        return {
            DESCRIBE_TYPES.name: asked_of_types(run),
            COUNT_VOCABULARY.name: {"how": run.vocabulary.normalise},
            COUNT_BUCKETS.name: vars(asked_of_buckets(run)),
            DESCRIBE_ENCODER.name: {"encoder": run.model.context},
        }

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on the types, words, characters and the frozen encoder. Raises FederationError."""
        types, told = agree_on_types(run, federation)
        if run.privacy is not None:
            agreed = without_words(federation, types, told=told)
        elif federation.summing is None:
            agreed = agree(
                federation,
                how=run.vocabulary.normalise,
                types=types,
                min_count=run.vocabulary.min_count,
                min_sites=run.vocabulary.min_sites,
            )
        else:
            agreed = agree_unseen(run, federation, types, told=told)
        dim = agree_on_encoder(federation, run.model.context)
        form = form_of(run, types, agreed, dim=dim)
        return Agreed(form, sorted(agreed.sentences), agreed.sentences, agreed.types_by_site)

    def release(self, form: TaggerForm, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the tagger with these sites' words in the clear. Raises KeyFileError."""
        write_release(out / self.released_as, in_clear(form, weights, holders))

    def released(self, file: Path) -> EntityExtractor:
        """Read a released tagger. Raises MessageError."""
        return released(file)


# --- The public tagger
#
# The BiLSTM-CNNs-CRF tagger for methods with a public set: it knows public words.
#
# Where weights travel, sites number their words by keyed digests (`kinds.agreement`). A server
# whose own model learns from a public set has no key, so it could not read a word of it. If the
# sites told it the ids of the public words, it could look up in their counts which site has each
# word and how often; the key would hide only words outside the public set. So the sites count
# nothing. The vocabulary is that of the public set, which everyone may read: it travels in the
# clear, without a key.
#
# What a site loses: words that the public set lacks are read as the unknown word. Their characters
# are still read, except those that no public word has, and so are the states of a frozen encoder.
#
# What leaves a site at the start: names of the entity types that it annotates, its number of
# training sentences, and a digest of its public encoder, if the tagger reads one's states. A
# site's own word vectors are not used: no weights leave, so they would never reach the common
# model.


@dataclass(frozen=True)
class PublicTaggerForm(OfTags, TaggerShape):
    """The form of a tagger of public words."""

    words: list[str] = carries(
        "the public set's words, in order of ids", most=8 * MIB, rule="varies"
    )
    characters: list[str] = carries(
        "the public set's characters, in order of ids", most=MIB, rule="varies"
    )

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """The words and characters themselves."""
        return dict(zip(self.tables(), (self.words, self.characters), strict=False))

    def at(self, site: Site) -> SiteModel:
        """The site model of this form."""
        return desk_at(site, self, PublicTaggerSiteModel)

    def bench(self, site: Site) -> SharedModel:
        """The process's shared model."""
        place = (tagger_sizes(self), self.tags, self._words)
        return site.once("public tagger", *place, make=lambda: SharedModel(self._trainer()))

    def taught(self, trainer: EntityTrainer, config: TrainConfig) -> EntityTrainer:
        """The trainer with the settings of `config`."""
        return taught(trainer, config)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained tagger; `encoder` is the folder of its frozen encoder.

        Raises what `find_encoder` raises.
        """
        frozen = None if self.context == NONE else find_encoder(encoder or self.context)
        return extractor_with(self._trainer(), weights, encoder=frozen)

    def _trainer(self) -> TaggerTrainer:
        return reads_clear(self, self.words, self.characters)

    @cached_property
    def _words(self) -> str:
        both = json.dumps([self.how, self.words, self.characters])
        return hashlib.sha256(both.encode()).hexdigest()


class PublicTaggerSiteModel(EntitySiteModel):
    """A tagger of public words at a site, with the states of its frozen encoder."""

    def trained_by(self, config: TrainConfig) -> TaggerTrainer:
        """The trainer with the settings of `config`."""
        return taught(self.trainer, config)

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of the frozen encoder."""
        assert isinstance(text, Encoded)
        return with_features(text, examples, site=self.site, name=self.form.context)


class PublicTaggerKind(EntityKind):
    """The tagger for methods that give all sites a public set: it needs no key."""

    name: ClassVar[str] = "tagger"
    Form: ClassVar[type] = PublicTaggerForm
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)

    Public: ClassVar[type] = PublicSentences
    Released: ClassVar[type] = Released
    released_as: ClassVar[str] = RELEASED_AS
    release_tells: ClassVar[str] = "names, weights and the words of the public set; it needs no key"

    def released(self, file: Path) -> EntityExtractor:
        """Read a released tagger. Raises MessageError."""
        return released(file)

    def public(
        self, form: PublicTaggerForm, documents: Sequence[Document]
    ) -> tuple[PublicSentences, list[str]]:
        """The sentences of a public set, and their tags. Raises SettingsError if there are none."""
        return public_sentences(documents, form.tags)

    def student(self) -> SentenceStudent:
        """A fresh student: the server's own tagger."""
        return SentenceStudent()

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if a site has word vectors, and as the tagger does."""
        super().check(run)
        named = ["[model]"] if run.model.vectors else []
        named += [site.name for site in run.site if site.vectors]
        if named:
            raise SettingsError(
                "word vectors are useless here: no weights leave a site, so the common"
                " model would never have them",
                expected="no `vectors`",
                got=f"vectors of {', '.join(named)}",
                fix="leave `vectors` out, or give the tagger a frozen encoder (`model.context`)",
            )

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide, and some of its sizes."""
        return settled_shape(run)

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        name = "" if run.model.context == NONE else run.model.context
        return {DESCRIBE.name: asked_of_types(run, name)}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on the types and the frozen encoder; the words are those of the public set.

        Raises FederationError, DataError, and SettingsError if the public set has no word.
        """
        name, dim, digest = "", 0, ""
        if run.model.context != NONE:
            encoder = find_encoder(run.model.context)
            name, dim, digest = run.model.context, encoder.dim, encoder.digest
        tokens = [token for one in examples_from(public)[0] for token in one.tokens]
        if not tokens:
            raise no_public_set("text with sentences")
        types, replies = agree_on_types(
            run,
            federation,
            step=DESCRIBE,
            name=name,
            digest=digest,
            public=public,
            called="encoder",
        )
        own = run.vocabulary
        words = numbered(count_words(tokens, own.normalise), min_count=own.min_count).texts
        characters = numbered(count_characters(tokens)).texts
        shape = shape_for(
            run, types, words=len(words) + SPECIALS, characters=len(characters) + SPECIALS, dim=dim
        )
        form = PublicTaggerForm(**vars(shape), words=list(words), characters=list(characters))
        return agreed(form, replies)
