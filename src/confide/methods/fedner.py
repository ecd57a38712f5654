"""FedNER: shared lower layers, private upper ones, and no need for a common tag set.

Ge, Wu, Wu, Qi, Huang & Xie, "FedNER: Privacy-preserving Medical Named Entity Recognition with
Federated Learning", arXiv 2003.09288.

Every site has its own tagger. The upper parts (BiLSTM and CRF) are private and learn only from the
site's text; the lower ones are shared. In every iteration each site draws a small batch, updates
its private parts itself and sends the gradient of the shared ones; the server updates these with
the weighted mean (Algorithm 1, Eq. 2).

What leaves a site: keyed digests of words and characters with counts, names of entity types,
numbers of sentences (once); the gradient of the shared parts, of which the server keeps only the
sum; counts of right, predicted and gold entities.
What never leaves: text, words, predictions, the key, the private parts.
What a gradient may still reveal: it is a function of one small batch. Its nonzero rows of the word
table are the words of that batch, by digest. See docs/methods/fedner.md.

Where we differ from the paper or decide what it leaves open:
- N_i is rounded by largest remainders, with at least one sentence for every site;
- a site's loss is the mean over its batch, so that Eq. 2 weighs a site only once;
- both sides use Adam (the paper's formulas show SGD, its settings say Adam): the server keeps its
  moments in its state, a site in its memory; the site bounds the gradient's norm (`clip`);
- the turn's seed draws the batch, of sentences of similar length, and dropout;
- `local_steps = s` (1 is the paper): a site takes s steps of Adam on all parts, with its own
  moments, and sends how far the shared parts moved; the server adds the weighted mean;
- zero rows of the update, those of words that the batch lacks, do not travel: the same numbers in
  fewer bytes. Under masks a zero costs as much as a number;
- `types = "common"` gives every site the union of all tag sets, so that the CRF can be shared too;
- each site adds word vectors from a file to the shared table, which then holds only what is learnt
  on top: vectors never travel, and all sites need the same file;
- each site keeps its tagger from the round that scored best on its own development text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.errors import FederationError, GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation, alike
from confide.federation.guards import MOST, Within
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import KINDS
from confide.kinds.protocol import F, Kept, ModelSpec, S, State, Taken, TrainConfig, shown
from confide.kinds.steps import compare_vectors, examples_of_all
from confide.methods.method import Facts, Method, OptionsTable, Trait, has_vectors
from confide.seeds import derive_seed
from confide.settings import Settings as RunSettings
from confide.tasks import TASKS
from confide.training.batches import check_covers
from confide.training.optimisers import AdamMoments, adam

# --- FedNER at a site
#
# The messages, and how a site answers.


@dataclass(frozen=True)
class Enrol(Generic[F]):
    """Take part: the common form, the private parts, and the tables that get word vectors."""

    form: F = carries("the form of the model")
    private: list[str] = carries("parts of the model that stay at the site", rule="varies")
    own_types: bool = carries("whether a site's types are its own or the common ones")
    tables: Arrays = carries("the shared word table at its start, if there is a vector file")


@dataclass(frozen=True)
class TakeShare:
    """Settings of training in each round, and the weight of its result."""

    batch_size: int = carries("examples that the site draws in each step", rule="min_batch")
    share: float = carries("the site's share of all training examples")
    total: int = carries(
        "training examples of all sites: batch_size is of all, and a site works out its own"
        " part; 0: batch_size and share are the site's own"
    )


@dataclass(frozen=True)
class ShareTaken:
    """The site agrees."""

    batch_size: int = carries("examples that the site draws in each step", rule="open")


@dataclass(frozen=True)
class Enrolled(Kept[F], Generic[F]):
    """A site's memory: its own form, the private parts and their moments, its best model."""

    private: list[str] = carries("parts of the model that stay here")
    batch_size: int = carries("examples that the site draws in each step")
    share: float = carries("the site's share of all training examples")
    lift_ids: dict[str, NDArray[np.int64]] = carries(
        "rows of each table that the site's vector file has", legend="K"
    )
    lift_rows: dict[str, NDArray[np.float32]] = carries(
        "their vectors, minus the table's start", legend="KD"
    )
    own: Arrays = carries("weights of the private parts")
    steps: int = carries("steps of Adam", start=int)
    means: Arrays = carries("Adam's running means of the gradient", start=dict)
    squares: Arrays = carries("Adam's running means of its square", start=dict)
    best_round: int = carries("the round that was best on the site's development text", start=int)
    best_score: float = carries("its score there", start=lambda: -2.0)
    best: Arrays = carries("weights of the whole model in that round", start=dict)

    def model(self, common: Arrays) -> tuple[F, Arrays]:
        """The form and weights of the model that the site kept, or has with these common parts."""
        return self.form, self.best or self.now(common)

    def now(self, common: Arrays) -> Arrays:
        """The site's model as it is now, with these common parts."""
        return lifted({**common, **self.own}, self)


