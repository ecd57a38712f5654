"""The tables of a settings file, typed."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from confide.errors import printable
from confide.files import Tree, known_encoding
from confide.settings.upgrade import SCHEMA
from confide.tasks import TASKS, TaskName
from confide.text.segment import AUTO, CODES, Sentences, Splitting, TrainOn

# --- The base of all tables
#
# A strict base class and types of values.


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("a width must be odd, so that a word has equally many words on each side")
    return number


def _whole(number: float) -> float:
    if number != math.inf and number != int(number):
        raise ValueError("a count must be a whole number, or inf for no limit")
    return number


def _none_if_inf(number: float) -> float | None:
    return None if number == math.inf else number


def _encoding(name: str) -> str:
    if known_encoding(name) is None:
        raise ValueError("an encoding must be utf-8, windows-1252, latin-1 or another common one")
    return name


def _language(code: str) -> str:
    if code != AUTO and code not in CODES:
        raise ValueError("a language must be auto, or two letters such as en, es, fr, de or ja")
    return code


def _column(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("a column is a number, from 0, or a name")
    return value


Paths = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Odd = Annotated[int, Field(ge=1), AfterValidator(_odd)]
Most = Annotated[float, Field(ge=0, allow_inf_nan=True), AfterValidator(_whole)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Norm = Annotated[float, Field(gt=0, allow_inf_nan=True), AfterValidator(_none_if_inf)]
Encoding = Annotated[str, AfterValidator(_encoding)]
Language = Annotated[str, AfterValidator(_language)]
Column = Annotated[int | str, BeforeValidator(_column)]
Columns = tuple[Column, Column]
"""Two columns, each by number or by name."""
TagScheme = Literal["iobes", "iob2"]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$")]
Precision = Literal["auto", "float32", "bfloat16"]


class Table(BaseModel):
    """A table of settings: frozen, strict about its keys, and finite unless a field says so."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="constants", allow_inf_nan=False
    )


# --- The table `[federation]`
#
# Who takes part, and what the server sees of it.


OF_SITES, OF_GROUPS = 5.0, 2.0
"""The default `max_norm_ratio`: of single updates, and of the means of groups."""


