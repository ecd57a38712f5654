"""The form of a bag model, and how the sites agree on it and on the words that it reads.

What leaves a site: that it holds the common key; keyed digests of its words with their counts
(`reader = "pcnn"`), or a digest of its public encoder; the names of its relations and entity types,
and which types its relations link; how many sentences and bags it trains on.

A *triple* (head, tail, relation) names a bag. It travels as a keyed digest, also if the relation is
none. The run's number goes into the digest, so that nobody can link the triples of two runs.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import (
    DIGEST_BYTES,
    KeyedVocabulary,
    Vocabulary,
    count_words,
    digest,
    rows_of_digests,
)
from confide.errors import GuardError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.buckets import (
    WORD_BITS,
    BucketsCounted,
    CountBuckets,
    as_counted,
    buckets_counted,
    check_buckets,
    common_buckets,
    shapes_of_buckets,
)
from confide.kinds.context import WIDEST, encoder_of, find_encoder, with_encoder
from confide.kinds.protocol import SiteModel, desk_at
from confide.kinds.relations.form import (
    PairForm,
    annotation_of,
    check_annotation,
    pair_form,
    settled_pairs,
)
from confide.kinds.vocabulary import (
    MOST_COMMON,
    MOST_WORDS,
    check_digests,
    common_key,
    compare_keys,
    digested,
    number,
)
from confide.learning.bags import BagForm as Made
from confide.learning.bags import BagTrainer, EncoderForm, PcnnForm
from confide.learning.encoder import FrozenEncoder
from confide.learning.tuning import Tuning
from confide.learning.weights import trained
from confide.settings import Settings as RunSettings
from confide.text.segment import tokens_of

if TYPE_CHECKING:
    from confide.kinds.bags.extractor import BagExtractor

PCNN = "pcnn"
WORD_ROWS = "reader.word.weight"
"""The name of a PCNN's word table."""
_SIZES = ("word_dim", "position_dim", "filters", "width", "farthest")


@dataclass(frozen=True)
class CountBags:
    """Count the words of the training text or find the encoder, and describe the annotation."""

    reader: str = carries("what reads a sentence: pcnn or encoder")
    how: str = carries("how words are normalised before counting")
    encoder: str = carries("the encoder's name in the settings of the run; empty without one")


@dataclass(frozen=True)
class BagsCounted:
    """What the common model must know of a site. W words."""

    word_digests_W16: NDArray[np.uint8] = carries(
        "keyed digests of the site's words, sorted; none if an encoder reads", most=MOST_WORDS
    )
    word_counts_W: NDArray[np.int64] = carries(
        "how often each word occurs in the training text", most=MOST_WORDS, rule="min_token_count"
    )
    encoder: str = carries("digest of the encoder's public files; empty without one", rule="open")
    dim: int = carries("width of the encoder's states; 0 without one", rule="open")
    relations: list[str] = carries(
        "names of the relations of the training text (not text)", rule="open"
    )
    pairs: list[tuple[str, str]] = carries(
        "pairs of entity types that the relations link", rule="open"
    )
    types: list[str] = carries("names of the entity types (not text)", rule="open")


@dataclass(frozen=True)
class BagForm(PairForm):
    """The form of a bag model: its shape, and the keyed digests of the common words."""

    pool: str = carries("what stands for an entity if an encoder reads: max")
    longest: int = carries("longest example, in words or word pieces")
    reader: str = carries("what reads a sentence: pcnn or encoder")
    denoise: str = carries("how the sentences of a bag are combined")
    same: str = carries("what makes two mentions one entity: concept or letters")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the PCNN")
    activation: str = carries("the PCNN's activation: tanh or relu")
    nonce: str = carries("this run's nonce, by which the sites compared keys", rule="varies")
    check: str = carries("the nonce's HMAC under the common key: verifies a key", rule="varies")
    word_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common words, in order of ids", most=MOST_COMMON
    )

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of what is trained of the model: all, but for what `tuning` leaves.

        Raises Refusal at a site that has no such encoder.
        """
        return trained(trainer_without_key(self, site=site).initial(seed))

    def tables(self) -> Sequence[str]:
        """The word table, if a PCNN reads."""
        return (WORD_ROWS,) if self.reader == PCNN else ()

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """The words' keyed digests, if a PCNN reads."""
        return {name: rows_of_digests(self.word_digests_V16) for name in self.tables()}

    def at(self, site: Site) -> SiteModel:
        """The desk of this form at a site."""
        from confide.kinds.bags.desk import BagSiteModel  # which imports this module

        return desk_at(site, self, BagSiteModel)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> BagExtractor:
        """The extractor of a trained bag model. Raises what `extractor_of` raises."""
        from confide.kinds.bags.extractor import extractor_of  # which imports this module

        return extractor_of(self, weights, key=key, encoder=encoder)