@dataclass(frozen=True)
class Improve:
    """Take a step from these weights of the shared parts."""

    weights: Arrays = carries("weights of the shared parts")
    config: TrainConfig = carries("how a site trains")
    local_steps: int = carries("steps in a round; more than one: changes are sent, not gradients")


@dataclass(frozen=True)
class Improved:
    """The update of the shared parts, multiplied by the site's share of all sentences."""

    update: Arrays = carries(
        "gradient (or change) of the shared parts, times the share",
        value=Learnt(
            like="weights",
            change=True,
            weight="share",
            weighting="share",
            lane=(4, 64.0),
            # a gradient of one small batch, of a site with its own task: an honest one was seen
            # to be 32 times the median, so no ratio tells a lie from a hard batch
            slack=math.inf,
        ),
    )
    share: float = carries("the site's share of all training sentences")
    loss: float = carries("mean loss per sentence of the batch, times the share")
    sentences: int = carries("sentences in the batches")


@dataclass(frozen=True)
class ScoreOwn:
    """Score your held-out text."""

    weights: Arrays = carries("weights of the shared parts")
    select: str = carries("the score that selects a site's best model; last: the last round's")


def enrol(site: Site, memory: object, ask: Enrol[F], turn: Turn) -> tuple[Taken, Enrolled[F]]:
    """Make a model of the site's own form; the turn's seed draws its private parts."""
    if not set(site.guards.private) <= set(ask.private):
        raise Refusal("private-part")
    common: Any = ask.form
    form: F = common.own(site, ask.private, types=ask.own_types)
    site_model = form.at(site)
    vectors = site.files["vectors"] = site_model.vectors()
    site.draws = partial(_shared, site=site, form=common, private=ask.private)
    first = form.first(turn.seed, site=site)
    own = {name: array for name, array in first.items() if is_of(name, ask.private)}
    lift = site_model.lift()
    start = {**ask.tables, **own}
    mine = Enrolled(
        form,
        private=list(ask.private),
        batch_size=0,
        share=0.0,
        lift_ids={name: ids_K for name, (ids_K, _) in lift.items()},
        lift_rows={name: rows_KD - start[name][ids_K] for name, (ids_K, rows_KD) in lift.items()},
        own=own,
    )
    return Taken(shown(site, site_model.size), vectors), mine


def _shared(seed: int, *, site: Site, form: ModelSpec, private: Sequence[str]) -> Arrays:
    """The first weights of the shared parts."""
    first = form.first(seed, site=site)
    return {name: array for name, array in first.items() if not is_of(name, private)}


def take_share(
    site: Site, memory: Enrolled[F] | None, ask: TakeShare, turn: Turn
) -> tuple[ShareTaken, Enrolled[F]]:
    """Keep the batch size and share. Raises SmallBatchError if its batches would be too small."""
    mine = known(memory)
    batch_size, share = ask.batch_size, ask.share
    if ask.total:
        share = mine.form.at(site).size / ask.total
        if not 0 < share <= 1:
            raise Refusal("bad-ask")
        batch_size = max(1, round(ask.batch_size * share))
    check_covers(min(batch_size, mine.form.at(site).size))
    mine = replace(mine, batch_size=batch_size, share=share)
    return ShareTaken(ask.batch_size), mine


