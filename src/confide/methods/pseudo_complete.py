"""Pseudo-complete annotation: sites that annotate different types train one model of all types.

Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023.

Each site annotates only some of the types (of entities or relations). In a round the common model
annotates the site's own text with the types that the site lacks; the site trains on both; the
server takes the mean. A row (a sentence; for relations a pair of entities) counts more if the
gradient of its own annotation agrees with that of the types that other sites lack.

With `teacher = "start"` it is the model from which training starts (`start_from`) that annotates:
once, and as it is, so that a run which adds types does not forget the old ones (Monaikul,
Castellucci, Filice & Rokhlenko, "Continual Learning for Named Entity Recognition", AAAI 2021, whose
student learns the old model's probabilities instead).

What leaves a site: names of the types that it annotates, its number of training rows, a digest of
its public encoder or BART, for a tagger the keyed vocabulary, for relations the types that they
link (once); the gradient of one small parameter, summed over all its rows, and its trained weights,
of both of which the server keeps only the sum; numbers of its own and of pseudo entities or
relations, as sums; counts of right, predicted and gold ones.
What never leaves: text, annotation, pseudo-annotation, instance weights, gradients of a row.
What weights may still reveal: they are a function of the text; see docs/methods/pseudo-complete.md.

Where we differ from the paper or decide what it leaves open:
- any kind that finds entities works (section 7 asks for it), and so does the relation classifier.
  The shared parameter whose gradient compares rows is LightNER's q, and the last linear layer's
  weight of the others;
- a pair of entities has one label: a site's own relation stays; if it has none, the common model's
  likeliest label is taken, provided that the site lacks this relation. A pair that still has no
  label counts as source and is learnt to have none of the site's own relations, as under FedAvg;
  learnt to have none at all, relations that a young model misses would be unlearnt for ever;
- for the token-wise kinds, tokens outside all entities count as source, as LightNER's stop does;
- a site's part of g^tgt is the sum over its sentences (Algorithm 2), not their mean (Eq. 7);
- a pseudo entity that overlaps a site's own is dropped; entities are merged in order of start;
- the first `warmup_rounds` make no pseudo-annotation and no instance weights: the common model has
  not learnt anything yet;
- a site subtracts its own part from the sum of target gradients, so the server never sees one
  alone;
- a row without a source gradient, or without any other site's target gradient, keeps its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.errors import SettingsError
from confide.federation.broadcast import digest_of_weights
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import MOST, bounded, check_expected
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import protocol
from confide.kinds.protocol import F, ModelSpec, State
from confide.methods.fedavg import FedAvg, Train, Update, mean_of, train_ask, train_fields, weighed
from confide.methods.fedner import ON_ANNOTATION
from confide.methods.method import Facts, OptionsTable, Trait
from confide.settings import Settings as RunSettings
from confide.tasks import TASKS
from confide.training.batches import covered
from confide.training.examples import RowGradients
from confide.training.trainer import Pulls

# --- Pseudo-complete annotation at a site
#
# The messages, and how a site answers.
#
# See `confide.methods.pseudo_complete`. Shapes: S rows (training sentences, or windows of long
# ones; for relations pairs of entities), G numbers of the shared parameter whose gradient
# compares rows.


# --- messages -------------------------------------------------------------------------------------


FIXED = "whether the model from which training starts annotates, and not the common one"
NOTHING_N4 = np.zeros((0, 4), np.int32)
"""No span."""


@dataclass(frozen=True)
class Counting(protocol.Kept[F], Generic[F]):
    """A site's memory: the form, and the instance weights of its rows."""

    instance_weights_S: NDArray[np.float32] = carries(
        "instance weight of each training row", start=lambda: np.ones(0, np.float32)
    )
    weighed: int = carries("the round of their last update", start=int)
    labelled: bool = carries("whether a fixed teacher annotated its text", start=bool, before=False)
    labels_N4: NDArray[np.int32] = carries(
        "what that found: sentence, first token, one past the last, number of the type",
        start=lambda: NOTHING_N4,
        before=NOTHING_N4,
    )

    def row_weights(self) -> tuple[int, NDArray[np.float32]] | None:
        """The round of the instance weights, and these; None if there are none."""
        return (self.weighed, self.instance_weights_S) if len(self.instance_weights_S) else None


