"""The form of a bag model, and how the sites agree on it and on the words that it reads.

What leaves a site: that it holds the common key; keyed digests of its words with their counts
(`reader = "pcnn"`), or which public encoder it has; the names of its relations and entity types,
and between which types its relations are; how many sentences and bags it trains on.

A *triple* is (head, tail, relation): the name of a bag. It travels as a keyed digest, and so does
one whose relation is none. The number of the run goes into the digest, so that the triples of two
runs cannot be joined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relations import NO_RELATION, type_pairs
from confide.data.batches.vocabulary import (
    DIGEST_BYTES,
    KeyedVocabulary,
    count_words,
    digest,
)
from confide.errors import GuardError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import WIDEST, encoder_of, find_encoder, with_encoder
from confide.kinds.protocol import desk_at
from confide.kinds.relations.form import (
    PairForm,
    check_annotation,
    check_relations_known,
    limit_of,
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
from confide.learning.bags import BagModeller, EncoderForm, PcnnForm
from confide.learning.weights import arrays
from confide.settings import Settings as RunSettings
from confide.text.segment import tokens_of

if TYPE_CHECKING:
    from confide.kinds.bags.desk import BagDesk
    from confide.kinds.bags.extractor import BagExtractor

PCNN = "pcnn"
WORD_ROWS = "reader.word.weight"
"""A PCNN's table of words."""
_SIZES = ("word_dim", "position_dim", "filters", "width", "farthest")


@dataclass(frozen=True)
class CountBags:
    """Count the words of the training text, or find the encoder, and say what is annotated."""

    reader: str = carries("what reads a sentence: pcnn or encoder")
    how: str = carries("how a word is normalised before it is counted")
    encoder: str = carries("the encoder's name in the settings of the run; empty without one")


@dataclass(frozen=True)
class BagsCounted:
    """What the common model must know. W words."""

    word_digests_W16: NDArray[np.uint8] = carries(
        "keyed digests of the site's words, sorted; none where an encoder reads", most=MOST_WORDS
    )
    word_counts_W: NDArray[np.int64] = carries(
        "how often each occurs in the training text", most=MOST_WORDS
    )
    encoder: str = carries("digest of the encoder's files, the same at all who have it; or empty")
    dim: int = carries("numbers of its state of a piece; 0 without an encoder")
    relations: list[str] = carries("names of the relations of the training text (not text)")
    pairs: list[tuple[str, str]] = carries("types of the entities that they are between")
    types: list[str] = carries("names of the entity types (not text)")


@dataclass(frozen=True)
class BagForm(PairForm):
    """What a site keeps: the form of the model, and the common words, whose key it needs."""

    pool: str = carries("what stands for an entity where an encoder reads: max")
    longest: int = carries("words or word pieces that are read of an example")
    reader: str = carries("what reads a sentence: pcnn or encoder")
    denoise: str = carries("how the sentences of a bag become one")
    same: str = carries("what makes two mentions one entity: concept or letters")
    how: str = carries("how a word is normalised")
    sizes: dict[str, int] = carries("sizes of the PCNN")
    activation: str = carries("of the PCNN: tanh or relu")
    nonce: str = carries("the number of this run that sites compared their keys by")
    check: str = carries("what the common key makes of it: tells whether a key is the common one")
    word_digests_V16: NDArray[np.uint8] = carries(
        "digests of the common words, in order of ids", most=MOST_COMMON
    )

    def first(self, seed: int) -> Arrays:
        """All of a bag model is trained."""
        return arrays(modeller_without_key(self).initial(seed))

    def tables(self) -> Sequence[str]:
        """That of words, where a PCNN reads."""
        return (WORD_ROWS,) if self.reader == PCNN else ()

    def at(self, site: Site) -> BagDesk:
        """The desk of this form at a site."""
        from confide.kinds.bags.desk import BagDesk  # it needs this form

        return desk_at(site, self, BagDesk)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> BagExtractor:
        """What a trained bag model is for who holds the key. Raises what `extractor_of` raises."""
        from confide.kinds.bags.extractor import extractor_of  # it needs this form

        return extractor_of(self, weights, key=key, encoder=encoder)


def count_bags(
    site: Site, memory: object, ask: CountBags, turn: Turn
) -> tuple[BagsCounted, object]:
    """Count words, relations and types of the training text; a site without text has none."""
    if ask.reader == PCNN:
        counts = count_words(_tokens(site), ask.how)  # type: ignore[arg-type]
        digests, times = digested(site.key(), "word", counts, floor=site.guards.min_token_count)
        encoder, dim = "", 0
    else:
        digests, times = np.zeros((0, DIGEST_BYTES), np.uint8), np.zeros(0, np.int64)
        found = encoder_of(site, ask.encoder)
        encoder, dim = found.digest, found.dim
    relations = {relation.type for document in site.train for relation in document.relations}
    types = {entity.type for document in site.train for entity in document.entities}
    reply = BagsCounted(
        word_digests_W16=digests,
        word_counts_W=times,
        encoder=encoder,
        dim=dim,
        relations=sorted(relations - {NO_RELATION}),
        pairs=sorted(type_pairs(site.train)),
        types=sorted(types),
    )
    return reply, memory


