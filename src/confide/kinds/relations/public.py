"""A public set of relation examples: text that the server and all sites may read.

A site predicts it with its own model (`RelationSiteModel.predicted`); the server's own model, the
student, learns from these predictions.

Shapes: S public examples, R classes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relation_pieces import EncodedRelations
from confide.data.batches.relations import NO_RELATION, RelationExample, candidates
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries
from confide.kinds.context import find_encoder
from confide.kinds.how import How
from confide.kinds.public import MIB, digest_of, no_public_set
from confide.kinds.relations.form import RelationForm, rules_of, trainer_of
from confide.learning.relations import RelationTrainer
from confide.learning.teaching import Lesson
from confide.learning.weights import load, trained
from confide.models.relation import RelationClassifier
from confide.text.document import Document

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class PublicExamples:
    """The public examples without their relations."""

    gone: ClassVar[tuple[str, ...]] = ("name",)
    texts: list[str] = carries("text of each public example", most=8 * MIB, rule="varies")
    heads: list[Spans] = carries("where each text has its head", most=2 * MIB, rule="varies")
    tails: list[Spans] = carries("where each text has its tail", most=2 * MIB, rule="varies")
    head_types: list[str] = carries("entity type of the head", most=2 * MIB, rule="varies")
    tail_types: list[str] = carries("entity type of the tail", most=2 * MIB, rule="varies")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the examples."""
        return digest_of(self)

    @property
    def rows(self) -> int:
        """The number of examples: each is predicted."""
        return len(self.texts)

    @property
    def row_sentences(self) -> NDArray[np.int64]:
        """For each example the number of its text: pairs of one sentence belong together."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(self.texts))}
        return np.array([numbers[text] for text in self.texts], np.int64)

    def part(self, kept_S: NDArray[np.bool_]) -> Self:
        """The set of these examples only."""
        kept = [list(compress(getattr(self, one.name), kept_S)) for one in fields(self)]
        return type(self)(*kept)

    def check(self) -> None:
        """Raise Refusal if the fields differ in length."""
        others = (self.heads, self.tails, self.head_types, self.tail_types)
        if not self.texts or any(len(each) != len(self.texts) for each in others):
            raise Refusal("bad-ask")

    def examples(self, labels: Sequence[str] = ()) -> list[RelationExample]:
        """The set as examples; `labels` are the server's, if it has any."""
        every = labels or [NO_RELATION] * len(self.texts)
        return [
            RelationExample(
                id=f"public:{number}",
                text=self.texts[number],
                head=tuple(self.heads[number]),
                tail=tuple(self.tails[number]),
                head_type=self.head_types[number],
                tail_type=self.tail_types[number],
                relation=label,
            )
            for number, label in enumerate(every)
        ]


def public_of(
    form: RelationForm, documents: Sequence[Document]
) -> tuple[PublicExamples, list[str]]:
    """The pairs of these documents as the sites get them, and the labels, which sites never get.

    Raises SettingsError if there are no pairs.
    """
    examples = candidates(documents, rules_of(form)).examples
    if not examples:
        raise no_public_set("text with pairs of entities")
    public = PublicExamples(
        texts=[one.text for one in examples],
        heads=[[(start, end) for start, end in one.head] for one in examples],
        tails=[[(start, end) for start, end in one.tail] for one in examples],
        head_types=[one.head_type for one in examples],
        tail_types=[one.tail_type for one in examples],
    )
    return public, [one.relation for one in examples]


class RelationStudent:
    """The server's own classifier, made once, which learns from the sites' predictions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # federations of one run may work in parallel
        self._made: tuple[object, RelationTrainer, RelationClassifier, EncodedRelations] | None = (
            None
        )

    def learn(
        self,
        form: RelationForm,
        public: PublicExamples,
        *,
        labels: Sequence[str],
        weights: Arrays,
        lesson: Lesson,
        how: How,
        seed: int,
    ) -> tuple[Arrays, float]:
        """Distil (Sui et al. 2020, Eq. 6); gives the new weights and the mean loss.

        Without `labels` the first part of Eq. 6 is left out.
        """
        with self._lock:
            trainer, model, text = self._ready(form, public, labels)
            load(model, weights)
            report = replace(trainer, open=how.outside).distil(
                model,
                trainer.annotated(text),
                lesson=lesson if labels else replace(lesson, labels_T=0 * lesson.labels_T),
                epochs=how.epochs,
                batch_size=how.batch_size,
                optimiser=how.steps,
                seed=seed,
            )
            return trained(model), report.loss

    def said(
        self, form: RelationForm, public: PublicExamples, weights: Arrays
    ) -> NDArray[np.float32]:
        """logits_SR of the public examples by a classifier with these weights."""
        with self._lock:
            trainer, model, text = self._ready(form, public, ())
            load(model, weights)
            return trainer.row_logits(model, text)

    def _ready(
        self, form: RelationForm, public: PublicExamples, labels: Sequence[str]
    ) -> tuple[RelationTrainer, RelationClassifier, EncodedRelations]:
        """The classifier and the encoded public examples, made once for set, labels and form."""
        key = public.digest, tuple(labels), form
        if self._made is None or self._made[0] != key:
            trainer = trainer_of(form, find_encoder(form.encoder))
            model = trainer.initial(0)
            text = trainer.featured(trainer.prepared(public.examples(labels)), model, folder=None)
            self._made = key, trainer, model, text
        return self._made[1:]
