"""What all kinds that find entities share: the desk at a site, and the trained model in use.

The kinds differ in their trainer (`learning.trainer.EntityTrainer`).

Shapes: S rows (training sentences, or windows of long ones).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.batches.completing import completed, only
from confide.data.batches.examples import Example, Span, examples_from, left_out_of
from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, decode_file
from confide.federation.site import Site
from confide.federation.steps import Tables
from confide.kinds import evaluation
from confide.kinds.context import NONE, with_cached
from confide.kinds.entity_report import entity_report, weighted_sentences
from confide.kinds.evaluation import Scored, counts_of, score_documents
from confide.kinds.how import How
from confide.kinds.protocol import CompleteText, Losses, SharedModel, SiteModel
from confide.kinds.releases import Holders, shape_of, write_release
from confide.kinds.tallies import EntityTables
from confide.kinds.trained import Report, calibrated
from confide.kinds.tuned import check_no_encoder
from confide.kinds.types import own_types
from confide.kinds.vocabulary import training_examples
from confide.learning.encoder import FrozenEncoder
from confide.learning.trainer import EntityTrainer, Read, annotate_with, read
from confide.learning.weights import load
from confide.learning.windows import FoundSpan
from confide.scoring import f1, micro
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import Document, Problem


class EntitySiteModel(SiteModel):
    """The desk of a kind that finds entities.

    Beyond what every desk does, it annotates the site's own text with what a model finds there
    (`completed`), and gives the gradients of single sentences (`slopes`).
    """

    def __init__(self, site: Site, form: Any) -> None:
        super().__init__(site, form)
        self._held_out: dict[str, Read] = {}

    @property
    def size(self) -> int:
        """The number of training sentences."""
        return len(training_examples(self.site))

    def check(self) -> None:
        """Raise Refusal if the site annotates or wants a type that the form lacks."""
        if not own_types(self.site) <= set(self.form.types):
            raise Refusal("tag-outside-set")
        if not {*self.site.types} <= set(self.form.types):
            raise Refusal("type-unknown")
        self.bench  # noqa: B018

    @property
    def bench(self) -> SharedModel:
        """The process's bench. Raises Refusal if the site's public files or key differ."""
        bench: SharedModel = self.form.bench(self.site)
        return bench

    def featured(self, text: object, examples: Sequence[Example]) -> object:
        """The text with the states of a frozen encoder, if there is one."""
        return text

    @cached_property
    def text(self) -> Any:
        """The training sentences, encoded, without annotation."""
        examples = training_examples(self.site)
        return self.featured(self.trainer.prepared(examples), examples)

    @cached_property
    def own(self) -> Any:
        """The training sentences, encoded, with the site's own annotation."""
        return self.annotated([one.spans for one in training_examples(self.site)])

    def annotated(self, spans: Sequence[Sequence[Span]]) -> Any:
        """The training sentences with these spans; the site's own types are marked as source."""
        return self.trainer.annotated(self.text, spans, source=own_types(self.site))

    def find(self, weights: Arrays) -> list[list[FoundSpan]]:
        """The spans that a model of these weights finds in each training sentence."""
        found: list[list[FoundSpan]] = self.trainer.find(self.model(weights, lent=True), self.text)
        return found

    def completed(self, weights: Arrays | None, *, confidence: float = 0.0) -> CompleteText:
        """The training sentences with their own spans and, given weights, a model's as well.

        Only types that the site lacks are added, with at least this confidence, where no own span
        is (Wang et al. 2023, Eq. 5).
        """
        spans = [list(example.spans) for example in training_examples(self.site)]
        own = sum(map(len, spans))
        missing = set(self.form.types) - own_types(self.site)
        if weights is not None and missing:
            spans = [
                completed(mine, [s[:3] for s in spotted if s[3] >= confidence], missing=missing)
                for mine, spotted in zip(spans, self.find(weights), strict=True)
            ]
        return CompleteText(self.annotated(spans), own=own, pseudo=sum(map(len, spans)) - own)

    @property
    def places(self) -> list[tuple[int, int]]:
        """The document and the sentence of each training row, by number."""
        examples = training_examples(self.site)
        rows = (examples[one.example] for one in self.text.windows)
        return [(one.document, one.sentence) for one in rows]

    def spans(self, documents: Sequence[Document]) -> list[list[Span]]:
        """The spans of each sentence that this kind learns."""
        return [list(one.spans) for one in examples_from(documents)[0]]

    def losses(self, weights: Arrays, how: How, documents: Sequence[Document]) -> Losses:
        """What these weights lose on each sentence, by word."""
        examples, known = examples_from(documents)[0], own_types(self.site) & {*self.form.types}
        spans = [[one for one in own if one[2] in known] for own in self.spans(documents)]
        text = self.featured(self.trainer.prepared(examples), examples)
        encoded = self.trainer.annotated(text, spans, source=known)
        model = self.model(weights, lent=True)
        losses_E = self.trained_by(how).example_losses(model, encoded)
        return Losses(
            "sentences",
            losses_E / np.array([max(len(one.tokens), 1) for one in examples]),
            np.array([one.document for one in examples], np.int64),
            [one.tokens for one in examples],
        )

    def known_classes(self) -> list[bool]:
        """For each class of a public row, whether the site annotates its type."""
        known: list[bool] = self.form.known(own_types(self.site))
        return known

    def predicted(self, weights: Arrays, public: Any) -> NDArray[np.float32]:
        """logits_TY of the rows of a public set, which is encoded once per process."""
        made = self.trainer
        examples = public.examples()
        _, text = self.site.once(
            "public sentences",
            public.digest,
            id(made),
            # kept with its trainer, so that no other object can get the same id
            make=lambda: (made, self.featured(made.prepared(examples), examples)),
        )
        logits: NDArray[np.float32] = made.row_logits(self.model(weights, lent=True), text)
        return logits

    def worth(self, counted: Scored, by: str) -> float | None:
        """The score by which models are compared; None if nothing was scored."""
        return f1(micro(getattr(counts_of(counted), by))) if counted.sentences else None

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> Scored:
        """Counts on a part of the held-out text.

        If the site says which types it wants, only these are labelled and counted. If it says what
        it annotates, other types are not counted: a find may be right. With `apart`, they are not
        counted even if it does not say so.
        """
        gold, wanted = self.site.documents(part), frozenset(self.site.types) or None
        if wanted is not None:
            gold = only(gold, wanted)
        if part not in self._held_out:
            found = read(self.trainer, gold)
            text = self.featured(found.text, found.examples)
            self._held_out[part] = replace(found, text=text)
        model = self.model(weights, lent=True)
        predicted = annotate_with(self.trainer, model, self._held_out[part], wanted=wanted)
        if self.site.knows or apart:
            test = self.site.test_knows if part == "test" else ()
            predicted = among(predicted, gold, {*own_types(self.site), *test})
        return score_documents(gold, predicted)


