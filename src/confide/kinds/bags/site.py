"""The bag ranker as a kind, whose reader is a PCNN or an encoder: `task = "bags"`."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.keys import key_check
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.files import cache_folder
from confide.kinds import agreement, protocol
from confide.kinds.agreement import number_words
from confide.kinds.bags.batches import Bags, EncodedSentences, Same, held_out_bags, training_bags
from confide.kinds.bags.model import (
    BagModel,
    BagTrainer,
    Denoise,
    EncodedBags,
    Pcnn,
    bag_scores,
    sentence_probabilities,
)
from confide.kinds.relations.batches import RelationExample, Rules, candidates, with_labels
from confide.kinds.relations.site import (
    PairSpec,
    RelationsDescribed,
    annotation_of,
    check_annotation,
    pair_form,
    pair_place,
    rules_of,
    settled_pairs,
)
from confide.kinds.steps import BagsScored, bags_scored
from confide.scoring import BagCounts, Count
from confide.scoring.calibration import AS_IS, Calibrator
from confide.scoring.relations import count_ranked, ranked_bags
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import NO_RELATION, Document, Relation
from confide.text.segment import tokenise
from confide.training import vocabulary
from confide.training.batches import Rows
from confide.training.encoder import FrozenEncoder
from confide.training.weights import load_weights, set_rows, trained

# --- The form of a bag model
#
# The sites agree on it and on the words that it reads.
#
# What leaves a site: that it holds the common key; keyed digests of its words with their counts
# (`reader = "pcnn"`), or a digest of its public encoder; the names of its relations and entity
# types, and which types its relations link; how many sentences and bags it trains on.
#
# A *triple* (head, tail, relation) names a bag. It travels as a keyed digest, also if the
# relation is none. The run's number goes into the digest, so that nobody can link the triples of
# two runs.


PCNN = "pcnn"
WORD_ROWS = "reader.word.weight"
"""The name of a PCNN's word table."""


@dataclass(frozen=True)
class CountBags:
    """Count the words of the training text or find the encoder, and describe the annotation."""

    reader: str = carries("what reads a sentence: pcnn or encoder")
    how: str = carries("how words are normalised before counting")
    encoder: str = carries("the encoder's name in the settings of the run; empty without one")


@dataclass(frozen=True)
class BagsCounted(RelationsDescribed):
    """A site's facts for the common model. W words."""

    word_digests_W16: NDArray[np.uint8] = carries(
        "keyed digests of the site's words, sorted; none if an encoder reads",
        most=agreement.MOST_WORDS,
    )
    word_counts_W: NDArray[np.int64] = carries(
        "how often each word occurs in the training text",
        most=agreement.MOST_WORDS,
        rule="min_token_count",
    )