class FederationTable(Table):
    """Who takes part: each round draws a `fraction` of the sites, and `at_least` must answer.

    `at_least = 0` means every site that was asked. `timeout` is how many seconds a site may take
    for one answer before it is left out (inf: no limit). `combine` is how the sites' updates become
    one; `trimmed` drops the share `trim` at each end. An update is refused if its norm is more than
    `max_norm_ratio` times the round's median (inf: never). The run ends before a round that would
    take what a site has uploaded beyond `max_upload_mb` megabytes (0: no bound).

    `up` and `down`: how what sites learn travels, and how the common weights do: changed rows, and
    weights whole in every ask; "cached": no site is given the same weights twice; or changes in
    codes (`confide.federation.quantising`). `top` is the share of numbers that "top" sends.

    `sums`: whether the server promises not to look at what it sums ("plain"), or gets whole numbers
    under masks that only the sum is without ("masked"). Without it, real sites mask if there are
    three of them. `colluding` is how many sites may be in league with the server, unless a third of
    them, rounded up, less one. Masks leave no room to look at single replies: then there is no
    `fraction`, and no `max_norm_ratio` and no `combine` but the mean, unless both are of the sums
    of fixed groups of `groups` sites (0: no groups). A round after which the development score
    falls by more than `roll_back` (0: never) is undone.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_upload_mb: Annotated[float, Field(ge=0)] = 0.0
    at_least: Annotated[int, Field(ge=0)] = 0
    timeout: Limit = 7200.0
    combine: Literal["mean", "trimmed", "median", "clipped"] = "mean"
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    max_norm_ratio: Annotated[float, Field(gt=1, allow_inf_nan=True)] | None = None
    up: Literal["rows", "float16", "int8", "int4", "int2", "top"] = "rows"
    down: Literal["whole", "cached", "float16", "int8", "int4", "int2", "top"] = "whole"
    top: Annotated[float, Field(gt=0, le=1)] = 0.01
    sums: Literal["plain", "masked"] | None = None
    colluding: Annotated[int, Field(ge=1)] | None = None
    groups: Annotated[int, Field(ge=0)] = 0
    roll_back: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def limit(self) -> float:
        """`max_norm_ratio`, or what it is where the settings leave it open."""
        if self.max_norm_ratio is not None:
            return self.max_norm_ratio
        if self.sums == "masked":
            return OF_GROUPS if self.groups else math.inf
        return OF_SITES

    @model_validator(mode="after")
    def _looks_at_no_single_reply(self) -> Self:
        if self.groups and (self.combine == "mean" or self.sums != "masked"):
            raise ValueError(
                "federation.groups are for sums that nobody can open, whose groups are combined:"
                ' set federation.sums to "masked", and federation.combine to "median", "trimmed" or'
                ' "clipped"'
            )
        if self.sums == "masked":
            if self.up not in ("rows", "float16", "int8"):
                raise ValueError(
                    f'federation.up = "{self.up}" has a scale for every row of every site, and'
                    f' federation.sums = "{self.sums}" adds up whole numbers of one scale: set'
                    ' federation.up to "float16" or "int8", or leave it out'
                )
            for name, fits in {
                "combine": self.combine == "mean" or self.groups > 0,
                "max_norm_ratio": self.limit == math.inf or self.groups > 0,
                "fraction": self.fraction == 1.0,
            }.items():
                if not fits:
                    raise ValueError(
                        f"federation.{name} = {getattr(self, name)!r} must look at single replies,"
                        f' or at changing sets of sites, and federation.sums = "{self.sums}" shows'
                        ' none: leave it out, or set federation.sums = "plain"'
                    )
        return self


# --- The tables of the models
#
# Taggers, relation classifiers and bag rankers.


class ModelTable(Table):
    """The model that finds entities: by default BiLSTM-CNNs-CRF with the sizes of Ma & Hovy (2016).

    `kind` chooses that tagger, an `encoder` (`[classifier]`) with a layer that tags its words,
    `spans` (`[classifier]`), which finds entities in one another as well, `lightner`, or a `linear`
    CRF on hashed features (`[linear]`), which has none of this table's sizes. `context`
    names a frozen encoder whose states are appended to the words; `cnn_filters` is the number of
    filters for each of the word CNN's `cnn_widths` (0: no CNN); `bilstm_layers = 0` leaves the
    BiLSTM out.
    """

    kind: Literal["tagger", "encoder", "lightner", "spans", "linear"] = "tagger"
    word_dim: Positive = 100
    character: Literal["cnn", "bilstm", "none"] = "cnn"
    character_dim: Positive = 30
    character_filters: Positive = 30
    character_width: Positive = 3
    character_hidden: Positive = 25
    context: Annotated[str, Field(min_length=1)] = "none"
    cnn_filters: NotNegative = 0
    cnn_widths: Annotated[tuple[Odd, ...], Field(min_length=1)] = (3,)
    bilstm_hidden: Positive = 200
    bilstm_layers: NotNegative = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    tag_scheme: TagScheme = "iobes"
    vectors: str | None = None


class EncoderTable(Table):
    """The part of an encoder that is trained (`training.encoder.Tuning`), by whatever kind has one.

    `tune`: all of it, its `top` layers (`layers`), updates of low rank (`lora`: `rank`, and `alpha`
    over it for their weight), its biases, or nothing.
    """

    tune: Literal["all", "top", "lora", "bias", "frozen"] = "all"
    layers: Annotated[int, Field(ge=1, le=9999)] = 2
    rank: Annotated[int, Field(ge=1, le=9999)] = 8
    alpha: Annotated[int, Field(ge=1, le=9999)] = 16


class ClassifierTable(Table):
    """The relation classifier: an encoder, given by folder or name, and a linear layer.

    `blind` replaces entities by their types; `typed_markers` gives each type marks of its own;
    `pool` says what represents an entity, the sum of its pieces or its opening mark, or that the
    first piece of the text represents both (`cls`); `max_length` is in pieces, and
    `max_span_width`, where spans are classified, in words.
    """

    encoder: Annotated[str, Field(min_length=1)] = "minilm"
    blind: bool = True
    typed_markers: bool = False
    pool: Literal["sum", "start", "cls"] = "sum"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_length: Annotated[int, Field(ge=24)] = 128
    max_span_width: Annotated[int, Field(ge=1, le=64)] = 12


class LightnerTable(Table):
    """LightNER (Chen et al. 2022): prompts on a frozen BART that writes entities one by one.

    `bart` is a folder or name; `prompts` and `hidden` are N_q and h; `prompts_in` says which
    self-attention has prompts; `tune` what is trained: prompts, everything, or updates of low
    `rank`; `max_length` is in pieces; without `constrained` any symbol may follow any other. With
    an `adversary` it learns besides not to tell sites apart (Wang et al. 2023, App. A); `reversal`
    is how much of the adversary's gradient reaches the model at the end.
    """

    bart: str = ""
    prompts: Positive = 10
    hidden: Positive = 400
    prompts_in: Literal["both", "decoder"] = "both"
    tune: Literal["prompts", "all", "lora"] = "prompts"
    rank: Positive = 8
    constrained: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_length: Annotated[int, Field(ge=16)] = 256
    adversary: Literal["none", "dann", "fada", "fade"] = "none"
    reversal: Annotated[float, Field(ge=0)] = 1.0


class LinearTable(Table):
    """A linear CRF on hashed features: its table has 2 to the power of `bits` rows."""

    bits: Annotated[int, Field(ge=8, le=22)] = 16


class BagsTable(Table):
    """Settings of bags: all sentences that name one pair of entities.

    `reader` reads each sentence: a `pcnn` (`[pcnn]`) or an `encoder` (`[classifier]`). `denoise` is
    how FedAvg and `chain` combine the sentences of a bag. `same_entity` decides when two mentions
    are one entity: if they share their first concept (or their letters, if they have none), or
    always by their letters.
    """

    reader: Literal["pcnn", "encoder"] = "pcnn"
    denoise: Literal["none", "one", "att", "ave", "att-ra"] = "att"
    same_entity: Literal["concept", "letters"] = "concept"


class PcnnTable(Table):
    """The piecewise CNN (Zeng et al. 2015): its sizes, and how many words of a sentence it reads.

    `max_length` is in words; words farther than `max_distance` from an entity get the position of
    this distance.
    """

    word_dim: Positive = 50
    position_dim: Positive = 5
    filters: Positive = 230
    width: Odd = 3
    activation: Literal["tanh", "relu"] = "tanh"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    max_length: Annotated[int, Field(ge=8)] = 120
    max_distance: Positive = 60
    vectors: str | None = None


# --- The table `[privacy]`
#
# It bounds what training tells of one unit of text.


Unit = Literal["document", "sentence", "patient"]


class PrivacyTable(Table):
    """The promise of noise: it hides one `unit` of text, up to ε = `epsilon` at δ = `delta`.

    In each of `rounds` every unit is drawn with the probability `rate`, its gradient is clipped to
    the norm `clip`, and noise of `noise` clips (σ) is added to the sum. One of `epsilon`, `noise`,
    `rate` and `rounds` may be left out, and is worked out from the others.

    `units` says how many units all sites have together, about: the sum is divided by `rate` times
    that, so that nothing has to be counted. `patients`: a document's name up to the first of these
    characters is its patient; a document whose name has none is a patient of its own. Scores of
    held-out text are not covered: with `holdout_scores` "withheld", none leaves a site. `steps` is
    how often a site draws and steps by itself in a round, where the method lets it (dp-feded).
    """

    unit: Unit
    epsilon: Annotated[float, Field(gt=0, le=100)] | None = None
    delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    clip: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(gt=0.05, le=1024)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    units: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    patients: Annotated[str, Field(max_length=10)] = ""
    steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    holdout_scores: Literal["withheld", "sent"] = "withheld"


SIMULATED = "simulated"
REFERENCES = ("pooled", "alone", "public-only")
"""Baselines, as federations of one site: all text in one place, each site by itself, and the public
set alone."""


class DataTable(Table):
    """Options for reading files, unless a site says otherwise.

    `columns` are those of the token and the tag, by number from 0 or by name. `annotators` says
    whose annotation is read of a document that several annotated: "first", "majority" or a name.
    With `skip_broken`, a document that cannot be read is left out and named.
    `types` declares the entity types, and `relations` the relations; empty means the union over the
    sites. `relations` is read where sums are private ([privacy]). A site without `dev` or
    `test` files holds out `dev_share` or `test_share` of its training documents. For experiments,
    `train_share` is the share of its training documents that a site trains on, and `mask_common`
    is the share of the entities found at several sites whose letters are hidden in training text.
    `canaries` is the number of each site's training documents of which coins leave out half.
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
    same for relations. `annotates` lists the common types or relations that the site annotates, if
    not all; entities of other types are dropped from its text. `test_annotates` lists further types
    that its test text annotates. `types` lists the common types that the site wants, if not all: in
    its held-out text and with its name in `predict` the model decides among these alone. `context`
    is where this site has the encoder, and `tag_scheme` is the scheme of its own tagger, if the
    method gives each site one. `canaries` as in `[data]`.
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
    annotates: tuple[str, ...] = ()
    test_annotates: tuple[str, ...] = ()
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
    it is dealt (`holdout_from`). `disjoint_by` names an attribute of documents (such as "file") or
    "pair": training documents that share theirs with a held-out one are left out.
    """

    sites: Positive
    train: Paths
    dev: Paths = ()
    test: Paths = ()
    by: Literal["iid", "file", "domain", "dirichlet", "quantity", "pair"] = "iid"
    alpha: Annotated[float, Field(gt=0)] | None = None
    holdout_from: Literal["site", "corpus"] = "site"
    disjoint_by: str = ""
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


def _share_of_unannotated(value: object) -> object:
    """The two ends of `unannotated_types` by their names."""
    named = {"negative": 0.0, "ignore": 1.0}
    return named.get(value, value) if isinstance(value, str) else value


class TrainingTable(Table):
    """One site's training within a round. The learning rate is multiplied by `decay` per round.

    A round ends after `local_epochs` passes or `local_steps` batches (0: no bound), whichever comes
    first. `optimiser_state`: "reset" starts an optimiser anew in each round, "keep" goes on with
    its running means, which stay in the site's own memory. `unannotated_types`: what a site that
    annotates only some types says about a token outside its entities. "negative" (0): it has no
    type. "ignore" (1): it may have a type that the site lacks. Between: a factor on the probability
    of such a type. For relations, the same of a pair without one at such a site, but 0 compares
    only the relations that the site annotates.
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
    optimiser_state: Literal["reset", "keep"] = "reset"
    unannotated_types: Annotated[
        float, BeforeValidator(_share_of_unannotated), Field(ge=0, le=1)
    ] = 0.0


