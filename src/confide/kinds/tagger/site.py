"""The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) as a kind: `model.kind = "tagger"`.

Its words are keyed: what leaves a site at the start are names of the entity types that it
annotates, that it holds the common key, keyed digests of its words and characters with counts, how
many training sentences it has, and a keyed check value of its frozen encoder, if the tagger reads
one's states.

Under a method with a public set its words are clear. A server whose own model learns from a public
set has no key, so it could not read a word of it. If the sites told it the ids of the public words,
it could look up in their counts which site has each word and how often; the key would hide only
words outside the public set. So the sites count nothing. The vocabulary is that of the public set,
which everyone may read: it travels in the clear, without a key. What a site loses: words that the
public set lacks are read as the unknown word. Their characters are still read, except those that no
public word has, and so are the states of a frozen encoder. What leaves a site at the start: names
of the entity types that it annotates, its number of training sentences, and a digest of its public
encoder, if the tagger reads one's states. A site's own word vectors are not used: no weights leave,
so they would never reach the common model.

A release has clear words as well, so it needs no key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds import agreement, protocol
from confide.kinds.agreement import MOST_COMMON, NONE, NOTHING_V16, AgreedWords
from confide.kinds.encoder import DESCRIBE
from confide.kinds.entities import EntityExtractor, EntityKind, EntitySiteModel, extractor_with
from confide.kinds.public import MIB, OfTags, no_public_set
from confide.kinds.tagger.model import EncodedSplit, TaggerTrainer, crf_axes
from confide.settings import Settings as RunSettings
from confide.text.document import Document
from confide.training import vocabulary
from confide.training.batches import Encoded, Example, examples_from
from confide.training.tagger import Tagger, TaggerSizes
from confide.training.weights import initial, set_rows, trained

WORD_ROWS = "word.weight"
CHARACTER_ROWS = "character.embedding.weight"
"""The parameters with a row for each word, and for each character."""
_SIZES = (
    "word_dim", "character_dim", "character_filters", "character_width", "character_hidden",
    "cnn_filters", "bilstm_hidden", "bilstm_layers",
)  # fmt: skip


@dataclass(frozen=True)
class TaggerSpec(OfTags):
    """The form of a tagger. Its words are either keyed (`nonce` is not empty) or clear."""

    private: ClassVar[Sequence[str]] = ("bilstm", "crf")
    head: ClassVar[str] = "crf"
    word_table: ClassVar[str] = WORD_ROWS
    slope: ClassVar[str] = "crf.linear.weight"

    types: list[str] = carries("names of the entity types", rule="varies")
    tag_scheme: str = carries("tag scheme that the tagger learns: iobes or iob2")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the tagger")
    character: str = carries("the tagger's character part")
    context: str = carries("name of the frozen encoder; empty without one")
    cnn_widths: list[int] = carries("widths of the word CNN")
    dropout: float = carries("share of features dropped in training")
    nonce: str = carries(
        "this run's nonce, by which the sites compared keys; empty if words are clear",
        rule="varies",
        before="",
    )
    check: str = carries(
        "the nonce's HMAC under the common key: verifies a key", rule="varies", before=""
    )
    word_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common words, in order of ids", most=MOST_COMMON, before=NOTHING_V16
    )
    character_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common characters, in order of ids",
        legend="C16",
        most=MOST_COMMON,
        before=NOTHING_V16,
    )
    words: list[str] = carries(
        "the public set's words, in order of ids; none if words are keyed",
        most=8 * MIB,
        rule="varies",
        before=[],
    )
    characters: list[str] = carries(
        "the public set's characters, in order of ids; none if words are keyed",
        most=MIB,
        rule="varies",
        before=[],
    )

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide, and some of its sizes.

        Only with a public set are words clear.
        """
        model = run.model
        none: dict[str, Any] = (
            {"nonce": "", "check": ""} if public else {"words": [], "characters": []}
        )
        return none | {
            "tag_scheme": model.tag_scheme,
            "how": run.vocabulary.normalise,
            "sizes": {name: getattr(model, name) for name in _SIZES},
            "character": model.character,
            "context": model.context,
            "cnn_widths": list(model.cnn_widths),
            "dropout": model.dropout,
        }

    @classmethod
    def of(cls, run: RunSettings, types: Sequence[str], agreed: AgreedWords, *, dim: int) -> Self:
        """The settings' form with these words; `dim`: the width of its encoder's states, or 0."""
        settled = cls.settled(run, public=not agreed.nonce)
        own = {one.name: getattr(agreed, one.name) for one in fields(agreed)}
        lists = {name: list(own[name]) for name in ("words", "characters")}
        form = cls(types=list(types), **settled | own | lists)
        return form._sized({"context_dim": dim, **settled["sizes"]})

    def _sized(self, sizes: Mapping[str, int]) -> Self:
        """The form of these sizes, but with rows for all of its words, characters and tags."""
        words = len(self.word_digests_V16) + len(self.words) + vocabulary.SPECIALS
        characters = len(self.character_digests_V16) + len(self.characters) + vocabulary.SPECIALS
        rows = {"words": words, "characters": characters, "tags": self.classes}
        return replace(self, sizes={**rows, **sizes, **rows})

    @classmethod
    def vectors(cls, run: RunSettings) -> str | None:
        """The file of word vectors that all sites start from; None without one."""
        return run.model.vectors

    @property
    def keyed(self) -> bool:
        """True if its words are keyed."""
        return bool(self.nonce)

    @cached_property
    def shape(self) -> TaggerSizes:
        """The sizes of the tagger."""
        return TaggerSizes(
            **self.sizes,
            character=self.character,  # type: ignore[arg-type]
            cnn_widths=tuple(self.cnn_widths),
            dropout=self.dropout,
        )

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of the whole tagger: all of it is trained."""
        return trained(initial(self.shape, seed))

    def tables(self) -> Sequence[str]:
        """The tables of words and, if the tagger reads them, of characters."""
        return (WORD_ROWS,) if self.character == NONE else (WORD_ROWS, CHARACTER_ROWS)

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """The words and characters, or their keyed digests."""
        names: list[Sequence[Hashable]] = [self.words, self.characters]
        if self.keyed:
            names = list(
                map(vocabulary.rows_of_digests, (self.word_digests_V16, self.character_digests_V16))
            )
        return dict(zip(self.tables(), names, strict=False))

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """The CRF has a place for each tag."""
        return crf_axes(self.named_tags)

    def with_labels_of(self, before: Self) -> Self:
        """The form that also has all types and words of a trained one, behind its own.

        Keyed words only if they were named under the same key, as far as the digests tell.
        """
        form = super().with_labels_of(before)
        new_rows = agreement.with_new_rows
        form = replace(
            form,
            word_digests_V16=new_rows(self.word_digests_V16, before.word_digests_V16),
            character_digests_V16=new_rows(
                self.character_digests_V16, before.character_digests_V16
            ),
        )
        if not self.keyed:
            words = protocol.with_new(self.words, before.words)
            characters = protocol.with_new(self.characters, before.characters)
            form = replace(form, words=words, characters=characters)
        return form._sized(self.sizes)

    def at(self, site: Site) -> protocol.SiteModel:
        """The site model of this form."""
        return protocol.cached_site_model(site, self, TaggerSiteModel)

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own tagger, with its own tag scheme.

        With `types`, it has only the types of the site's text. Raises Refusal if the CRF is shared
        and the site's tag scheme differs.
        """
        scheme = site.tag_scheme or self.tag_scheme
        if scheme != self.tag_scheme and self.head not in private:
            raise Refusal("tag-scheme")
        own = agreement.types_in_text(site) if types else self.types
        form = replace(self, types=own, tag_scheme=scheme)
        return replace(form, sizes={**form.sizes, "tags": form.classes})

    def shared_model(self, site: Site) -> protocol.SharedModel:
        """The process's shared model. Raises Refusal if the site's key is not the common one."""
        key = site.key() if self.keyed else None

        def make() -> protocol.SharedModel:
            with agreement.other_key():
                return protocol.SharedModel(self.trainer(key))

        place = (self.shape, self.tags, key, self.check, self._vocabulary)
        return site.once("tagger", *place, make=make)

    @cached_property
    def _vocabulary(self) -> str:
        """Tells vocabularies of one key apart: sites that train alone have one each."""
        clear = json.dumps([self.how, self.words, self.characters]).encode()
        digests = (self.word_digests_V16, self.character_digests_V16)
        return hashlib.sha256(b"|".join([clear, *(one.tobytes() for one in digests)])).hexdigest()

    def trained_by(self, trainer: Any, config: protocol.TrainConfig) -> TaggerTrainer:
        """The trainer with the settings of `config`."""
        assert isinstance(trainer, TaggerTrainer)
        return replace(trainer, word_dropout=config.word_dropout, open=config.outside)

    def trainer(self, key: bytes | None) -> TaggerTrainer:
        """The trainer of this form; for keyed words, at a holder of the key.

        Raises KeyFileError if this is not the key that the sites share: no word would be known.
        """
        words: vocabulary.Vocabulary = vocabulary.ClearVocabulary(tuple(self.words))
        characters: vocabulary.Vocabulary = vocabulary.ClearVocabulary(
            tuple(self.characters), "character"
        )
        if self.keyed:
            known = agreement.common_key(key, nonce=self.nonce, check=self.check)
            words = vocabulary.KeyedVocabulary(self.word_digests_V16, "word", known)
            characters = vocabulary.KeyedVocabulary(self.character_digests_V16, "character", known)
        return TaggerTrainer(
            sizes=self.shape,
            tags=self.tags,
            how=self.how,  # type: ignore[arg-type]
            words=words,
            characters=None if self.character == NONE else characters,
        )

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained tagger; `encoder` is the folder of its frozen encoder.

        Raises KeyFileError, and what `find_encoder` raises.
        """
        frozen = agreement.context_encoder(self.context, encoder)
        return extractor_with(self.trainer(key), weights, encoder=frozen)

    def in_clear(self, weights: Arrays, holders: protocol.Holders) -> tuple[Self, Arrays]:
        """The tagger with these sites' words in the clear. Raises KeyFileError."""
        if not self.keyed:
            return self, weights
        tokens = [token for one in examples_from(holders.train)[0] for token in one.tokens]
        key = agreement.common_key(holders.secret(), nonce=self.nonce, check=self.check)
        words, word_ids = protocol.known_words(
            vocabulary.KeyedVocabulary(self.word_digests_V16, "word", key),
            sorted(vocabulary.count_words(tokens, self.how)),  # type: ignore[arg-type]
        )
        characters, character_ids = protocol.known_words(
            vocabulary.KeyedVocabulary(self.character_digests_V16, "character", key),
            sorted(vocabulary.count_characters(tokens)),
        )
        kept = dict(weights)
        for name, ids in ((WORD_ROWS, word_ids), (CHARACTER_ROWS, character_ids)):
            if name in kept:
                kept[name] = kept[name][ids]
        clear = replace(
            self,
            sizes={**self.sizes, "words": len(word_ids), "characters": len(character_ids)},
            nonce="",
            check="",
            word_digests_V16=self.word_digests_V16[:0],
            character_digests_V16=self.character_digests_V16[:0],
            words=words,
            characters=characters,
        )
        return clear, kept


