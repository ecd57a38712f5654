"""The tasks: what is asked of text, how answers are counted, and what all of that is called.

Whatever differs by task is written here, once. No other module asks which task it is, except
`settings`, which reads the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from confide import scoring
from confide.scoring.counts import Scored

TaskName = Literal["ner", "re", "bags"]
Counts = scoring.EntityCounts | scoring.RelationCounts | scoring.BagCounts
"""One site's counts, of whichever task."""
Counted = Literal["strict", "relaxed", "micro", "best"]


@dataclass(frozen=True, slots=True)
class Words:
    """One task's words on a page.

    `found`: what a model finds; `does`: what it does; `type`: one class of what it finds; `unit`:
    what it looks at one at a time; `nothing`: what the empty name means in a confusion table.
    `score` names the scores if one word fits them all, `kinds` gives the title of each kind of
    score, and `shown` lists the two kinds to show where there is no room for all.
    """

    found: str
    does: str
    type: str
    each_type: str
    unit: str
    nothing: str
    score: str = "F1"
    kinds: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = ()

    def kind(self, name: str) -> str:
        """The title of a column with this kind of score."""
        return self.kinds.get(name, name)

    def full(self, name: str) -> str:
        """The title of an axis with this kind of score."""
        return f"{self.score}, {name}" if self.score else self.kind(name)


@dataclass(frozen=True)
class Task:
    """One question to text.

    The text: `learns` is the annotation that a model learns. With `bags`, all sentences that name
    one pair of entities stay together. `kind` is the only kind of model that answers, or empty if
    the settings choose.

    The answer: `kinds` are the kinds of scores, the default first. One number stands for each: the
    score itself, or its entry `number`. `typed` are the kinds that also give rates by type, and
    `unit` is the key that says how much was scored. `nothing` holds the counts of no text, `sum`
    adds counts up, and `scores` turns them into scores. A site keeps the `counted` kinds of counts
    of every single sentence, document or bag (`drawn`), which `compare` resamples.
    """

    name: TaskName
    words: Words
    learns: Literal["entities", "relations"]
    kinds: tuple[str, ...]
    unit: str
    typed: tuple[str, ...]
    nothing: Counts
    sum: Callable[[Iterable[Any]], Any]
    scores: Callable[[Any], Scored]
    drawn: str
    counted: tuple[Counted, ...] = ()
    number: str = "f1"
    kind: str = ""
    bags: bool = False

    @property
    def pairs(self) -> bool:
        """True if the task needs what a text says about pairs of entities."""
        return self.learns == "relations"

    def value(self, found: Scored, kind: str) -> float | None:
        """The number that stands for this kind of score; None if the scores lack it."""
        scored = found.get(kind)
        return scored.get(self.number) if isinstance(scored, Mapping) else scored

    def empty(self, found: Scored) -> bool:
        """Return whether these are the scores of no text: 0.0 would say that all was wrong."""
        rates = (one for one in found.values() if isinstance(one, Mapping))
        return found.get(self.unit) == 0 and not any(one.get("support") for one in rates)

    def marked(self, found: Scored) -> int:
        """Count the answers marked in the text that was scored: entities, relations, facts."""
        first = found.get(self.kinds[0])
        own = first.get("support") if isinstance(first, Mapping) else found.get("facts")
        return int(own or 0)

    def values(self, found: Scored) -> dict[str, float]:
        """The number that stands for each kind. Raises KeyError if one is missing."""
        each = {kind: found[kind] for kind in self.kinds}
        return {kind: self.value(each, kind) or 0.0 for kind in each}


_NER = Task(
    name="ner",
    words=Words(
        "entities", "recognise entities", "type", "Each type of entity", "sentences", "nothing"
    ),
    learns="entities",
    kinds=("strict", "relaxed"),
    unit="sentences",
    typed=("strict", "relaxed"),
    nothing=scoring.EntityCounts({}, {}),
    sum=scoring.sum_counts,
    scores=scoring.scores,
    drawn="sentences",
    counted=("strict", "relaxed"),
)
_RE = Task(
    name="re",
    words=Words(
        "relations", "find relations", "relation", "Each relation", "examples", "not looked at"
    ),
    learns="relations",
    kinds=("micro", "macro"),
    unit="examples",
    typed=("micro",),
    nothing=scoring.RelationCounts(),
    sum=scoring.sum_relation_counts,
    scores=scoring.relation_scores,
    drawn="documents",
    counted=("micro",),
    kind="relations",
)
_BAGS = Task(
    name="bags",
    words=Words(
        "relations",
        "find facts",
        "relation",
        "Each relation",
        "sentences",
        "nothing",
        score="",
        kinds={"auc": "AUC", "auc_2000": "AUC, first 2,000", "precision_at": "mean P@N"},
        shown=("auc", "precision_at"),
    ),
    learns="relations",
    kinds=("auc", "auc_2000", "precision_at"),
    unit="bags",
    typed=("micro",),
    nothing=scoring.BagCounts(),
    sum=scoring.sum_bag_counts,
    scores=scoring.ranked_scores,
    drawn="bags",
    counted=("best",),
    number="mean",
    kind="bags",
    bags=True,
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in (_NER, _RE, _BAGS)})
"""By name, in the order in which a chain of models runs."""
USUAL: TaskName = "ner"
"""The task of runs that do not name one: they were written before there was a second task."""


def task_of_scores(found: Scored) -> Task:
    """The task that these scores belong to, judged by their kinds."""
    known = (task for task in TASKS.values() if all(kind in found for kind in task.kinds))
    return next(known, TASKS[USUAL])
