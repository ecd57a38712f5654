"""FedAvg: sites train from the common weights, and the server averages the results.

McMahan, Moore, Ramage, Hampson & Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1. For a tagger it is the method of Luboshnikov &
Makarov, "Federated Learning in Named Entity Recognition", AIST 2020 (doi
10.1007/978-3-030-71214-3_8); for relations and bags the baseline of Sui et al. 2020 and 2021.

What leaves a site: its kind's description of the text at the start (`confide.kinds`); its number of
training examples; its trained weights, of which the server keeps only the sum; counts of right,
predicted and gold answers.
What never leaves: text, words, predictions, the key.
What weights may still reveal: they are a function of the text. Changed rows of a word table show
which digests occur at a site; those of a table of word pieces show which pieces do, in the clear.
Rows that start from a public vector file can be recognised by their neighbours, whatever the digest
hides. See docs/methods/fedavg.md.

Where we differ from the papers or decide what they leave open:
- the learning rate decays by the global round, not by the local epoch; each site's optimiser starts
  afresh each round at that rate, and momentum is not carried over;
- `weighting`: how much a site's weights count, `"equal"` or by its training `"examples"`; by
  default, taggers, encoders and LightNER count equally (Luboshnikov & Makarov), others by examples;
- `server`: the server may take a step of its own towards the mean, and `proximal` holds each site's
  training to its start (FedProx); with neither, this is FedAvg, bit for bit;
- `rows = "seen"` averages the row of a word or character over the sites whose text has it, and that
  of a relation over the sites that annotate it. With the plain mean (`"all"`, the default) a word
  that one site in ten has moves by a tenth of what that site learnt; the server already knows from
  the counts who has which word, and from the names who annotates what;
- word vectors from a file: each site reads its own copy and fills in the rows that it knows in the
  first round; all sites need the same file, and the rows stay trainable;
- a site without training text is not asked to train;
- a public set is not used: its text is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import Extractor
from confide.kinds.protocol import (
    SCORE,
    TAKE,
    F,
    Fitted,
    K,
    Kept,
    Kind,
    ModelSpec,
    Score,
    SiteModel,
    State,
    Take,
    TrainConfig,
    fitted_on,
    train_config,
)
from confide.kinds.steps import Start, first_weights, no_tables, scores_from, settle
from confide.seeds import derive_seed
from confide.settings import Settings as RunSettings
from confide.settings import Table, own_settings
from confide.tasks import Counts
from confide.text.document import Document
from confide.training.optimisers import Server, ServerStep, stepped

Weighting = Literal["equal", "examples", "sentences"]
"""The weight of a site in a mean; `sentences` is a synonym of `examples`."""

Carried = State[ModelSpec]
"""The state that every method carries from round to round, of whichever kind."""
Latest = Callable[[], Any]
"""Loads what a site remembers; None if it remembers nothing."""
Facts = dict[str, Any]
"""Entries of a round in the history."""


class ServerTable(Table):
    """Settings of the server's step towards the mean (`confide.training.optimisers`).

    Its rate (default: 1, and 0.01 for adam and yogi) is multiplied by `server_decay` after every
    round; then its momentum β and, for adam and yogi, β₂ of the squares and the floor τ.
    """

    server: Server = "mean"
    server_rate: Annotated[float, Field(gt=0)] | None = None
    server_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_squares: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_floor: Annotated[float, Field(gt=0)] = 1e-3

    def step(self, round: int) -> ServerStep:
        """Return the server's step after a round."""
        step = ServerStep(
            self.server, 1.0, self.server_momentum, self.server_squares, self.server_floor
        )
        rate = self.server_rate or (0.01 if step.adaptive else 1.0)
        return replace(step, rate=rate * self.server_decay ** (round - 1))


class FedAvgSettings(ServerTable):
    """The table `[options]`: `weighting` is the kind's by default, `proximal` FedProx's μ."""

    weighting: Weighting | None = None
    rows: Literal["all", "seen"] = "all"
    proximal: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True)
class FedAvgState(State[F], Generic[F]):
    """The server's state from round to round: the weights, and the means of its own steps."""

    moments: Arrays = carries("the server's running means of the change", start=dict)
    squares: Arrays = carries("the server's running means of its square", start=dict)


@dataclass(frozen=True)
class Train:
    """Train from these weights."""

    weights: Arrays = carries("the common weights")
    config: TrainConfig = carries("how a site trains")
    weighting: str = carries("what a site's weights are multiplied by: equal (1) or its examples")
    tables: list[str] = carries(
        "tables whose rows count only if the site has what they stand for", rule="varies"
    )