@dataclass(frozen=True)
class BagSpec(PairSpec):
    """The form of a bag model: its shape, and the keyed digests of the common words."""

    pool: str = carries("what stands for an entity if an encoder reads: max", start=lambda: "max")
    longest: int = carries("longest example, in words or word pieces", start=lambda: 120)
    reader: str = carries("what reads a sentence: pcnn or encoder", start=lambda: PCNN)
    denoise: str = carries("how the sentences of a bag are combined", start=lambda: "none")
    same: str = carries(
        "what makes two mentions one entity: concept or letters", start=lambda: "concept"
    )
    how: str = carries("how a word is normalised", start=lambda: "lower-digits")
    sizes: dict[str, int] = carries("sizes of the PCNN", start=lambda: {"farthest": 60})
    activation: str = carries("the PCNN's activation: tanh or relu", start=lambda: "tanh")
    nonce: str = carries(
        "this run's nonce, by which the sites compared keys", rule="varies", start=str
    )
    check: str = carries(
        "the nonce's HMAC under the common key: verifies a key", rule="varies", start=str
    )
    word_digests_V16: NDArray[np.uint8] = carries(
        "keyed digests of the common words, in order of ids",
        most=agreement.MOST_COMMON,
        start=lambda: agreement.NOTHING_V16,
    )
    words: list[str] = carries(
        "the words, in order of ids; only in a release, if a PCNN reads", before=[], start=list
    )

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        reads_words, own = run.bags.reader == PCNN, run.pcnn
        sizes = {
            "word_dim": own.word_dim,
            "position_dim": own.position_dim,
            "filters": own.filters,
            "width": own.width,
            "farthest": own.max_distance,
        }
        return settled_pairs(run, encoder=not reads_words, pool="max") | {
            "reader": run.bags.reader,
            "denoise": run.bags.denoise,
            "same": run.bags.same_entity,
            "how": run.vocabulary.normalise,
            "sizes": sizes if reads_words else {},
            "activation": run.pcnn.activation if reads_words else "",
            "words": [],
        }

    @classmethod
    def vectors(cls, run: RunSettings) -> str | None:
        """The file of word vectors that all sites start from."""
        return run.pcnn.vectors

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
        return {name: vocabulary.rows_of_digests(self.word_digests_V16) for name in self.tables()}

    def with_labels_of(self, before: Self) -> Self:
        """The form that also has all relations and words of a trained model's."""
        words_V16 = agreement.with_new_rows(self.word_digests_V16, before.word_digests_V16)
        return replace(super().with_labels_of(before), word_digests_V16=words_V16)

    def at(self, site: Site) -> protocol.SiteModel:
        """The site model of this form."""
        return protocol.cached_site_model(site, self, BagSiteModel)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> BagExtractor:
        """The extractor; it needs the key or, if an encoder reads, its files.

        `encoder` is where the files are, if not where the run's settings say. Raises KeyFileError,
        FederationError if the files are not those of the training, and what `find_encoder` raises.
        """
        source: vocabulary.Vocabulary | FrozenEncoder
        if self.words:
            source = vocabulary.ClearVocabulary(tuple(self.words), "word")
        elif self.reader == PCNN:
            source = words_of(self, key)
        else:
            source = agreement.trained_with(encoder or self.encoder, self.digest)
        trainer = bag_trainer(self, source)
        model = trainer.initial(0)
        load_weights(model, weights)
        return BagExtractor(
            trainer,
            model,
            rules=rules_of(self),
            same=self.same,  # type: ignore[arg-type]
            denoise=self.denoise,  # type: ignore[arg-type]
            types=tuple(self.known_types),
        )

    def in_clear(self, weights: Arrays, holders: protocol.Holders) -> tuple[Self, Arrays]:
        """The bag model with these sites' words in the clear; unchanged if an encoder reads."""
        if self.reader != PCNN:
            return self, weights
        tokens = (
            document.text[start:end]
            for document in holders.train
            for start, end in tokenise(document.text)
        )
        texts = sorted(vocabulary.count_words(tokens, self.how))  # type: ignore[arg-type]
        words, ids = protocol.known_words(words_of(self, holders.secret()), texts)
        clear = replace(self, words=words, word_digests_V16=self.word_digests_V16[:0])
        return clear, {**weights, WORD_ROWS: weights[WORD_ROWS][ids]}


def count_bags(
    site: Site, memory: object, ask: CountBags, turn: Turn
) -> tuple[BagsCounted, object]:
    """Count the words, relations and types of the training text; without text there are none."""
    digests, times = agreement.NOTHING_V16, np.zeros(0, np.int64)
    encoder, dim = "", 0
    if ask.reader != PCNN:
        found = agreement.encoder_of(site, ask.encoder)
        encoder, dim = found.digest, found.dim
    elif site.member is None:  # else its words are summed by bucket
        counts = vocabulary.count_words(_tokens(site), ask.how)  # type: ignore[arg-type]
        digests, times = agreement.digested(
            site.key(), "word", counts, floor=site.guards.min_token_count
        )
    words = {"word_digests_W16": digests, "word_counts_W": times}
    own: dict[str, Any] = annotation_of(site.train) | words
    return BagsCounted(encoder, dim, **own), memory