@dataclass(frozen=True)
class Teach(Generic[F]):
    """Annotate the types that you lack with this model, and keep that for the whole run."""

    form: F = carries("the form of the model from which training starts")
    teacher: Arrays = carries("the weights of the model from which training starts")
    confidence: float = carries("the least confidence of a label that the common model adds")


@dataclass(frozen=True)
class Taught:
    """The site has annotated its text; what was found stays there."""

    pseudo: int = carries(
        "entities that the model from which training starts annotated", value=Value(least=0)
    )


@dataclass(frozen=True)
class Weigh:
    """Give the gradient that these weights' pseudo-labels cause on your text."""

    weights: Arrays = carries("the common weights")
    shared: str = carries("the parameter whose gradient compares rows", rule="varies")
    config: protocol.TrainConfig = carries("how a site trains")
    confidence: float = carries("the least confidence of a label that the common model adds")
    fixed: bool = carries(FIXED)


@dataclass(frozen=True)
class Weighed:
    """The target gradient of Eq. 11, of all training rows together."""

    slope_G: NDArray[np.float32] = carries(
        "gradient of the target loss by the shared parameter",
        value=Learnt(
            least=-MOST,
            largest=MOST,
            shape=lambda ask: (ask.weights[ask.shared].size,),
            combined=False,  # each site subtracts its own part from the sum
            slack=4.0,
            lane=(8, 2.0**30),
        ),
    )


@dataclass(frozen=True)
class Complete(Train):
    """Annotate the labels that you lack with these weights, and train from them."""

    distil: bool = carries("whether the common model annotates the types that the site lacks")
    confidence: float = carries("the least confidence of a label that the common model adds")
    fixed: bool = carries(FIXED)
    slope_G: NDArray[np.float32] = carries(
        "sum of all sites' target gradients; empty: no weighting"
    )
    kept: float = carries("alpha: the share of its old value that an instance weight keeps")
    centred: bool = carries("whether a site's instance weights are shifted to a mean of 1")


@dataclass(frozen=True)
class Completed(Update):
    """The result of training, multiplied by the site's weight."""

    own: int = carries("entities or relations that the site annotated", value=Value(least=0))
    pseudo: int = carries(
        "entities or relations that the common model annotated",
        value=Value(least=0, largest=lambda ask: MOST if ask.distil else 0),
    )


# --- a site's text --------------------------------------------------------------------------------


def _annotated(
    site_model: protocol.SiteModel,
    memory: Counting[F],
    ask: Weigh | Complete,
    *,
    distil: bool = True,
    round: int,
) -> protocol.CompleteText:
    """The training text with its own annotation and, if it distils, a model's as well (3.2).

    The common model's is made once per round, if both steps of the round say the same; a fixed
    teacher's once. Raises Refusal if the latter has not annotated this text.
    """
    fixed, cache = distil and ask.fixed, site_model.site.cache
    if fixed and not memory.labelled:
        raise Refusal("memory-missing")
    weights = ask.weights if distil and not fixed else None
    key = "teacher" if fixed else (round, digest_of_weights(weights or {}), ask.confidence)
    kept = cache.get("completing annotated")
    if kept is None or kept[0] != (site_model, key):
        if fixed:
            made = site_model.completed_with(memory.labels_N4)
        else:
            made = site_model.completed(weights, confidence=ask.confidence)
        kept = ((site_model, key), made)
        cache["completing annotated"] = kept
    found: protocol.CompleteText = kept[1]
    return found


def _pulls(
    site_model: protocol.SiteModel, memory: Counting[F], ask: Weigh | Complete, *, round: int
) -> Pulls:
    """The gradients of every training row under the round's weights, made once.

    The target is zero if fewer rows have one than a gradient must cover.
    """
    encoded = _annotated(site_model, memory, ask, round=round).encoded
    key = (site_model, round, ask.config)
    kept = site_model.site.cache.get("completing slopes")
    if kept is None or kept[0] != key or kept[1] is not encoded:
        found = site_model.row_gradients(ask.weights, ask.config, encoded)
        if not covered(found.rows):  # too few rows have a target for its gradient to leave
            found = found._replace(target_G=np.zeros_like(found.target_G))
        kept = (key, encoded, found)
        site_model.site.cache["completing slopes"] = kept
    pulls: Pulls = kept[2]
    return pulls


