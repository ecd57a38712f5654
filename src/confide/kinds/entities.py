"""Parts of all kinds that find entities: the site model, and the trained model in use.

The kinds differ in their trainer (`learning.trainer.EntityTrainer`).

Shapes: S rows (training sentences, or windows of long ones).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide import scoring
from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds import agreement, protocol
from confide.kinds.steps import Scored, counts_of, score_documents
from confide.privacy.noise import Sum, UnitGradients, Whole, make_whole
from confide.scoring.calibration import AS_IS, Calibrator
from confide.scoring.counts import Count, TypeMatch, by_sentence, match_documents
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import Document, Problem
from confide.training import batches
from confide.training.batches import completed, only
from confide.training.encoder import FrozenEncoder
from confide.training.tagger import undrawn
from confide.training.trainer import EntityTrainer, FoundSpan, Read, annotate_with, read_bare
from confide.training.weights import load_weights, trained

# --- The report of an entity model at a site
#
# Its errors and its right answers, by sentence.


def entity_report(gold: Sequence[Document], predicted: Sequence[Document]) -> protocol.Report:
    """The confusion, the worst and some right sentences, and the counts of each sentence."""
    matches = list(match_documents(*by_sentence(gold, predicted)))
    return protocol.Report(
        counts=scoring.count_entities(gold, predicted),
        errors={
            "confusion": scoring.count_confusions(gold, predicted),
            "worst": [
                _case(case) for case in scoring.worst_errors(gold, predicted, protocol.WORST)
            ],
            "right": [
                _case(case) for case in scoring.right_sentences(gold, predicted, protocol.RIGHT)
            ],
        },
        sentences={
            "fingerprint": protocol.fingerprint(gold),
            "strict": [
                scoring.micro({one.type: one.strict for one in sentence}) for sentence in matches
            ],
            "relaxed": [
                scoring.micro({one.type: one.relaxed for one in sentence}) for sentence in matches
            ],
            "types": _by_type(matches),
        },
    )


def _by_type(matches: Sequence[Sequence[TypeMatch]]) -> dict[str, list[Count]]:
    """Strict counts of each type, of the sentences that have any."""
    found: dict[str, list[Count]] = {}
    for sentence in matches:
        for one in sentence:
            found.setdefault(one.type, []).append(one.strict)
    return dict(sorted(found.items()))


def _case(case: scoring.ErrorCase) -> dict[str, object]:
    gold, predicted = (
        sorted(side.entities, key=lambda one: (one.fragments, one.type))
        for side in (case.gold, case.predicted)
    )
    return {
        "where": case.gold.id,
        "text": case.gold.text,
        "gold": [[one.start, one.end, one.type] for one in gold],
        "predicted": [[one.start, one.end, one.type, one.confidence] for one in predicted],
    }


class EntitySiteModel(protocol.SiteModel):
    """The site model of a kind that finds entities.

    Beyond what every site model does, it annotates the site's own text with what a model finds
    (`completed`), and gives the gradients of single sentences (`row_gradients`).
    """

    def __init__(self, site: Site, form: Any) -> None:
        super().__init__(site, form)
        self._held_out: dict[str, Read] = {}

    @property
    def size(self) -> int:
        """The number of training sentences."""
        return len(agreement.training_examples(self.site))

    def check(self) -> None:
        """Raise Refusal if the site annotates or wants a type that the form lacks."""
        if not agreement.own_types(self.site) <= set(self.form.types):
            raise Refusal("tag-outside-set")
        if not {*self.site.types} <= set(self.form.types):
            raise Refusal("type-unknown")
        self.shared_model  # noqa: B018

    @property
    def shared_model(self) -> protocol.SharedModel:
        """The process's shared model. Raises Refusal if the site's public files or key differ."""
        shared_model: protocol.SharedModel = self.form.shared_model(self.site)
        return shared_model

    def featured(self, text: object, examples: Sequence[batches.Example]) -> object:
        """The text with the states of a frozen encoder, if there is one."""
        return text

    @cached_property
    def text(self) -> Any:
        """The training sentences, encoded, without annotation."""
        examples = agreement.training_examples(self.site)
        return self.featured(self.trainer.prepared(examples), examples)

    @cached_property
    def own(self) -> Any:
        """The training sentences, encoded, with the site's own annotation."""
        return self.annotated([one.spans for one in agreement.training_examples(self.site)])

    def annotated(self, spans: Sequence[Sequence[batches.TypedSpan]]) -> Any:
        """The training sentences with these spans; the site's own types are marked as source."""
        return self.trainer.annotated(self.text, spans, source=agreement.own_types(self.site))

    def find(self, weights: Arrays) -> list[list[FoundSpan]]:
        """The spans that a model of these weights finds in each training sentence."""
        found: list[list[FoundSpan]] = self.trainer.find(self.model(weights, lent=True), self.text)
        return found

    def completed(
        self, weights: Arrays | None, *, confidence: float = 0.0
    ) -> protocol.CompleteText:
        """The training sentences with their own spans and, given weights, a model's as well.

        Only types that the site lacks are added, with at least this confidence, where no own span
        is (Wang et al. 2023, Eq. 5).
        """
        if weights is None:
            return self._completed([[] for _ in range(self.size)])
        return self._completed(self.spotted(weights, confidence=confidence))

    def spotted(self, weights: Arrays, *, confidence: float = 0.0) -> list[list[batches.TypedSpan]]:
        """The spans of types that the site lacks which a model finds in each training sentence."""
        missing = self._missing
        if not missing:
            return [[] for _ in range(self.size)]
        return [
            [span[:3] for span in found if span[3] >= confidence and span[2] in missing]
            for found in self.find(weights)
        ]

    def completed_with(self, spotted_N4: NDArray[np.int32]) -> protocol.CompleteText:
        """The training sentences with their own spans and these of types that the site lacks."""
        spotted: list[list[batches.TypedSpan]] = [[] for _ in range(self.size)]
        for sentence, start, end, kind in spotted_N4.tolist():
            spotted[sentence].append((start, end, self.form.types[kind]))
        return self._completed(spotted)

    @property
    def _missing(self) -> set[str]:
        """The types that the site does not annotate."""
        return set(self.form.types) - agreement.own_types(self.site)

    def _completed(self, spotted: Sequence[Sequence[batches.TypedSpan]]) -> protocol.CompleteText:
        own, missing = [one.spans for one in agreement.training_examples(self.site)], self._missing
        spans = [
            completed(mine, found, missing=missing)
            for mine, found in zip(own, spotted, strict=True)
        ]
        count = sum(map(len, own))
        return protocol.CompleteText(
            self.annotated(spans), own=count, pseudo=sum(map(len, spans)) - count
        )

    @property
    def places(self) -> list[tuple[int, int]]:
        """The document and the sentence of each training row, by number."""
        examples = agreement.training_examples(self.site)
        rows = (examples[one.example] for one in self.text.windows)
        return [(one.document, one.sentence) for one in rows]

    def spans(self, documents: Sequence[Document]) -> list[list[batches.TypedSpan]]:
        """The spans of each sentence that this kind learns."""
        return [list(one.spans) for one in batches.examples_from(documents)[0]]

    def losses(
        self, weights: Arrays, config: protocol.TrainConfig, documents: Sequence[Document]
    ) -> protocol.Losses:
        """Work out the loss of these weights on each sentence, by word."""
        examples, known = (
            batches.examples_from(documents)[0],
            agreement.own_types(self.site) & {*self.form.types},
        )
        spans = [[one for one in own if one[2] in known] for own in self.spans(documents)]
        text = self.featured(self.trainer.prepared(examples), examples)
        encoded = self.trainer.annotated(text, spans, source=known)
        model = self.model(weights, lent=True)
        losses_E = self.trained_by(config).example_losses(model, encoded)
        return protocol.Losses(
            "sentences",
            losses_E / np.array([max(len(one.tokens), 1) for one in examples]),
            np.array([one.document for one in examples], np.int64),
            [one.tokens for one in examples],
        )

    def known_classes(self) -> list[bool]:
        """For each class of a public row, whether the site annotates its type."""
        known: list[bool] = self.form.known(agreement.own_types(self.site))
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
        return (
            scoring.f1(scoring.micro(getattr(counts_of(counted), by)))
            if counted.sentences
            else None
        )

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
            found = read_bare(self.trainer, gold)
            text = self.featured(found.text, found.examples)
            self._held_out[part] = replace(found, text=text)
        model = self.model(weights, lent=True)
        predicted = annotate_with(self.trainer, model, self._held_out[part], wanted=wanted)
        if self.site.annotates or apart:
            test = self.site.test_annotates if part == "test" else ()
            predicted = among(predicted, gold, {*agreement.own_types(self.site), *test})
        return score_documents(gold, predicted)