def _tokens(site: Site) -> Iterable[str]:
    for document in site.train:
        for start, end in tokenise(document.text):
            yield document.text[start:end]


def check_bags_counted(ask: CountBags, reply: BagsCounted) -> None:
    """Raise GuardError if a reply is malformed or impossible."""
    agreement.check_digests("word", reply.word_digests_W16)
    counts = reply.word_counts_W
    if counts.shape != (len(reply.word_digests_W16),) or counts.dtype != np.int64:
        raise GuardError("word_counts_W is not one int64 for each digest")
    if (counts < 1).any() or (ask.reader != PCNN and len(counts)):
        raise GuardError("word_counts_W must be at least 1, and empty if an encoder reads")
    least = 0 if ask.reader == PCNN else 1
    if not least <= reply.dim <= agreement.WIDEST * least:
        raise GuardError("dim is out of range")
    check_annotation(reply)


def count_bag_buckets(
    site: Site, memory: object, ask: agreement.CountBuckets, turn: Turn
) -> tuple[agreement.BucketsCounted, object]:
    """Count the words of the training text by bucket."""
    return agreement.buckets_counted(site, ask, _tokens(site)), memory


COUNT_BAGS = Step.of(count_bags, check=check_bags_counted)
COUNT_BAG_BUCKETS = Step.of(count_bag_buckets, summed=True, check=agreement.check_buckets)


def agree_on_bags(run: RunSettings, federation: Federation) -> tuple[BagSpec, list[str]]:
    """The form that all sites can use, and the sites that hold the common key.

    Raises FederationError if keys or encoders differ or no site has a relation, and QuorumError.
    """
    nonce, check, holders = agreement.compare_keys(federation)
    reads_words = run.bags.reader == PCNN
    name = "" if reads_words else run.classifier.encoder
    ask = asked_of_bags(run)
    replies = federation.ask(COUNT_BAGS, ask, round=0, sites=holders)
    encoder = ""
    if not reads_words:
        encoder = agreement.find_encoder(name).digest
        digests = {site: reply.encoder for site, reply in replies.items()}
        same = agreement.with_encoder(federation, COUNT_BAGS, digests, ours=encoder)
        replies = {site: replies[site] for site in same}
    pairs = pair_form(run, replies.values(), digest=encoder, pool="max")
    words = {site: (r.word_digests_W16, r.word_counts_W) for site, r in replies.items()}
    sites = min(run.vocabulary.min_sites, len(federation.sites))
    least = run.vocabulary.min_count
    words_V16 = number_words(words, min_count=least, min_sites=sites)
    if federation.summing is not None and reads_words:
        counted = federation.sum(
            COUNT_BAG_BUCKETS,
            agreement.asked_of_buckets(run.vocabulary, characters=False),
            round=0,
            sites=sorted(replies),
        )
        words_V16 = agreement.common_buckets(
            counted.word_counts_B, counted.word_sites_B, min_count=least, min_sites=sites
        )
    settled = BagSpec.settled(run, public=False)
    form = BagSpec(**pairs | settled, nonce=nonce, check=check, word_digests_V16=words_V16)
    return form, sorted(replies)


def asked_of_bags(run: RunSettings) -> CountBags:
    """The ask to describe a site's text."""
    reader = run.bags.reader
    return CountBags(
        reader, run.vocabulary.normalise, "" if reader == PCNN else run.classifier.encoder
    )


def bag_trainer(memory: BagSpec, source: vocabulary.Vocabulary | FrozenEncoder) -> BagTrainer:
    """The trainer of this form, which reads these words or this encoder's pieces."""
    return BagTrainer(memory, source, memory.denoise)  # type: ignore[arg-type]