def among(
    predicted: Sequence[Document], gold: Sequence[Document], annotated: Collection[str]
) -> list[Document]:
    """The documents with only entities of types that somebody looked for in their text.

    These are the `annotated` types, and those that occur in the gold documents.
    """
    types = {*annotated, *(e.type for one in gold for e in one.entities)}
    return [
        replace(one, entities=tuple(e for e in one.entities if e.type in types))
        for one in predicted
    ]


@dataclass(frozen=True)
class EntityExtractor:
    """A trained model that finds entities of all types, or only of `wanted` ones.

    `encoder` is the frozen one of a tagger with contextual features. `apart`: its sites annotated
    different types, so perhaps nobody looked for all of them in a text.
    """

    finds: ClassVar[Literal["entities"]] = "entities"

    trainer: EntityTrainer
    model: nn.Module
    encoder: FrozenEncoder | None = None
    apart: bool = False
    calibrator: Calibrator = AS_IS
    wanted: frozenset[str] | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """The entity types that it finds."""
        every = self.trainer.types
        return every if self.wanted is None else tuple(one for one in every if one in self.wanted)

    @property
    def labels(self) -> tuple[str, ...]:
        """What it can be restricted to: all entity types of the model."""
        return self.trainer.types

    def only(self, labels: Collection[str]) -> EntityExtractor:
        """The same model, which labels entities of these types alone."""
        return replace(self, wanted=frozenset(labels))

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the entities that the model finds, each with a confidence."""
        return self._found(documents, keep=False)

    def _found(self, documents: Sequence[Document], *, keep: bool) -> list[Document]:
        """`keep`: the encoder's states are read from the cache, or written there."""
        found = read(self.trainer, documents)
        if self.encoder is not None:
            text = with_cached(found.text, found.examples, self.encoder, keep=keep)
            found = replace(found, text=text)
        made = annotate_with(self.trainer, self.model, found, wanted=self.wanted)
        return calibrated(made, self.calibrator, of="entities")

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """What the model gets right and wrong, without types that nobody looked for."""
        if self.wanted is not None:
            documents = only(documents, self.wanted)
        predicted = self._found(documents, keep=True)  # a site's own text: scoring kept its states
        if looked_for is not None:
            predicted = among(predicted, documents, looked_for)
        return entity_report(documents, predicted)

    def weighted(
        self, documents: Sequence[Document], weights_S: NDArray[np.float32]
    ) -> dict[str, list[dict[str, object]]]:
        """The training sentences with their instance weights, the heaviest first."""
        return weighted_sentences(self.trainer, documents, weights_S)


