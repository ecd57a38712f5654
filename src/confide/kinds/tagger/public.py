"""The BiLSTM-CNNs-CRF tagger as it is where all sites have a public set: it knows public words.

Where weights travel, the sites number the words of their own text by keyed digests
(`kinds.vocabulary`). A server whose own model learns from a public set has no key, and could not
read a word of it. If the sites told it the ids of the public words, it would know of each of these
which site has it and how often, since it has their counts by digest, which is by id: the key would
hide nothing but words that are not in the public set. So nothing is counted at the sites. The
vocabulary is that of the public set, which everybody may read: it travels in the clear, and there
is no key.

What a site loses: words of its own that the public set lacks are read as the unknown one. Their
characters are read as ever, but for those that no public word has, and so are the states of a
frozen encoder.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder, if the tagger reads one's states. Word vectors of a
site's own file are not used: no weights leave, so they would never reach the common model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from confide.data.batches.encoding import Encoded
from confide.data.batches.examples import Example, examples_from
from confide.data.batches.vocabulary import (
    SPECIALS,
    ClearVocabulary,
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
from confide.kinds.entities import Bench, EntityExtractor, EntityKind, Modeller, extractor_with
from confide.kinds.how import How
from confide.kinds.protocol import Agreed, desk_at
from confide.kinds.public import MIB, no_public_set
from confide.kinds.sentences import (
    PublicSentences,
    SentenceDesk,
    SentenceStudent,
    public_sentences,
)
from confide.kinds.tagger.form import (
    CHARACTER_ROWS,
    WORD_ROWS,
    TaggerShape,
    modeller_of,
    shape_for,
    shape_of,
    tag_set,
    tagger_sizes,
    taught,
)
from confide.kinds.tagger.release import RELEASED_AS, Released, released
from confide.kinds.types import agree_on_types
from confide.learning.crf_modelling import CrfModeller
from confide.learning.weights import initial, trained
from confide.settings import Settings as RunSettings
from confide.text.document import Document


@dataclass(frozen=True)
class PublicTaggerForm(TaggerShape):
    """The form of a tagger of public words."""

    words: list[str] = carries("words of the public set, in order of ids", most=8 * MIB)
    characters: list[str] = carries("its characters, in order of ids", most=MIB)

    @property
    def classes(self) -> int:
        """Tags; the one outside of entities is the first."""
        return len(tag_set(self))

    def first(self, seed: int) -> Arrays:
        """All of a tagger is trained."""
        return trained(initial(tagger_sizes(self), seed))

    def tables(self) -> Sequence[str]:
        """Those of words, and of characters if it reads them."""
        return (WORD_ROWS,) if self.character == NONE else (WORD_ROWS, *CHARACTER_ROWS)

    def at(self, site: Site) -> PublicTaggerDesk:
        """The desk of this form at a site."""
        return desk_at(site, self, PublicTaggerDesk)

    def bench(self, site: Site) -> Bench:
        """That of the site's process."""
        place = (tagger_sizes(self), tag_set(self), self._words)
        return site.once("public tagger", *place, make=lambda: Bench(self._modeller()))

    def taught(self, modeller: Modeller, how: How) -> Modeller:
        """What trains it as `how` says."""
        return taught(modeller, how)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """What a trained tagger is; `encoder` is where its frozen one lies.

        Raises what `find_encoder` raises.
        """
        frozen = None if self.context == NONE else find_encoder(encoder or self.context)
        return extractor_with(self._modeller(), weights, encoder=frozen)

    def _modeller(self) -> CrfModeller:
        characters = ClearVocabulary(tuple(self.characters), "character")
        vocabulary = {
            "words": ClearVocabulary(tuple(self.words)),
            "characters": None if self.character == NONE else characters,
        }
        return modeller_of(self, vocabulary)

    @cached_property
    def _words(self) -> str:
        both = json.dumps([self.how, self.words, self.characters])
        return hashlib.sha256(both.encode()).hexdigest()


class PublicTaggerDesk(SentenceDesk[PublicTaggerForm]):
    """A tagger of public words at a site, with the states of its frozen encoder."""

    def featured(self, text: Encoded, examples: Sequence[Example]) -> Encoded:
        """The text with the states of the frozen encoder."""
        return with_features(text, examples, site=self.site, name=self.form.context)

    def rows_seen(self) -> Arrays:
        """Nobody takes a mean of rows: no weights leave."""
        return {}


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
        """The tagger of such a file. Raises MessageError."""
        return released(file)

    def public(
        self, form: PublicTaggerForm, documents: Sequence[Document]
    ) -> tuple[PublicSentences, list[str]]:
        """The sentences of a public set, and their tags. Raises SettingsError: there is none."""
        return public_sentences(documents, tag_set(form))

    def student(self) -> SentenceStudent[PublicTaggerForm]:
        """The server's own tagger, that learns from the sites' predictions."""
        return SentenceStudent()

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError where a site has word vectors; and as other kinds do."""
        super().check(run)
        named = ["[model]"] if run.model.vectors else []
        named += [site.name for site in run.site if site.vectors]
        if named:
            raise SettingsError(
                "a file of word vectors is of no use here: no weights leave a site, so the common"
                " model would never have them",
                expected="no `vectors`",
                got=f"vectors of {', '.join(named)}",
                fix="leave `vectors` out, or give the tagger a frozen encoder (`model.context`)",
            )

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on types and the frozen encoder; the words are those of the public set.

        Raises FederationError and DataError; SettingsError where the public set has no word.
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
        form = PublicTaggerForm(**shape_of(shape), words=list(words), characters=list(characters))
        return Agreed(
            form,
            sorted(replies),
            {site: reply.sentences for site, reply in replies.items()},
            {site: reply.types for site, reply in replies.items()},
        )