def count_bags(
    site: Site, memory: object, ask: CountBags, turn: Turn
) -> tuple[BagsCounted, object]:
    """Count the words, relations and types of the training text; without text there are none."""
    if ask.reader == PCNN and site.member is not None:  # its words are summed by bucket
        digests, times = np.zeros((0, DIGEST_BYTES), np.uint8), np.zeros(0, np.int64)
        encoder, dim = "", 0
    elif ask.reader == PCNN:
        counts = count_words(_tokens(site), ask.how)  # type: ignore[arg-type]
        digests, times = digested(site.key(), "word", counts, floor=site.guards.min_token_count)
        encoder, dim = "", 0
    else:
        digests, times = np.zeros((0, DIGEST_BYTES), np.uint8), np.zeros(0, np.int64)
        found = encoder_of(site, ask.encoder)
        encoder, dim = found.digest, found.dim
    return BagsCounted(digests, times, encoder, dim, **annotation_of(site.train)), memory


def _tokens(site: Site) -> Iterable[str]:
    for document in site.train:
        for start, end in tokens_of(document.text):
            yield document.text[start:end]


def check_bags_counted(ask: CountBags, reply: BagsCounted) -> None:
    """Raise GuardError if a reply is malformed or impossible."""
    check_digests("word", reply.word_digests_W16)
    counts = reply.word_counts_W
    if counts.shape != (len(reply.word_digests_W16),) or counts.dtype != np.int64:
        raise GuardError("word_counts_W is not one int64 for each digest")
    if (counts < 1).any() or (ask.reader != PCNN and len(counts)):
        raise GuardError("word_counts_W must be at least 1, and empty if an encoder reads")
    least = 0 if ask.reader == PCNN else 1
    if not least <= reply.dim <= WIDEST * least:
        raise GuardError("dim is out of range")
    check_annotation(reply)


def count_bag_buckets(
    site: Site, memory: object, ask: CountBuckets, turn: Turn
) -> tuple[BucketsCounted, object]:
    """Count the words of the training text by bucket."""
    return buckets_counted(site, ask, _tokens(site)), memory


COUNT_BAGS = Step.of(count_bags, check=check_bags_counted)
COUNT_BAG_BUCKETS = Step.of(
    count_bag_buckets,
    summed=True,
    check=check_buckets,
    bound=as_counted,
    shapes=shapes_of_buckets,
)