def trainer_without_key(memory: BagSpec, *, site: Site | None = None) -> BagTrainer:
    """A trainer that draws models and reads no text, so it needs no key.

    Raises what `find_encoder` raises or, at a site, Refusal.
    """
    if memory.reader == PCNN:
        unread = vocabulary.KeyedVocabulary(memory.word_digests_V16, "word", b"")
        return bag_trainer(memory, unread)
    name = memory.encoder
    encoder = agreement.find_encoder(name) if site is None else agreement.encoder_of(site, name)
    return bag_trainer(memory, encoder)


def words_of(memory: BagSpec, key: bytes | None) -> vocabulary.KeyedVocabulary:
    """The common words, for a holder of the key.

    Raises KeyFileError if there is no key, or if it is not the key that the sites share.
    """
    key = agreement.common_key(key, nonce=memory.nonce, check=memory.check)
    return vocabulary.KeyedVocabulary(memory.word_digests_V16, "word", key)


def triple_digest(memory: BagSpec, key: bytes, triple: tuple[str, str, str]) -> bytes:
    """The 16-byte digest of (head, tail, relation) in this run under the sites' key."""
    return vocabulary.keyed_digest(key, "triple", json.dumps([memory.nonce, *triple]))


# --- A bag model at a site
#
# Bags of encoded sentences, made once, and one model per process.
#
# Shapes: S sentences (examples), G bags, R relations (class 0 is no relation), W winners.


@dataclass
class _SharedWords(protocol.SharedModel):
    """A shared model of words, with the rows of vector files that were read for them."""

    trainer: BagTrainer
    words_V16: NDArray[np.uint8]
    vectors: dict[Path, vocabulary.VectorFile] = field(default_factory=dict)

    def knows(self, form: BagSpec) -> bool:
        """Return whether the shared model was made for the form's words."""
        ours, theirs = self.words_V16, form.word_digests_V16
        return ours is theirs or np.array_equal(ours, theirs)


@dataclass(frozen=True)
class BagPart:
    """A part of a site's text as bags of encoded sentences.

    Training bags have a class each (`relations_G`) and the digest of their triple (`digests_G16`);
    held-out bags have `facts`.
    """

    encoded: EncodedBags
    groups: Sequence[Rows]
    relations_G: Rows
    digests_G16: NDArray[np.uint8]
    facts: Sequence[frozenset[str]] = ()


