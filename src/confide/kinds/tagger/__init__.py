"""The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) as a kind: `model.kind = "tagger"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from confide.data.batches.vocabulary import DIGEST_BYTES
from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step
from confide.kinds.buckets import (
    CHARACTER_BITS,
    COUNT_BUCKETS,
    WORD_BITS,
    CountBuckets,
    common_buckets,
)
from confide.kinds.context import DESCRIBE_ENCODER, NONE, agree_on_encoder
from confide.kinds.entities import EntityExtractor, EntityKind
from confide.kinds.protocol import Agreed
from confide.kinds.releases import Holders, write_release
from confide.kinds.tagger.form import TaggerForm, form_of, settled_shape
from confide.kinds.tagger.release import RELEASED_AS, in_clear, released
from confide.kinds.types import DESCRIBE_TYPES, TypesDescribed, agree_on_types, asked_of_types
from confide.kinds.vocabulary import CHECK_KEY, COUNT_VOCABULARY, agree, compare_keys
from confide.kinds.vocabulary import Agreed as Vocabulary
from confide.settings import Settings as RunSettings
from confide.text.document import Document


def agree_unseen(
    run: RunSettings,
    federation: Federation,
    types: list[str],
    *,
    told: Mapping[str, TypesDescribed],
) -> Vocabulary:
    """The common vocabulary where no site's digests may be seen: by buckets."""
    nonce, check, holders = compare_keys(federation)
    own = run.vocabulary
    counted = federation.sum(COUNT_BUCKETS, asked_of_buckets(run), round=0, sites=holders)
    sites = min(own.min_sites, len(federation.sites))
    return Vocabulary(
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
    return CountBuckets(run.vocabulary.how, WORD_BITS, CHARACTER_BITS)


def without_words(
    federation: Federation, types: list[str], *, told: Mapping[str, TypesDescribed]
) -> Vocabulary:
    """No vocabulary: counting words would spend what noise is to save."""
    nonce, check, holders = compare_keys(federation)
    nothing_V16 = np.zeros((0, DIGEST_BYTES), np.uint8)
    return Vocabulary(
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
        """What the settings make of the asks of the kind's own steps."""
        return {
            DESCRIBE_TYPES.name: asked_of_types(run),
            COUNT_VOCABULARY.name: {"how": run.vocabulary.how},
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
                how=run.vocabulary.how,
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
