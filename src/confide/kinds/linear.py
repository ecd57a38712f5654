"""A linear-chain CRF on hashed features: for languages without an encoder, and for little text.

Words, their first and last letters and shapes, and those of neighbours, are hashed under the key
that the sites share straight into a table of a fixed size (`kinds.tagger.model`,
`training.tagger`). So no vocabulary is counted, what travels has one size for any number of types,
and all that the server sums are weights. States of a frozen encoder can be added (`model.context`).

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, that it holds the common key, and a keyed check value of its frozen encoder, if one is
named. What never leaves: text, features, the key.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from confide.errors import MessageError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds import agreement, protocol
from confide.kinds.encoder import DESCRIBE
from confide.kinds.entities import (
    EntityExtractor,
    EntityKind,
    EntitySiteModel,
    EntitySpec,
    extractor_with,
)
from confide.kinds.tagger.model import EncodedSplit, Marks, TaggerTrainer, crf_axes, rows_read
from confide.settings import Settings as RunSettings
from confide.text.document import Document
from confide.training.batches import Encoded, Example, TagSet
from confide.training.tagger import LinearSizes, LinearTagger
from confide.training.vocabulary import SPECIALS, ClearVocabulary, keyed_digest
from confide.training.weights import initial, trained

TABLE = "table.weight"


@dataclass(frozen=True)
class LinearSpec(EntitySpec):
    """The form of a linear CRF. Its features are keyed; a release has the key of these alone."""

    private: ClassVar[Sequence[str]] = ("crf",)
    head: ClassVar[str] = "crf"
    slope: ClassVar[str] = "crf.linear.weight"
    weighting: ClassVar[Literal["equal", "examples"]] = "examples"

    types: list[str] = carries("names of the entity types", rule="varies")
    tag_scheme: str = carries("tag scheme that the model learns: iobes or iob2")
    bits: int = carries("its table has 2 to the power of this many rows")
    context: str = carries("name of the frozen encoder; empty without one")
    context_dim: int = carries("width of the frozen encoder's states; 0 without one", rule="varies")
    nonce: str = carries(
        "this run's nonce, by which the sites compared keys", rule="varies", before=""
    )
    check: str = carries(
        "the nonce's HMAC under the common key: verifies a key", rule="varies", before=""
    )
    features_key: str = carries(
        "the key of this run's features, in hexadecimal digits; only in a release", before=""
    )

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.model
        return {
            "tag_scheme": own.tag_scheme,
            "bits": run.linear.bits,
            "context": own.context,
            "features_key": "",
        }

    @property
    def tags(self) -> TagSet:
        """The tags of the form."""
        return TagSet(tuple(self.types), self.tag_scheme)  # type: ignore[arg-type]

    @property
    def sizes(self) -> LinearSizes:
        """The sizes of a model of this form."""
        tags = self.tags
        return LinearSizes(tags.types, len(tags.prefixes), self.bits, self.context_dim)

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of the whole model, all 0: all of it is trained."""
        return trained(initial(self.sizes, seed))

    def tables(self) -> Sequence[str]:
        """The table of features."""
        return (TABLE,)

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """The number of each row under this nonce and key: with others, it is of other features."""
        return {TABLE: [(self.nonce, self.check, row) for row in range(2**self.bits)]}

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """The CRF has a place for each tag; a row of the table is of a type by its name."""
        return crf_axes([(self.tag_scheme, tag) for tag in self.tags.tags])

    def at(self, site: Site) -> protocol.SiteModel:
        """The site model of this form."""
        return protocol.cached_site_model(site, self, LinearSiteModel)

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only.

        Raises Refusal if the site's tag scheme differs: a row has a number for each tag of a type.
        """
        if site.tag_scheme not in (None, self.tag_scheme):
            raise Refusal("tag-scheme")
        return replace(self, types=agreement.types_in_text(site)) if types else self

    def shared_model(self, site: Site) -> protocol.SharedModel:
        """The process's shared model. Raises Refusal if the site's key is not the common one."""

        def make() -> protocol.SharedModel:
            with agreement.other_key():
                return protocol.SharedModel(self.trainer(Marks(self.key_of_features(site.key()))))

        place = (self.sizes, self.tag_scheme, site.key(), self.nonce, self.check)
        return site.once("linear", *place, make=make)

    def trainer(self, marks: Marks) -> TaggerTrainer:
        """The trainer of this form; `marks` turns words into features."""
        return TaggerTrainer(
            sizes=self.sizes,
            tags=self.tags,
            words=ClearVocabulary(()),
            characters=None,
            how="none",
            word_dropout=0.0,
            marks=marks,
        )

    def key_of_features(self, key: bytes | None) -> bytes:
        """The key of this run's features: a release has it, and never the sites' own.

        Raises KeyFileError if this is not the key that the sites share, and MessageError for a
        malformed release.
        """
        if not self.features_key:
            known = agreement.common_key(key, nonce=self.nonce, check=self.check)
            return features_key(known, self.nonce)
        try:
            return bytes.fromhex(self.features_key)
        except ValueError as error:
            raise MessageError("the key of the features is malformed") from error

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained model; `encoder` is the folder of its frozen encoder.

        Raises KeyFileError, MessageError, and what `find_encoder` raises.
        """
        trainer = self.trainer(Marks(self.key_of_features(key)))
        frozen = agreement.context_encoder(self.context, encoder)
        return extractor_with(trainer, weights, encoder=frozen)

    def in_clear(self, weights: Arrays, holders: protocol.Holders) -> tuple[Self, Arrays]:
        """The model with the key of this run's features. Raises KeyFileError."""
        key = self.key_of_features(holders.secret())
        return replace(self, nonce="", check="", features_key=key.hex()), weights


