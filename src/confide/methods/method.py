"""A method, and its pair with a kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from confide.errors import SettingsError, together
from confide.federation.federation import Federation
from confide.federation.guards import Within
from confide.federation.messages import Arrays, class_of
from confide.federation.steps import Step
from confide.kinds import KINDS, protocol
from confide.kinds.protocol import ModelSpec, State
from confide.kinds.steps import Start, first_weights, scores_from, settle, steps_of
from confide.methods.noise import RunNoise, faults_of
from confide.seeds import derive_seed
from confide.settings import Settings as RunSettings
from confide.settings import Table, own_settings
from confide.tasks import Counts, TaskName
from confide.text.document import Document
from confide.training.optimisers import Server, ServerStep

if TYPE_CHECKING:
    from confide.kinds import Extractor

Trait = Literal["personal", "apart", "public"]
Carried = State[ModelSpec]
"""The state that every method carries from round to round, of whichever kind."""
Facts = dict[str, Any]
"""Entries of a round in the history."""


class OptionsTable(Table):
    """A method's own settings, the table `[options]`; by default nothing can be set."""

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if the other settings of a run are not those that it needs."""


class ServerTable(OptionsTable):
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


class Method(ABC):
    """One federated algorithm: what sites are asked, and rounds that read like the paper.

    A method says six things of itself, and writes up to five methods: `start`, `entry`, `round`,
    `fields` and `scoring`. All else follows from these and from the kind.

    Attributes:
        name: its name in settings.
        kinds: the kinds of models that it trains.
        steps: what it asks of sites; their functions' annotations declare messages and memory.
        Settings: its own settings, the table `[options]`.
        State: the message that the server carries from round to round.
        traits: "personal" if every site ends with a model of its own, part of which is only in its
            memory (whose `model` then gives it); "apart" if sites each annotate only some of the
            types; "public" if it needs a public set.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    steps: ClassVar[tuple[Step, ...]]
    Settings: ClassVar[type[OptionsTable]] = OptionsTable
    State: ClassVar[type] = State
    traits: ClassVar[frozenset[Trait]] = frozenset()

    def __init__(
        self, pair: Pair, run: RunSettings, *, public: Sequence[Document], start: Start | None
    ) -> None:
        self.pair, self.kind, self.run, self.public = pair, pair.kind, run, public
        self.options: Any = own_settings(self.Settings, run.options)
        self._start = start
        self.kind.check(run, public=pair.public)
        self.options.check(run)

    # --- what a method says -----------------------------------------------------------------

    def start(self, federation: Federation) -> Any:
        """The first state: agree on the model, hand out its form, and draw the first weights."""
        public = self.public if self.pair.public else None
        agreed, _, idle = settle(
            self.run,
            federation,
            self.kind,
            step=self.step("take"),
            public=public,
            start=self._start,
            ask=protocol.Take,
        )
        return self.State(agreed.form, self.first(agreed.form, federation), idle)

    def entry(self, state: Any) -> tuple[Step, object] | None:
        """The step and ask that give a site which missed the start what the others were given.

        None if the method takes no site later.
        """
        return self.step("take"), protocol.Take(state.form)

    @abstractmethod
    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """The next state, and the round's facts for the history."""

    def fields(self, n: int) -> dict[str, object]:
        """Fields of the asks of round `n` that follow from the settings, by name.

        A site works them out as well, and refuses an ask with others (`guards.check_expected`). A
        field of an ask that is not here, and no array, is declared to vary. Those that begin with
        `config.` change how a site trains.
        """
        return {}

    def scoring(self, state: Any, part: str) -> tuple[Step, object]:
        """The step and ask with which sites score their own `part` ("dev" or "test")."""
        return protocol.SCORE, protocol.Score(state.weights, part)

    # --- what follows -----------------------------------------------------------------------

    def step(self, name: str) -> Step:
        """The step of this name, with the kind's messages."""
        return next(one for one in self.pair.steps if one.name == name)

    def first(self, form: ModelSpec, federation: Federation) -> Arrays:
        """The weights before round 1. Raises SettingsError if those to start from do not fit."""
        seed = derive_seed(federation.seed, "weights")
        return first_weights(form, seed=seed, start=self._start)

    def first_drawn(self, federation: Federation) -> int | None:
        """The seed from which the first weights were drawn, and sites may draw them too, if any."""
        return derive_seed(federation.seed, "weights") if self._start is None else None

    def config(self, n: int) -> protocol.TrainConfig:
        """Training settings of round `n`."""
        own = {
            name.removeprefix("config."): value
            for name, value in self.fields(n).items()
            if name.startswith("config.") and not isinstance(value, Within)
        }
        found: protocol.TrainConfig = replace(protocol.train_config(self.run, n), **own)  # type: ignore[arg-type]
        return found

    def config_alone(self, n: int) -> protocol.TrainConfig:
        """Training settings for one pass of a site by itself, at the rate of round `n`.

        Where the server takes the adaptive steps, the site takes them.
        """
        config = replace(protocol.train_config(self.run, n), epochs=1, batches=0, keep=False)
        if isinstance(self.options, ServerTable) and self.options.step(n).adaptive:
            rate = self.options.step(n).rate
            config = replace(config, optimiser="adam", learning_rate=rate)
        return config

    def drawn(self, state: Carried, federation: Federation, n: int) -> tuple[list[str], Facts]:
        """The drawn sites of a round that have text to train on, and the first facts.

        Under noise all sites are drawn.
        """
        drawn = (
            federation.sites
            if self.pair.private
            else federation.draw(self.run.federation.fraction, n)
        )
        facts: Facts = {
            "loss": None,
            "learning_rate": self.config(n).learning_rate,
            "sites": list(drawn),
            "sentences": 0,
        }
        return [site for site in drawn if site not in state.idle], facts

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> Mapping[str, Counts]:
        """Every site's counts on its own held-out text; nothing where that is closed."""
        if closed(self.run):
            return {}
        step, ask = self.scoring(state, part)
        own = self.step(step.name)
        return scores_from(federation, self.kind, step=own, ask=ask, round=round, form=state.form)

    def expects(self, step: str, n: int) -> dict[str, object]:
        """Every field of an ask of this step in round `n` that follows from the settings."""
        own = self.kind.asked(self.run, public=self.pair.public)
        if step in own:
            return dict(own[step])
        settled = self.kind.Spec.settled(self.run, public=self.pair.public).items()
        found = {
            f"{place}.{name}": value for place in ("form", "public") for name, value in settled
        }
        n = max(n, 1)
        found |= {f"config.{name}": value for name, value in vars(self.config(n)).items()}
        return found | self.fields(n)

    @cached_property
    def plan(self) -> RunNoise:
        """The noise of a method under noise."""
        return RunNoise.of(self.run)


