"""What a method may ask of a kind of model, and the two steps that all pairs share.

A *kind* is one model for one task. Its *form* is a message that the sites agree on at the start: it
gives the first weights, and at a site a *desk*, which has the site's text as numbers and the one
model of the process. Methods speak to forms and desks; what a tag, a bag or a word piece is, only
the kind knows.

`F` stands for a kind's form, `S` for its reply to `score` and `P` for its public examples: the
messages of a method leave these open, and `steps_of` puts a kind's in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from confide.errors import FederationError, GuardError, SettingsError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries, encode
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.how import How
from confide.kinds.releases import Holders
from confide.kinds.trained import Trained
from confide.settings import Settings as RunSettings
from confide.tasks import Counts, TaskName
from confide.text.document import Document

HELD_OUT = ("dev", "test")
"""The parts of a site's text that can be scored."""


class Fitted(NamedTuple):
    """What training came to.

    `loss` is the mean loss of an example in the last epoch; `examples` counts what was trained on,
    over all epochs.
    """

    weights: Arrays
    loss: float
    examples: int


class Desk(Protocol):
    """A kind at a site: its text as numbers, made once, and the one model of the process."""

    @property
    def size(self) -> int:
        """How many training examples the site has: its weight in a mean, where sites have one."""
        ...

    def check(self) -> None:
        """Raise Refusal where the site's text does not fit the form, or its own guards forbid."""
        ...

    def vectors(self) -> str:
        """A keyed check value of the site's file of word vectors; empty without one."""
        ...

    def fit(self, weights: Arrays, how: How, *, seed: int) -> Fitted:
        """Train from these weights on the site's own text. Raises Refusal where there is none."""
        ...

    def rows_seen(self) -> Arrays:
        """Of every table of the form: 1 for each row whose word the site's text has, else 0."""
        ...

    def scored(self, weights: Arrays, part: str) -> Any:
        """The counts of these weights on a part of the held-out text: the kind's `Scored`."""
        ...


class Form(Protocol):
    """What a model is, but for its weights; a message."""

    def first(self, seed: int) -> Arrays:
        """The weights before round 1, of what is trained: they alone travel."""
        ...

    def tables(self) -> Sequence[str]:
        """The arrays that have a row for each word or character of a common vocabulary."""
        ...

    def at(self, site: Site) -> Desk:
        """The desk of this form at a site; the same one as long as the form is."""
        ...

    def extractor(self, weights: Arrays, *, key: bytes | None, encoder: str | None = None) -> Any:
        """What a trained model is for who has it; `encoder` is where its public files lie."""
        ...


class PublicSet(Protocol):
    """Text that the server and all sites may read, without what is annotated there; a message.

    `name` is a number from its content.
    """

    @property
    def name(self) -> int:
        """A number from the content."""
        ...

    @property
    def rows(self) -> int:
        """How many things a model predicts there, each a class; the same at every place."""
        ...

    def check(self) -> None:
        """Raise Refusal where it contradicts itself, or is too large."""
        ...


F = TypeVar("F", bound=Form)
S = TypeVar("S")
P = TypeVar("P", bound=PublicSet)
D = TypeVar("D", bound=Desk)


class Agreed(NamedTuple):
    """What the sites agreed on: the form, who takes part, and what is known of their text.

    `sentences` are those of each site, where the kind's steps ask for them; `types` the names that
    each annotates.
    """

    form: Any
    sites: list[str]
    sentences: Mapping[str, int] = {}
    types: Mapping[str, list[str]] = {}