class BagSiteModel(protocol.SiteModel):
    """A bag model at a site.

    Beyond what every site model does, it scores every relation in every training sentence
    (`likely`) and can train on chosen sentences only (`fit` with `only_W`).
    """

    form: BagSpec

    def __init__(self, site: Site, form: BagSpec) -> None:
        super().__init__(site, form)
        self._looked: dict[str, BagPart] = {}

    @property
    def size(self) -> int:
        """The number of training sentences; each names two entities."""
        return len(self.looked("train").encoded)

    def check(self) -> None:
        """Raise Refusal if the training text has a relation that the form lacks."""
        self.looked("train")

    @property
    def key(self) -> bytes:
        """The site's key. Raises Refusal if it is not the key that the sites agreed on."""
        key = self.site.key()
        if key_check(key, self.form.nonce) != self.form.check:
            raise Refusal("other-key")
        return key

    @cached_property
    def _shape(self) -> str:
        """Tells forms apart but for their words."""
        return repr(replace(self.form, word_digests_V16=self.form.word_digests_V16[:0]))

    @property
    def shared_model(self) -> _SharedWords:
        """The process's shared model. Raises Refusal if the site's key or encoder differs."""
        key, form, encoder = self.key, self.form, None
        if form.reader != PCNN:
            encoder = agreement.agreed_encoder(self.site, form.encoder, form.digest)
        shared_models: dict[object, _SharedWords] = self.site.scratch.setdefault("bag models", {})
        place = self._shape
        if place not in shared_models or not shared_models[place].knows(form):
            trainer = bag_trainer(form, encoder or words_of(form, key))
            shared_models[place] = _SharedWords(trainer, form.word_digests_V16)
        return shared_models[place]

    def model(self, weights: Arrays, *, vectors: bool = False, lent: bool = False) -> BagModel:
        """The process's model with these weights.

        With `vectors`, the word table is filled from the site's own vector file. With `lent`, the
        model uses these very arrays without a copy, so it must not be trained.
        """
        model: BagModel = self.shared_model.model
        found = self.file if vectors else None
        load_weights(model, weights, lent=lent and found is None)
        if found is not None and isinstance(model.reader, Pcnn):
            set_rows(model.reader.word, found)
        return model

    @property
    def file(self) -> vocabulary.VectorFile | None:
        """The site's own vectors of the common words, read once; None without a file."""
        place, form = self.site.vectors, self.form
        if place is None or form.reader != PCNN:
            return None
        read = self.shared_model.vectors
        if place not in read:
            words, dim = words_of(form, self.site.key()), form.sizes["word_dim"]
            read[place] = agreement.vectors_of(place, words, how=form.how, dim=dim)
        return read[place]

    def vectors(self) -> str:
        """A keyed check value of the vector file; empty without one."""
        return agreement.file_check(self.site.key(), self.file.digest) if self.file else ""

    def rows_seen(self, config: protocol.TrainConfig) -> Arrays:
        """For each row of a PCNN's word table: 1 if it counts, else 0.

        What counts are rows that the training text has, and those of vectors that are filled in.
        """
        encoded = self.looked("train").encoded
        if not isinstance(encoded, EncodedSentences):
            return {}
        words_V = np.zeros(self.shared_model.model.state_dict()[WORD_ROWS].shape[0], np.float32)
        words_V[encoded.words_N] = 1.0
        words_V[vocabulary.UNK] = 1.0
        if config.vectors and self.file:
            words_V[self.file.ids_K] = 1.0
        return {WORD_ROWS: words_V}

    def looked(self, part: str) -> BagPart:
        """The bags of a part of the site's text, made once.

        Raises Refusal if the training text has a relation outside the agreed set.
        """
        if part not in self._looked:
            self._looked[part] = self._training() if part == "train" else self._held_out(part)
        return self._looked[part]

    def featured(self, examples: Sequence[RelationExample]) -> EncodedBags:
        """The examples, encoded, with what a frozen encoder gives of them. Raises Refusal."""
        shared_model = self.shared_model
        encoded = shared_model.trainer.prepared(examples)
        with agreement.keeping_features():
            return shared_model.trainer.featured(encoded, shared_model.model, cache_folder())

    def _held_out(self, part: str) -> BagPart:
        documents = self.site.documents(part)
        examples = candidates(documents, rules_of(self.form)).examples
        held = held_out_bags(examples, documents, same=self.form.same)  # type: ignore[arg-type]
        encoded = self.featured(with_labels(examples, ()))
        return BagPart(encoded, held.groups, _NONE, agreement.NOTHING_V16, held.facts)

    def _training(self) -> BagPart:
        site, form = self.site, self.form
        examples = candidates(site.train, rules_of(form)).examples
        bags = training_bags(examples, site.train, same=form.same)  # type: ignore[arg-type]
        place_of_relation = {name: place for place, name in enumerate(form.relations)}
        if not place_of_relation.keys() >= set(bags.relations):
            raise Refusal("relation-outside-set")
        key = self.key
        marks = [
            triple_digest(form, key, (*names, relation))
            for names, relation in zip(bags.pairs, bags.relations, strict=True)
        ]
        return BagPart(
            encoded=self.featured(bags.examples),
            groups=bags.groups,
            relations_G=np.array([place_of_relation[name] for name in bags.relations], np.int64),
            digests_G16=np.frombuffer(b"".join(marks), np.uint8).reshape(
                -1, vocabulary.DIGEST_BYTES
            ),
        )

    def likely(self, weights: Arrays, *, vectors: bool) -> NDArray[np.float32]:
        """likely_SR: for each training sentence, the probability of every relation."""
        model = self.model(weights, vectors=vectors, lent=True)
        return sentence_probabilities(model, self.looked("train").encoded)

    def fit(  # type: ignore[override]
        self,
        weights: Arrays,
        config: protocol.TrainConfig,
        *,
        seed: int,
        only_W: Rows | None = None,
    ) -> protocol.Fitted:
        """Train on the site's own bags or, with `only_W`, on these single sentences."""
        looked = self.looked("train")
        encoded = looked.encoded if only_W is None else looked.encoded.only(only_W)
        if not len(encoded):
            raise Refusal("no-training-text")
        model = self.model(weights, vectors=config.vectors)
        made = self.shared_model.trainer
        groups = looked.groups
        if only_W is not None:
            made, groups = replace(made, denoise="none"), [np.arange(len(encoded))]
        report = made.fit(
            model,
            made.annotated(encoded, groups),
            epochs=config.epochs,
            batch_size=config.batch_size,
            optimiser=config.steps,
            seed=seed,
        )
        return protocol.Fitted(trained(model), report.loss, report.sentences, report.steps)

    def losses(
        self, weights: Arrays, config: protocol.TrainConfig, documents: Sequence[Document]
    ) -> protocol.Losses:
        """Work out the loss of these weights on each bag of the documents."""
        form, known = self.form, set(self.form.relations)
        examples = candidates(documents, rules_of(form)).examples
        bags = training_bags(examples, documents, same=form.same)  # type: ignore[arg-type]
        groups = [
            rows for rows, name in zip(bags.groups, bags.relations, strict=True) if name in known
        ]
        text = self.featured(with_labels(bags.examples, known))
        losses_G = self.shared_model.trainer.bag_losses(
            self.model(weights, lent=True), text, groups
        )
        own = [[bags.examples[row] for row in rows] for rows in groups]
        return protocol.Losses(
            "bags",
            losses_G,
            np.array([ones[0].document for ones in own], np.int64),
            [tuple((one.text, one.head, one.tail) for one in ones) for ones in own],
        )

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> BagsScored:
        """Counts of how the model ranks the facts of the held-out text."""
        looked = self.looked(part)
        model, denoise = self.model(weights, lent=True), self.form.denoise
        scores_GR = bag_scores(
            model,
            looked.encoded,
            looked.groups,
            denoise=denoise,  # type: ignore[arg-type]
        )
        return bags_scored(count_ranked(scores_GR, self.form.relations, looked.facts))