def has_vectors(run: RunSettings) -> bool:
    """True if sites fill in rows of a word table from a file in the first round."""
    return bool(run.model.vectors or any(site.vectors for site in run.site))


def closed(run: RunSettings) -> bool:
    """True if no site says anything of its held-out text."""
    return run.privacy is not None and run.privacy.holdout_scores == "withheld"


@dataclass(frozen=True)
class Pair:
    """A method with a kind of model; the kind's form fills the method's messages and state.

    Called with settings, it gives the method as it is run.
    """

    of: type[Method]
    kind: protocol.Kind

    @property
    def method(self) -> str:
        """The method's name."""
        return self.of.name

    @property
    def name(self) -> str:
        """METHOD-KIND."""
        return f"{self.of.name}-{self.kind.name}"

    @property
    def task(self) -> TaskName:
        """The kind's task."""
        return self.kind.task

    @property
    def wants_public(self) -> bool:
        """True if models of the kind can learn from a public set, so settings may name one.

        A method without use for it leaves that text out.
        """
        return self.kind.Spec.Public is not None

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The kind's steps, and the method's with the kind's messages."""
        return steps_of(self.kind, self.of.steps, public=self.public)

    @cached_property
    def State(self) -> type:  # noqa: N802
        """The state's message."""
        return self._filled(self.of.State)

    @cached_property
    def Memory(self) -> type:  # noqa: N802
        """The message of a site's memory: that of the steps which remember most."""
        kept = [class_of(one.memory) for one in self.of.steps if one.memory is not None]
        own = [one for one in kept if issubclass(one, protocol.Kept)]
        return self._filled(max(own, key=lambda one: len(one.__mro__), default=protocol.Kept))

    def _filled(self, message: Any) -> type:
        types = (self.kind.Spec, self.kind.Spec.Public or object)
        filled: type = message[types[: len(message.__parameters__)]]
        return filled

    @property
    def keyed(self) -> bool:
        """True if only holders of the sites' key can use the model."""
        return self.kind.keyed and not self.public

    @property
    def personal(self) -> bool:
        """True if every site ends with a model of its own."""
        return "personal" in self.of.traits

    @property
    def apart(self) -> bool:
        """True if sites each annotate only some of the types."""
        return "apart" in self.of.traits

    @property
    def public(self) -> bool:
        """True if the method needs a public set."""
        return "public" in self.of.traits

    @property
    def private(self) -> bool:
        """True if the model is trained under noise, as `[privacy]` says."""
        return any(step.noisy for step in self.of.steps)

    @property
    def steps_alone(self) -> bool:
        """True if sites step under noise by themselves, and nobody else's noise hides anything."""
        return any(step.noisy and not step.wraps for step in self.of.steps)

    @property
    def sees_each(self) -> bool:
        """True if the server has to read what each site learnt, which masks would hide from it."""
        learnt = [step.summed for step in self.steps if step.learnt is not None]
        return bool(learnt) and not any(learnt)

    def __call__(
        self, settings: RunSettings, public: Sequence[Document] = (), *, start: Start | None = None
    ) -> Method:
        """The method as these settings run it; round 1 begins with `start`, a trained model.

        Raises SettingsError with all that is wrong.
        """
        if self.sees_each and settings.sharing.sums == "masked":
            raise SettingsError(
                f"under {self.method} the server has to read what each site learnt, and masks let"
                " it read only sums",
                expected='federation.sums = "plain"',
                got='"masked"',
                fix="use a method whose sums suffice, such as fedavg or feded; or set"
                " federation.sums to plain, and at each real site masked = false in [guards]",
            )
        if not self.private:
            return self.of(self, settings, public=public, start=start)
        faults = faults_of(settings, alone=self.steps_alone)
        try:
            made = self.of(self, settings, public=public, start=start)
        except SettingsError as error:
            faults.insert(0, error)
        if len(faults) > 1:
            plan = "`confide privacy plan SETTINGS --epsilon 8` proposes what is missing, and why"
            faults.append(SettingsError(plan))
        if faults:
            raise together(faults)
        return made

    def model(self, state: Any, memory: Any) -> tuple[ModelSpec, Arrays]:
        """The trained form and weights; `memory` is the site's if the method is personal."""
        if not self.personal:
            return state.form, state.weights
        found: tuple[ModelSpec, Arrays] = memory.model(state.weights)
        return found

    def extractor(
        self, state: Any, memory: Any, *, key: bytes | None, encoder: str | None = None
    ) -> Extractor:
        """The trained model, which reads documents and returns them annotated.

        A keyed kind needs the key.
        """
        form, weights = self.model(state, memory)
        found: Extractor = form.extractor(weights, key=key, encoder=encoder)
        return found