def among(
    predicted: Sequence[Document], gold: Sequence[Document], annotated: Collection[str]
) -> list[Document]:
    """The documents with only entities of types that annotators looked for in their text.

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
        """The labels it can be restricted to: all entity types of the model."""
        return self.trainer.types

    def only(self, labels: Collection[str]) -> EntityExtractor:
        """Restrict the model to entities of these types."""
        return replace(self, wanted=frozenset(labels))

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the entities that the model finds, each with a confidence."""
        return self._found(documents, keep=False)

    def _found(self, documents: Sequence[Document], *, keep: bool) -> list[Document]:
        """`keep`: the encoder's states are read from the cache, or written there."""
        found = read_bare(self.trainer, documents)
        if self.encoder is not None:
            text = agreement.with_cached(found.text, found.examples, self.encoder, keep=keep)
            found = replace(found, text=text)
        made = annotate_with(self.trainer, self.model, found, wanted=self.wanted)
        return protocol.calibrated(made, self.calibrator, of="entities")

    def report(
        self, documents: Sequence[Document], looked_for: Collection[str] | None
    ) -> protocol.Report:
        """Score the model, without types that no site looked for."""
        if self.wanted is not None:
            documents = only(documents, self.wanted)
        predicted = self._found(documents, keep=True)  # a site's own text: scoring kept its states
        if looked_for is not None:
            predicted = among(predicted, documents, looked_for)
        return entity_report(documents, predicted)

    def weighted(
        self, documents: Sequence[Document], weights_S: NDArray[np.float32]
    ) -> dict[str, list[dict[str, object]]]:
        """The training sentences with their instance weights, the heaviest first.

        A sentence of several windows has the mean of their weights.
        """
        examples, _ = batches.examples_from(documents)
        weights: dict[int, list[float]] = {}
        windows = self.trainer.prepared(examples).windows
        for window, weight in zip(windows, weights_S.tolist(), strict=True):
            weights.setdefault(window.example, []).append(weight)
        mean = {row: fmean(values) for row, values in weights.items()}
        return {
            "sentences": [
                {
                    "where": documents[examples[row].document].id,
                    "text": " ".join(examples[row].tokens),
                    "entities": [list(span) for span in examples[row].spans],
                    "weight": mean[row],
                }
                for row in sorted(mean, key=lambda row: -mean[row])
            ]
        }


