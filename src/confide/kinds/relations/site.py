"""The relation classifier as a kind: `task = "re"`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from confide.errors import FederationError, GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_names
from confide.federation.messages import Arrays, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.files import cache_folder
from confide.kinds import agreement, protocol
from confide.kinds.entities import NEEDS_ENCODER
from confide.kinds.pieces import EncodedRelations
from confide.kinds.public import MIB, no_public_set
from confide.kinds.relations import batches
from confide.kinds.relations.model import (
    LabelledPairs,
    RelationClassifier,
    RelationTrainer,
    probabilities,
)
from confide.kinds.steps import RelationsScored, relation_counts_of, relations_scored
from confide.scoring import RelationCounts, count_relations, micro, sum_relation_counts
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import Settings as RunSettings
from confide.tasks import TASKS, TaskName
from confide.text.checking import retag
from confide.text.document import (
    NO_RELATION,
    Document,
    attributes_as_relations,
    relations_as_attributes,
)
from confide.training.weights import load_weights, trained

# --- A public set of relation examples
#
# Text that the server and all sites may read.
#
# A site predicts it with its own model (`RelationSiteModel.predicted`); the server's own model,
# the student, learns from these predictions.
#
# Shapes: S public examples, R classes.


Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class PublicExamples(protocol.PublicSet):
    """The public examples without their relations."""

    texts: list[str] = carries("text of each public example", most=8 * MIB, rule="varies")
    heads: list[Spans] = carries("where each text has its head", most=2 * MIB, rule="varies")
    tails: list[Spans] = carries("where each text has its tail", most=2 * MIB, rule="varies")
    head_types: list[str] = carries("entity type of the head", most=2 * MIB, rule="varies")
    tail_types: list[str] = carries("entity type of the tail", most=2 * MIB, rule="varies")

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

    def examples(self, labels: Sequence[str] = ()) -> list[batches.RelationExample]:
        """The set as examples; `labels` are the server's, if it has any."""
        every = labels or [NO_RELATION] * len(self.texts)
        return [
            batches.RelationExample(
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


# --- The form of a relation classifier
#
# The sites agree on it at the start.
#
# What leaves a site: which public encoder it has (a digest of that encoder's files, the same at
# all sites), the names of its relations and entity types, and which types its relations link.


CLASS_ROWS = ("relation.weight", "relation.bias")
"""The arrays with a row for each relation."""
ANY = -1
"""Stands in messages for no limit."""


@dataclass(frozen=True)
class DescribeRelations:
    """Find the encoder, and describe your annotation of relations."""

    encoder: str = carries("the encoder's name in the settings of the run")
    closed: bool = carries("whether the reply names nothing, as the settings do", start=bool)


@dataclass(frozen=True)
class RelationsDescribed:
    """A site's facts for the common model of relations."""

    encoder: str = carries(
        "digest of the encoder's public files; empty without one",
        rule="open",
        value=Value(text="digest"),
    )
    dim: int = carries("width of the encoder's states; 0 without one", rule="open")
    relations: list[str] = carries(
        "names of the relations of the training text (not text)",
        rule="open",
        value=Value(text="names"),
    )
    pairs: list[tuple[str, str]] = carries(
        "pairs of entity types that the relations link", rule="open"
    )
    types: list[str] = carries(
        "names of the entity types (not text)", rule="open", value=Value(text="names")
    )


@dataclass(frozen=True)
class PairSpec(protocol.ModelSpec):
    """The form of a model that finds relations between pairs of entities.

    `relations` are the classes, `NO_RELATION` first. The other fields say which pairs are
    candidates and how the model reads them.
    """

    relations: list[str] = carries(
        "names of the relations; the first stands for none", rule="varies"
    )
    types: list[str] = carries(
        "entity types with marks of their own; empty: all share one", rule="varies", start=list
    )
    known_types: list[str] = carries("entity types of the training text", rule="varies", start=list)
    pairs: list[tuple[str, str]] = carries(
        "pairs of entity types that may be related", rule="varies", start=list
    )
    direction: str = carries("directed or undirected", start=lambda: "directed")
    max_sentences: int = carries("most sentence ends between the two entities; -1: any", start=int)
    max_tokens: int = carries("most tokens between the two entities; -1: any", start=lambda: ANY)
    encoder: str = carries("the encoder's name in the settings of the run", start=str)
    digest: str = carries("digest of the encoder's files", rule="varies", start=str)
    blind: bool = carries("whether entities are replaced by their types", start=lambda: True)
    pool: str = carries(
        "what stands for an entity: sum, start or max; or cls for both", start=lambda: "sum"
    )
    dropout: float = carries("share of features dropped in training", start=lambda: 0.1)
    longest: int = carries("longest example, in word pieces", start=lambda: 128)
    tuning: str = carries(agreement.TUNING, before="", start=lambda: "all")

    weighting: ClassVar[Literal["equal", "examples"]] = "examples"

    @property
    def labels(self) -> list[str]:
        """The relations, the one of none among them."""
        return list(self.relations)

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """The last layer has a row for each relation."""
        return {name: [self.relations] for name in CLASS_ROWS}

    def with_labels_of(self, before: Self) -> Self:
        """The form that also has all relations, types and pairs of types of a trained model's.

        Raises SettingsError if types have marks of their own in the encoder, and are others.
        """
        if self.types != before.types:
            raise SettingsError(
                "training cannot start from a model with marks of other entity types",
                expected=", ".join(before.types) or "classifier.typed_markers = false",
                got=", ".join(self.types) or "classifier.typed_markers = false",
                fix="start from a model without classifier.typed_markers, or train anew",
            )
        return replace(
            self,
            relations=protocol.with_new(self.relations, before.relations),
            known_types=protocol.with_new(self.known_types, before.known_types),
            pairs=[*dict.fromkeys((head, tail) for head, tail in (*self.pairs, *before.pairs))],
        )


@dataclass(frozen=True)
class RelationSpec(PairSpec):
    """The form of a relation classifier."""

    attribute: str = carries(
        "attribute of entities that is learnt in place of relations", before="", start=str
    )

    private: ClassVar[Sequence[str]] = ("relation",)
    head: ClassVar[str] = "relation"
    slope: ClassVar[str] = "relation.weight"
    Public: ClassVar[type[protocol.PublicSet] | None] = PublicExamples

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        settled = settled_pairs(run, encoder=True, pool=run.classifier.pool)
        return {**settled, "attribute": run.pairs.attribute}

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own classifier; with `types`, of its own relations only."""
        if not types:
            return self
        found = {relation.type for document in site.train for relation in document.relations}
        return replace(self, relations=[NO_RELATION, *sorted(found - {NO_RELATION})])

    def with_labels_of(self, before: Self) -> Self:
        """The form as of pairs, from a model that learnt the same. Raises SettingsError."""
        if self.attribute != before.attribute:
            learnt = [
                f"pairs.attribute = {one!r}" if one else "relations between entities"
                for one in (self.attribute, before.attribute)
            ]
            raise SettingsError(
                "training cannot start from a model that learnt something else",
                expected=learnt[0],
                got=learnt[1],
                fix="name a run that learnt the same in start_from, or leave it out",
            )
        return super().with_labels_of(before)

    @property
    def class_names(self) -> Sequence[str]:
        """The relations; the first is none."""
        return self.relations

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of what is trained of the encoder, of the marks and of a linear layer.

        Raises Refusal at a site that has no such encoder.
        """
        name = self.encoder
        encoder = agreement.find_encoder(name) if site is None else agreement.encoder_of(site, name)
        return trained(RelationTrainer(encoder, self).initial(seed))

    def tables(self) -> Sequence[str]:
        """The last layer: a row for each relation. Word pieces are public, so no site lacks one."""
        return CLASS_ROWS

    def at(self, site: Site) -> protocol.SiteModel:
        """The site model of this form."""
        return protocol.cached_site_model(site, self, RelationSiteModel)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> RelationExtractor:
        """The extractor of a trained classifier; `encoder` overrides the settings' encoder folder.

        Raises FederationError if the files are not those of the training, and what `find_encoder`
        raises.
        """
        files = agreement.trained_with(encoder or self.encoder, self.digest)
        trainer = RelationTrainer(files, self)
        model = trainer.initial(0)
        load_weights(model, weights)
        return RelationExtractor(trainer, model, rules_of(self), tuple(self.known_types))

    def public(self, documents: Sequence[Document]) -> tuple[PublicExamples, list[str]]:
        """The pairs of these documents as sites get them, and the labels, which sites never get.

        Raises SettingsError if there are no pairs.
        """
        examples = batches.candidates(documents, rules_of(self)).examples
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

    def read_public(
        self, extractor: RelationExtractor, public: PublicExamples, labels: Sequence[str]
    ) -> tuple[EncodedRelations, LabelledPairs]:
        """The public pairs as the extractor's trainer reads them, bare and with labels."""
        trainer = extractor.trainer
        text = trainer.prepared(public.examples(labels))
        text = trainer.featured(text, extractor.model, folder=None)
        return text, trainer.annotated(text)


def describe_relations(
    site: Site, memory: object, ask: DescribeRelations, turn: Turn
) -> tuple[RelationsDescribed, object]:
    """Find the encoder, and describe the annotation of the training text."""
    encoder = agreement.encoder_of(site, ask.encoder)
    said = annotation_of(() if ask.closed else site.train)
    return RelationsDescribed(encoder.digest, encoder.dim, **said), memory


def annotation_of(documents: Sequence[Document]) -> dict[str, list[Any]]:
    """The relations of documents, the pairs of types that these link, and all entity types."""
    relations = {relation.type for document in documents for relation in document.relations}
    types = {entity.type for document in documents for entity in document.entities}
    return {
        "relations": sorted(relations - {NO_RELATION}),
        "pairs": sorted(batches.type_pairs(documents)),
        "types": sorted(types),
    }


def check_relations(ask: object, reply: RelationsDescribed) -> None:
    """Raise GuardError if the reply is malformed or impossible."""
    if not 1 <= reply.dim <= agreement.WIDEST:
        raise GuardError("dim is out of range")
    check_annotation(reply)


def check_annotation(reply: RelationsDescribed) -> None:
    """Raise GuardError if a name of a type that a relation links is malformed."""
    check_names("pairs", {name for pair in reply.pairs for name in pair})


DESCRIBE_RELATIONS = Step.of(describe_relations, check=check_relations)


def pair_form(
    run: RunSettings,
    replies: Collection[RelationsDescribed],
    *,
    digest: str,
    pool: str,
    public: Sequence[Document] = (),
) -> dict[str, Any]:
    """The values of a `PairSpec` on which these sites agree; `digest` is empty without an encoder.

    Raises FederationError if no site has a relation.
    """
    said = annotation_of(public)
    for reply in replies:
        for name, values in said.items():
            values += getattr(reply, name)
    if run.privacy is not None:  # nothing is named by the sites
        said["relations"] += run.data.relations
        said["types"] += run.data.types
    relations, types = sorted({*said["relations"]} - {NO_RELATION}), sorted({*said["types"]})
    if not relations:
        raise FederationError(
            "no site has a relation in its training text",
            fix="look at the files with `confide data check`, and at the names in `relations`",
        )
    return {
        "relations": [NO_RELATION, *relations],
        "types": types if digest and run.classifier.typed_markers else [],
        "known_types": types,
        "pairs": sorted(run.pairs.types or {(head, tail) for head, tail in said["pairs"]}),
        "digest": digest,
        **settled_pairs(run, encoder=bool(digest), pool=pool),
    }


def settled_pairs(run: RunSettings, *, encoder: bool, pool: str) -> dict[str, Any]:
    """The values of a `PairSpec` that the settings alone decide; with or without an encoder."""
    own, rules = run.classifier if encoder else run.pcnn, run.pairs
    return {
        "direction": rules.direction,
        "max_sentences": _limit(rules.max_sentences),
        "max_tokens": _limit(rules.max_tokens),
        "encoder": run.classifier.encoder if encoder else "",
        "blind": encoder and run.classifier.blind,
        "pool": pool,
        "dropout": own.dropout,
        "longest": own.max_length,
        "tuning": str(agreement.tuning_of(run)) if encoder else "",
    }


def _limit(number: float) -> int:
    """A limit of the settings as messages encode it: `ANY` for infinity."""
    return ANY if number == float("inf") else int(number)


def rules_of(memory: PairSpec) -> batches.Rules:
    """Which pairs of entities are candidates."""
    return batches.Rules(
        types=frozenset(memory.pairs),
        direction=memory.direction,  # type: ignore[arg-type]
        max_sentences=None if memory.max_sentences == ANY else memory.max_sentences,
        max_tokens=None if memory.max_tokens == ANY else memory.max_tokens,
        alone=isinstance(memory, RelationSpec) and memory.attribute != "",
    )


# --- Pseudo-complete annotation of pairs
#
# A site's own relations, plus a model's that it lacks.
#
# Wang et al. 2023, 3.2, Eq. 5.
#
# A pair has one label. If the site annotates a relation, that is the label. If not, the label is
# the model's likeliest one, provided that the site lacks this relation. A pair that still has no
# label is learnt to have none of the site's own relations, and no more: learning that it has no
# relation at all would soon make a common model that finds little find nothing.
#
# Shapes: S pairs, R classes.


Logits = Callable[[EncodedRelations], NDArray[np.float32]]
"""Gives logits_SR of pairs."""


def complete_pairs(
    encoded: EncodedRelations,
    own_R: NDArray[np.bool_],
    *,
    nothing: int,
    logits: Logits,
    confidence: float = 0.0,
) -> protocol.CompleteText:
    """The pairs with the site's own relations, plus those that it lacks and a model finds.

    `own_R` marks the classes that the site annotates, `nothing` (no relation) among them. `logits`
    scores the pairs without a relation; a relation below this confidence is not taken.
    """
    labels_S = encoded.relations_S.copy()
    bare_S = np.flatnonzero(labels_S == nothing)
    source_S = np.ones(len(encoded), bool)
    if len(bare_S) and not own_R.all():
        logits_SR = logits(encoded.only(bare_S))
        best_S = logits_SR.argmax(1)
        found_S = ~own_R[best_S]
        odds_SR = np.exp(logits_SR - logits_SR.max(1, keepdims=True))  # the likeliest has 1
        found_S &= 1.0 / odds_SR.sum(1) >= confidence
        labels_S[bare_S[found_S]] = best_S[found_S]
        source_S[bare_S[found_S]] = False
    pairs = LabelledPairs(
        replace(encoded, relations_S=labels_S),
        source_S=source_S,
        open_S=labels_S != nothing,
        own_R=own_R,
    )
    return protocol.CompleteText(
        pairs, own=len(encoded) - len(bare_S), pseudo=int((~source_S).sum())
    )


def among_relations(
    predicted: Sequence[Document], gold: Sequence[Document], annotated: Collection[str]
) -> list[Document]:
    """The documents with only relations that annotators looked for in their text.

    These are the `annotated` relations, and those that occur in the gold documents.
    """
    types = {*annotated, *relations_in(gold)}
    return [
        replace(one, relations=tuple(r for r in one.relations if r.type in types))
        for one in predicted
    ]


def relations_in(documents: Sequence[Document]) -> set[str]:
    """Names of the relations that occur in the documents."""
    return {one.type for document in documents for one in document.relations} - {NO_RELATION}


# --- A relation classifier at a site
#
# Examples, encoded once, and one model per process.


@dataclass(frozen=True)
class RelationPart:
    """The examples of a part of a site's text, and the same encoded."""

    found: batches.Candidates
    encoded: EncodedRelations


class RelationSiteModel(protocol.SiteModel):
    """A relation classifier at a site.

    Beyond what every site model does, it predicts public examples (`predicted`), labels the site's
    own pairs with what a model finds there (`completed`), and gives the gradients of single pairs
    (`row_gradients`).
    """

    form: RelationSpec

    def __init__(self, site: Site, form: RelationSpec) -> None:
        super().__init__(site, form)
        self._looked: dict[str, RelationPart] = {}

    @property
    def size(self) -> int:
        """The number of training examples: pairs of entities."""
        return len(self.looked("train").encoded)

    def check(self) -> None:
        """Raise Refusal if the training text has a relation that the form lacks."""
        self.looked("train")

    def rows_seen(self, config: protocol.TrainConfig) -> Arrays:
        """For each relation: 1 if the site annotates it, else 0."""
        return {name: np.array(self.known, np.float32) for name in CLASS_ROWS}

    @property
    def shared_model(self) -> protocol.SharedModel:
        """The process's shared model. Raises Refusal if the site's encoder differs."""
        encoder = agreement.agreed_encoder(self.site, self.form.encoder, self.form.digest)
        trainer = RelationTrainer(encoder, self.form)
        return self.site.once(
            "relations", repr(self.form), make=lambda: protocol.SharedModel(trainer)
        )

    def looked(self, part: str) -> RelationPart:
        """The examples of a part of the site's text, made once.

        Raises Refusal if the training text has a relation outside the agreed set or outside what
        the site says it knows.
        """
        if part not in self._looked:
            site = self.site
            found = batches.candidates(site.documents(part), rules_of(self.form))
            known = set(compress(self.form.relations, self.known))
            if part == "train" and any(one.relation not in known for one in found.examples):
                raise Refusal("relation-outside-set")
            unlabelled = batches.with_labels(found.examples, known)
            self._looked[part] = RelationPart(found, self.featured(unlabelled))
        return self._looked[part]

    def featured(self, examples: Sequence[batches.RelationExample]) -> EncodedRelations:
        """The examples, encoded, with what a frozen encoder gives of them. Raises Refusal."""
        made = self.trainer
        with agreement.keeping_features():
            return made.featured(
                made.prepared(examples), self.shared_model.model, folder=cache_folder()
            )

    @property
    def known(self) -> list[bool]:
        """For each class, whether the site annotates it; every site annotates `NO_RELATION`."""
        own = {NO_RELATION, *self.site.annotates}
        return [not self.site.annotates or name in own for name in self.form.relations]

    @cached_property
    def annotated(self) -> frozenset[str]:
        """The relations that the site says it annotates; by default, those of its training text."""
        return frozenset(self.site.annotates or relations_in(self.site.train))

    def completed(
        self, weights: Arrays | None, *, confidence: float = 0.0
    ) -> protocol.CompleteText:
        """The training pairs with the site's own relations and, given weights, a model's as well.

        Only relations that the site lacks are added, with at least this confidence, where it says
        that none of its own holds.
        """
        encoded, relations = self.looked("train").encoded, self.form.relations
        nothing, own = relations.index(NO_RELATION), {NO_RELATION, *self.annotated}
        own_R = np.array([name in own for name in relations])
        if weights is None:
            count = int((encoded.relations_S != nothing).sum())
            return protocol.CompleteText(
                self.trainer.annotated(encoded, own_R), own=count, pseudo=0
            )

        def logits(pairs: EncodedRelations) -> NDArray[np.float32]:
            return self.trainer.row_logits(self.model(weights, lent=True), pairs)

        return complete_pairs(encoded, own_R, nothing=nothing, logits=logits, confidence=confidence)

    @property
    def trainer(self) -> RelationTrainer:
        """The trainer of the process's model."""
        trainer: RelationTrainer = self.shared_model.trainer
        return trainer

    @property
    def own(self) -> LabelledPairs:
        """The training pairs with the site's own labels."""
        return self.trainer.annotated(self.looked("train").encoded, np.array(self.known))

    def losses(
        self, weights: Arrays, config: protocol.TrainConfig, documents: Sequence[Document]
    ) -> protocol.Losses:
        """Work out the loss of these weights on each pair."""
        known = set(compress(self.form.relations, self.known))
        examples = batches.with_labels(
            batches.candidates(documents, rules_of(self.form)).examples, known
        )
        own = self.trainer.annotated(self.featured(examples), np.array(self.known))
        found_S = self.trained_by(config).row_losses(self.model(weights, lent=True), own)
        return protocol.Losses(
            "pairs",
            found_S,
            np.array([one.document for one in examples], np.int64),
            [(one.text, one.head, one.tail) for one in examples],
        )

    @property
    def places(self) -> list[tuple[int, int]]:
        """The document of each training pair, by number; a pair has no sentence of its own."""
        return [(one.document, -1) for one in self.looked("train").found.examples]

    def worth(self, counted: RelationsScored, by: str) -> float | None:
        """The score by which models are compared; None if nothing was scored."""
        counts = relation_counts_of(counted)
        task = TASKS["re"]
        return task.value(task.scores(counts), by) if counts.confusion else None

    def known_classes(self) -> list[bool]:
        """For each class, whether the site annotates it."""
        return self.known

    def predicted(self, weights: Arrays, public: PublicExamples) -> NDArray[np.float32]:
        """logits_SR of public examples, which are encoded once per process."""
        made = self.trainer
        encoded = self.site.once(
            "public pairs",
            public.digest,
            repr(made.form),
            make=lambda: self.featured(public.examples()),
        )
        return made.row_logits(self.model(weights, lent=True), encoded)

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> RelationsScored:
        """Counts on a part of the held-out text.

        Relations that the site does not annotate are not predicted: finding one would be no
        mistake. With `apart`, one is predicted if it occurs in that text all the same, and a pair
        whose likeliest relation nobody looked for gets none.
        """
        looked = self.looked(part)
        logits_SR = self.trainer.row_logits(self.model(weights, lent=True), looked.encoded)
        likely_SR = probabilities(logits_SR) if len(logits_SR) else logits_SR
        if not apart:
            logits_SR[:, ~np.array(self.known)] = -np.inf
        best_S = logits_SR.argmax(1)
        predicted = [self.form.relations[place] for place in best_S]
        if apart:
            test = self.site.test_annotates if part == "test" else ()
            sought = {*self.annotated, *test, *relations_in(self.site.documents(part))}
            predicted = [name if name in sought else NO_RELATION for name in predicted]
        gold = [example.relation for example in looked.found.examples]
        counts = count_relations(
            gold,
            predicted,
            missed=looked.found.missed,
            confidences=likely_SR[np.arange(len(best_S)), best_S].tolist(),
        )
        return relations_scored(counts)


# --- The report of a relation classifier at a site
#
# Its errors and its right answers, by document.


def relation_report(
    gold: Sequence[Document], predicted: Sequence[Document], rules: batches.Rules
) -> protocol.Report:
    """The confusion, the worst and some right pairs, and the counts of each document.

    `rules` say which pairs the extractor considers. Counts are kept per document, since pairs of
    one text are not independent.
    """
    counts: list[RelationCounts] = []
    wrong: list[protocol.Case] = []
    good: list[protocol.Case] = []
    for document, found in zip(gold, predicted, strict=True):
        pairs = batches.candidates([document], rules)
        labels = batches.predicted_labels(pairs, [found])
        right = [example.relation for example in pairs.examples]
        counts.append(count_relations(right, labels, missed=pairs.missed))
        sure = {(one.head, one.tail): one.confidence for one in found.relations}
        for example, label in zip(pairs.examples, labels, strict=True):
            if label != example.relation:
                wrong.append((example, label, sure.get(example.pair)))
            elif label != NO_RELATION:
                good.append((example, label, sure.get(example.pair)))
    whole = sum_relation_counts(counts)
    rows = whole.to_json()["confusion"]
    for relation, count in whole.missed.items():
        rows.setdefault(relation, {})[""] = count
    return protocol.Report(
        counts=whole,
        errors={
            "confusion": rows,
            "worst": [_pair(*case) for case in protocol.worst_cases(wrong)],
            "right": [_pair(*case) for case in protocol.likeliest_first(good)[: protocol.RIGHT]],
        },
        sentences={
            "fingerprint": protocol.fingerprint(gold, relations=True),
            "micro": [micro(one.relations) for one in counts],
        },
    )


def pair_place(example: batches.RelationExample) -> dict[str, object]:
    """A pair of entities and its text, for a list of errors."""
    return {
        "where": example.id,
        "text": example.text,
        "head": [*example.head],
        "tail": [*example.tail],
        "head_type": example.head_type,
        "tail_type": example.tail_type,
    }


def _pair(
    example: batches.RelationExample, label: str, confidence: float | None
) -> dict[str, object]:
    return {
        **pair_place(example),
        "gold": example.relation,
        "predicted": label,
        "confidence": confidence,
    }


# --- A trained relation classifier in use
#
# Documents in, documents out.


@dataclass(frozen=True)
class RelationExtractor:
    """A trained relation classifier, and the pairs it considers.

    With `wanted`, it decides between these relations and none alone. If it has learnt an
    `attribute` of entities, that is what it gives documents, and their relations stay.
    """

    trainer: RelationTrainer
    model: RelationClassifier
    rules: batches.Rules
    types: tuple[str, ...]
    calibrator: Calibrator = AS_IS
    wanted: frozenset[str] | None = None

    @property
    def attribute(self) -> str:
        """The attribute of entities that it has learnt; "" if it has learnt relations."""
        return str(self.trainer.form.attribute)

    @property
    def finds(self) -> Literal["relations", "attributes"]:
        """The part of documents that it gives."""
        return "attributes" if self.attribute else "relations"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it can be restricted to: all relations of the model."""
        return tuple(name for name in self.relations if name != NO_RELATION)

    def only(self, labels: Collection[str]) -> RelationExtractor:
        """Restrict the model to these relations."""
        return replace(self, wanted=frozenset(labels))

    @property
    def relations(self) -> tuple[str, ...]:
        """The classes, `NO_RELATION` among them."""
        return tuple(self.trainer.form.relations)

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the relations that the model finds between their entities.

        A relation's confidence is its probability. Existing relations, or values of the attribute,
        are replaced. An entity of a type that the model does not know is read as one of the only
        type that has the attribute, if it is the only one.
        """
        if not self.attribute:
            return self._related(documents)
        own = sorted(head for head, _ in self.rules.types or ())
        found = {entity.type for document in documents for entity in document.entities}
        names = {
            name: batches.known_type(name, self.types) or (own[0] if len(own) == 1 else name)
            for name in found - {*self.types}
        }
        plain = [attributes_as_relations(one, self.attribute) for one in documents]
        read = self._related(retag(plain, names)[0])
        return [
            relations_as_attributes(one, self.attribute, said)
            for one, said in zip(documents, read, strict=True)
        ]

    def _related(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the relations found; of an attribute, those of entities alone."""
        found = batches.candidates([replace(one, relations=()) for one in documents], self.rules)
        made = batches.with_relations(documents, found.examples, self.probabilities(found.examples))
        return protocol.calibrated(made, self.calibrator, of="relations")

    def report(
        self, documents: Sequence[Document], looked_for: Collection[str] | None
    ) -> protocol.Report:
        """Score the model, without relations that no site looked for."""
        if self.wanted is not None:
            documents = among_relations(documents, [], self.wanted)
        predicted = self._related(documents)
        if looked_for is not None:
            predicted = among_relations(predicted, documents, looked_for)
        return relation_report(documents, predicted, self.rules)

    def weighted(
        self, documents: Sequence[Document], weights_S: NDArray[np.float32]
    ) -> dict[str, list[dict[str, object]]]:
        """The training `pairs` with their instance weights, the heaviest first."""
        found = batches.candidates(documents, self.rules).examples
        pairs = sorted(zip(found, weights_S.tolist(), strict=True), key=lambda pair: -pair[1])
        return {
            "pairs": [
                {
                    "where": documents[one.document].id,
                    "text": one.text,
                    "head": [list(span) for span in one.head],
                    "tail": [list(span) for span in one.tail],
                    "relation": one.relation,
                    "weight": weight,
                }
                for one, weight in pairs
            ]
        }

    def probabilities(self, examples: Sequence[batches.RelationExample]) -> list[dict[str, float]]:
        """For each example, the probability of every class, given that it is a wanted one."""
        plain = batches.with_labels(examples, set())
        logits_SR = self.trainer.row_logits(self.model, self.trainer.prepared(plain))
        if self.wanted is not None:
            sought = [one == NO_RELATION or one in self.wanted for one in self.relations]
            logits_SR[:, ~np.array(sought)] = -np.inf
        rows = probabilities(logits_SR).tolist()
        return [dict(zip(self.relations, row, strict=True)) for row in rows]


class RelationKind(protocol.Kind):
    """The relation classifier; it reads the pieces of a public encoder, so it needs no key."""

    name: ClassVar[str] = "relations"
    task: ClassVar[TaskName] = "re"
    Spec: ClassVar[type[protocol.ModelSpec]] = RelationSpec
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE_RELATIONS,)
    release: ClassVar[protocol.Release] = protocol.Release(
        "relations.safetensors", "ReleasedRelations", NEEDS_ENCODER
    )

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        own = {"encoder": run.classifier.encoder, "closed": run.privacy is not None}
        return {DESCRIBE_RELATIONS.name: own}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """Agree on the encoder, the relations and the pairs.

        A public set adds its own relations, types and pairs. Raises FederationError if too few
        sites have the server's encoder, or if no site annotates a relation.
        """
        own = run.classifier
        server = agreement.find_encoder(own.encoder)
        ask = DescribeRelations(own.encoder, run.privacy is not None)
        replies = federation.ask(DESCRIBE_RELATIONS, ask, round=0)
        digests = {site: reply.encoder for site, reply in replies.items()}
        same = agreement.with_encoder(federation, DESCRIBE_RELATIONS, digests, ours=server.digest)
        replies = {site: replies[site] for site in same}
        pairs = pair_form(
            run, replies.values(), digest=server.digest, pool=own.pool, public=public or ()
        )
        types = {site: reply.relations for site, reply in replies.items()}
        form = RelationSpec(**pairs, attribute=run.pairs.attribute)
        return protocol.Agreed(form, sorted(types), types=types)