# --- what a site answers --------------------------------------------------------------------------


def teach(
    site: Site, memory: Counting[F] | None, ask: Teach[F], turn: Turn
) -> tuple[Taught, Counting[F]]:
    """Annotate the training text with the fixed teacher; what it finds stays here."""
    memory = known(memory)
    labels = memory.form.labels
    if not {*ask.form.labels} <= {*labels}:
        raise Refusal("bad-ask")
    spotted = ask.form.at(site).spotted(ask.teacher, confidence=ask.confidence)
    rows = [
        (number, start, end, labels.index(kind))
        for number, found in enumerate(spotted)
        for start, end, kind in found
    ]
    memory.form.at(site)  # the site model of the process again
    labels_N4 = np.array(rows, np.int32).reshape(len(rows), 4)
    return Taught(len(rows)), replace(memory, labelled=True, labels_N4=labels_N4)


def weigh(
    site: Site, memory: Counting[F] | None, ask: Weigh, turn: Turn
) -> tuple[Weighed, Counting[F]]:
    """Give the target gradient; those of single rows stay here (Algorithm 2)."""
    memory = known(memory)
    if site.guards.keeps(ask.shared):
        raise Refusal("private-part")
    pulls = _pulls(memory.form.at(site), memory, ask, round=turn.round)
    return Weighed(pulls.target_G), memory


def complete(
    site: Site, memory: Counting[F] | None, ask: Complete, turn: Turn
) -> tuple[Completed, Counting[F]]:
    """Update the instance weights, and train on the pseudo-complete annotation."""
    memory = known(memory)
    site_model = memory.form.at(site)
    annotated = _annotated(site_model, memory, ask, distil=ask.distil, round=turn.round)
    after = _reweighed(site_model, memory, ask, round=turn.round) if ask.slope_G.size else memory
    site.cache.pop("completing slopes", None)
    each_S = counting(after.instance_weights_S, centred=ask.centred) if after.weighed else None
    config, memory_after = protocol.resuming(after, ask.config)
    fitted = site_model.fit(
        ask.weights, config, seed=turn.seed, encoded=annotated.encoded, each_S=each_S
    )
    after = memory_after()
    found = weighed(site_model, ask, fitted)
    return Completed(**vars(found), own=annotated.own, pseudo=annotated.pseudo), after


def score_apart(
    site: Site, memory: Counting[F] | None, ask: protocol.Score, turn: Turn
) -> tuple[protocol.S, Counting[F]]:
    """Count what the common model gets right on the site's held-out text.

    Labels that nobody annotated in that text are not counted: a find may be right.
    """
    memory = known(memory)
    if ask.part not in protocol.HELD_OUT:
        raise Refusal("bad-ask")
    found: protocol.S = memory.form.at(site).scored(ask.weights, ask.part, apart=True)
    return found, memory


def _reweighed(
    site_model: protocol.SiteModel, memory: Counting[F], ask: Complete, *, round: int
) -> Counting[F]:
    """The memory with this round's instance weights (Eq. 12), from the other sites' gradient."""
    pulls = _pulls(site_model, memory, ask, round=round)
    before_S = memory.instance_weights_S
    if len(before_S) != len(pulls.source):
        before_S = np.ones(len(pulls.source), np.float32)
    most, own_G = site_model.site.guards.max_norm, pulls.target_G  # as it entered the sum
    own_G = own_G if most is None else bounded({"slope": own_G}, most)["slope"]
    others_G = ask.slope_G - own_G
    after_S = moved_weights(before_S, pulls.source, others_G=others_G, momentum=ask.kept)
    return replace(memory, instance_weights_S=after_S.astype(np.float32), weighed=round)