@dataclass(frozen=True)
class Update:
    """The result of a site's training, multiplied by the site's weight."""

    weights: Arrays = carries(
        "trained weights, times the site's weight in the mean; of tables only changed rows",
        value=Learnt(like="weights", weight="weight", weighting="weighting", rows="seen"),
    )
    weight: float = carries("the site's weight in the mean")
    seen: dict[str, NDArray[np.float32]] = carries(
        "the same weight for each row whose word or relation the site has; only if rows = seen",
        legend="V",
        value=Value(
            shape=lambda ask: {
                name: ask.weights[name].shape[:1] for name in ask.tables if name in ask.weights
            }
        ),
    )
    loss: float = carries("mean training loss per example, times the weight")
    examples: int = carries("examples trained on, over all epochs", value=Value(least=1))


def train(site: Site, memory: K | None, ask: Train, turn: Turn) -> tuple[Update, K]:
    """Train the common model on the site's own text for some epochs."""
    memory = known(memory)
    desk = memory.form.at(site)
    fitted, memory = fitted_on(
        memory, ask.config, lambda config: desk.fit(ask.weights, config, seed=turn.seed)
    )
    return trained_reply(desk, ask, fitted), memory


def trained_reply(desk: SiteModel, ask: Train, fitted: Fitted) -> Update:
    """The result of training at a site model, weighted as the ask says."""
    rows = desk.rows_seen(ask.config) if ask.tables else {}
    weight = float(desk.size) if ask.weighting == "examples" else 1.0
    return reply_of(fitted, weight, seen={name: rows[name] for name in ask.tables})


def reply_of(fitted: Fitted, weight: float, *, seen: Arrays | None = None) -> Update:
    """The result of training, times the site's weight; `seen` is 1 for each row that counts."""
    weights, own = fitted.weights, seen or {}
    if weight != 1.0:
        weights = {name: array * np.float32(weight) for name, array in weights.items()}
    for name, seen_V in own.items():
        weights[name] *= seen_V.reshape(-1, *[1] * (weights[name].ndim - 1))
        seen_V *= np.float32(weight)
    return Update(weights, weight, own, fitted.loss * weight, fitted.examples)


def mean_of(total: Update, before: Arrays) -> Arrays:
    """The weighted mean of the sites' weights; a row that no site has seen stays as it was.

    It takes the total's weights apart: of a large model, sums and means are not held together.
    """
    mean = {}
    for name in list(total.weights):
        sums = total.weights.pop(name)
        if name in total.seen:
            seen_V = total.seen[name].reshape(-1, *[1] * (sums.ndim - 1))
            sums = np.where(seen_V > 0, sums / np.maximum(seen_V, 1e-9), before[name])
        else:
            sums = sums / total.weight
        mean[name] = sums.astype(np.float32)
    return mean


TRAIN = Step.of(train, summed=True)


