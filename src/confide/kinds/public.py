"""Public sets: text that the server and all sites may read, in whatever shape a kind needs.

A kind has its own message for it (`kinds.protocol.PublicSet`), which holds the text and never its
annotation. The server and every site compute the digest of its content for themselves; an ask to
predict it names that digest. The sites predict it; the server's own model, the student, learns from
the predictions.

Shapes: S rows of a public set, R classes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries, encode
from confide.kinds.entities import EntitySpec
from confide.kinds.protocol import ModelSpec, PublicSet, TrainConfig
from confide.text.document import Document
from confide.training.batches import Example, TagScheme, TagSet, TypedSpan, examples_from
from confide.training.trainer import DistillationTarget
from confide.training.weights import load_weights, trained

MIB = 2**20
SEVERAL = "\n"
"""The separator of the classes of a row that has several: no name has a line's end in it."""


class Student:
    """The server's own model, made once, which learns from what sites predict of public rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # runs may work in parallel
        self._made: tuple[tuple[bytes, str, list[str]], Any, Any, Any] | None = None

    def learn(
        self,
        form: ModelSpec,
        public: Any,
        *,
        labels: Sequence[str],
        weights: Arrays,
        soft_target: DistillationTarget,
        config: TrainConfig,
        seed: int,
    ) -> tuple[Arrays, float]:
        """Distil from these weights; gives the new weights and the mean loss of an example.

        Sui et al. 2020, Eq. 6; for sentences, with a row in place of an example: for each

            loss = [labels] w · ordinary loss + Σ_t τ² KL(teacher_t ‖ student_t)

        where student_t is the softmax of the logits of row t (for a CRF, of its log marginals)
        over τ, the soft target's temperature; the ordinary loss is that of the kind's own training,
        and w what the soft target says of the labels. Its rows are those of the public set.
        Without `labels` the first part is left out.
        """
        with self._lock:
            extractor, _, annotated = self._ready(form, public, labels, weights)
            load_weights(extractor.model, weights)
            report = form.trained_by(extractor.trainer, config).distil(
                extractor.model,
                annotated,
                soft_target=soft_target
                if labels
                else replace(soft_target, labels_T=0 * soft_target.labels_T),
                epochs=config.epochs,
                batch_size=config.batch_size,
                optimiser=config.steps,
                seed=seed,
            )
            return trained(extractor.model), report.loss

    def said(self, form: ModelSpec, public: Any, weights: Arrays) -> NDArray[np.float32]:
        """logits_SR of the public rows by a model with these weights."""
        with self._lock:
            extractor, text, _ = self._ready(form, public, (), weights)
            load_weights(extractor.model, weights)
            logits_SR: NDArray[np.float32] = extractor.trainer.row_logits(extractor.model, text)
            return logits_SR

    def _ready(
        self, form: ModelSpec, public: Any, labels: Sequence[str], weights: Arrays
    ) -> tuple[Any, Any, Any]:
        """The extractor, and the public set as it reads it, bare and annotated."""
        key = (encode(form), public.digest, list(labels))
        if self._made is None or self._made[0] != key:
            extractor = form.extractor(weights, key=None)
            self._made = (key, extractor, *form.read_public(extractor, public, labels))
        return self._made[1:]


def no_public_set(what: str) -> SettingsError:
    """The error for a public set that is missing or empty; `what` names what the kind reads."""
    return SettingsError(
        f"the method needs a public set: {what} that may be read everywhere",
        fix="name its files in [public], or take a `share` of a corpus that is dealt",
    )


def public_examples(documents: Sequence[Document]) -> list[Example]:
    """The sentences of a public set. Raises SettingsError if there is none."""
    examples, _ = examples_from(documents)
    if not examples:
        raise no_public_set("text with sentences")
    return examples


def check_public_size(public: PublicSet, most: int, *, what: str, fix: str = "") -> None:
    """Raise SettingsError if a public set has more rows than every site can predict each round."""
    if public.rows > most:
        raise SettingsError(
            f"the public set is too large: every site predicts all of its {what} in every round",
            expected=f"at most {most} {what}",
            got=str(public.rows),
            fix=f"name fewer files in [public], or take a smaller `share`{fix}",
        )


# --- A public set for kinds that find entities
#
# Sentences, of which each site predicts every row.
#
# A row is a token or, for the kind that classifies spans, a span (`kinds.spans`). The
# sentences travel cut into tokens, so every place reads the same rows, however long its model's
# windows are. Their annotation does not travel: only the server may have it.
#
# Shapes: T rows of all sentences, Y classes (tags), the one outside entities first.


MOST_TOKENS = 250_000
"""The largest public set, some ten thousand sentences: each site predicts all in each round."""


@dataclass(frozen=True)
class PublicSentences(PublicSet):
    """Public sentences without their annotation."""

    sentences: list[list[str]] = carries(
        "the tokens of each public sentence", most=8 * MIB, rule="varies"
    )

    @property
    def rows(self) -> int:
        """The number of tokens: each is predicted."""
        return sum(map(len, self.sentences))

    @property
    def row_sentences(self) -> NDArray[np.int64]:
        """For each token the number of its sentence."""
        return np.repeat(np.arange(len(self.sentences)), list(map(len, self.sentences)))

    def part(self, kept_S: NDArray[np.bool_]) -> Self:
        """The set of the sentences with these rows only."""
        numbers = np.unique(self.row_sentences[kept_S]).tolist()
        return self.with_sentences([self.sentences[number] for number in numbers])

    def with_sentences(self, sentences: list[list[str]]) -> Self:
        """A set of other sentences, read in the same way."""
        return type(self)(sentences)

    def check(self) -> None:
        """Raise Refusal if a sentence or token is empty, or if there are too many."""
        tokens = [token for sentence in self.sentences for token in sentence]
        if not all(self.sentences) or not all(tokens) or not 0 < len(tokens) <= MOST_TOKENS:
            raise Refusal("bad-ask")

    def examples(self) -> list[Example]:
        """The set as examples without spans."""
        return [Example(n, 0, tuple(tokens)) for n, tokens in enumerate(self.sentences)]


class OfTags(EntitySpec):
    """The base of forms that give each token a tag: the rows of a public set are its tokens."""

    tag_scheme: str
    Public: ClassVar[type[PublicSet] | None] = PublicSentences

    @property
    def tags(self) -> TagSet:
        """The tags of the form."""
        return TagSet(tuple(self.types), cast(TagScheme, self.tag_scheme))

    @property
    def class_names(self) -> Sequence[str]:
        """The tags; the one outside entities is the first."""
        return self.tags.tags

    @property
    def named_tags(self) -> list[tuple[str, str]]:
        """The tags with their scheme: those of another scheme mean something else."""
        return [(self.tag_scheme, tag) for tag in self.tags.tags]

    def known(self, types: Set[str]) -> list[bool]:
        """For each tag, whether its type is one of these; every site knows the one outside."""
        return [True, *(name in types for name in self.types for _ in self.tags.prefixes)]

    def labelled_spans(
        self, public: PublicSentences, labels: Sequence[str]
    ) -> list[list[TypedSpan]]:
        """The spans of each public sentence, from the tags of all tokens; none without any."""
        if not labels:
            return [[] for _ in public.sentences]
        ids = {name: number for number, name in enumerate(self.tags.tags)}
        tags_T = np.array([ids[name] for name in labels], np.int32)
        ends = list(accumulate(map(len, public.sentences)))
        return [
            self.tags.spans(tags_T[start:end]) for start, end in zip([0, *ends], ends, strict=False)
        ]

    def public(self, documents: Sequence[Document]) -> tuple[PublicSentences, list[str]]:
        """The sentences as the sites get them, and the tag of each token, which sites never get.

        Raises SettingsError if there is no sentence or too much text, and DataError if an entity
        has a type without a tag.
        """
        examples = public_examples(documents)
        public = PublicSentences([list(one.tokens) for one in examples])
        check_public_size(public, MOST_TOKENS, what="tokens")
        tags = self.tags
        found = [tags.encode(len(one.tokens), one.spans) for one in examples]
        return public, [tags.tags[tag] for own in found for tag in own]
