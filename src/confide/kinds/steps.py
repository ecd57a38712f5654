"""From the steps of a pair to a form that the sites agreed on, and to their scores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.errors import FederationError, GuardError, SettingsError
from confide.federation.federation import Federation, Parted, alike
from confide.federation.guards import MOST_NAMES
from confide.federation.memory import known
from confide.federation.messages import Arrays, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Tables, Turn
from confide.kinds.protocol import Agreed, F, Kept, Kind, ModelSpec, P, S
from confide.scoring import Count, EntityCounts, RelationCounts, calibration, count_entities
from confide.scoring.calibration import Right, Sure
from confide.scoring.relations import BINS, BagCounts
from confide.settings import Settings as RunSettings
from confide.tasks import Counts, TaskName
from confide.text.document import Document
from confide.training.vocabulary import SPECIALS

TOGETHER = "all sites"
"""Stands for a site where only the counts of all together are known; no site has such a name."""


@dataclass(frozen=True)
class CountExamples:
    """Count your training examples."""


@dataclass(frozen=True)
class ExamplesCounted:
    """Summed where no single reply may be seen: what all sites' weights are measured by."""

    examples: int = carries("number of the site's training examples")


def count_examples(
    site: Site, memory: Kept[F] | None, ask: CountExamples, turn: Turn
) -> tuple[ExamplesCounted, Kept[F]]:
    """Count the site's training examples."""
    memory = known(memory)
    return ExamplesCounted(memory.form.at(site).size), memory


def examples_of_all(federation: Federation, sites: Sequence[str]) -> int:
    """The training examples of these sites together, for sums that show no single site's.

    The federation's sums measure weights by it from now on.
    """
    counted = federation.sum(COUNT_EXAMPLES, CountExamples(), round=0, sites=sites)
    if federation.summing is not None:
        federation.summing.examples = float(counted.examples)
    return int(counted.examples)


COUNT_EXAMPLES = Step.of(count_examples, summed=True)


_DRAWN = {
    ("relations", "train"): "train_relations",
    ("relations", "train_alone"): "train_relations_alone",
    ("bags", "train"): "train_bags",
}
"""The names that seed a step's random choices, by kind and step, where not the step's own."""


def steps_of(kind: Kind, steps: Iterable[Step], *, public: bool) -> tuple[Step, ...]:
    """The steps of a pair: the kind's own, and the method's with the kind's messages filled in.

    With a public set, whose words are clear, sites only describe their text: the first step.
    """
    scoring = SCORING[kind.task]
    types = {F: kind.Spec, S: scoring.reply, P: kind.Spec.Public or object}
    own = []
    for step in (*steps, COUNT_EXAMPLES):
        given = step.given(types, drawn=_DRAWN.get((kind.name, step.drawn or step.name), ""))
        if step.reply is S:
            given = replace(given, check=scoring.check, tables=scoring.tables)
        own.append(given)
    return (*kind.steps[: 1 if public else None], *own)


def settle(
    run: RunSettings,
    federation: Federation,
    kind: Kind,
    *,
    step: Step,
    public: Sequence[Document] | None = None,
    start: Start | None = None,
    ask: Callable[[Any], Any],
) -> tuple[Agreed, Any, list[str]]:
    """Agree on a form and hand it out by `step`; gives what was agreed, the ask, and idle sites.

    `ask` turns the agreed form, with the labels of `start`, into the ask. Idle sites have no
    training text. Raises FederationError if too few sites start from the same word vectors or no
    site has training text, and what the kind's `agree` raises.
    """
    agreed = kind.agree(run, federation, public=public)
    given = ask(agreed.form if start is None else agreed.form.with_labels_of(start.form))
    agreed = agreed._replace(form=given.form)
    replies = federation.ask(step, given, round=0, sites=agreed.sites)
    same = compare_vectors(federation, step, replies)
    idle = sorted(site for site in same if not replies[site].size)
    if len(idle) == len(same):
        raise FederationError(
            "no site has any training text to learn from",
            fix="look at the training text with `confide data check`",
        )
    if federation.summing is not None and run.privacy is None:
        examples_of_all(federation, [site for site in same if site not in idle])
    return agreed, given, idle


@dataclass(frozen=True)
class Start:
    """A trained model from which training starts. `where` names it in errors."""

    form: ModelSpec
    weights: Arrays
    where: str