_NONE = np.zeros(0, np.int64)


# --- The report of a bag model at a site
#
# Bags whose likeliest relation is wrong, or right.
#
# Shapes: G bags, R relations (class 0 is no relation).


SHOWN = 5
"""Sentences shown for each bag in the list of errors."""


def bag_report(extract: BagExtractor, documents: Sequence[Document]) -> protocol.Report:
    """The worst and some right bags, and the counts of each."""
    bags, scores_GR = extract.scores(documents)
    counted: list[Count] = []
    wrong: list[protocol.Case] = []
    good: list[protocol.Case] = []
    for bag, (known, scores_R) in enumerate(zip(bags.facts, scores_GR, strict=True)):
        best = int(scores_R.argmax())
        label = extract.relations[best]
        counted.append(Count(label in known, label != NO_RELATION, len(known)))
        if label not in known and (known or label != NO_RELATION):
            wrong.append((bag, label, float(scores_R[best])))
        elif label in known:
            good.append((bag, label, float(scores_R[best])))
    worst, right = (
        [_shown(extract, documents, bags, case=case) for case in cases]
        for cases in (protocol.worst_cases(wrong), protocol.likeliest_first(good)[: protocol.RIGHT])
    )
    return protocol.Report(
        counts=count_ranked(scores_GR, extract.relations, bags.facts),
        errors={"confusion": {}, "worst": worst, "right": right},
        sentences={
            "fingerprint": protocol.fingerprint(documents, relations=True),
            "best": [tuple(map(int, count)) for count in counted],
            "ranked": ranked_bags(scores_GR, extract.relations, bags.facts),
        },
    )