def extractor_with(
    trainer: EntityTrainer, weights: Arrays, *, encoder: FrozenEncoder | None = None
) -> EntityExtractor:
    """The extractor of a model with these weights."""
    model = trainer.initial(0)
    load(model, weights)
    return EntityExtractor(trainer, model, encoder)


class EntityKind:
    """What all kinds that find entities share; they need no key unless they say so.

    `Released` is the message of a release: the form, its weights, and `apart`. `tunes`: the kind
    trains an encoder, of which `[encoder]` says how much.
    """

    task: ClassVar[TaskName] = "ner"
    keyed: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    Scored: ClassVar[type] = Scored
    Form: ClassVar[type]
    Released: ClassVar[type]
    released_as: ClassVar[str]
    release_tells: ClassVar[str]
    drawn: ClassVar[Mapping[str, str]] = {}
    tunes: ClassVar[bool] = False

    tables: ClassVar[Tables] = EntityTables()

    check_scored = staticmethod(evaluation.check_scored)
    counts = staticmethod(evaluation.counts_of)

    def labels(self, form: Any) -> list[str]:
        """The names by which answers are counted."""
        return list(form.types)

    def vectors(self, run: RunSettings) -> str | None:
        """The file of word vectors that all sites start from; None without one."""
        return run.model.vectors

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """The annotations that a flat tagger leaves out or changes."""
        return left_out_of(documents)

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if what is asked for is not here: an adversary, a tuned encoder."""
        if not self.tunes:
            check_no_encoder(run, f"model.kind = {run.model.kind!r}")
        if run.lightner.adversary != NONE:
            raise SettingsError(
                "only LightNER can be trained against an adversary",
                expected='model.kind = "lightner", or lightner.adversary = "none"',
                got=f"model.kind = {run.model.kind!r}",
            )

    def release(self, form: Any, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the model; made of public files, it needs no key."""
        shape = shape_of(form, self.Form)
        message = self.Released(**shape, weights=dict(weights), apart=holders.apart)
        write_release(out / self.released_as, message)

    def released(self, file: Path) -> EntityExtractor:
        """Read a released model. Raises MessageError."""
        found: Any = decode_file(self.Released, file.read_bytes())
        extract: EntityExtractor = found.extractor(found.weights, key=None)
        return replace(extract, apart=bool(found.apart))