def improve(
    site: Site, memory: Enrolled[F] | None, ask: Improve, turn: Turn
) -> tuple[Improved, Enrolled[F]]:
    """Train on batches of the site's text; private parts are updated here (Algorithm 1)."""
    memory = known(memory)
    if ask.weights.keys() & memory.own.keys():
        raise Refusal("bad-ask")  # or the update of a private part would leave
    site_model = memory.form.at(site)
    config = replace(ask.config, batch_size=memory.batch_size)
    shared, own = ask.weights, memory.own
    moments = AdamMoments(memory.steps, memory.means, memory.squares)
    update: Arrays = {}
    losses, examples = [], 0
    for number in range(ask.local_steps):
        weights = lifted({**shared, **own}, memory)
        loss, slope, drawn = site_model.gradient(
            weights, config, seed=derive_seed(turn.seed, number)
        )
        losses.append(loss)
        examples += drawn
        moved = own if ask.local_steps == 1 else {**shared, **own}
        moved, moments = adam(
            moved,
            slope,
            moments=moments,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
        )
        own = {name: moved[name] for name in own}
        if ask.local_steps == 1:
            update = {name: slope[name] for name in shared}
        else:
            shared = {name: moved[name] for name in shared}
            update = {name: shared[name] - ask.weights[name] for name in shared}
    mine = replace(memory, own=own, **vars(moments))
    reply = Improved(
        update={name: memory.share * array for name, array in update.items()},
        share=memory.share,
        loss=memory.share * float(np.mean(losses)),
        sentences=examples,
    )
    return reply, mine


def score_own(
    site: Site, memory: Enrolled[F] | None, ask: ScoreOwn, turn: Turn
) -> tuple[S, Enrolled[F]]:
    """Count on the site's development text, and keep the model if it is the best yet there."""
    memory = known(memory)
    weights = memory.now(ask.weights)
    site_model = memory.form.at(site)
    counted: S = site_model.scored(weights, "dev")
    value = -1 / max(turn.round, 1)  # grows from round to round, and stays below every score
    if ask.select != "last":
        found = site_model.worth(counted, ask.select)
        value = value if found is None else found
    if value <= memory.best_score:
        return counted, memory
    kept = {name: array.copy() for name, array in weights.items()}
    return counted, replace(memory, best_round=turn.round, best_score=value, best=kept)


def test(
    site: Site, memory: Enrolled[F] | None, ask: ScoreOwn, turn: Turn
) -> tuple[S, Enrolled[F]]:
    """Count on the site's test text, with the model that the site kept."""
    memory = known(memory)
    form, weights = memory.model(ask.weights)
    return form.at(site).scored(weights, "test"), memory


def check_share(ask: TakeShare, reply: ShareTaken) -> None:
    """Raise GuardError if the site would draw batches of a different size."""
    if reply.batch_size != ask.batch_size:
        raise GuardError("batch_size must be the one that was asked for")


ENROL = Step.of(enrol)
TAKE_SHARE = Step.of(take_share, check=check_share)
IMPROVE = Step.of(improve, summed=True)
SCORE_OWN = replace(Step.of(score_own), name="score")
TEST_OWN = Step.of(test)


def is_of(name: str, parts: Sequence[str]) -> bool:
    """Return whether a parameter belongs to one of these parts of the model."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def lifted(weights: Arrays, memory: Enrolled[F]) -> Arrays:
    """The weights with the vectors of the site's file added to the word table."""
    tables = {}
    for name, ids_K in memory.lift_ids.items():
        table_VD = weights[name].copy()
        table_VD[ids_K] += memory.lift_rows[name]
        tables[name] = table_VD
    return {**weights, **tables}


