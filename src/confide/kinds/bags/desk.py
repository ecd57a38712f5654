"""A bag model at a site: bags of encoded sentences, made once, and one model per process.

Shapes: S sentences (examples), G bags, R relations (class 0 is no relation), W winners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.bags import held_out_bags, training_bags
from confide.data.batches.relations import RelationExample, candidates, with_labels
from confide.data.batches.sentences import EncodedSentences
from confide.data.batches.vectors import VectorFile
from confide.data.batches.vocabulary import DIGEST_BYTES, UNK
from confide.federation.failures import Refusal
from confide.federation.keys import key_check
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.bags.form import (
    PCNN,
    WORD_ROWS,
    BagForm,
    bag_form_of,
    bag_trainer,
    triple_digest,
    words_of,
)
from confide.kinds.context import encoder_of
from confide.kinds.evaluation import BagsScored, bags_scored
from confide.kinds.how import How
from confide.kinds.protocol import Fitted, Losses, SharedModel, SiteModel
from confide.kinds.relations.form import rules_of
from confide.kinds.tuned import keeping_features
from confide.kinds.vocabulary import file_check, vectors_of
from confide.learning.bag_scores import EncodedBags, bag_scores, sentence_probabilities
from confide.learning.bags import BagTrainer, set_vectors
from confide.learning.context import cache_folder
from confide.learning.weights import load, trained
from confide.models.bags import BagModel
from confide.scoring.bags import count_bags
from confide.text.document import Document

Rows = NDArray[np.int64]


@dataclass
class _SharedWords(SharedModel):
    """A bench of words, with the rows of vector files that were read for them."""

    trainer: BagTrainer
    words_V16: NDArray[np.uint8]
    vectors: dict[Path, VectorFile] = field(default_factory=dict)

    def knows(self, form: BagForm) -> bool:
        """Whether this bench was made for the form's words."""
        ours, theirs = self.words_V16, form.word_digests_V16
        return ours is theirs or np.array_equal(ours, theirs)


@dataclass(frozen=True)
class Looked:
    """A part of a site's text as bags of encoded sentences.

    Training bags have a class each (`relations_G`) and the digest of their triple (`digests_G16`);
    held-out bags have `facts`.
    """

    encoded: EncodedBags
    groups: Sequence[Rows]
    relations_G: Rows
    digests_G16: NDArray[np.uint8]
    facts: Sequence[frozenset[str]] = ()


