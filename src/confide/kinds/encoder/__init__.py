"""A public encoder that tags words, by a linear layer over the first piece of each.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder. The form holds no word, so there is no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from confide.data.batches.examples import Example
from confide.data.batches.token_pieces import TokenText
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import encoder_of, find_encoder
from confide.kinds.entities import EntityKind, EntitySiteModel
from confide.kinds.files import MadeOfEncoder
from confide.kinds.how import How
from confide.kinds.protocol import Agreed, SiteModel, desk_at
from confide.kinds.sentences import (
    OfTags,
    PublicSentences,
    SentenceStudent,
    public_sentences,
)
from confide.kinds.tuned import TUNING, keeping_features, tuning_of
from confide.kinds.types import (
    DescribeTypes,
    TypesDescribed,
    agree_on_types,
    agreed,
    asked_of_types,
    described,
    describing,
)
from confide.learning.context import cache_folder
from confide.learning.encoder import FrozenEncoder
from confide.learning.tokens import TokenForm, TokenTrainer
from confide.learning.trainer import EntityTrainer
from confide.learning.tuning import Tuning
from confide.settings import Settings as RunSettings
from confide.text.document import Document


@dataclass(frozen=True)
class EncoderForm(OfTags, MadeOfEncoder):
    """The form of an encoder that tags words."""

    private: ClassVar[Sequence[str]] = ("tag",)
    head: ClassVar[str] = "tag"
    slope: ClassVar[str] = "tag.weight"

    types: list[str] = carries("names of all entity types", rule="varies")
    tag_scheme: str = carries("scheme of the tags: iobes or iob2")
    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files", rule="varies")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("longest window, in word pieces")
    tuning: str = carries(TUNING, added=True)

    def at(self, site: Site) -> SiteModel:
        """The desk of this form at a site."""
        return desk_at(site, self, EncoderSiteModel)

    def taught(self, trainer: EntityTrainer, how: How) -> EntityTrainer:
        """The trainer that trains as `how` says."""
        assert isinstance(trainer, TokenTrainer)
        return replace(trainer, open=how.outside)

    def trainer(self, files: FrozenEncoder) -> EntityTrainer:
        """The trainer of this form."""
        return TokenTrainer(files, self.made())

    def made(self) -> TokenForm:
        """The form as `learning` makes models of it."""
        return TokenForm(
            types=tuple(self.types),
            tag_scheme=self.tag_scheme,  # type: ignore[arg-type]
            dropout=self.dropout,
            longest=self.longest,
            tuning=Tuning.of(self.tuning),
        )


class EncoderSiteModel(EntitySiteModel):
    """An encoder that tags words, at a site; what a frozen one gives is kept on the site's disk."""

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of its words, if the encoder is frozen. Raises Refusal."""
        assert isinstance(text, TokenText)
        bench = self.form.bench(self.site)
        assert isinstance(bench.trainer, TokenTrainer)
        with keeping_features():
            return bench.trainer.featured(text, bench.model, folder=cache_folder())


@dataclass(frozen=True)
class ReleasedTokens(EncoderForm):
    """A released encoder that tags words; it needs the public encoder's files, and no key."""

    weights: Arrays = carries("weights of what was trained of the encoder, and of the last layer")
    apart: int = carries("number of its sites that annotated only some types")


def describe_types_and_encoder(
    site: Site, memory: object, ask: DescribeTypes, turn: Turn
) -> tuple[TypesDescribed, object]:
    """Find the encoder, if one is named, and describe the annotation of the training text."""
    digest = encoder_of(site, ask.encoder).digest if ask.encoder else ""
    return described(site, digest, closed=ask.closed), memory


DESCRIBE = describing(describe_types_and_encoder)


class EncoderKind(EntityKind):
    """The kind `model.kind = "encoder"`."""

    tunes: ClassVar[bool] = True

    name: ClassVar[str] = "encoder"
    Form: ClassVar[type] = EncoderForm
    Released: ClassVar[type] = ReleasedTokens
    released_as: ClassVar[str] = "tokens.safetensors"
    release_tells: ClassVar[str] = "names and weights; it needs its encoder's files but no key"
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)

    Public: ClassVar[type] = PublicSentences

    def public(
        self, form: EncoderForm, documents: Sequence[Document]
    ) -> tuple[PublicSentences, list[str]]:
        """The sentences of a public set, and their tags. Raises SettingsError if there are none."""
        return public_sentences(documents, form.tags)

    def student(self) -> SentenceStudent:
        """The server's own model, that learns from the sites' predictions."""
        return SentenceStudent()

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.classifier
        return {
            "tag_scheme": run.model.tag_scheme,
            "encoder": own.encoder,
            "dropout": own.dropout,
            "longest": own.longest,
            "tuning": str(tuning_of(run)),
        }

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """What the settings make of the asks of the kind's own steps."""
        return {DESCRIBE.name: asked_of_types(run, run.classifier.encoder)}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on the types; all sites need the server's encoder. Raises FederationError."""
        own = run.classifier
        digest = find_encoder(own.encoder).digest
        types, replies = agree_on_types(
            run, federation, step=DESCRIBE, name=own.encoder, digest=digest, public=public
        )
        return agreed(EncoderForm(types=types, digest=digest, **self.settled(run)), replies)
