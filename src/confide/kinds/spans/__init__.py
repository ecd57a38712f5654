"""A public encoder that classifies spans: entities that lie in or across one another are learnt.

Zhong & Chen, "A Frustratingly Easy Approach for Entity and Relation Extraction", NAACL 2021, 3.2:
every span of words up to a width is classified by itself. Unlike theirs, a span may have several
types, as a drug's adverse effect may be a sign of an illness as well.

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public encoder. The form holds no word, so there is no key.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import Span, left_out_of_nested, nested_spans
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import encoder_of, find_encoder
from confide.kinds.entities import EntityKind, EntitySiteModel
from confide.kinds.files import MadeOfEncoder
from confide.kinds.how import How
from confide.kinds.protocol import Agreed, SiteModel, desk_at
from confide.kinds.sentences import PublicSentences, SentenceStudent
from confide.kinds.spans.public import OUTSIDE, PublicSpans, public_spans
from confide.kinds.types import (
    DescribeTypes,
    TypesDescribed,
    agree_on_types,
    agreed,
    asked_of_types,
    described,
    describing,
)
from confide.learning.encoder import FrozenEncoder
from confide.learning.spans import SpanForm as Made
from confide.learning.spans import SpanTrainer
from confide.learning.trainer import EntityTrainer
from confide.settings import Settings as RunSettings
from confide.text.document import Document, Problem


@dataclass(frozen=True)
class SpanForm(MadeOfEncoder):
    """The form of an encoder that classifies spans."""

    private: ClassVar[Sequence[str]] = ("span",)
    head: ClassVar[str] = "span"
    slope: ClassVar[str] = "span.weight"

    types: list[str] = carries("names of all entity types", rule="varies")
    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files", rule="varies")
    width: int = carries("most words of a span")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("longest window, in word pieces")

    @property
    def class_names(self) -> Sequence[str]:
        """No entity, and the types."""
        return (OUTSIDE, *self.types)

    @property
    def classes(self) -> int:
        """The number of types, and one more: no entity, which is the first."""
        return len(self.types) + 1

    def known(self, types: Set[str]) -> list[bool]:
        """For each class, whether it is one of these types; every site knows the first."""
        return [True, *(name in types for name in self.types)]

    def told(self, public: PublicSpans, labels: Sequence[str]) -> list[list[Span]]:
        """The spans of each public sentence, from the labels of its rows; none without any."""
        return public.told(labels)

    def taught(self, trainer: EntityTrainer, how: How) -> EntityTrainer:
        """The trainer that trains as `how` says."""
        assert isinstance(trainer, SpanTrainer)
        return replace(trainer, open=how.outside)

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only."""
        return replace(self, types=sorted(_seen(site))) if types else self

    def at(self, site: Site) -> SiteModel:
        """The desk of this form at a site."""
        return desk_at(site, self, SpanSiteModel)

    def trainer(self, files: FrozenEncoder) -> EntityTrainer:
        """The trainer of this form."""
        return SpanTrainer(files, self.made())

    def made(self) -> Made:
        """The form as `learning` makes models of it."""
        return Made(tuple(self.types), self.width, self.dropout, self.longest)


def _seen(site: Site) -> set[str]:
    """The types of the training text, also those that occur only inside other entities."""
    return {span[2] for own in nested_spans(site.train) for span in own}


def know_own_types(site: Site) -> None:
    """Let the site know its types as `own_types` does, from all of its entities. Raises Refusal."""
    if "all types" not in site.cache:
        seen = _seen(site)
        if site.knows and not seen <= set(site.knows):
            raise Refusal("tag-outside-set")
        site.cache["all types"] = site.cache["own types"] = frozenset(site.knows or seen)


def describe_nested_types(
    site: Site, memory: object, ask: DescribeTypes, turn: Turn
) -> tuple[TypesDescribed, object]:
    """Find the encoder, if one is named, and describe all annotation of the training text."""
    know_own_types(site)
    digest = encoder_of(site, ask.encoder).digest if ask.encoder else ""
    return described(site, digest, closed=ask.closed), memory


DESCRIBE = describing(describe_nested_types)


class SpanSiteModel(EntitySiteModel):
    """The desk: its training text has all entities, also those that share words with others."""

    def __init__(self, site: Site, form: SpanForm) -> None:
        super().__init__(site, form)
        know_own_types(site)

    def predicted(self, weights: Arrays, public: PublicSentences) -> NDArray[np.float32]:
        """logits_TZ of the spans of a public set. Raises Refusal if it has another width."""
        if not isinstance(public, PublicSpans) or public.width != self.form.width:
            raise Refusal("other-public-set")
        return super().predicted(weights, public)

    def spans(self, documents: Sequence[Document]) -> list[list[Span]]:
        """The spans of each sentence, with those that share words with others."""
        return nested_spans(documents)

    @cached_property
    def own(self) -> Any:
        """The training sentences, encoded, with all of the site's own annotation."""
        return self.annotated(self.spans(self.site.train))


@dataclass(frozen=True)
class ReleasedSpans(SpanForm):
    """A released encoder that classifies spans; it needs the public encoder's files, and no key."""

    weights: Arrays = carries("weights of encoder and layers")
    apart: int = carries("number of its sites that annotated only some types")


class SpanKind(EntityKind):
    """The kind `model.kind = "spans"`."""

    name: ClassVar[str] = "spans"
    Form: ClassVar[type] = SpanForm
    Released: ClassVar[type] = ReleasedSpans
    released_as: ClassVar[str] = "spans.safetensors"
    release_tells: ClassVar[str] = "names and weights; it needs its encoder's files but no key"
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)

    Public: ClassVar[type] = PublicSpans

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """The annotations that it leaves out or changes: none for sharing words with others."""
        return left_out_of_nested(documents)

    def public(
        self, form: SpanForm, documents: Sequence[Document]
    ) -> tuple[PublicSpans, list[str]]:
        """The sentences of a public set, and the labels of their spans. Raises SettingsError."""
        return public_spans(documents, width=form.width, types=form.types)

    def student(self) -> SentenceStudent:
        """The server's own model, that learns from the sites' predictions."""
        return SentenceStudent()

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.classifier
        return {name: getattr(own, name) for name in ("encoder", "width", "dropout", "longest")}

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
        return agreed(SpanForm(types=types, digest=digest, **self.settled(run)), replies)