def first_weights(form: ModelSpec, *, seed: int, start: Start | None) -> Arrays:
    """The weights before round 1: drawn from the seed, or those of a trained model.

    What the model does not know is drawn: the rows of new types and their moves, and rows of new
    words; those of all words, if they were named under another key. Raises SettingsError if the
    model does not fit: another tag scheme, other public files, other sizes.
    """
    drawn = form.first(seed)
    if start is None:
        return drawn
    if getattr(start.form, "digest", "") != getattr(form, "digest", ""):
        raise _unfit(start, expected="the encoder of these settings", got="another one")
    classes = form.class_axes()
    for name, (before, *_) in start.form.class_axes().items():
        lost = sorted({*map(str, before)} - {*map(str, classes[name][0])})
        if lost:  # another tag scheme
            now = ", ".join(map(str, classes[name][0]))
            raise _unfit(start, expected=now, got=", ".join(lost))
    named, then = _named_axes(form), _named_axes(start.form)
    found: Arrays = {}
    for name, array in sorted(drawn.items()):
        old = start.weights.get(name, np.empty(0)).astype(array.dtype)
        both = name in named and name in then
        axes = list(zip(named[name], then[name], strict=True)) if both else []
        if old.shape[len(axes) :] != array.shape[len(axes) :]:
            raise _unfit(start, expected=f"{name} of {array.shape}", got=f"{old.shape}")
        found[name] = _with_known(array, old, axes) if axes else old
    return found


def _named_axes(form: ModelSpec) -> dict[str, Sequence[Sequence[Hashable]]]:
    """By array, the names along its first axes; those of a table begin with its special rows."""
    tables = {name: [[*range(SPECIALS), *rows]] for name, rows in form.row_names().items()}
    return {**form.class_axes(), **tables}


def _with_known(
    drawn: NDArray[Any],
    old: NDArray[Any],
    axes: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]],
) -> NDArray[Any]:
    """The drawn array with the other one's numbers where that has all names, of new and old axes.

    >>> _with_known(np.zeros((2, 2)), np.array([[1.0, 2], [3, 4]]), [(["b", "c"], ["a", "b"])] * 2)
    array([[4., 0.],
           [0., 0.]])
    """
    here, there = [], []
    for names, before in axes:
        place = {name: number for number, name in enumerate(before)}
        kept = [number for number, name in enumerate(names) if name in place]
        here.append(np.array(kept, np.intp))
        there.append(np.array([place[names[number]] for number in kept], np.intp))
    found = drawn.copy()
    found[np.ix_(*here)] = old[np.ix_(*there)]
    return found


def _unfit(start: Start, *, expected: str, got: str) -> SettingsError:
    return SettingsError(
        "training cannot start from this model",
        where=start.where,
        expected=expected,
        got=got,
        fix="name a run of the same kind, tag scheme and sizes in start_from, or leave it out",
    )


def compare_vectors(federation: Federation, step: Step, replies: Mapping[str, Any]) -> list[str]:
    """The sites whose vector file is that of most sites (which may be none).

    The others are left out. Raises FederationError if too few have the same.
    """
    return alike(
        federation,
        {site: reply.vectors for site, reply in replies.items()},
        step=step,
        why="its file of word vectors is missing or differs from that of the other sites",
        error=_other_vectors,
    )


def _other_vectors(parted: Parted) -> FederationError:
    who = parted.who("{} has a different one or none", "these groups have different ones")
    return FederationError(
        f"the sites do not start from the same file of word vectors: {who}",
        fix="give every site the same file, or none",
    )


def scores_from(
    federation: Federation, kind: Kind, *, step: Step, ask: object, round: int, form: ModelSpec
) -> dict[str, Counts]:
    """Every site's counts, as this step asks for them; those of all together if sums are unseen."""
    counts = SCORING[kind.task].counts
    if federation.summing is not None:
        return {TOGETHER: counts(federation.tally(step, ask, round=round, labels=form.labels))}
    replies = federation.ask(step, ask, round=round)
    return {site: counts(reply) for site, reply in replies.items()}


def no_tables(kind: str) -> SettingsError:
    """The error for `rows = "seen"` with a kind that has no word table."""
    return SettingsError(
        f"the kind {kind} has no word table whose rows could be averaged separately",
        expected='options.rows = "all"',
        got="'seen'",
    )


# --- Scoring
#
# It is a step too: a site scores its own held-out text and replies with counts.
#
# What leaves a site: per entity type how many entities were right, predicted and gold, strict and
# relaxed, and the number of sentences; of relations, the confusion matrix, and how many relations
# no candidate pair covers; of bags, histograms of the scores of candidates and facts, and by
# relation how many bags were right. Also how many predictions of each type have about which
# confidence, and how many of these were right. What never leaves: a prediction, a text.


