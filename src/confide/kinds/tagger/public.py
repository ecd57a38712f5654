"""The BiLSTM-CNNs-CRF tagger for methods that give all sites a public set: it knows public words.

Where weights travel, sites number their words by keyed digests (`kinds.vocabulary`). A server whose
own model learns from a public set has no key, so it could not read a word of it. If the sites told
it the ids of the public words, it could look up in their counts which site has each word and how
often; the key would hide only words outside the public set. So the sites count nothing. The
vocabulary is that of the public set, which everyone may read: it travels in the clear, without a
key.

What a site loses: words that the public set lacks are read as the unknown word. Their characters
are still read, except those that no public word has, and so are the states of a frozen encoder.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder, if the tagger reads one's states. A site's own word
vectors are not used: no weights leave, so they would never reach the common model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from confide.data.batches.encoding import Encoded
from confide.data.batches.examples import Example, examples_from
from confide.data.batches.vocabulary import (
    SPECIALS,
    count_characters,
    count_words,
    numbered,
)
from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds.context import NONE, find_encoder, with_features
from confide.kinds.encoder import DESCRIBE
from confide.kinds.entities import EntityExtractor, EntityKind, EntitySiteModel, extractor_with
from confide.kinds.how import How
from confide.kinds.protocol import Agreed, SharedModel, SiteModel, desk_at
from confide.kinds.public import MIB, no_public_set
from confide.kinds.sentences import (
    OfTags,
    PublicSentences,
    SentenceStudent,
    public_sentences,
)
from confide.kinds.tagger.form import (
    TaggerShape,
    settled_shape,
    shape_for,
    tagger_sizes,
    taught,
)
from confide.kinds.tagger.release import RELEASED_AS, Released, reads_clear, released
from confide.kinds.types import agree_on_types, agreed, asked_of_types
from confide.learning.crf_modelling import TaggerTrainer
from confide.learning.trainer import EntityTrainer
from confide.settings import Settings as RunSettings
from confide.text.document import Document


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
        """The desk of this form at a site."""
        return desk_at(site, self, PublicTaggerSiteModel)

    def bench(self, site: Site) -> SharedModel:
        """The process's bench."""
        place = (tagger_sizes(self), self.tags, self._words)
        return site.once("public tagger", *place, make=lambda: SharedModel(self._trainer()))

    def taught(self, trainer: EntityTrainer, how: How) -> EntityTrainer:
        """The trainer that trains as `how` says."""
        return taught(trainer, how)

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

    def trained_by(self, how: How) -> TaggerTrainer:
        """The trainer that trains as `how` says."""
        return taught(self.trainer, how)

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
        """What the settings make of the asks of the kind's own steps."""
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
        words = numbered(count_words(tokens, own.how), min_count=own.min_count).texts
        characters = numbered(count_characters(tokens)).texts
        shape = shape_for(
            run,
            types,
            words=len(words) + SPECIALS,
            characters=len(characters) + SPECIALS,
            dim=dim,
        )
        form = PublicTaggerForm(**vars(shape), words=list(words), characters=list(characters))
        return agreed(form, replies)