class Kind(Protocol):
    """One model for one task.

    `steps` describe the sites' text before there is a form. `weighs` is whether sites weigh their
    examples in a mean, where the settings leave it open. `drawn` names the random choices of a
    method's step, where they are not called like the step. `released_as` is the file by which a
    release is known, `release_tells` what it tells who has it.
    """

    name: ClassVar[str]
    task: ClassVar[TaskName]
    keyed: ClassVar[bool]
    weighs: ClassVar[bool]
    Form: ClassVar[type]
    Scored: ClassVar[type]
    steps: ClassVar[tuple[Step, ...]]
    drawn: ClassVar[Mapping[str, str]]
    released_as: ClassVar[str]
    release_tells: ClassVar[str]

    def vectors(self, run: RunSettings) -> str | None:
        """The file of word vectors that all sites start from, as the settings name it."""
        ...

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError where this kind cannot be trained as the settings say."""
        ...

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Let the sites describe their text, and agree on a form. Raises FederationError."""
        ...

    def check_scored(self, ask: Any, reply: Any) -> None:
        """Raise GuardError where counts contradict themselves."""
        ...

    def counts(self, reply: Any) -> Counts:
        """The counts in a reply to `score`."""
        ...

    def release(self, form: Any, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write a copy of a trained model that needs no key. Raises KeyFileError, DataError."""
        ...

    def released(self, file: Path) -> Trained:
        """The model of such a copy, whose file is called `released_as`. Raises MessageError."""
        ...


# --- what all pairs share -------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept(Generic[F]):
    """What a site keeps between steps: the form of the model."""

    form: F = carries("the form of the model")


@dataclass(frozen=True)
class State(Generic[F]):
    """What the server carries from round to round: the form, and the common weights."""

    form: F = carries("the form of the model")
    weights: Arrays = carries("the common weights")
    idle: list[str] = carries("sites without training text: they are not asked to train")


@dataclass(frozen=True)
class Take(Generic[F]):
    """Keep the form of the model, and look at your training text with it."""

    form: F = carries("the form of the model")


@dataclass(frozen=True)
class Taken:
    """A site has the form."""

    size: int = carries("number of its training examples")
    vectors: str = carries("keyed check value of the site's vector file; empty without one")


@dataclass(frozen=True)
class Score:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test")


def take(site: Site, memory: object, ask: Take[F], turn: Turn) -> tuple[Taken, Kept[F]]:
    """Keep the form, and look at the training text with it."""
    return taken(site, ask.form), Kept(ask.form)


def taken(site: Site, form: Form) -> Taken:
    """What a site says when it has looked at its training text with this form."""
    desk = form.at(site)
    vectors = desk.vectors()
    desk.check()
    return Taken(desk.size, vectors)


def check_taken(ask: object, reply: Taken) -> None:
    """Raise GuardError where no site can be like that."""
    if reply.size < 0:
        raise GuardError("size is not a count")
    check_mark("vectors", reply.vectors)


def score(site: Site, memory: Kept[F] | None, ask: Score, turn: Turn) -> tuple[S, Kept[F]]:
    """Count what the common model gets right on the site's held-out text."""
    memory = known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    return memory.form.at(site).scored(ask.weights, ask.part), memory


TAKE = Step.of(take, check=check_taken)
SCORE = Step.of(score)


def steps_of(kind: Kind, steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of a pair: those that describe text, and the method's with this kind's messages."""
    types = {F: kind.Form, S: kind.Scored, P: getattr(kind, "Public", object)}
    own = []
    for step in steps:
        given = step.given(types, drawn=kind.drawn.get(step.name, ""))
        own.append(replace(given, check=kind.check_scored) if step.reply is S else given)
    return (*kind.steps, *own)


def settle(
    run: RunSettings,
    federation: Federation,
    kind: Kind,
    *,
    step: Step,
    public: Sequence[Document] = (),
    ask: Callable[[Any], Any] = Take,
) -> tuple[Agreed, Any, list[str]]:
    """Agree on a form and hand it out by `step`: what was agreed, the ask, and sites without text.

    `ask` makes what the sites are handed of the form that was agreed on. Raises FederationError
    where sites start from other word vectors, where nobody has text to learn from, and what the
    kind's `agree` raises.
    """
    agreed = kind.agree(run, federation, public=public)
    given = ask(agreed.form)
    agreed = agreed._replace(form=given.form)
    replies = federation.ask(step, given, round=0, sites=agreed.sites)
    same = compare_vectors(federation, step, replies)
    idle = sorted(site for site in same if not replies[site].size)
    if len(idle) == len(same):
        raise FederationError(
            "no site has anything to learn from",
            fix="look at the training text with `confide data check`",
        )
    return agreed, given, idle


def compare_vectors(federation: Federation, step: Step, replies: Mapping[str, Any]) -> list[str]:
    """The sites that start from the file of word vectors that most have, or like most from none.

    The others are left out. Raises FederationError where too few have the same.
    """
    return alike(
        federation,
        {site: reply.vectors for site, reply in replies.items()},
        step=step,
        why="its file of word vectors is not that of the other sites, or it has none",
        error=_other_vectors,
    )


def _other_vectors(parted: Parted) -> FederationError:
    who = f"{', '.join(parted.odd)} has another one or none"
    if parted.tied:
        who = f"these groups have different ones: {' | '.join(map(', '.join, parted.groups))}"
    return FederationError(
        f"the sites do not start from the same file of word vectors: {who}",
        fix="give every site the same file, or none",
    )


def scores_from(
    federation: Federation, kind: Kind, *, step: Step, ask: Any, round: int
) -> dict[str, Counts]:
    """Every site's counts, asked by this step."""
    replies = federation.ask(step, ask, round=round)
    return {site: kind.counts(reply) for site, reply in replies.items()}


def desk_at(site: Site, form: F, make: Callable[[Site, F], D]) -> D:
    """The desk of this form at a site, made once; of another form another one is made."""
    kept = site.cache.get("desk")
    if kept is not None and (kept[0] is form or encode(kept[0]) == encode(form)):
        found: D = kept[1]
        return found
    site.cache.pop("desk", None)
    made = make(site, form)
    site.cache["desk"] = (form, made)
    return made


def no_tables(kind: str) -> SettingsError:
    """What is raised where `rows = "seen"` is asked of a kind without a table of words."""
    return SettingsError(
        f"a model of the kind {kind} has no table of words whose rows could be averaged apart",
        expected='options.rows = "all"',
        got="'seen'",
    )