def _tokens(site: Site) -> Iterable[str]:
    for document in site.train:
        for start, end in tokens_of(document.text):
            yield document.text[start:end]


def check_bags_counted(ask: CountBags, reply: BagsCounted) -> None:
    """Raise GuardError where no site can be like that."""
    check_digests("word", reply.word_digests_W16)
    counts = reply.word_counts_W
    if counts.shape != (len(reply.word_digests_W16),) or counts.dtype != np.int64:
        raise GuardError("the counts of words have another shape")
    if (counts < 1).any() or (ask.reader != PCNN and len(counts)):
        raise GuardError("the counts of words are not counts")
    least = 0 if ask.reader == PCNN else 1
    if not least <= reply.dim <= WIDEST * least:
        raise GuardError("the description of the encoder cannot be")
    check_annotation(reply)


COUNT_BAGS = Step.of(count_bags, check=check_bags_counted)


def agree_on_bags(
    run: RunSettings, federation: Federation, *, denoise: str
) -> tuple[BagForm, list[str]]:
    """The form that all sites can use, and the sites that hold the common key.

    Raises FederationError: keys or encoders differ, or nobody has a relation; QuorumError.
    """
    nonce, check, holders = compare_keys(federation)
    reads_words = run.bags.reader == PCNN
    name = "" if reads_words else run.classifier.encoder
    ask = CountBags(run.bags.reader, run.vocabulary.how, name)
    replies = federation.ask(COUNT_BAGS, ask, round=0, sites=holders)
    encoder = ""
    if not reads_words:
        encoder = find_encoder(name).digest
        digests = {site: reply.encoder for site, reply in replies.items()}
        same = with_encoder(federation, COUNT_BAGS, digests, ours=encoder)
        replies = {site: replies[site] for site in same}
    relations = {name for reply in replies.values() for name in reply.relations}
    check_relations_known(relations)
    form = _form(run, replies, relations)
    words = {site: (r.word_digests_W16, r.word_counts_W) for site, r in replies.items()}
    sites = min(run.vocabulary.min_sites, len(federation.sites))
    words_V16 = number(words, min_count=run.vocabulary.min_count, min_sites=sites)
    memory = BagForm(
        **form,
        reader=run.bags.reader,
        denoise=denoise,
        same=run.bags.same,
        how=run.vocabulary.how,
        encoder=name,
        digest=encoder,
        nonce=nonce,
        check=check,
        word_digests_V16=words_V16,
        sizes={name: getattr(run.pcnn, name) for name in _SIZES} if reads_words else {},
        activation=run.pcnn.activation if reads_words else "",
    )
    return memory, sorted(replies)


def _form(
    run: RunSettings, replies: Mapping[str, BagsCounted], relations: set[str]
) -> dict[str, Any]:
    """What the form has in common with that of a relation classifier, but for its encoder."""
    pairs = {tuple(pair) for reply in replies.values() for pair in reply.pairs}
    types = sorted({name for reply in replies.values() for name in reply.types})
    own = run.pcnn if run.bags.reader == PCNN else run.classifier
    typed = run.bags.reader != PCNN and run.classifier.typed
    return {
        "relations": [NO_RELATION, *sorted(relations)],
        "types": types if typed else [],
        "known_types": types,
        "pairs": sorted(tuple(pair) for pair in run.pairs.types or pairs),
        "direction": run.pairs.direction,
        "max_sentences": limit_of(run.pairs.max_sentences),
        "max_tokens": limit_of(run.pairs.max_tokens),
        "blind": run.bags.reader != PCNN and run.classifier.blind,
        "pool": "max",
        "dropout": own.dropout,
        "longest": own.longest,
    }


def bag_form_of(memory: BagForm) -> Made:
    """What a bag model of this form is, but for its words or its encoder, and its weights."""
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
        )
    return Made(tuple(memory.relations), reader, memory.dropout)


def modeller_without_key(memory: BagForm) -> BagModeller:
    """The same for who makes models and reads nothing: the server.

    Raises what `find_encoder` raises.
    """
    if memory.reader == PCNN:
        unread = KeyedVocabulary(memory.word_digests_V16, "word", b"")
        return BagModeller(bag_form_of(memory), unread)
    return BagModeller(bag_form_of(memory), find_encoder(memory.encoder))


def words_of(memory: BagForm, key: bytes | None) -> KeyedVocabulary:
    """The common words, for who holds the key.

    Raises KeyFileError where there is no key, or not the one that the sites shared.
    """
    key = common_key(key, nonce=memory.nonce, check=memory.check)
    return KeyedVocabulary(memory.word_digests_V16, "word", key)


def triple_digest(memory: BagForm, key: bytes, triple: tuple[str, str, str]) -> bytes:
    """16 bytes that stand for (head, tail, relation) in this run, for who holds the key."""
    return digest(key, "triple", json.dumps([memory.nonce, *triple]))