def _shown(
    extract: BagExtractor, documents: Sequence[Document], bags: Bags, *, case: protocol.Case
) -> dict[str, object]:
    """A bag, with the sentences that support the predicted (or missed) relation most."""
    bag, label, confidence = case
    examples = [bags.examples[row] for row in bags.groups[bag]]
    relation = label if label != NO_RELATION else min(bags.facts[bag])
    places = sorted({example.document for example in examples})
    score = {
        (places[one.document], one.pair): one.score
        for fact in extract.facts([documents[place] for place in places], least=0.0)
        if fact.relation == relation and (fact.head, fact.tail) == bags.pairs[bag]
        for one in fact.sentences
    }
    scored = [(one, score.get((one.document, one.pair))) for one in examples]
    scored.sort(key=lambda pair: -(pair[1] or 0.0))
    first = scored[0][0]
    document = documents[first.document]
    names = {one.id: document.surface(one) for one in document.entities}
    return {
        "head": bags.pairs[bag][0],
        "tail": bags.pairs[bag][1],
        "names": [names[end] for end in first.pair],
        "gold": sorted(bags.facts[bag]),
        "predicted": label,
        "confidence": confidence,
        "relation": relation,
        "sentences": [{**pair_place(one), "score": likely} for one, likely in scored[:SHOWN]],
        "more": max(0, len(scored) - SHOWN),
    }


# --- A trained bag model in use
#
# Documents in, facts out, each with its supporting sentences.
#
# Shapes: S sentences (examples), G bags, R relations (class 0 is no relation).


@dataclass(frozen=True)
class _Read:
    """Documents as bags, with the model's scores."""

    examples: list[RelationExample]
    bags: Bags
    likely_SR: NDArray[np.float32]
    scores_GR: NDArray[np.float32]


