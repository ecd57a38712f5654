"""The tables of a settings file, typed."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from confide.errors import printable
from confide.settings.base import (
    Columns,
    Device,
    Encoding,
    Language,
    Limit,
    Most,
    Norm,
    NotNegative,
    Paths,
    Positive,
    Precision,
    Share,
    Table,
    TagScheme,
)
from confide.settings.federation import FederationTable
from confide.settings.models import (
    BagsTable,
    ClassifierTable,
    EncoderTable,
    LightnerTable,
    LinearTable,
    ModelTable,
    PcnnTable,
)
from confide.settings.privacy import PrivacyTable
from confide.tasks import TASKS, TaskName
from confide.text.segment import AUTO, Sentences, TrainOn
from confide.userfiles import Tree

SCHEMA = 1
SIMULATED = "simulated"
REFERENCES = ("pooled", "alone", "public-only")
"""Baselines, as federations of one site: all text in one place, each site by itself, and the public
set alone."""


class DataTable(Table):
    """How files are read, unless a site says otherwise.

    `columns` are those of the token and the tag, by number from 0 or by name. `annotators` says
    whose annotation is read of a document that several annotated: "first", "majority" or a name.
    With `skip_broken`, a document that cannot be read is left out and named.
    `types` declares the entity types, and `relations` the relations; empty means the union over the
    sites. `relations` is read where sums are private ([privacy]). A site without `dev` or
    `test` files holds out `dev_share` or `test_share` of its training documents. For experiments,
    `train_share` is the share of its training documents that a site trains on, and `mask_common`
    is the share of the entities found at several sites whose letters are hidden in training text.
    So many training documents of each site are `canaries`: half of them are left out by coins.
    `language`, `sentences` and `abbreviations` say how text that comes without sentences is cut
    into them (docs/languages.md). Entities are learnt on the tokens that raw text will have ("own
    tokens") or on those of files that have tokens ("file tokens"), as `train_on` says.
    """

    format: str | None = None
    scheme: str | None = None
    encoding: Encoding | None = None
    language: Language = AUTO
    sentences: Sentences = "rules"
    abbreviations: tuple[str, ...] = ()
    columns: Columns | None = None
    annotators: str | None = None
    skip_broken: bool = False
    types: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    dev_share: Share = 0.1
    test_share: Share = 0.2
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    train_on: TrainOn = "own tokens"
    mask_common: Annotated[float, Field(ge=0, le=1)] = 0.0
    canaries: NotNegative = 0


class SiteTable(Table):
    """One site: its files and how to read them.

    `tags` maps the site's entity types to the common ones ("" drops a type), `relations` does the
    same for relations. `knows` lists the common types or relations that the site annotates, if not
    all; entities of other types are dropped from its text. `test_knows` lists further types that
    its test text annotates. `types` lists the common types that the site wants, if not all: in its
    held-out text and with its name in `predict` the model decides among these alone. `context` is
    where this site has the encoder, and `tag_scheme` is the scheme of its own tagger, if the method
    gives each site one. `canaries` as in `[data]`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    train: Paths
    dev: Paths = ()
    test: Paths = ()
    format: str | None = None
    scheme: str | None = None
    encoding: Encoding | None = None
    language: Language | None = None
    sentences: Sentences | None = None
    abbreviations: tuple[str, ...] = ()
    columns: Columns | None = None
    annotators: str | None = None
    skip_broken: bool = False
    tags: dict[str, str] = {}
    relations: dict[str, str] = {}
    knows: tuple[str, ...] = ()
    test_knows: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    train_on: TrainOn | None = None
    tag_scheme: TagScheme | None = None
    context: str | None = None
    vectors: str | None = None
    key: str | None = None
    canaries: NotNegative = 0


class SplitTable(Table):
    """One corpus, dealt to `sites` simulated sites.

    If no file is named for it, held-out text is taken from each "site", or from the "corpus" before
    it is dealt (`hold_out`). `apart` names an attribute of documents (such as "file") or "pair":
    training documents that share theirs with a held-out one are left out.
    """

    sites: Positive
    train: Paths
    dev: Paths = ()
    test: Paths = ()
    by: Literal["iid", "file", "domain", "dirichlet", "quantity", "pair"] = "iid"
    alpha: Annotated[float, Field(gt=0)] | None = None
    hold_out: Literal["site", "corpus"] = "site"
    apart: str = ""
    tags: dict[str, str] = {}
    relations: dict[str, str] = {}
    seed: int = 1


class PairsTable(Table):
    """Which pairs of entities are looked at for a relation (`data.batches.relations.Rules`).

    `types` lists pairs of entity types, head first; empty means those of the relations in training
    text. At most `max_sentences` ends of sentences and `max_tokens` tokens may lie between the two
    (inf: no limit).
    """

    types: tuple[tuple[str, str], ...] = ()
    direction: Literal["directed", "undirected"] = "directed"
    max_sentences: Most = 0
    max_tokens: Most = math.inf


class PublicTable(Table):
    """The public set: text that the server and all sites may read.

    It has `files` of its own, or takes a `share` of the training documents of a corpus that is
    dealt to sites. `labelled = false` hides its relations, or its entities if the task is `ner`.
    """

    files: Paths = ()
    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    labelled: bool = True
    format: str | None = None
    scheme: str | None = None
    encoding: Encoding | None = None
    language: Language | None = None
    sentences: Sentences | None = None
    abbreviations: tuple[str, ...] = ()
    columns: Columns | None = None
    annotators: str | None = None
    skip_broken: bool = False
    tags: dict[str, str] = {}
    relations: dict[str, str] = {}


def _in_words(value: object) -> object:
    """The two ends of `outside` by their names."""
    return {"closed": 0.0, "open": 1.0}.get(value, value) if isinstance(value, str) else value


class TrainingTable(Table):
    """One site's training within a round. The learning rate is multiplied by `decay` per round.

    A round ends after `local_epochs` passes or `local_steps` batches (0: no bound), whichever comes
    first. `moments`: whether a site's optimiser starts `fresh` in each round or goes on with the
    running means that it `kept`, in the site's own memory. `outside`: what a model learns about a
    token outside a site's own entities if the site annotates only some types: 0 (or "closed"), that
    it has no type; 1 ("open"), that it may as well have one that the site lacks; between, that such
    a type is so many times as likely as the model says. The same holds of a pair without a relation
    at a site that annotates only some relations, except that 0 compares only those.
    """

    optimiser: Literal["sgd", "adam", "adamw", "adagrad"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.015
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    clip: Limit = 5.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    batch_size: Positive = 10
    local_epochs: Positive = 10
    local_steps: NotNegative = 0
    moments: Literal["fresh", "kept"] = "fresh"
    outside: Annotated[float, BeforeValidator(_in_words), Field(ge=0, le=1)] = 0.0


class VocabularyTable(Table):
    """What counts as a word or character of the shared vocabulary."""

    how: Literal["none", "lower", "lower-digits"] = "lower-digits"
    min_count: Positive = 1
    min_sites: Positive = 1


class SelectTable(Table):
    """Which round's state is kept: development counts decide. `patience = 0`: never stop early.

    Every `every` rounds and after the last one, development text is scored and a checkpoint is
    written, from which `--resume` continues. What is scored and kept is the mean of the common
    weights after about the last `average` rounds (1: the weights of the round). `calibrate`: the
    counts also calibrate the confidences.
    """

    by: Literal[
        "strict", "relaxed", "micro", "macro", "auc", "auc_2000", "precision_at", "last",
    ] = "strict"  # fmt: skip
    patience: Annotated[int, Field(ge=0)] = 0
    every: Positive = 1
    average: Positive = 1
    calibrate: bool = True


class GuardsTable(Table):
    """A site's own limits: what it refuses, whatever the server asks.

    It refuses to train on fewer than `min_sentences`, to take a gradient of fewer than `min_batch`,
    to run more than `max_rounds`, to share a `private` part of the model and, between real sites,
    to be one of fewer than `min_sites`. It clips the change that training uploads to the norm
    `max_norm`, if given (inf: no limit). With `masked`, what is summed leaves it only under masks.
    What it gives under noise, over all runs, may not spend more than `max_epsilon` at `delta`, and
    leaves at whole multiples of `reply_every` seconds after the ask (0: at once). That ε holds for
    one `unit` of text, so noise that hides another is refused; where it is the patient, a document
    is of the one that its name up to the first of the characters `patients` says.
    """

    min_sentences: Positive = 1
    min_token_count: Positive = 1
    min_batch: Positive = 1
    min_sites: Positive = 1
    max_rounds: Positive = 100_000
    max_norm: Norm | None = None
    private: tuple[str, ...] = ()
    masked: bool = False
    max_epsilon: Annotated[float, Field(gt=0, le=1000)] = 10.0
    delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    unit: Literal["any", "document", "sentence", "patient"] = "any"
    patients: Annotated[str, Field(max_length=10)] = ""
    reply_every: Annotated[float, Field(ge=0, le=600)] = 0.0


class Settings(Table):
    """The settings of one run.

    `key` names the key file of sites that share one machine; "simulated" makes the key from the
    seed, which repeats the same numbers and protects nothing. `device` and `precision` say where
    and in what numbers simulated sites compute, at most `at_once` examples of a batch at a time (0:
    all); a real site has its own. `start_from` is the folder of a run whose model the first round
    trains on.
    """

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    name: str = ""
    task: TaskName = "ner"
    method: str = "fedavg"
    base: str = "fedavg"
    seed: int = 1
    rounds: Positive = 20
    workers: Positive = 1
    threads: Positive = 1
    device: Device = "cpu"
    precision: Precision = "auto"
    at_once: NotNegative = 0
    key: str | None = None
    start_from: str = ""
    data: DataTable = DataTable()
    site: tuple[SiteTable, ...] = ()
    split: SplitTable | None = None
    pairs: PairsTable = PairsTable()
    public: PublicTable = PublicTable()
    model: ModelTable = ModelTable()
    encoder: EncoderTable = EncoderTable()
    classifier: ClassifierTable = ClassifierTable()
    lightner: LightnerTable = LightnerTable()
    linear: LinearTable = LinearTable()
    bags: BagsTable = BagsTable()
    pcnn: PcnnTable = PcnnTable()
    training: TrainingTable = TrainingTable()
    vocabulary: VocabularyTable = VocabularyTable()
    federation: FederationTable = FederationTable()
    select: SelectTable = SelectTable()
    guards: GuardsTable = GuardsTable()
    privacy: PrivacyTable | None = None
    options: Tree = {}
    when: dict[str, Tree] = {}

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        if self.schema_ > SCHEMA:
            raise ValueError(
                f"schema {printable(self.schema_, 40)} is newer than this confide, which reads"
                f" schema {SCHEMA}"
            )
        names = [site.name for site in self.site]
        twice = sorted({name for name in names if names.count(name) > 1})
        rates = TASKS[self.task].kinds
        faults = {
            "give either [[site]] tables or one [split] table, not both": (
                self.site and self.split is not None
            ),
            f"two sites are called {', '.join(map(repr, twice))}": twice,
            f"select.by must be {', '.join(rates)} or last for task {self.task!r}, not"
            f" {self.select.by!r}": self.select.by not in (*rates, "last"),
            "give either public.files or public.share, not both": (
                self.public.files and self.public.share
            ),
            "public.share needs a corpus that is dealt to sites: [split]": (
                self.public.share and self.split is None
            ),
            "[privacy] is for sums that nobody can open: without masks every site would need all"
            ' the noise for itself; set federation.sums to "masked"': (
                self.privacy and self.federation.sums != "masked"
            ),
        }
        found = [fault for fault, is_so in faults.items() if is_so]
        if found:
            raise ValueError("\n".join(found))
        return self

    @property
    def trained_by(self) -> str:
        """METHOD-KIND: the method (`base` if it is a reference) and the kind of model."""
        return trained_by(self.task, self.method, self.base, kind=self.model.kind)

    @property
    def kind(self) -> str:
        """The kind of model that is trained."""
        return kind_of(self.task, self.model.kind)


def kind_of(task: str, model: str) -> str:
    """The kind of model for a task: the task's own or, if it has none, `model` (`model.kind`)."""
    return (TASKS[task].kind if task in TASKS else "") or model


def trained_by(task: str, method: str, base: str, *, kind: str = "") -> str:
    """METHOD-KIND: the method (`base` if it is a reference) and the kind of model."""
    return f"{base if method in REFERENCES else method}-{kind_of(task, kind)}"


TABLES: dict[str, type[Table]] = {
    "data": DataTable,
    "site": SiteTable,
    "split": SplitTable,
    "pairs": PairsTable,
    "public": PublicTable,
    "model": ModelTable,
    "encoder": EncoderTable,
    "classifier": ClassifierTable,
    "lightner": LightnerTable,
    "linear": LinearTable,
    "bags": BagsTable,
    "pcnn": PcnnTable,
    "training": TrainingTable,
    "vocabulary": VocabularyTable,
    "federation": FederationTable,
    "select": SelectTable,
    "guards": GuardsTable,
    "privacy": PrivacyTable,
}
"""The tables by their names in a file; `site` is a list of tables."""