class BagSiteModel(SiteModel):
    """A bag model at a site.

    Beyond what every desk does, it scores every relation in every training sentence (`likely`) and
    can train on chosen sentences only (`fit` with `only_W`).
    """

    form: BagForm

    def __init__(self, site: Site, form: BagForm) -> None:
        super().__init__(site, form)
        self._looked: dict[str, Looked] = {}

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

    @property
    def bench(self) -> _SharedWords:
        """The process's bench. Raises Refusal if the site's key or encoder differs."""
        key, form, encoder = self.key, self.form, None
        if form.reader != PCNN:
            encoder = encoder_of(self.site, form.encoder)
            if encoder.digest != form.digest:
                raise Refusal("other-encoder")
        benches: dict[object, _SharedWords] = self.site.scratch.setdefault("bag benches", {})
        place = (bag_form_of(form), form.denoise, form.check)
        if place not in benches or not benches[place].knows(form):
            trainer = bag_trainer(form, encoder or words_of(form, key))
            benches[place] = _SharedWords(trainer, form.word_digests_V16)
        return benches[place]

    def model(self, weights: Arrays, *, vectors: bool = False, lent: bool = False) -> BagModel:
        """The process's model with these weights.

        With `vectors`, the word table is filled from the site's own vector file. With `lent`, the
        model uses these very arrays without a copy, so it must not be trained.
        """
        model: BagModel = self.bench.model
        found = self.file if vectors else None
        load(model, weights, lent=lent and found is None)
        if found is not None:
            set_vectors(model, found)
        return model

    @property
    def file(self) -> VectorFile | None:
        """The site's own vectors of the common words, read once; None without a file."""
        place, form = self.site.vectors, self.form
        if place is None or form.reader != PCNN:
            return None
        read = self.bench.vectors
        if place not in read:
            words, dim = words_of(form, self.site.key()), form.sizes["word_dim"]
            read[place] = vectors_of(place, words, how=form.how, dim=dim)
        return read[place]

    def vectors(self) -> str:
        """A keyed check value of the vector file; empty without one."""
        return file_check(self.site.key(), self.file.digest) if self.file else ""

    def rows_seen(self, how: How) -> Arrays:
        """For each row of a PCNN's word table: 1 if it counts, else 0.

        What counts are rows that the training text has, and those of vectors that are filled in.
        """
        encoded = self.looked("train").encoded
        if not isinstance(encoded, EncodedSentences):
            return {}
        words_V = np.zeros(self.bench.model.state_dict()[WORD_ROWS].shape[0], np.float32)
        words_V[encoded.words_N] = 1.0
        words_V[UNK] = 1.0
        if how.vectors and self.file:
            words_V[self.file.ids_K] = 1.0
        return {WORD_ROWS: words_V}

    def looked(self, part: str) -> Looked:
        """The bags of a part of the site's text, made once.

        Raises Refusal if the training text has a relation outside the agreed set.
        """
        if part not in self._looked:
            self._looked[part] = self._training() if part == "train" else self._held_out(part)
        return self._looked[part]

    def featured(self, examples: Sequence[RelationExample]) -> EncodedBags:
        """The examples, encoded, with what a frozen encoder gives of them. Raises Refusal."""
        bench = self.bench
        encoded = bench.trainer.prepared(examples)
        with keeping_features():
            return bench.trainer.featured(encoded, bench.model, cache_folder())

    def _held_out(self, part: str) -> Looked:
        documents = self.site.documents(part)
        examples = candidates(documents, rules_of(self.form)).examples
        held = held_out_bags(examples, documents, same=self.form.same)  # type: ignore[arg-type]
        encoded = self.featured(with_labels(examples, ()))
        return Looked(encoded, held.groups, _NONE, _NO_DIGESTS, held.facts)

    def _training(self) -> Looked:
        site, form = self.site, self.form
        examples = candidates(site.train, rules_of(form)).examples
        bags = training_bags(examples, site.train, same=form.same)  # type: ignore[arg-type]
        number = {name: place for place, name in enumerate(form.relations)}
        if not number.keys() >= set(bags.relations):
            raise Refusal("relation-outside-set")
        key = self.key
        marks = [
            triple_digest(form, key, (*names, relation))
            for names, relation in zip(bags.pairs, bags.relations, strict=True)
        ]
        return Looked(
            encoded=self.featured(bags.examples),
            groups=bags.groups,
            relations_G=np.array([number[name] for name in bags.relations], np.int64),
            digests_G16=np.frombuffer(b"".join(marks), np.uint8).reshape(-1, DIGEST_BYTES),
        )

    def likely(self, weights: Arrays, *, vectors: bool) -> NDArray[np.float32]:
        """likely_SR: for each training sentence, the probability of every relation."""
        model = self.model(weights, vectors=vectors, lent=True)
        return sentence_probabilities(model, self.looked("train").encoded)

    def fit(  # type: ignore[override]
        self, weights: Arrays, how: How, *, seed: int, only_W: Rows | None = None
    ) -> Fitted:
        """Train on the site's own bags or, with `only_W`, on these single sentences."""
        looked = self.looked("train")
        encoded = looked.encoded if only_W is None else looked.encoded.only(only_W)
        if not len(encoded):
            raise Refusal("no-training-text")
        model = self.model(weights, vectors=how.vectors)
        made = self.bench.trainer
        groups = looked.groups
        if only_W is not None:
            made, groups = replace(made, denoise="none"), [np.arange(len(encoded))]
        report = made.fit(
            model,
            made.annotated(encoded, groups),
            epochs=how.epochs,
            batch_size=how.batch_size,
            optimiser=how.steps,
            seed=seed,
        )
        return Fitted(trained(model), report.loss, report.sentences)

    def losses(self, weights: Arrays, how: How, documents: Sequence[Document]) -> Losses:
        """What these weights lose on each bag of the documents."""
        form, known = self.form, set(self.form.relations)
        examples = candidates(documents, rules_of(form)).examples
        bags = training_bags(examples, documents, same=form.same)  # type: ignore[arg-type]
        groups = [
            rows for rows, name in zip(bags.groups, bags.relations, strict=True) if name in known
        ]
        text = self.featured(with_labels(bags.examples, known))
        losses_G = self.bench.trainer.bag_losses(self.model(weights, lent=True), text, groups)
        own = [[bags.examples[row] for row in rows] for rows in groups]
        return Losses(
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
        return bags_scored(count_bags(scores_GR, self.form.relations, looked.facts))


_NONE = np.zeros(0, np.int64)
_NO_DIGESTS = np.zeros((0, DIGEST_BYTES), np.uint8)
