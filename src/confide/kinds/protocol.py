"""The interface between methods and kinds, and the two steps that all pairs of them share.

A *kind* is one model for one task. Its *form*, or model spec, is a message that the sites agree on
at the start. The form gives the first weights and, at a site, a *site model*: the site's text,
encoded, and the one model of the process. Methods speak to forms and site models; only the kind
knows what a tag, a bag or a word piece is.

`F` stands for a kind's form, `S` for its reply to `score` and `P` for its public examples: the
messages of a method leave these open, and `steps_of` fills them in.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.keys import read_key
from confide.federation.memory import AskRecord, known
from confide.federation.messages import Arrays, Value, carries, decode_file, encode
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.files import write_of_run
from confide.privacy.noise import UnitGradients
from confide.scoring.calibration import AS_IS, Calibrator
from confide.settings import Settings as RunSettings
from confide.tasks import Counts, TaskName
from confide.text.document import NO_RELATION, Document, Problem, stated_pairs
from confide.training.batches import Rows, TypedSpan
from confide.training.optimisers import Moments, Optimiser, Term
from confide.training.trainer import Pulls
from confide.training.vocabulary import SPECIALS, KeyedVocabulary
from confide.training.weights import load_weights, trained

# --- Releases
#
# A released model works without its run and without a key.


@dataclass(frozen=True)
class Holders:
    """The sites that release a model, as far as a kind needs them; `find` reads their text.

    `key` is the sites' shared key file, if not that of their settings. `apart`: how many of the
    run's sites annotated only some types.
    """

    find: Callable[[], Sequence[Site]]
    key: Path | None
    apart: int

    @cached_property
    def specs(self) -> Sequence[Site]:
        """The sites."""
        return self.find()

    @property
    def train(self) -> list[Document]:
        """Their training text."""
        return [document for spec in self.specs for document in spec.train]

    def secret(self) -> bytes:
        """The key of their words' digests. Raises KeyFileError."""
        file = self.key or self.specs[0].key_file
        assert file is not None
        return read_key(Path(file))