def features_key(key: bytes, nonce: str) -> bytes:
    """The key of a run's features, made from the sites' own."""
    return keyed_digest(key, "features", nonce)


class LinearSiteModel(EntitySiteModel):
    """A linear CRF at a site, with the states of its frozen encoder."""

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of the frozen encoder."""
        assert isinstance(text, Encoded)
        return agreement.with_features(text, examples, site=self.site, name=self.form.context)

    def rows_seen(self, config: protocol.TrainConfig) -> Arrays:
        """For each row of the table: 1 if a feature of the training text reads it, else 0."""
        assert isinstance(self.own, EncodedSplit)
        model = self.shared_model.model
        assert isinstance(model, LinearTagger)
        seen_V = np.zeros(2**self.form.bits + SPECIALS, np.float32)
        seen_V[rows_read(model, self.own.text)] = 1.0
        return {TABLE: seen_V}


class LinearKind(EntityKind):
    """The kind `model.kind = "linear"`. Its features are keyed, as the words of a tagger are."""

    name: ClassVar[str] = "linear"
    Spec: ClassVar[type[protocol.ModelSpec]] = LinearSpec
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE, agreement.CHECK_KEY, agreement.DESCRIBE_ENCODER)
    release: ClassVar[protocol.Release] = protocol.Release(
        "linear.safetensors",
        "ReleasedLinear",
        "anyone who has this folder can guess words, and see from the weights which are in the"
        " text",
    )

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Raise SettingsError also if the settings name word vectors, which it does not read."""
        super().check(run, public=public)
        if run.model.vectors:
            raise SettingsError(
                "a linear model reads no word vectors",
                expected="no model.vectors",
                got=repr(run.model.vectors),
                fix='leave it out, or set model.kind = "tagger"',
            )

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        return {
            DESCRIBE.name: agreement.asked_of_types(run),
            agreement.DESCRIBE_ENCODER.name: {"encoder": run.model.context},
        }

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """Agree on the types, the key and the frozen encoder. Raises FederationError."""
        types, replies = agreement.agree_on_types(run, federation, step=DESCRIBE)
        nonce, check, holders = agreement.compare_keys(federation)
        form = LinearSpec(
            types=types,
            **LinearSpec.settled(run, public=False),
            context_dim=agreement.agree_on_encoder(federation, run.model.context),
            nonce=nonce,
            check=check,
        )
        sites = sorted(site for site in holders if site in replies)
        return protocol.Agreed(
            form,
            sites,
            {site: replies[site].sentences for site in sites},
            {site: replies[site].types for site in sites},
        )