class TaggerSiteModel(EntitySiteModel):
    """A tagger at a site, with its word vectors and the states of its frozen encoder."""

    @cached_property
    def file(self) -> vocabulary.VectorFile | None:
        """The rows of the site's own vector file, read once; None without a file."""
        form, site = self.form, self.site
        if site.vectors is None or not form.keyed:
            return None
        words, dim = self.trainer.words, form.sizes["word_dim"]
        return agreement.vectors_of(site.vectors, words, how=form.how, dim=dim)

    def vectors(self) -> str:
        """A keyed check value of the vector file; empty without one."""
        return agreement.file_check(self.site.key(), self.file.digest) if self.file else ""

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of the frozen encoder."""
        assert isinstance(text, Encoded)
        return agreement.with_features(text, examples, site=self.site, name=self.form.context)

    def fill(self, model: nn.Module, config: protocol.TrainConfig) -> None:
        """Fill the vector file's rows into the word table, if `config` says so."""
        if config.vectors and self.file:
            assert isinstance(model, Tagger)
            set_rows(model.word, self.file)

    def lift(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The vector file's rows: ids and rows of the word table."""
        if self.file is None:
            return {}
        return {WORD_ROWS: (self.file.ids_K.astype(np.int64), self.file.rows_KD)}

    def rows_seen(self, config: protocol.TrainConfig) -> Arrays:
        """For each row of the word and character tables: 1 if it counts, else 0.

        What counts are rows that the training text has, and those of vectors that are filled in.
        """
        assert isinstance(self.own, EncodedSplit)
        encoded, sizes = self.own.text, self.form.sizes
        words_V = np.zeros(sizes["words"], np.float32)
        words_V[encoded.words_F] = 1.0
        words_V[vocabulary.UNK] = 1.0
        if config.vectors and self.file:
            words_V[self.file.ids_K] = 1.0
        characters_V = np.zeros(sizes["characters"], np.float32)
        characters_V[encoded.characters_M] = 1.0
        seen = {WORD_ROWS: words_V, CHARACTER_ROWS: characters_V}
        return {name: seen[name] for name in self.form.tables()}


class TaggerKind(EntityKind):
    """The tagger. Only holders of the sites' key can use a model of keyed words."""

    name: ClassVar[str] = "tagger"
    Spec: ClassVar[type[protocol.ModelSpec]] = TaggerSpec
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE,
        agreement.CHECK_KEY,
        agreement.COUNT_VOCABULARY,
        agreement.COUNT_BUCKETS,
        agreement.DESCRIBE_ENCODER,
    )
    release: ClassVar[protocol.Release] = protocol.Release(
        "model.safetensors", "Released", "anyone who has this folder can read its word list"
    )

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Raise SettingsError also for words that could not be counted, or vectors of no use.

        Under noise, words would have to be counted; with a public set, no site's vectors would
        reach the common model.
        """
        super().check(run, public=public)
        own = run.model
        reads_words = own.context == NONE or own.character != NONE
        if not public and run.privacy is not None and reads_words:
            raise SettingsError(
                "under noise no site counts its words, so a tagger reads the states of a public"
                " encoder alone",
                expected='model.context = an encoder, and model.character = "none"',
                got=f"context = {own.context!r}, character = {own.character!r}",
            )
        vectors = ["[model]"] if own.vectors else []
        vectors += [site.name for site in run.site if site.vectors]
        if public and vectors:
            raise SettingsError(
                "word vectors are useless here: no weights leave a site, so the common"
                " model would never have them",
                expected="no `vectors`",
                got=f"vectors of {', '.join(vectors)}",
                fix="leave `vectors` out, or give the tagger a frozen encoder (`model.context`)",
            )

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        context = run.model.context
        name = context if public and context != NONE else ""
        return {
            DESCRIBE.name: agreement.asked_of_types(run, name),
            agreement.COUNT_VOCABULARY.name: {"how": run.vocabulary.normalise},
            agreement.COUNT_BUCKETS.name: vars(agreement.asked_of_buckets(run.vocabulary)),
            agreement.DESCRIBE_ENCODER.name: {"encoder": context},
        }

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """Agree on the types, words, characters and the frozen encoder.

        With a public set, the words are those of the set. Raises FederationError, DataError, and
        SettingsError if the public set has no word.
        """
        if public is not None:
            return self._agree_on_clear(run, federation, public)
        types, replies = agreement.agree_on_types(run, federation, step=DESCRIBE)
        words, holders = agreement.agree_on_words(
            federation, run.vocabulary, noised=run.privacy is not None
        )
        sites = sorted(site for site in holders if site in replies)
        dim = agreement.agree_on_encoder(federation, run.model.context)
        return protocol.Agreed(
            TaggerSpec.of(run, types, words, dim=dim),
            sites,
            {site: replies[site].sentences for site in sites},
            {site: replies[site].types if run.privacy is None else types for site in sites},
        )

    def _agree_on_clear(
        self, run: RunSettings, federation: Federation, public: Sequence[Document]
    ) -> protocol.Agreed:
        """Agree on the types and the frozen encoder; the words are those of the public set."""
        name, dim, digest = "", 0, ""
        if run.model.context != NONE:
            encoder = agreement.find_encoder(run.model.context)
            name, dim, digest = run.model.context, encoder.dim, encoder.digest
        tokens = [token for one in examples_from(public)[0] for token in one.tokens]
        if not tokens:
            raise no_public_set("text with sentences")
        types, replies = agreement.agree_on_types(
            run,
            federation,
            step=DESCRIBE,
            name=name,
            digest=digest,
            public=public,
            called="encoder",
        )
        own = run.vocabulary
        words = vocabulary.numbered(
            vocabulary.count_words(tokens, own.normalise), min_count=own.min_count
        ).texts
        characters = vocabulary.numbered(vocabulary.count_characters(tokens)).texts
        agreed = AgreedWords(words=words, characters=characters)
        form = TaggerSpec.of(run, types, agreed, dim=dim)
        return agreement.agreed(form, replies)