def extractor_with(
    trainer: EntityTrainer, weights: Arrays, *, encoder: FrozenEncoder | None = None
) -> EntityExtractor:
    """The extractor of a model with these weights."""
    with undrawn():
        model = trainer.initial(0)
    load_weights(model, weights)
    return EntityExtractor(trainer, model, encoder)


class EntityKind(protocol.Kind):
    """The base of all kinds that find entities. `tunes`: `[encoder]` says what is trained."""

    task: ClassVar[TaskName] = "ner"
    tunes: ClassVar[bool] = False

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """The annotations that a flat tagger leaves out or changes."""
        return batches.left_out_of(documents)

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Raise SettingsError if what is asked for is not here: an adversary, a tuned encoder."""
        if not self.tunes:
            agreement.check_no_encoder(run, f"model.kind = {run.model.kind!r}")
        if run.lightner.adversary != agreement.NONE:
            raise SettingsError(
                "only LightNER can be trained against an adversary",
                expected='model.kind = "lightner", or lightner.adversary = "none"',
                got=f"model.kind = {run.model.kind!r}",
            )


# --- Units
#
# Noise hides any one of these documents, sentences or patients.
#
# Every training row belongs to one unit. What a unit adds to a sum is a function of its own rows
# alone, so that with one unit more or less nothing else of the sum changes; but for the last bits
# of floating-point numbers that are worked out for several sentences together, states of an
# encoder among them. The account does not count these (docs/differential-privacy.md).


def units_of(
    places: Sequence[tuple[int, int]],
    documents: Sequence[Document],
    *,
    unit: str,
    patients: str = "",
) -> list[batches.Rows]:
    """The rows of each unit, in the order of the documents; documents without a row have none.

    `unit` and `patients` are as in the settings (`settings.PrivacyTable`).
    """
    if unit == "sentence":
        names: list[object] = list(dict.fromkeys(places))
        of_rows: Sequence[object] = places
    else:
        owners = [
            patient_of(one, patients) if unit == "patient" else str(number)
            for number, one in enumerate(documents)
        ]
        names = list(dict.fromkeys(owners))
        of_rows = [owners[document] for document, _ in places]
    found: dict[object, list[int]] = {name: [] for name in names}
    for row, name in enumerate(of_rows):
        found[name].append(row)
    return [np.array(rows, np.int64) for rows in found.values()]


def patient_of(document: Document, patients: str) -> str:
    """Whose document it is: its name up to the first of these characters.

    >>> patient_of(Document("17-discharge", ""), "-")
    '17'
    >>> patient_of(Document("letter", ""), "-")
    'letter'
    """
    return document.id.partition(patients)[0] if patients else document.id


def clipped_sum(
    gradients: Iterable[UnitGradients],
    *,
    like: Mapping[str, NDArray[np.floating]],
    clip: float,
    grid: int,
) -> Whole:
    """The sum of units' gradients, each as whole numbers of norm at most `grid` (= `clip`).

    `like` gives the names and shapes. The gradients are overwritten.
    """
    total = Sum(like)
    for some in gradients:
        make_whole(some, clip=clip, grid=grid)
        total.add(some)
    return total.whole()


# --- Forms made of public files
#
# Every site has a copy of its own of these files.
#
# The files are an encoder's or a BART's; a form holds their name and their digest, so that every
# place can see that it has the same ones.


class EntitySpec(protocol.ModelSpec):
    """The form of a model that finds entities of these types."""

    types: list[str]

    @property
    def labels(self) -> list[str]:
        """The entity types."""
        return list(self.types)

    def with_labels_of(self, before: Self) -> Self:
        """The form that also has all types of a trained model's, behind its own."""
        return replace(self, types=protocol.with_new(self.types, before.types))  # type: ignore[type-var]

    def labelled_spans(self, public: Any, labels: Sequence[str]) -> list[list[batches.TypedSpan]]:
        """The spans of each public sentence, from the labels of its rows; none without any."""
        raise NotImplementedError

    def read_public(
        self, extractor: EntityExtractor, public: Any, labels: Sequence[str]
    ) -> tuple[Any, Any]:
        """Public sentences as the extractor's trainer reads them, bare and with spans."""
        examples = public.examples()
        text = extractor.trainer.prepared(examples)
        if extractor.encoder is not None:
            text = agreement.with_cached(text, examples, extractor.encoder)
        spans = self.labelled_spans(public, labels)
        return text, extractor.trainer.annotated(text, spans, source=set(self.types))