ON_ANNOTATION = (
    *(name for name, kind in KINDS.items() if TASKS[kind.task].learns == "entities"),
    "relations",
)
"""The kinds that learn from annotation of entities, or of single pairs of them."""


class FedNERSettings(OptionsTable):
    """The method's own settings: the table `[options]`.

    `private` are parts of the model, by prefix of their parameters' names; by default those that
    the kind keeps private (for a tagger the BiLSTM and the CRF).
    """

    private: tuple[str, ...] | None = None
    types: Literal["own", "common"] = "own"
    local_steps: Annotated[int, Field(ge=1)] = 1

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError for steps that FedNER does not take."""
        if run.training.optimiser != "adam":
            raise SettingsError(
                "FedNER trains with Adam only",
                expected='training.optimiser = "adam"',
                got=repr(run.training.optimiser),
            )
        if run.training.optimiser_state != "reset":
            raise SettingsError(
                "FedNER always goes on from Adam's running means, those of private parts at the"
                " site and all others at the server",
                expected="no training.optimiser_state",
                got=repr(run.training.optimiser_state),
            )


@dataclass(frozen=True)
class FedNERState(State[F], Generic[F]):
    """The server's state from round to round: the shared parts and Adam's moments."""

    steps: int = carries("steps of Adam", start=int)
    means: Arrays = carries("Adam's running means of the gradient", start=dict)
    squares: Arrays = carries("Adam's running means of its square", start=dict)


class FedNER(Method):
    """The method: `start` enrols the sites, `round` is one iteration of Algorithm 1."""

    name: ClassVar[str] = "fedner"
    kinds: ClassVar[tuple[str, ...]] = ON_ANNOTATION
    steps: ClassVar[tuple[Step, ...]] = (ENROL, TAKE_SHARE, IMPROVE, SCORE_OWN, TEST_OWN)
    Settings: ClassVar[type[OptionsTable]] = FedNERSettings
    State: ClassVar[type] = FedNERState
    traits: ClassVar[frozenset[Trait]] = frozenset({"personal"})

    def start(self, federation: Federation) -> FedNERState[ModelSpec]:
        """Agree on the form, draw the shared weights, and enrol every site."""
        run = self.run
        agreed = self.kind.agree(run, federation)
        if self._start is not None:
            agreed = agreed._replace(form=agreed.form.with_labels_of(self._start.form))
        said: tuple[str, ...] | None = self.options.private
        private = list(agreed.form.private if said is None else said)
        head, own_types = agreed.form.head, self.options.types == "own"
        if head and head not in private and own_types:  # types shape a part that is shared
            own = {site: t for site, t in agreed.types.items() if agreed.sentences.get(site, 1)}
            compare_types(federation, own, step=self.kind.steps[0], head=head)
        first = self.first(agreed.form, federation)
        # of a kind's defaults, a model may lack one, such as a BiLSTM
        for part in set(private) - set(agreed.form.private):
            if not any(is_of(name, [part]) for name in first):
                raise SettingsError(
                    f"the model has no part {part!r} to keep private",
                    expected=", ".join(sorted({name.partition(".")[0] for name in first})),
                    got=part,
                )
        shared = {name: value for name, value in first.items() if not is_of(name, private)}
        words = {name: v for name, v in shared.items() if name == agreed.form.word_table}
        enrol = Enrol(
            agreed.form,
            private=private,
            own_types=own_types,
            tables=words if has_vectors(run) else {},
        )
        step = self.step(ENROL.name)
        taken = federation.ask(step, enrol, round=0, sites=agreed.sites)
        sizes = {site: taken[site].size for site in compare_vectors(federation, step, taken)}
        idle = sorted(site for site, size in sizes.items() if not size)
        sizes = {site: size for site, size in sizes.items() if size}
        if not sizes:
            raise FederationError("no site has any training text to learn from")
        if run.privacy is None:  # under noise no number depends on how much text a site has
            self._share_out(federation, sizes)
        return FedNERState(agreed.form, shared, idle)

    def entry(self, state: Any) -> None:
        """Take no site later: the sites' shares were dealt at the start."""

    def _share_out(self, federation: Federation, sizes: Mapping[str, int]) -> None:
        """Give every site its share and its part of a batch.

        Where no site's size may be seen, each works them out from the size of all together.
        """
        batch = self.run.training.batch_size
        asks: object
        if federation.summing is not None:
            total = examples_of_all(federation, sorted(sizes))
            asks = dict.fromkeys(sorted(sizes), TakeShare(batch, 0.0, total))
        else:
            total, batches = sum(sizes.values()), shares_of_batch(sizes, batch)
            asks = {site: TakeShare(batches[site], size / total, 0) for site, size in sizes.items()}
        federation.ask(TAKE_SHARE, asks, round=0)

    def round(
        self, state: FedNERState[ModelSpec], federation: Federation, n: int
    ) -> tuple[FedNERState[ModelSpec], Facts]:
        """Sites send gradients of the shared parts; the server steps along their mean (Eq. 2)."""
        own, config = self.options, self.config(n)
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        ask = Improve(weights=state.weights, config=config, local_steps=own.local_steps)
        total = federation.sum(IMPROVE, ask, round=n, sites=sites)
        mean = {n: (sums / total.share).astype(np.float32) for n, sums in total.update.items()}
        if own.local_steps == 1:
            weights, moments = adam(
                state.weights,
                mean,
                moments=AdamMoments(state.steps, state.means, state.squares),
                learning_rate=config.learning_rate,
                weight_decay=config.weight_decay,
            )
            state = replace(state, weights=weights, **vars(moments))
        else:
            moved = {name: state.weights[name] + change for name, change in mean.items()}
            state = replace(state, weights=moved)
        facts |= {"loss": total.loss / total.share, "sentences": total.sentences}
        return state, facts

    def fields(self, n: int) -> dict[str, object]:
        """The settings of enrolling and stepping; only bounds of a site's part of a batch."""
        own = self.options
        found: dict[str, object] = {
            "own_types": own.types == "own",
            "local_steps": own.local_steps,
            "select": self.run.select.by,
            "batch_size": Within(1, self.run.training.batch_size),
            "share": Within(0, 1),
            "total": Within(0, MOST),
        }
        return found if own.private is None else found | {"private": list(own.private)}

    def scoring(self, state: Any, part: str) -> tuple[Step, object]:
        """Each site scores its own tagger."""
        step = SCORE_OWN if part == "dev" else TEST_OWN
        return step, ScoreOwn(state.weights, self.run.select.by)


