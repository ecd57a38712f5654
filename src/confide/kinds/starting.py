"""From the steps of a pair to a form that the sites agreed on, and to their scores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import SPECIALS
from confide.errors import FederationError, SettingsError
from confide.federation.agreement import Parted, alike
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import Agreed, F, Kept, Kind, ModelSpec, P, S
from confide.settings import Settings as RunSettings
from confide.tasks import Counts
from confide.text.document import Document

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


def steps_of(kind: Kind, steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of a pair: the kind's own, and the method's with the kind's messages filled in."""
    types = {F: kind.Form, S: kind.Scored, P: getattr(kind, "Public", object)}
    own = []
    for step in (*steps, COUNT_EXAMPLES):
        given = step.given(types, drawn=kind.drawn.get(step.drawn or step.name, ""))
        if step.reply is S:
            given = replace(given, check=kind.check_scored, tables=kind.tables)
        own.append(given)
    return (*kind.steps, *own)


def settle(
    run: RunSettings,
    federation: Federation,
    kind: Kind,
    *,
    step: Step,
    public: Sequence[Document] = (),
    ask: Callable[[Any], Any],
) -> tuple[Agreed, Any, list[str]]:
    """Agree on a form and hand it out by `step`; gives what was agreed, the ask, and idle sites.

    `ask` turns the agreed form into the ask. Idle sites have no training text. Raises
    FederationError if too few sites start from the same word vectors or no site has training text,
    and what the kind's `agree` raises.
    """
    agreed = kind.agree(run, federation, public=public)
    given = ask(agreed.form)
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


def first_weights(kind: Kind, form: ModelSpec, *, seed: int, start: Start | None) -> Arrays:
    """The weights before round 1: drawn from the seed, or those of a trained model.

    Rows of words that the model does not know are drawn; all are, if its words were named under
    another key. Raises SettingsError if the model does not fit: other labels, other public files,
    other sizes.
    """
    drawn = form.first(seed)
    if start is None:
        return drawn
    before, now = kind.labels(start.form), kind.labels(form)
    if before != now:
        raise _unfit(start, expected=", ".join(now), got=", ".join(before))
    if getattr(start.form, "digest", "") != getattr(form, "digest", ""):
        raise _unfit(start, expected="the encoder of these settings", got="another one")
    named, then = form.row_names(), start.form.row_names()
    found: Arrays = {}
    for name, array in sorted(drawn.items()):
        old = start.weights.get(name, np.empty(0)).astype(array.dtype)
        rows = name in named and name in then
        there = old.shape[1:] if rows else old.shape
        if there != (array.shape[1:] if rows else array.shape):
            raise _unfit(start, expected=f"{name} of {array.shape}", got=f"{old.shape}")
        found[name] = _with_rows(array, named[name], old, then[name]) if rows else old
    return found


def _with_rows(
    drawn: NDArray[Any], names: Sequence[Hashable], old: NDArray[Any], known: Sequence[Hashable]
) -> NDArray[Any]:
    """The drawn table with the rows that the other one has: the first, and those of known names."""
    there = {name: row for row, name in enumerate(known, SPECIALS)}
    found = drawn.copy()
    found[:SPECIALS] = old[:SPECIALS]
    for row, name in enumerate(names, SPECIALS):
        if name in there:
            found[row] = old[there[name]]
    return found


def _unfit(start: Start, *, expected: str, got: str) -> SettingsError:
    return SettingsError(
        "training cannot start from this model",
        where=start.where,
        expected=expected,
        got=got,
        fix="name a run of the same kind, types and sizes in start_from, or leave it out",
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
    federation: Federation, kind: Kind, *, step: Step, ask: object, round: int, form: object
) -> dict[str, Counts]:
    """Every site's counts, as this step asks for them; those of all together if sums are unseen."""
    if federation.summing is not None:
        reply = federation.tally(step, ask, round=round, labels=kind.labels(form))
        return {TOGETHER: kind.counts(reply)}
    replies = federation.ask(step, ask, round=round)
    return {site: kind.counts(reply) for site, reply in replies.items()}


def no_tables(kind: str) -> SettingsError:
    """The error for `rows = "seen"` with a kind that has no word table."""
    return SettingsError(
        f"the kind {kind} has no word table whose rows could be averaged separately",
        expected='options.rows = "all"',
        got="'seen'",
    )