class MadeOfFiles(EntitySpec):
    """A form of a model that is made of public files and reads their word pieces."""

    digest: str

    @property
    @abstractmethod
    def files(self) -> str:
        """The files' name in the settings of the run."""

    @abstractmethod
    def found(self, place: str) -> Any:
        """The files of this name or folder. Raises ConfideError if they cannot be used."""

    @abstractmethod
    def found_at(self, site: Site) -> Any:
        """The site's copy. Raises Refusal if it is unusable."""

    @abstractmethod
    def trainer(self, files: Any) -> EntityTrainer:
        """The trainer of this form."""

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only."""
        return replace(self, types=agreement.types_in_text(site)) if types else self  # type: ignore[type-var]

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of all that is trained. Raises Refusal at a site without the same files."""
        made = (
            self.trainer(self.found(self.files))
            if site is None
            else self.shared_model(site).trainer
        )
        return trained(made.initial(seed))

    def shared_model(self, site: Site) -> protocol.SharedModel:
        """The process's shared model. Raises Refusal if the site's files are not the form's."""
        files = self.found_at(site)
        if files.digest != self.digest:
            raise Refusal("other-encoder")
        place = (files.folder, repr(self))
        return site.once("files", *place, make=lambda: protocol.SharedModel(self.trainer(files)))

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained one; `encoder`: where its files lie.

        Raises FederationError if they are not those of the training, and what `found` raises.
        """
        place = encoder or self.files
        files = self.found(place)
        if files.digest != self.digest:
            raise agreement.other_files(place)
        return extractor_with(self.trainer(files), weights)


NEEDS_ENCODER = "names and weights; it needs its encoder's files but no key"
"""The effect of releasing such a model."""


class MadeOfEncoder(MadeOfFiles):
    """A form whose files are an encoder's."""

    encoder: str

    @property
    def files(self) -> str:
        """The encoder's name in the settings of the run."""
        return self.encoder

    def found(self, place: str) -> FrozenEncoder:
        """The encoder of this name or folder. Raises as `find_encoder`."""
        return agreement.find_encoder(place)

    def found_at(self, site: Site) -> FrozenEncoder:
        """The site's encoder. Raises Refusal if it is unusable."""
        return agreement.encoder_of(site, self.encoder)


class EncoderKind(EntityKind):
    """The base of kinds whose model is made of the encoder that `[classifier]` names."""

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        (describe,) = self.steps
        return {describe.name: agreement.asked_of_types(run, run.classifier.encoder)}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """Agree on the types; all sites need the server's encoder. Raises FederationError."""
        (describe,), name = self.steps, run.classifier.encoder
        digest = agreement.find_encoder(name).digest
        types, replies = agreement.agree_on_types(
            run, federation, step=describe, name=name, digest=digest, public=public or ()
        )
        settled: dict[str, Any] = self.Spec.settled(run, public=public is not None)
        made: Any = self.Spec
        return agreement.agreed(made(types=types, digest=digest, **settled), replies)