class VocabularyTable(Table):
    """The rule for words and characters of the shared vocabulary."""

    normalise: Literal["none", "lower", "lower-digits"] = "lower-digits"
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
    and in what numbers simulated sites compute, at most `micro_batch_size` examples of a batch at a
    time (0: all); a real site has its own. `start_from` is the folder of a run whose model the
    first round trains on.
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
    micro_batch_size: NotNegative = 0
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


# --- Splitting of a site's text
#
# The rules come from the site's own table and that of all sites.


def splitting_of(table: Table | None, settings: Settings) -> Splitting:
    """The splitting that a site's table or public text's gives or, where it says nothing, `[data]`.

    Only entities are learnt on tokens of our own; relations lie between given entities.
    """
    data = settings.data
    tokens = getattr(table, "train_on", None) or data.train_on
    return Splitting(
        language=getattr(table, "language", None) or data.language,
        sentences=getattr(table, "sentences", None) or data.sentences,
        abbreviations=(*data.abbreviations, *getattr(table, "abbreviations", ())),
        tokens=tokens if TASKS[settings.task].learns == "entities" else "file tokens",
    )


def common_splitting(settings: Settings, table: Table | None) -> Splitting:
    """The splitting of this site's text or, without a table, that of all sites if they agree."""
    tables = [table] if table is not None else settings.site
    found = {splitting_of(one, settings) for one in tables}
    return found.pop() if len(found) == 1 else splitting_of(None, settings)