MOST_SURE = calibration.BINS * MOST_NAMES


@dataclass(frozen=True)
class Scored:
    """Entity counts of one part of a site's held-out text.

    Y types; 3: right, predicted, gold. N pairs of a type and a bin of confidence, in order; 4: the
    type's place, the bin, right, predicted.
    """

    types: list[str] = carries("names of the entity types (not text)", value=Value(text="names"))
    strict_Y3: NDArray[np.int64] = carries(
        "exact entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    relaxed_Y3: NDArray[np.int64] = carries(
        "overlapping entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    sentences: int = carries("number of sentences scored", value=Value(least=0))
    malformed: int = carries("number of malformed tags that were repaired", value=Value(least=0))
    sure_N4: NDArray[np.int32] = carries(
        "predicted entities by type and confidence: right, predicted", most=MOST_SURE
    )


def score_documents(gold: Sequence[Document], predicted: Sequence[Document]) -> Scored:
    """The reply to `score`: these predictions against the gold documents."""
    counts = count_entities(gold, predicted)
    types = sorted({*counts.strict, *counts.relaxed})
    return Scored(
        types=types,
        strict_Y3=_table(counts.strict, types),
        relaxed_Y3=_table(counts.relaxed, types),
        sentences=counts.sentences,
        malformed=counts.malformed,
        sure_N4=_sure_table(counts.sure, types),
    )


def check_scored(ask: object, reply: Scored) -> None:
    """Raise GuardError if counts are malformed, negative, or more right than predicted or gold."""
    for name, table in (("strict_Y3", reply.strict_Y3), ("relaxed_Y3", reply.relaxed_Y3)):
        _check_table(name, table, (len(reply.types), 3))
        if (table[:, :1] > table[:, 1:]).any():
            raise GuardError(f"{name} holds impossible counts")
    _check_sure(reply.sure_N4, reply.strict_Y3)


def counts_of(reply: Scored) -> EntityCounts:
    """The counts in a reply to `score`."""
    return EntityCounts(
        strict=_by_type(reply.types, reply.strict_Y3),
        relaxed=_by_type(reply.types, reply.relaxed_Y3),
        sentences=reply.sentences,
        malformed=reply.malformed,
        sure=_sure(reply.types, reply.sure_N4),
    )


def _check_sure(sure_N4: NDArray[np.int32], counts_Y3: NDArray[np.int64]) -> None:
    """Raise GuardError if these are not counts by confidence that agree with the counts by type."""
    many = len(counts_Y3)
    if sure_N4.dtype != np.int32 or sure_N4.ndim != 2 or sure_N4.shape[1:] != (4,):
        raise GuardError("sure_N4 is malformed", got=f"{sure_N4.dtype.name} {sure_N4.shape}")
    type_N, bin_N, right_N, found_N = sure_N4.astype(np.int64).T
    fits = (type_N >= 0) & (type_N < many) & (bin_N >= 0) & (bin_N < calibration.BINS)
    if not (fits & (right_N >= 0) & (right_N <= found_N) & (found_N > 0)).all():
        raise GuardError("sure_N4 holds impossible counts")
    if (np.diff(type_N * calibration.BINS + bin_N) <= 0).any():
        raise GuardError("sure_N4 is not in order")
    for name, counted_N, all_Y in (
        ("right", right_N, counts_Y3[:, 0]), ("predicted", found_N, counts_Y3[:, 1])
    ):  # fmt: skip
        if (np.bincount(type_N, counted_N, minlength=many) > all_Y).any():
            raise GuardError(f"sure_N4 has more {name} than the counts by type")


def _sure_table(sure: Sure, types: Sequence[str]) -> NDArray[np.int32]:
    place = {name: number for number, name in enumerate(types)}
    rows = [(place[name], bin, *count) for (name, bin), count in sure.items()]
    return np.array(sorted(rows), np.int32).reshape(len(rows), 4)


def _sure(types: Sequence[str], sure_N4: NDArray[np.int32]) -> Sure:
    return {
        (types[place], bin): Right(right, found) for place, bin, right, found in sure_N4.tolist()
    }


def _check_table(name: str, table: NDArray[np.int64], shape: tuple[int, ...]) -> None:
    """Raise GuardError if these are not counts of this shape."""
    if table.dtype != np.int64 or table.shape != shape:
        raise GuardError(f"{name} is malformed", got=f"{table.dtype.name} {table.shape}")
    if (table < 0).any():
        raise GuardError(f"{name} holds impossible counts")


def _table(counts: dict[str, Count], types: list[str]) -> NDArray[np.int64]:
    rows = [counts.get(name, Count()) for name in types]
    return np.array([tuple(row) for row in rows], np.int64).reshape(len(types), 3)


def _by_type(types: list[str], table_Y3: NDArray[np.int64]) -> dict[str, Count]:
    """Counts by type; a row of a sum may be of a type that occurs nowhere, which has no score."""
    rows = zip(types, table_Y3.tolist(), strict=True)
    return {name: Count(*row) for name, row in rows if any(row)}


@dataclass(frozen=True)
class RelationsScored:
    """Relation counts of one part of a site's held-out text. Y labels, `NO_RELATION` among them.

    N pairs of a label and a bin of confidence, in order; 4: the label's place, the bin, right,
    predicted.
    """

    labels: list[str] = carries("names of the relations (not text)", value=Value(text="names"))
    confusion_YY: NDArray[np.int64] = carries(
        "pairs of entities by gold label, then predicted label", most=MOST_NAMES
    )
    missed_Y: NDArray[np.int64] = carries(
        "relations by label that no candidate pair covers", most=MOST_NAMES
    )
    sure_N4: NDArray[np.int32] = carries(
        "predicted relations by label and confidence: right, predicted", most=MOST_SURE
    )


def relations_scored(counts: RelationCounts) -> RelationsScored:
    """The reply to `score` with these counts."""
    labels = sorted({one for pair in counts.confusion for one in pair} | counts.missed.keys())
    place = {label: number for number, label in enumerate(labels)}
    confusion_YY = np.zeros((len(labels), len(labels)), np.int64)
    for (gold, predicted), count in counts.confusion.items():
        confusion_YY[place[gold], place[predicted]] = count
    missed_Y = np.array([counts.missed.get(label, 0) for label in labels], np.int64)
    return RelationsScored(labels, confusion_YY, missed_Y, _sure_table(counts.sure, labels))


def check_relations_scored(ask: object, reply: RelationsScored) -> None:
    """Raise GuardError if counts have the wrong type or shape, or are negative."""
    many = len(reply.labels)
    _check_table("confusion_YY", reply.confusion_YY, (many, many))
    _check_table("missed_Y", reply.missed_Y, (many,))
    counts_YY = reply.confusion_YY
    _check_sure(reply.sure_N4, np.stack([counts_YY.diagonal(), counts_YY.sum(0)], 1))


def relation_counts_of(reply: RelationsScored) -> RelationCounts:
    """The counts in a reply to `score`."""
    confusion = {
        (gold, predicted): int(reply.confusion_YY[row, column])
        for row, gold in enumerate(reply.labels)
        for column, predicted in enumerate(reply.labels)
        if reply.confusion_YY[row, column]
    }
    missed = dict(zip(reply.labels, reply.missed_Y.tolist(), strict=True))
    known = {label: count for label, count in missed.items() if count}
    return RelationCounts(confusion, known, _sure(reply.labels, reply.sure_N4))


@dataclass(frozen=True)
class BagsScored:
    """Bag counts of one part of a site's held-out text. B bins of scores, Y relations."""

    candidates_B: NDArray[np.int64] = carries("candidate facts by bin of their score", most=BINS)
    true_B: NDArray[np.int64] = carries("true facts by bin of their score", most=BINS)
    facts: int = carries("number of facts", value=Value(least=0))
    bags: int = carries("number of bags scored", value=Value(least=0))
    labels: list[str] = carries("names of the relations (not text)", value=Value(text="names"))
    best_Y3: NDArray[np.int64] = carries(
        "bags by best label: right, predicted, gold, by relation", most=MOST_NAMES
    )


def bags_scored(counts: BagCounts) -> BagsScored:
    """The reply to `score` with these counts."""
    labels = sorted(counts.relations)
    return BagsScored(
        candidates_B=counts.candidates_B,
        true_B=counts.true_B,
        facts=counts.facts,
        bags=counts.bags,
        labels=labels,
        best_Y3=_table(counts.relations, labels),
    )


def check_bags_scored(ask: object, reply: BagsScored) -> None:
    """Raise GuardError if counts are malformed, negative or contradict themselves."""
    _check_table("candidates_B", reply.candidates_B, (BINS,))
    _check_table("true_B", reply.true_B, (BINS,))
    _check_table("best_Y3", reply.best_Y3, (len(reply.labels), 3))
    if (reply.true_B > reply.candidates_B).any() or reply.true_B.sum() > reply.facts:
        raise GuardError("true_B has more facts than candidates_B or facts")
    if (reply.best_Y3[:, :1] > reply.best_Y3[:, 1:]).any():
        raise GuardError("best_Y3 has more right than predicted or gold")


def bag_counts_of(reply: BagsScored) -> BagCounts:
    """The counts in a reply to `score`."""
    return BagCounts(
        candidates_B=reply.candidates_B,
        true_B=reply.true_B,
        facts=reply.facts,
        bags=reply.bags,
        relations=_by_type(reply.labels, reply.best_Y3),
    )


# --- Counts as tables of a fixed form
#
# Those of held-out text can be summed unseen.
#
# A site's own reply lists the labels that occur in its text. Where no single reply may be seen,
# all sites count into the same tables instead: one row for each label of the model, and a last
# one for everything else (`OTHER`).
#
# Shapes: Y labels, `OTHER` among them; B bins.


OTHER = "(other)"
"""Stands for all labels that the model does not have."""
Counted = NDArray[np.int64]


@dataclass(frozen=True)
class CountTables:
    """Tables of the counts of one kind of `reply`, whose field `names` holds its labels.

    A table is named as its field, without the legend. An axis Y has a row for each label; what is
    counted by confidence has bins; the reply's numbers are one table, the rest.
    """

    reply: Any
    names: str

    @property
    def _arrays(self) -> list[tuple[str, str, str]]:
        """The fields that are arrays: name, and its table and legend."""
        every = [one.name for one in fields(self.reply)]
        return [(name, *name.rsplit("_", 1)) for name in every if "_" in name]  # type: ignore[misc]

    @property
    def _numbers(self) -> list[str]:
        return [one.name for one in fields(self.reply) if one.type == "int"]

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of every table."""
        many = len(labels) + 1
        sizes: dict[str, tuple[int, ...]] = {
            "Y": (many,), "YY": (many, many), "Y3": (many, 3), "B": (BINS,),
            "N4": (many, calibration.BINS, 2),
        }  # fmt: skip
        found = {table: sizes[legend] for _, table, legend in self._arrays}
        return found | ({"rest": (len(self._numbers),)} if self._numbers else {})

    def of(self, reply: Any, labels: Sequence[str]) -> Mapping[str, Counted]:
        """A reply as tables."""
        place = {label: row for row, label in enumerate(labels)}
        own = getattr(reply, self.names)
        rows = np.array([place.get(name, len(labels)) for name in own], np.intp)
        found = {name: np.zeros(shape, np.int64) for name, shape in self.shapes(labels).items()}
        for name, table, legend in self._arrays:
            counts = getattr(reply, name)
            if legend == "N4":
                type_N, bin_N, right_N, found_N = counts.astype(np.int64).T
                np.add.at(found[table], (rows[type_N], bin_N), np.stack([right_N, found_N], 1))
            elif legend == "YY":
                np.add.at(found[table], (rows[:, None], rows[None, :]), counts)
            elif legend == "B":
                found[table] = counts
            else:
                np.add.at(found[table], rows, counts)
        for row, name in enumerate(self._numbers):
            found["rest"][row] = getattr(reply, name)
        return found

    def back(self, tables: Mapping[str, Counted], labels: Sequence[str]) -> Any:
        """The reply with these counts."""
        arrays = {name: tables[table] for name, table, _ in self._arrays}
        if "sure" in tables:
            row_N, bin_N = np.nonzero(tables["sure"][:, :, 1])
            places_N2 = np.stack([row_N, bin_N], 1)
            sure_N4 = np.concatenate([places_N2, tables["sure"][row_N, bin_N]], 1)
            arrays["sure_N4"] = sure_N4.astype(np.int32)
        numbers = {name: int(tables["rest"][row]) for row, name in enumerate(self._numbers)}
        return self.reply(**arrays, **numbers, **{self.names: [*labels, OTHER]})


class Scoring(NamedTuple):
    """The scoring of a task: the reply to `score`, its check, its counts, and their tables."""

    reply: type
    check: Callable[[object, Any], None]
    counts: Callable[[Any], Counts]
    tables: Tables


SCORING: dict[TaskName, Scoring] = {
    "ner": Scoring(Scored, check_scored, counts_of, CountTables(Scored, "types")),
    "re": Scoring(
        RelationsScored,
        check_relations_scored,
        relation_counts_of,
        CountTables(RelationsScored, "labels"),
    ),
    "bags": Scoring(
        BagsScored, check_bags_scored, bag_counts_of, CountTables(BagsScored, "labels")
    ),
}
"""The scoring of each task."""