class FedAvg:
    """The method: `start` agrees on the model, `round` averages the sites' trained weights."""

    method: ClassVar[str] = "fedavg"
    own_steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN, SCORE)
    Settings: ClassVar[type] = FedAvgSettings
    State: ClassVar[type] = FedAvgState
    Memory: ClassVar[type] = Kept
    personal: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    public: ClassVar[bool] = False
    private: ClassVar[bool] = False
    steps_alone: ClassVar[bool] = False
    kind: ClassVar[Kind]
    steps: ClassVar[tuple[Step, ...]]

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._start: Start | None = None
        self.drawn_from: int | None = None
        self._own: Any = own_settings(self.Settings, settings.options)
        self.kind.check(settings, public=self.public)

    def begin_with(self, start: Start | None) -> None:
        """Let round 1 begin with a trained model; None: with weights drawn from the seed."""
        self._start = start

    def start(self, federation: Federation) -> Any:
        """Agree on the model, hand out its form, and draw the first weights."""
        step = self._step(TAKE)
        agreed, _, idle = settle(self._run, federation, self.kind, step=step, ask=self._given)
        if self._rows == "seen" and not agreed.form.tables():
            raise no_tables(self.kind.name)
        first = self._first(agreed.form, federation)
        return self.State(agreed.form, first, idle)

    def _first(self, form: ModelSpec, federation: Federation) -> Arrays:
        """The weights before round 1. Raises SettingsError if those to start from do not fit."""
        seed = derive_seed(federation.seed, "weights")
        self.drawn_from = seed if self._start is None else None
        return first_weights(form, seed=seed, start=self._start)

    def _given(self, form: ModelSpec) -> Take[ModelSpec]:
        """The ask that hands the agreed form to the sites."""
        return Take(form)

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train from the common weights; the mean of their results is the next state."""
        ask, sites, facts = self._drawn(state, federation, n)
        if not sites:
            return state, facts
        total = federation.sum(self._step(TRAIN), ask, round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.examples}
        weights, moments, squares = stepped(
            state.weights,
            mean_of(total, state.weights),
            how=self._own.step(n) if hasattr(self._own, "step") else ServerStep(),
            moments=state.moments,
            squares=state.squares,
        )
        return replace(state, weights=weights, moments=moments, squares=squares), facts

    def _drawn(
        self, state: Carried, federation: Federation, n: int
    ) -> tuple[Train, list[str], Facts]:
        """The ask of a round, the drawn sites that have text to train on, and the first facts."""
        drawn = federation.draw(self._run.federation.fraction, n)
        ask = self._ask(state, n)
        facts: Facts = {
            "loss": None,
            "learning_rate": ask.config.learning_rate,
            "sites": list(drawn),
            "sentences": 0,
        }
        return ask, [site for site in drawn if site not in state.idle], facts

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> dict[str, Counts]:
        """Every site's counts on its own held-out text."""
        ask = Score(state.weights, part)
        return scores_from(
            federation, self.kind, step=self._step(SCORE), ask=ask, round=round, form=state.form
        )

    def model(self, state: Carried, memory: Any) -> tuple[ModelSpec, Arrays]:
        """The common model, the same for all sites: its form and its weights."""
        return state.form, state.weights

    def extractor(
        self, state: Carried, memory: Any, *, key: bytes | None, encoder: str | None = None
    ) -> Extractor:
        """The trained model, ready for use; a keyed kind needs the key."""
        form, weights = self.model(state, memory)
        return form.extractor(weights, key=key, encoder=encoder)

    def at_home(self, n: int) -> TrainConfig:
        """Training settings for one pass of a site by itself, at the rate of round `n`.

        Where the server takes the adaptive steps, the site takes them.
        """
        config = replace(train_config(self._run, n), epochs=1, batches=0, keep=False)
        step = self._own.step(n) if hasattr(self._own, "step") else ServerStep()
        if step.adaptive:
            config = replace(config, optimiser="adam", learning_rate=step.rate)
        return config

    def sentence_weights(self, latest: Latest) -> tuple[int, NDArray[np.float32]] | None:
        """None: all sentences of a site count the same."""
        return None

    @property
    def _rows(self) -> str:
        return str(getattr(self._own, "rows", "all"))

    def _step(self, step: Step) -> Step:
        """This pair's version of the step."""
        return next(one for one in self.steps if one.name == step.name)

    @property
    def _weighting(self) -> str:
        """The factor of a site's weights."""
        weighting = getattr(self._own, "weighting", "equal")
        if weighting is None:
            weighting = self.kind.Spec.weighting
        return "equal" if weighting == "equal" else "examples"

    def _config(self, n: int) -> TrainConfig:
        """Training settings of a round."""
        return replace(train_config(self._run, n), proximal=getattr(self._own, "proximal", 0.0))

    def _ask(self, state: Carried, n: int) -> Train:
        """Make the ask of a round: training settings, and the weight of a site."""
        return Train(
            weights=state.weights,
            config=self._config(n),
            weighting=self._weighting,
            tables=list(state.form.tables()) if self._rows == "seen" else [],
        )

    def expects(self, step: str, n: int) -> dict[str, object]:
        """Fields of an ask of this step in round `n`, by name, as the settings prescribe them.

        A site compares what it is asked with it (`guards.check_expected`). What an ask has besides
        must be declared to vary.
        """
        own = self.kind.asked(self._run, public=self.public)
        if step in own:
            return dict(own[step])
        settled = self.kind.Spec.settled(self._run, public=self.public).items()
        found = {
            f"{place}.{name}": value for place in ("form", "public") for name, value in settled
        }
        found |= {f"config.{name}": value for name, value in vars(self._config(max(n, 1))).items()}
        found["weighting"] = self._weighting
        return found | ({"tables": []} if self._rows == "all" else {})