def shares_of_batch(sentences: Mapping[str, int], batch_size: int) -> dict[str, int]:
    """N_i = |S_i| / Σ|S_j| · N for each site: largest remainders, and at least 1.

    >>> shares_of_batch({"a": 600, "b": 300, "c": 1}, 64)
    {'a': 43, 'b': 21, 'c': 1}
    """
    total = sum(sentences.values())
    exact = {site: batch_size * count / total for site, count in sentences.items()}
    shares = {site: int(share) for site, share in exact.items()}
    left = batch_size - sum(shares.values())
    for site in sorted(exact, key=lambda site: (shares[site] - exact[site], site))[:left]:
        shares[site] += 1
    return {site: max(1, share) for site, share in shares.items()}


def compare_types(
    federation: Federation, types_by_site: Mapping[str, list[str]], *, step: Step, head: str
) -> None:
    """Leave out sites with other types than most sites; `head` is the part that depends on them.

    Raises FederationError if too few have the same.
    """
    sets = "; ".join(f"{site} has {', '.join(types)}" for site, types in types_by_site.items())
    alike(
        federation,
        {site: tuple(types) for site, types in types_by_site.items()},
        step=step,
        why=f"its tag set differs from that of the other sites, and {head} is shared",
        error=lambda _: FederationError(
            f"{head} depends on the tag set, and the sites' tag sets differ: {sets}",
            fix=f"put {head} into options.private, map the sites' tags to common ones, or give"
            ' every site all tags with options.types = "common"',
        ),
    )