def known_words(
    vocabulary: KeyedVocabulary, texts: list[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that the vocabulary knows, by id, and the rows to keep, special ones first."""
    ids = vocabulary.ids(texts)
    known = sorted((int(id), text) for id, text in zip(ids, texts, strict=True) if id >= SPECIALS)
    rows = [*range(SPECIALS), *(id for id, _ in known)]
    return [text for _, text in known], np.array(rows, np.int64)


# --- Training settings
#
# A new way to train arrives here, for all kinds and methods at once.


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a site's training in one round."""

    learning_rate: float = carries("learning rate of this round")
    optimiser: str = carries("sgd, adam, adamw or adagrad")
    momentum: float = carries("momentum of SGD")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient; 0: no bound")
    batch_size: int = carries("examples", rule="min_batch")
    epochs: int = carries("passes over the site's training text")
    word_dropout: float = carries("share of words read as the unknown word")
    vectors: bool = carries("whether rows of the site's vector file are filled in first")
    round: int = carries("the round, for what changes over a run")
    proximal: float = carries("FedProx's μ: how strongly training holds to its start", start=float)
    batches: int = carries("most batches in this round; 0: no bound", start=int)
    outside: float = carries(
        "weight of types that a site lacks, at a token outside its entities, or of relations, at a"
        " pair without one; 0: none of them",
        start=float,
    )
    keep: bool = carries(
        "whether the site's optimiser goes on with the running means of its last round", start=bool
    )

    @property
    def steps(self) -> Optimiser:
        """The optimiser and its numbers."""
        return Optimiser(
            name=self.optimiser,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip=self.clip,
            term=Term(self.proximal) if self.proximal else None,
            most=self.batches,
        )

    def with_term(self, term: Term) -> LocalConfig:
        """Copy the settings, with a term that the method adds to the loss."""
        return LocalConfig(**{**vars(self), "term": term})

    def without_vectors(self) -> TrainConfig:
        """Copy the settings without word vectors, for weights that already have them."""
        return replace(self, vectors=False)


@dataclass(frozen=True)
class LocalConfig(TrainConfig):
    """Training settings with what a site adds to them; never sent.

    `moments` is the state of an optimiser that it remembers, `term` what its method adds to the
    loss.
    """

    moments: Moments | None = None
    term: Term | None = None

    @property
    def steps(self) -> Optimiser:
        """The optimiser, its numbers, and what is added."""
        steps = super().steps
        return replace(steps, moments=self.moments, term=self.term or steps.term)


def train_config(run: RunSettings, round: int) -> TrainConfig:
    """Make a round's training settings: the rate decays; word vectors are filled in at round 1."""
    own = run.training
    return TrainConfig(
        learning_rate=own.learning_rate * own.decay ** (round - 1),
        optimiser=own.optimiser,
        momentum=own.momentum,
        weight_decay=own.weight_decay,
        clip=own.clip,
        batch_size=own.batch_size,
        epochs=own.local_epochs,
        batches=own.local_steps,
        word_dropout=own.word_dropout,
        vectors=round == 1,
        round=round,
        outside=own.unannotated_types,
        keep=own.optimiser_state == "keep",
    )


# --- A trained model in use
#
# It annotates, and shows a site what it gets wrong.


WORST = 20
"""Length of a site's list of errors."""
RIGHT = 10
"""Length of a site's list of what the model gets right."""


@dataclass(frozen=True)
class Report:
    """A site's scores of a model on its own test text; only the counts may leave it.

    `errors` is the body of errors.json: what was taken for what, the worst cases, and some that are
    right. `sentences` is that of sentences.json: a fingerprint of the text, and the counts of each
    unit by kind of score. Both are empty if there is nothing to show.
    """

    counts: Counts
    errors: Mapping[str, object] = field(default_factory=dict)
    sentences: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Support:
    """A sentence of a bag: the index of its document, and the ids of the pair there.

    `score` is the probability of the fact's relation in this sentence alone.
    """

    document: int
    pair: tuple[str, str]
    score: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation that the model finds between two entities, from all sentences that name both.

    `head` and `tail` are identities (a concept, or letters); `names` is how the best sentence
    spells the two. `confidence` is that of the bag; `sentences` are all of the bag, best first.
    """

    head: str
    relation: str
    tail: str
    names: tuple[str, str]
    confidence: float
    sentences: tuple[Support, ...]


def calibrated(
    documents: Sequence[Document], calibrator: Calibrator, *, of: Literal["entities", "relations"]
) -> list[Document]:
    """The documents with the confidences of their entities or relations calibrated."""
    if calibrator[:2] == AS_IS[:2]:
        return list(documents)

    def sure(find: Any) -> Any:
        known = find.confidence is not None
        return find.sure(calibrator.of(find.confidence)) if known else find

    def changed(document: Document) -> Document:
        finds = getattr(document, of)
        found: dict[str, Any] = {of: tuple(map(sure, finds))}
        return replace(document, **found) if finds else document

    return [changed(one) for one in documents]


Case = tuple[Any, str, float | None]
"""A scored pair or bag, the label that the model predicted, and its confidence."""


def likeliest_first(cases: Iterable[Case]) -> list[Case]:
    """The cases by confidence; those without one come last."""
    return sorted(cases, key=lambda case: -(case[2] or 0.0))


def worst_cases(wrong: Sequence[Case]) -> list[Case]:
    """The most confident wrong relations, and the first that the model missed.

    There are as many of each if there are enough.

    >>> len(worst_cases([("a", "cause", 0.5)] * 30 + [("b", NO_RELATION, None)] * 3))
    20
    """
    said = likeliest_first(case for case in wrong if case[1] != NO_RELATION)
    silent = likeliest_first(case for case in wrong if case[1] == NO_RELATION)
    few = min(len(silent), max(WORST // 2, WORST - len(said)))
    return [*said[: WORST - few], *silent[:few]]


def fingerprint(documents: Sequence[Document], *, relations: bool = False) -> str:
    """A digest of text and annotation, by which `compare` recognises the same test text."""
    digest = hashlib.sha256()
    for document in documents:
        text = document.text.encode("utf-8", "surrogatepass")
        marks = [(entity.type, entity.fragments) for entity in document.entities]
        digest.update(f"{len(text)}\0{marks!r}\0".encode() + text)
        if relations:
            names = [(entity.id, entity.concepts) for entity in document.entities]
            links = [(one.type, one.head, one.tail, one.level) for one in document.relations]
            digest.update(f"{names!r}\0{links!r}\0{stated_pairs(document)!r}\0".encode())
    return digest.hexdigest()


HELD_OUT = ("dev", "test")
"""The parts of a site's text that can be scored."""


class Fitted(NamedTuple):
    """The result of training.

    `loss` is the mean loss of an example in the last epoch; `examples` counts the training
    examples, over all epochs, and `steps` the optimiser's.
    """

    weights: Arrays
    loss: float
    examples: int
    steps: int


class Losses(NamedTuple):
    """The loss of a model on each unit that training learns from. U units.

    `units` says what they are, in the plural. `losses_U` does not grow with a unit's length;
    `documents_U` is the place of its first document; `marks` are equal for units of equal text.
    """

    units: str
    losses_U: NDArray[np.float64]
    documents_U: NDArray[np.int64]
    marks: Sequence[Hashable]


class CompleteText(NamedTuple):
    """A site's training text with its own annotation, and perhaps a model's as well.

    `encoded` belongs to the site model that made it; `own` and `pseudo` count annotations.
    """

    encoded: Any
    own: int
    pseudo: int


Lift = Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
"""By table, the ids of the rows that a vector file has (K), and its vectors (K × D)."""


@dataclass
class SharedModel:
    """The trainer of one form and its one model, shared by the sites of a process."""

    trainer: Any

    @cached_property
    def model(self) -> Any:
        """The process's one model of this form."""
        return self.trainer.initial(0)


class SiteModel(ABC):
    """A kind at a site: the site's text, encoded once, and the one model of the process.

    A kind whose text cannot do what a method asks leaves that out: no pair has the two.
    """

    def __init__(self, site: Site, form: Any) -> None:
        self.site = site
        self.form = form

    # --- what a kind says -------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of training examples: the site's weight in a weighted mean."""

    @abstractmethod
    def check(self) -> None:
        """Raise Refusal if the site's text does not fit the form, or its guards forbid training."""

    @property
    @abstractmethod
    def shared_model(self) -> SharedModel:
        """The process's shared model. Raises Refusal if the site's public files or key differ."""

    @property
    def own(self) -> Any:
        """The training text, encoded, with the site's own annotation."""
        raise NotImplementedError

    @abstractmethod
    def losses(self, weights: Arrays, config: TrainConfig, documents: Sequence[Document]) -> Losses:
        """Work out the loss of these weights on documents of the site, without dropout.

        The documents may have been trained on or not.

        Annotation that the site's training text could not have is left out.
        """

    @abstractmethod
    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> Any:
        """The counts of these weights on a part of the held-out text, as the kind's `Scored`.

        With `apart`, labels that nobody looked for there are not counted: a find may be right.
        """

    def vectors(self) -> str:
        """A keyed check value of the site's vector file; empty without one."""
        return ""

    def fill(self, model: Any, config: TrainConfig) -> None:  # noqa: B027
        """Fill in the rows of the site's vector file, if there is one and `config` says so."""

    def lift(self) -> Lift:
        """The rows of the site's vector file; empty without one."""
        return {}

    def rows_seen(self, config: TrainConfig) -> Arrays:
        """For each row of the form's tables: 1 if the site has what it stands for, else 0.

        That is a word or character of its training text, or a relation that it annotates. Where
        `config` fills in word vectors, their rows count as well: all sites fill in the same, so
        words of a site that has no part in that round get their vectors too.
        """
        return {}

    def worth(self, counted: Any, by: str) -> float | None:
        """The score by which models are compared; None if nothing was scored."""
        raise NotImplementedError

    def completed(self, weights: Arrays | None, *, confidence: float = 0.0) -> CompleteText:
        """The training text with the site's own annotation and, given weights, a model's as well.

        The model of these weights adds only labels that the site lacks (Wang et al. 2023, Eq. 5),
        of at least this confidence; own annotation is never replaced.
        """
        raise NotImplementedError

    def spotted(self, weights: Arrays, *, confidence: float = 0.0) -> list[list[TypedSpan]]:
        """The spans of types that the site lacks which a model finds in each training sentence."""
        raise NotImplementedError

    def completed_with(self, spotted_N4: NDArray[np.int32]) -> CompleteText:
        """The training text with the site's own annotation and these spans of types that it lacks.

        4: sentence, first token, one past the last, number of the label.
        """
        raise NotImplementedError

    def predicted(self, weights: Arrays, public: Any) -> NDArray[np.float32]:
        """logits_SR of the rows of a public set by a model with these weights."""
        raise NotImplementedError

    def known_classes(self) -> list[bool]:
        """For each class, whether the site annotates it. Every site annotates the first."""
        raise NotImplementedError

    @property
    def places(self) -> list[tuple[int, int]]:
        """The document and the sentence of each training row, by number; -1: none."""
        raise NotImplementedError

    # --- what follows -----------------------------------------------------------------------

    @property
    def trainer(self) -> Any:
        """The trainer of the process's model."""
        return self.shared_model.trainer

    def trained_by(self, config: TrainConfig) -> Any:
        """The trainer with the settings of `config`."""
        return self.form.trained_by(self.trainer, config)

    def model(self, weights: Arrays, *, lent: bool = False) -> Any:
        """The process's model; if `lent`, it uses these very arrays and must not be trained."""
        model = self.shared_model.model
        load_weights(model, weights, lent=lent)
        return model

    def fit(
        self,
        weights: Arrays,
        config: TrainConfig,
        *,
        seed: int,
        encoded: Any = None,
        each_S: NDArray[np.float32] | None = None,
    ) -> Fitted:
        """Train on the site's own annotation, or on text that `completed` gave.

        `each_S` weighs the part of each row's loss that is of the site's own annotation. Raises
        Refusal if there is no text.
        """
        text = self.own if encoded is None else encoded
        if not len(text):
            raise Refusal("no-training-text")
        model = self.model(weights)
        self.fill(model, config)
        report = self.trained_by(config).fit(
            model,
            text,
            weights_S=each_S,
            epochs=config.epochs,
            batch_size=config.batch_size,
            optimiser=config.steps,
            seed=seed,
        )
        return Fitted(trained(model), report.loss, report.sentences, report.steps)

    def gradient(
        self, weights: Arrays, config: TrainConfig, *, seed: int
    ) -> tuple[float, Arrays, int]:
        """The mean loss of a batch drawn by the seed, its gradient, and the batch's size."""
        own = self.own
        if not len(own):
            raise Refusal("no-training-text")
        loss, slope = self.trained_by(config).gradient(
            self.model(weights, lent=True), own, size=config.batch_size, clip=config.clip, seed=seed
        )
        return loss, slope, min(config.batch_size, len(own))

    def row_gradients(self, weights: Arrays, config: TrainConfig, encoded: Any) -> Pulls:
        """The gradients of `config`'s loss on the text that `completed` gave, without dropout."""
        pulls: Pulls = self.trained_by(config).pulls(self.model(weights, lent=True), encoded)
        return pulls

    def unit_gradients(self, weights: Arrays, units: Iterable[Rows]) -> Iterator[UnitGradients]:
        """The gradient of each unit's loss, on the site's own annotation, in any order."""
        found: Iterator[UnitGradients] = self.trainer.unit_gradients(
            self.model(weights, lent=True), self.own, units
        )
        return found


class ModelSpec(ABC):
    """All that a model is but its weights; a message.

    `slope` ends the name of the parameter by whose gradients rows are compared. Of a model of
    parts, `private` are those that stay at the site by default, `head` is the part whose shape
    depends on the types, and `word_table` the table that vector files have rows of; each may be
    empty. `weighting` says how much a site counts in a mean unless the settings say otherwise:
    equal, or by its examples. `Public` is the message of a public set that the model can learn
    from; None: there is none.
    """

    private: ClassVar[Sequence[str]] = ()
    head: ClassVar[str] = ""
    word_table: ClassVar[str] = ""
    slope: ClassVar[str] = ""
    weighting: ClassVar[Literal["equal", "examples"]] = "equal"
    Public: ClassVar[type[PublicSet] | None] = None

    @classmethod
    @abstractmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the fields that the settings alone decide.

        `public`: the method gives all sites a public set.
        """

    @classmethod
    def vectors(cls, run: RunSettings) -> str | None:
        """The file of word vectors that the settings name for all sites; None without one."""
        return None

    @property
    @abstractmethod
    def labels(self) -> list[str]:
        """The names by which answers are counted: entity types or relations."""

    @abstractmethod
    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The trained weights before round 1; only trained weights travel.

        At a `site` its own copy of public files is read. Raises Refusal there.
        """

    def parameters(self, first: Arrays) -> int:
        """The number of parameters of the whole model that starts with these weights."""
        return sum(array.size for array in first.values())

    def tables(self) -> Sequence[str]:
        """The names of arrays with a row for each word, character or class that sites may lack."""
        return ()

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """For tables of words or characters: whose each row is, but for the first `SPECIALS` rows.

        Two forms that name a row alike mean the same by it.
        """
        return {}

    def class_axes(self) -> Mapping[str, Sequence[Sequence[Hashable]]]:
        """By array whose first axes have a place for each class: the names along these axes.

        Two forms that name a class alike mean the same by it.
        """
        return {}

    @abstractmethod
    def with_labels_of(self, before: Self) -> Self:
        """The form that also has all labels, and words, of a trained model's, behind its own.

        Raises SettingsError if this kind cannot.
        """

    @property
    def classes(self) -> int:
        """The number of classes of a public row. The first stands for nothing found."""
        return len(self.class_names)

    @property
    def class_names(self) -> Sequence[str]:
        """The classes, by which labels name them."""
        raise NotImplementedError

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only.

        Raises Refusal if the site cannot have its own model with these private parts.
        """
        raise NotImplementedError

    @abstractmethod
    def at(self, site: Site) -> SiteModel:
        """The site model of this form, made once."""

    @abstractmethod
    def extractor(self, weights: Arrays, *, key: bytes | None, encoder: str | None = None) -> Any:
        """The trained model (`kinds.Extractor`); `encoder` is the folder of its public files.

        Raises KeyFileError if it needs another key, and FederationError if these are not the files
        of its training.
        """

    def in_clear(self, weights: Arrays, holders: Holders) -> tuple[Self, Arrays]:
        """The model without the sites' key: the names of its rows are in the clear.

        Raises KeyFileError.
        """
        return self, weights

    def public(self, documents: Sequence[Document]) -> tuple[Any, list[str]]:
        """The public set of these documents as the sites get it, and the labels of its rows.

        Raises SettingsError if the documents hold nothing for this kind.
        """
        raise NotImplementedError

    def read_public(self, extractor: Any, public: Any, labels: Sequence[str]) -> tuple[Any, Any]:
        """A public set as the extractor's trainer reads it, bare and with these labels, if any."""
        raise NotImplementedError

    def trained_by(self, trainer: Any, config: TrainConfig) -> Any:
        """The trainer with the settings of `config`."""
        return replace(trainer, open=config.outside)


def with_new(own: Sequence[str], more: Iterable[str]) -> list[str]:
    """The names with those of others that are new, behind them.

    >>> with_new(["b", "c"], ["a", "b"])
    ['b', 'c', 'a']
    """
    return [*dict.fromkeys([*own, *more])]


class PublicSet(ABC):
    """Text that the server and all sites may read, without its annotation; a message."""

    gone: ClassVar[tuple[str, ...]] = ("name",)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all fields, as 64 hexadecimal digits."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of predictions, each of one class; the same everywhere."""

    @property
    @abstractmethod
    def row_sentences(self) -> NDArray[np.int64]:
        """For each row the number of its sentence: rows of one text belong together."""

    @abstractmethod
    def part(self, kept_S: NDArray[np.bool_]) -> Self:
        """The set of these rows only; of a sentence all rows or none."""

    @abstractmethod
    def check(self) -> None:
        """Raise Refusal if the set is malformed or too large."""


F = TypeVar("F", bound=ModelSpec, covariant=True)
S = TypeVar("S")
P = TypeVar("P", bound=PublicSet)


class Agreed(NamedTuple):
    """The agreement of the sites: the form, who takes part, and what is known of their text.

    `sentences` counts each site's sentences, if the kind's steps ask for them; `types` are the
    names that each site annotates.
    """

    form: Any
    sites: list[str]
    sentences: Mapping[str, int] = {}
    types: Mapping[str, list[str]] = {}


class Release(NamedTuple):
    """The release of a kind: its file, the name of its message, and what it reveals."""

    file: str
    message: str
    tells: str


class Kind(ABC):
    """One model for one task. `steps` describe the sites' text before there is a form.

    `trains` is False for what only counts in its place.
    """

    name: ClassVar[str]
    trains: ClassVar[bool] = True
    task: ClassVar[TaskName]
    Spec: ClassVar[type[ModelSpec]]
    steps: ClassVar[tuple[Step, ...]]
    release: ClassVar[Release]

    @property
    def keyed(self) -> bool:
        """True if the sites compare keys, so that only holders of the key can use the model."""
        return any(step.name == "check_key" for step in self.steps)

    def check(self, run: RunSettings, *, public: bool) -> None:  # noqa: B027
        """Raise SettingsError if this kind cannot be trained as the settings say.

        `public`: the method gives all sites a public set.
        """

    @abstractmethod
    def asked(self, run: RunSettings, *, public: bool) -> Mapping[str, Mapping[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings: by step, then by field."""

    @abstractmethod
    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> Agreed:
        """Let the sites describe their text, and agree on a form. Raises FederationError.

        `public` are the documents of a method's public set; None: it has none.
        """

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """The annotations that this kind does not learn, or learns changed."""
        return []


@functools.cache
def release_message(kind: Kind) -> Any:
    """The class of a kind's releases: the fields of its form, and two more."""
    weights = carries("weights of what was trained")
    apart = carries("number of its sites that annotated only some types", before=0)
    return make_dataclass(
        kind.release.message,
        [("weights", Arrays, weights), ("apart", int, apart)],
        bases=(kind.Spec,),
        frozen=True,
        kw_only=True,
    )


def write_release(
    kind: Kind, form: ModelSpec, weights: Arrays, *, out: Path, holders: Holders
) -> None:
    """Write a copy of a trained model that needs no key. Raises KeyFileError, DataError."""
    form, weights = form.in_clear(weights, holders)
    own = {one.name: getattr(form, one.name) for one in fields(form)}  # type: ignore[arg-type]
    message = release_message(kind)(**own, weights=dict(weights), apart=holders.apart)
    write_of_run(out / kind.release.file, encode(message))


def released(kind: Kind, folder: Path) -> Any:
    """Read the form and weights of a release. Raises MessageError."""
    return decode_file(release_message(kind), (folder / kind.release.file).read_bytes())


def read_release(kind: Kind, folder: Path) -> Any:
    """Read a released model from its folder. Raises MessageError."""
    found = released(kind, folder)
    extract: Any = found.extractor(found.weights, key=None)
    return replace(extract, apart=bool(found.apart)) if extract.finds == "entities" else extract


# --- what all pairs share -------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept(AskRecord, Generic[F]):
    """A site's memory between steps: the form of the model and, if asked, its optimiser's means."""

    form: F = carries("the form of the model")
    _: KW_ONLY
    moments: Arrays = carries("what its optimiser remembers: never sent", start=dict)

    def model(self, common: Arrays) -> tuple[F, Arrays]:
        """The form and weights of the site's model, with these common weights."""
        return self.form, common

    def row_weights(self) -> tuple[int, NDArray[np.float32]] | None:
        """The round of the instance weights of the training rows, and these; None: all alike."""
        return None


@dataclass(frozen=True)
class State(Generic[F]):
    """The server's state from round to round: the form, and the common weights."""

    form: F = carries("the form of the model")
    weights: Arrays = carries("the common weights")
    idle: list[str] = carries("sites without training text, which are not asked to train")


@dataclass(frozen=True)
class Take(Generic[F]):
    """Keep the form of the model, and encode your training text."""

    form: F = carries("the form of the model")


@dataclass(frozen=True)
class Taken:
    """The site has the form, and has encoded its training text."""

    size: int = carries("number of its training examples", value=Value(least=0))
    vectors: str = carries(
        "keyed check value of the site's vector file; empty without one",
        rule="open",
        value=Value(text="digest"),
    )


@dataclass(frozen=True)
class Score:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test", rule="varies")


def take(site: Site, memory: object, ask: Take[F], turn: Turn) -> tuple[Taken, Kept[F]]:
    """Keep the form, and encode the training text."""
    return taken(site, ask.form), Kept(ask.form)


def taken(site: Site, form: ModelSpec) -> Taken:
    """Encode and check the training text with this form; the reply says how much there is."""
    site_model = form.at(site)
    vectors = site.files["vectors"] = site_model.vectors()
    site_model.check()
    return Taken(shown(site, site_model.size), vectors)


def shown(site: Site, size: int) -> int:
    """The number of examples as the server may see it: only whether there are any, if sums hide it.

    The sum over all sites is asked for by `COUNT_EXAMPLES`. Under noise not even that is said.
    """
    if site.under_noise:
        return 1
    return min(size, 1) if site.member is not None else size


def score(site: Site, memory: Kept[F] | None, ask: Score, turn: Turn) -> tuple[S, Kept[F]]:
    """Count what the site's model gets right on its held-out text."""
    memory = known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    form, weights = memory.model(ask.weights)
    return form.at(site).scored(weights, ask.part), memory


TAKE = Step.of(take)
SCORE = Step.of(score)


def cached_site_model(site: Site, form: Any, make: Callable[[Site, Any], SiteModel]) -> SiteModel:
    """The site model of this form, made once; a new form replaces the old one."""
    kept = site.cache.get("site_model")
    if kept is not None and (kept[0] is form or encode(kept[0]) == encode(form)):
        found: SiteModel = kept[1]
        return found
    site.cache.pop("site_model", None)
    made = make(site, form)
    site.cache["site_model"] = (form, made)
    site.size = lambda: made.size
    site.draws = partial(form.first, site=site)
    return made


# --- Training from an earlier optimiser
#
# At a site, the optimiser may go on from where it was.


def resuming(memory: Any, config: TrainConfig) -> tuple[TrainConfig, Callable[[], Any]]:
    """The settings with which to train, and the memory afterwards, once it has been.

    If `config` says so, the optimiser goes on from the memory, and what it then remembers is kept.
    """
    if not config.keep:
        return config, lambda: memory
    moments = Moments(memory.moments)
    local = LocalConfig(**{**vars(config), "moments": moments})
    return local, lambda: replace(memory, moments=moments.arrays())