def agree_on_bags(
    run: RunSettings, federation: Federation, *, denoise: str
) -> tuple[BagForm, list[str]]:
    """The form that all sites can use, and the sites that hold the common key.

    Raises FederationError if keys or encoders differ or no site has a relation, and QuorumError.
    """
    nonce, check, holders = compare_keys(federation)
    reads_words = run.bags.reader == PCNN
    name = "" if reads_words else run.classifier.encoder
    ask = asked_of_bags(run)
    replies = federation.ask(COUNT_BAGS, ask, round=0, sites=holders)
    encoder = ""
    if not reads_words:
        encoder = find_encoder(name).digest
        digests = {site: reply.encoder for site, reply in replies.items()}
        same = with_encoder(federation, COUNT_BAGS, digests, ours=encoder)
        replies = {site: replies[site] for site in same}
    pairs = pair_form(run, replies.values(), digest=encoder, pool="max")
    words = {site: (r.word_digests_W16, r.word_counts_W) for site, r in replies.items()}
    sites = min(run.vocabulary.min_sites, len(federation.sites))
    least = run.vocabulary.min_count
    words_V16 = number(words, min_count=least, min_sites=sites)
    if federation.summing is not None and reads_words:
        counted = federation.sum(
            COUNT_BAG_BUCKETS,
            asked_of_buckets(run),
            round=0,
            sites=sorted(replies),
        )
        words_V16 = common_buckets(
            counted.word_counts_B, counted.word_sites_B, min_count=least, min_sites=sites
        )
    settled = settled_bags(run, denoise=denoise)
    form = BagForm(**pairs | settled, nonce=nonce, check=check, word_digests_V16=words_V16)
    return form, sorted(replies)


def asked_of_bags(run: RunSettings) -> CountBags:
    """The ask to describe a site's text."""
    reader = run.bags.reader
    return CountBags(reader, run.vocabulary.how, "" if reader == PCNN else run.classifier.encoder)


def asked_of_buckets(run: RunSettings) -> CountBuckets:
    """The ask to count words by bucket."""
    return CountBuckets(run.vocabulary.how, WORD_BITS, 0)


def settled_bags(run: RunSettings, *, denoise: str) -> dict[str, Any]:
    """The values of the form that the settings alone decide."""
    reads_words = run.bags.reader == PCNN
    return settled_pairs(run, encoder=not reads_words, pool="max") | {
        "reader": run.bags.reader,
        "denoise": denoise,
        "same": run.bags.same,
        "how": run.vocabulary.how,
        "sizes": {name: getattr(run.pcnn, name) for name in _SIZES} if reads_words else {},
        "activation": run.pcnn.activation if reads_words else "",
    }


def bag_form_of(memory: BagForm) -> Made:
    """The form as `learning.bags` knows it: without words, encoder and weights."""
    reader: PcnnForm | EncoderForm
    if memory.reader == PCNN:
        sizes: dict[str, Any] = {**memory.sizes, "how": memory.how, "activation": memory.activation}
        reader = PcnnForm(**sizes, longest=memory.longest)
    else:
        reader = EncoderForm(
            types=tuple(memory.types),
            blind=memory.blind,
            pool=memory.pool,  # type: ignore[arg-type]
            longest=memory.longest,
            tuning=Tuning.of(memory.tuning),
        )
    return Made(tuple(memory.relations), reader, memory.dropout)


def bag_trainer(memory: BagForm, source: Vocabulary | FrozenEncoder) -> BagTrainer:
    """The trainer of this form, which reads these words or this encoder's pieces."""
    return BagTrainer(bag_form_of(memory), source, memory.denoise)  # type: ignore[arg-type]


def trainer_without_key(memory: BagForm, *, site: Site | None = None) -> BagTrainer:
    """A trainer that draws models and reads no text, so it needs no key.

    Raises what `find_encoder` raises or, at a site, Refusal.
    """
    if memory.reader == PCNN:
        unread = KeyedVocabulary(memory.word_digests_V16, "word", b"")
        return bag_trainer(memory, unread)
    name = memory.encoder
    encoder = find_encoder(name) if site is None else encoder_of(site, name)
    return bag_trainer(memory, encoder)


def words_of(memory: BagForm, key: bytes | None) -> KeyedVocabulary:
    """The common words, for a holder of the key.

    Raises KeyFileError if there is no key, or if it is not the key that the sites share.
    """
    key = common_key(key, nonce=memory.nonce, check=memory.check)
    return KeyedVocabulary(memory.word_digests_V16, "word", key)


def triple_digest(memory: BagForm, key: bytes, triple: tuple[str, str, str]) -> bytes:
    """The 16-byte digest of (head, tail, relation) in this run under the sites' key."""
    return digest(key, "triple", json.dumps([memory.nonce, *triple]))