def moved_weights(
    before_S: NDArray[np.float32],
    source: RowGradients,
    *,
    others_G: NDArray[np.float32],
    momentum: float,
) -> NDArray[np.float32]:
    """Each row's weight w becomes α w + (1 - α) cos(g_i, g) (Eq. 12); `source` holds the g_i.

    A row without a source gradient keeps its weight; so do all rows if no other site has a target
    gradient.

    >>> from confide.training.examples import WholeGradients
    >>> source = WholeGradients(np.float32([[1, 0], [0, 0]]))
    >>> moved_weights(np.ones(2, np.float32), source,
    ...               others_G=np.float32([2, 0]), momentum=0.9).tolist()
    [1.0, 1.0]
    """
    both_S = source.norms_S() * float(np.linalg.norm(others_G.astype(np.float64)))
    moved_S = both_S > 0.0
    likeness_S = source.along_S(others_G)
    likeness_S[moved_S] /= both_S[moved_S]
    after_S = momentum * before_S.astype(np.float64) + (1 - momentum) * np.clip(likeness_S, -1, 1)
    kept_S: NDArray[np.float32] = np.where(moved_S, after_S, before_S).astype(np.float32)
    return kept_S


def counting(weights_S: NDArray[np.float32], *, centred: bool) -> NDArray[np.float32]:
    """The factors of the rows' losses: the instance weights, with negative ones set to 0.

    Maximising a loss is unbounded: the model would unlearn these rows for ever. If `centred`, the
    weights are first shifted to a mean of 1.

    >>> counting(np.float32([-0.5, 0.0, 0.5]), centred=True).tolist()
    [0.5, 1.0, 1.5]
    """
    if centred and weights_S.size:
        weights_S = weights_S - weights_S.mean() + np.float32(1)
    return np.maximum(weights_S, np.float32(0))


SCORE_APART = replace(Step.of(score_apart), name="score")
TEACH = Step.of(teach, summed=True)
WEIGH = Step.of(weigh, summed=True)
COMPLETE = Step.of(complete, summed=True)


class PseudoCompleteSettings(OptionsTable):
    """The method's own settings: the table `[options]`.

    `distil`: pseudo-annotation (3.2), where the common model's confidence is at least `confidence`
    (the paper: whatever it finds). `teacher`: the common model of each round, or that from which
    training starts, in all rounds. `instance_weights` (3.3) move by `1 - momentum` a round; if
    `centred`, each site shifts them to a mean of 1 before use, so that they choose among sentences
    but do not change how much a site's own annotation counts. `weighting`: how the mean weighs
    sites (the paper: equally). `rows`: whether a word's row is averaged over all sites, or over
    those whose text has it, as under fedavg.
    """

    distil: bool = True
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    teacher: Literal["common", "start"] = "common"
    instance_weights: bool = True
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    centred: bool = False
    warmup_rounds: Annotated[int, Field(ge=0)] = 1
    weighting: Literal["equal", "examples", "sentences"] = "equal"
    rows: Literal["all", "seen"] = "all"

    @property
    def fixed(self) -> bool:
        """True if the model from which training starts annotates."""
        return self.distil and self.teacher == "start"

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if there is no model to annotate, or it finds no entities."""
        if not self.fixed:
            return
        if TASKS[run.task].learns != "entities":
            raise SettingsError(
                'only entities are annotated by a fixed teacher (options.teacher = "start")',
                expected="a kind of model that finds entities",
                got=f"model.kind = {run.kind!r}",
                fix='set options.teacher = "common"',
            )
        if not run.start_from:
            raise SettingsError(
                'options.teacher = "start" is the model from which training starts, and there is'
                " none",
                expected="start_from, the folder of a finished run",
                got="no start_from",
                fix='name it, or set options.teacher = "common"',
            )


@dataclass(frozen=True)
class CompleteState(State[F], Generic[F]):
    """The server's state from round to round, and the size of the whole model."""

    parameters: int = carries("number of parameters of the whole model", start=int)