@dataclass(frozen=True)
class BagExtractor:
    """A trained bag model, the pairs it considers, and what makes two mentions one entity."""

    finds: ClassVar[Literal["facts"]] = "facts"

    trainer: BagTrainer
    model: BagModel
    rules: Rules
    same: Same
    denoise: Denoise
    types: tuple[str, ...]
    calibrator: Calibrator = AS_IS

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """The classes, `NO_RELATION` first."""
        return tuple(self.trainer.form.relations)

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents, with the likeliest relation of each bag on all its pairs of mentions.

        A relation's confidence is the bag's score. Existing relations are replaced.
        """
        read = self._read(documents)
        found: dict[int, list[Relation]] = {}
        said = dict[int, tuple[str, float]]()
        for rows, scores_R in zip(read.bags.groups, read.scores_GR, strict=True):
            best = int(scores_R.argmax())
            if self.relations[best] != NO_RELATION:
                sure = self.calibrator.of(float(scores_R[best]))
                said |= dict.fromkeys(map(int, rows), (self.relations[best], sure))
        for row in sorted(said):
            example, (relation, score) = read.examples[row], said[row]
            own = found.setdefault(example.document, [])
            own.append(Relation(f"R{len(own) + 1}", relation, *example.pair, confidence=score))
        return [replace(one, relations=tuple(found.get(n, ()))) for n, one in enumerate(documents)]

    @property
    def labels(self) -> tuple[str, ...]:
        """Empty: a bag is scored by each relation alone, so there is nothing to restrict."""
        return ()

    def only(self, labels: Collection[str]) -> BagExtractor:
        """Return the model itself."""
        return self

    def facts(
        self, documents: Sequence[Document], *, least: float | None = None
    ) -> list[protocol.Fact]:
        """The facts of the documents, the likeliest first.

        Gives each pair's likeliest relation unless that is `NO_RELATION`; with `least`, every
        relation with at least that confidence.
        """
        read = self._read(documents)
        found = []
        for bag, scores_R in enumerate(read.scores_GR):
            wanted = [int(scores_R.argmax())]
            if least is not None:
                sure = [self.calibrator.of(float(score)) for score in scores_R]
                wanted = [place for place, score in enumerate(sure) if score >= least]
            found += [
                self._fact(read, bag, place, documents)
                for place in wanted
                if self.relations[place] != NO_RELATION
            ]
        return sorted(found, key=lambda fact: -fact.confidence)

    def scores(self, documents: Sequence[Document]) -> tuple[Bags, NDArray[np.float32]]:
        """The bags of the documents with their facts, and scores_GR of all relations."""
        examples = candidates(documents, self.rules).examples
        bags = held_out_bags(examples, documents, same=self.same)
        encoded = self.trainer.prepared(with_labels(examples, frozenset(self.relations)))
        return bags, bag_scores(self.model, encoded, bags.groups, denoise=self.denoise)

    def counts(self, documents: Sequence[Document]) -> BagCounts:
        """Counts of what the model gets right on the bags of annotated documents."""
        bags, scores_GR = self.scores(documents)
        return count_ranked(scores_GR, self.relations, bags.facts)

    def report(
        self, documents: Sequence[Document], looked_for: Collection[str] | None
    ) -> protocol.Report:
        """Score the model on annotated documents."""
        return bag_report(self, documents)

    def _read(self, documents: Sequence[Document]) -> _Read:
        plain = [replace(one, relations=()) for one in documents]
        examples = candidates(plain, self.rules).examples
        bags = held_out_bags(examples, plain, same=self.same)
        encoded = self.trainer.prepared(with_labels(examples, ()))
        return _Read(
            examples,
            bags,
            sentence_probabilities(self.model, encoded),
            bag_scores(self.model, encoded, bags.groups, denoise=self.denoise),
        )

    def _fact(
        self, read: _Read, bag: int, place: int, documents: Sequence[Document]
    ) -> protocol.Fact:
        rows = [int(row) for row in read.bags.groups[bag]]
        rows.sort(key=lambda row: (-read.likely_SR[row, place], row))
        head, tail = read.bags.pairs[bag]
        best = read.examples[rows[0]]
        return protocol.Fact(
            head=head,
            relation=self.relations[place],
            tail=tail,
            names=_names(documents[best.document], best.pair),
            confidence=self.calibrator.of(float(read.scores_GR[bag, place])),
            sentences=tuple(
                protocol.Support(
                    read.examples[row].document,
                    read.examples[row].pair,
                    self.calibrator.of(float(read.likely_SR[row, place])),
                )
                for row in rows
            ),
        )


def _names(document: Document, pair: tuple[str, str]) -> tuple[str, str]:
    entities = {entity.id: entity for entity in document.entities}
    head, tail = pair
    return document.surface(entities[head]), document.surface(entities[tail])


class BagKind(protocol.Kind):
    """The bag ranker. Its triples are keyed, and so are its words if a PCNN reads them."""

    name: ClassVar[str] = "bags"
    task: ClassVar[TaskName] = "bags"
    Spec: ClassVar[type[protocol.ModelSpec]] = BagSpec
    steps: ClassVar[tuple[Step, ...]] = (agreement.CHECK_KEY, COUNT_BAGS, COUNT_BAG_BUCKETS)
    release: ClassVar[protocol.Release] = protocol.Release(
        "bags.safetensors", "ReleasedBags", "anyone who has this folder can read its word list"
    )

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Raise SettingsError if an encoder is to be tuned and none reads."""
        if run.bags.reader != "encoder":
            agreement.check_no_encoder(run, f"bags.reader = {run.bags.reader!r}")

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        return {
            COUNT_BAGS.name: vars(asked_of_bags(run)),
            COUNT_BAG_BUCKETS.name: vars(
                agreement.asked_of_buckets(run.vocabulary, characters=False)
            ),
        }

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """Agree on words or encoder, relations and pairs. Raises FederationError."""
        return protocol.Agreed(*agree_on_bags(run, federation))