class PseudoComplete(FedAvg):
    """The method: `start` agrees on the types, `round` annotates, weighs and trains."""

    name: ClassVar[str] = "pseudo-complete"
    kinds: ClassVar[tuple[str, ...]] = ON_ANNOTATION
    steps: ClassVar[tuple[Step, ...]] = (protocol.TAKE, TEACH, WEIGH, COMPLETE, SCORE_APART)
    Settings: ClassVar[type[OptionsTable]] = PseudoCompleteSettings
    State: ClassVar[type] = CompleteState
    traits: ClassVar[frozenset[Trait]] = frozenset({"apart"})

    def start(self, federation: Federation) -> CompleteState[ModelSpec]:
        """Agree on the types and the form of the model, and draw its first weights."""
        state: CompleteState[ModelSpec] = super().start(federation)
        idle = self._teach(state, federation) if self.options.fixed else state.idle
        return replace(state, idle=idle, parameters=state.form.parameters(state.weights))

    def entry(self, state: Any) -> tuple[Step, object] | None:
        """The form; none where the sites were taught at the start."""
        return None if self.options.fixed else super().entry(state)

    def _teach(self, state: CompleteState[ModelSpec], federation: Federation) -> list[str]:
        """Have the sites annotate with the model from which training starts; gives the idle ones.

        Those that could not are among them. Raises SettingsError if that model is of other
        settings than this run: no site would take it.
        """
        assert self._start is not None
        ask = Teach(self._start.form, self._start.weights, self.options.confidence)
        try:
            check_expected(ask, self.expects(TEACH.name, 0))
        except Refusal as error:
            name = (error.detail or "").removeprefix("form.")
            raise SettingsError(
                "the model from which training starts cannot teach: it has other settings",
                where=self._start.where,
                expected=f"{name} as in the settings of this run",
                got=f"{getattr(self._start.form, name, None)!r}",
                fix='set what that run has, or options.teacher = "common"',
            ) from error
        sites = [site for site in federation.sites if site not in state.idle]
        step = self.step(TEACH.name)
        federation.sum(step, ask, round=0, sites=sites)
        return sorted({*state.idle, *sites} - {*federation.answered(sites, step, round=0)})

    def fields(self, n: int) -> dict[str, object]:
        """Add to FedAvg's fields how the text is completed and weighed."""
        own = self.options
        return train_fields(self, weighting=own.weighting, rows=own.rows) | self._completing(n)

    def _completing(self, n: int) -> dict[str, Any]:
        """The fields that say how a round completes the text and weighs its rows."""
        own = self.options
        return {
            "distil": own.fixed or (own.distil and n > own.warmup_rounds),
            "confidence": own.confidence,
            "fixed": own.fixed,
            "kept": own.momentum,
            "centred": own.centred,
        }

    def round(
        self, state: CompleteState[ModelSpec], federation: Federation, n: int
    ) -> tuple[CompleteState[ModelSpec], Facts]:
        """One turn of Algorithm 1: instance weights, pseudo-complete annotation, training, mean."""
        own = self.options
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, {**facts, "own": 0, "pseudo": 0}
        train, learnt = train_ask(self, state, n), n > own.warmup_rounds
        slope_G = np.zeros(0, np.float32)
        if own.distil and own.instance_weights and learnt:
            weigh = Weigh(state.weights, _shared(state), train.config, own.confidence, own.fixed)
            weighed = federation.sum(WEIGH, weigh, round=n, sites=sites)
            slope_G = weighed.slope_G.astype(np.float32)
            # a site that is not in the sum cannot subtract its own part
            sites = federation.answered(sites, WEIGH, round=n)
        ask = Complete(**vars(train), **self._completing(n), slope_G=slope_G)
        total = federation.sum(COMPLETE, ask, round=n, sites=sites)
        mean = mean_of(total, state.weights)
        facts |= {
            "loss": total.loss / total.weight,
            "sites": sites,
            "sentences": total.examples,
            "own": total.own,
            "pseudo": total.pseudo,
            "share": sum(array.size for array in mean.values()) / state.parameters,
        }
        return replace(state, weights=mean), facts


def _shared(state: CompleteState[ModelSpec]) -> str:
    """The name of the parameter whose gradient compares rows."""
    return next(name for name in state.weights if name.endswith(state.form.slope))
