"""The tables of a settings file, typed.

The words below a key are its row in docs/settings.md; `make tables` writes them there. Those of
guards are on docs/site-file.md, by hand.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

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


PATH, ENCODER, VECTORS = "a path", "an encoder's folder or name", "a file or name of word vectors"
"""Marks of fields whose relative paths start at the folder of the settings file."""
Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    PATH,
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
        extra="forbid",
        frozen=True,
        ser_json_inf_nan="constants",
        allow_inf_nan=False,
        defer_build=True,
    )


# --- The table `[federation]`
#
# Who takes part, and what the server sees of it.


OF_SITES, OF_GROUPS = 5.0, 2.0
"""The default `max_norm_ratio`: of single updates, and of the means of groups."""


class FederationTable(Table):
    """Who takes part in a round, how updates travel, and how they are combined."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the sites drawn each round"""
    max_upload_mb: Annotated[float, Field(ge=0)] = 0.0
    """megabytes that a site may upload in the run; 0: no bound"""
    at_least: Annotated[int, Field(ge=0)] = 0
    """sites that must be there and answer, or the run ends; 0: all that were asked"""
    timeout: Limit = 7200.0
    """seconds for one answer; `inf`: no limit"""
    combine: Literal["mean", "trimmed", "median", "clipped"] = "mean"
    """how updates become one"""
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    """share that `trimmed` drops at each end"""
    max_norm_ratio: Annotated[float, Field(gt=1, allow_inf_nan=True)] | None = None
    """refuse an update of more than this many times the median norm. Default 5; of `groups` 2;
    under masks alone none"""
    up: Literal["rows", "float16", "int8", "int4", "int2", "top"] = "rows"
    """what a site sends: `rows`, `float16`, `int8`; without masks also `int4`, `int2`, `top`"""
    down: Literal["whole", "cached", "float16", "int8", "int4", "int2", "top"] = "whole"
    """what a site is sent"""
    top: Annotated[float, Field(gt=0, le=1)] = 0.01
    """share of numbers that `top` sends"""
    sums: Literal["plain", "masked"] | None = None
    """`masked`: the server reads only sums; else `plain`. Default: masked among three or more real
    sites"""
    colluding: Annotated[int, Field(ge=1)] | None = None
    """of n sites, those that may help the server. Default ⌈n/3⌉ − 1, at least 1"""
    groups: Annotated[int, Field(ge=0)] = 0
    """least size of groups whose sums `combine` sees; 0: none"""
    roll_back: Annotated[float, Field(ge=0, le=1)] = 0.0
    """undo a round that falls this far below the best; 0: never"""

    @property
    def limit(self) -> float:
        """`max_norm_ratio`, or what it is where the settings leave it open."""
        if self.max_norm_ratio is not None:
            return self.max_norm_ratio
        if self.sums == "masked":
            return OF_GROUPS if self.groups else math.inf
        return OF_SITES


# --- The tables of the models
#
# Taggers, relation classifiers and bag rankers.


class ModelTable(Table):
    """The model that finds entities: by default BiLSTM-CNNs-CRF (Ma & Hovy 2016)."""

    kind: Literal["tagger", "encoder", "lightner", "spans", "linear"] = "tagger"
    """as above"""
    word_dim: Positive = 100
    """length of a word's vector"""
    character: Literal["cnn", "bilstm", "none"] = "cnn"
    """what reads the letters"""
    character_dim: Positive = 30
    """length of a character's vector"""
    character_filters: Positive = 30
    """of the `cnn`"""
    character_width: Positive = 3
    """of the `cnn`"""
    character_hidden: Positive = 25
    """of the `bilstm`, each way"""
    context: Annotated[str, Field(min_length=1), ENCODER] = "none"
    """a frozen encoder whose states join the words, as `classifier.encoder`"""
    cnn_filters: NotNegative = 0
    """of the word CNN for each width; 0: none"""
    cnn_widths: Annotated[tuple[Odd, ...], Field(min_length=1)] = (3,)
    """of the word CNN"""
    bilstm_hidden: Positive = 100
    """each way"""
    bilstm_layers: NotNegative = 1
    """0: no BiLSTM"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """one mask per sentence"""
    tag_scheme: TagScheme = "iobes"
    """that is learnt, whatever files have"""
    vectors: Annotated[str | None, VECTORS] = None
    """`glove-50`, or a text file of word2vec or GloVe"""


class EncoderTable(Table):
    """The part of an encoder that is trained (`training.encoder.Tuning`), whatever the kind."""

    tune: Literal["all", "top", "lora", "bias", "frozen"] = "all"
    """what of it is trained"""
    layers: Annotated[int, Field(ge=1, le=9999)] = 2
    """of `top`"""
    rank: Annotated[int, Field(ge=1, le=9999)] = 8
    """of `lora`"""
    alpha: Annotated[int, Field(ge=1, le=9999)] = 16
    """of `lora`"""
    factors: Literal["both", "b", "exact"] = "both"
    """of `lora`: A and B are trained, or `b` alone; `exact` is fedex's"""


class ClassifierTable(Table):
    """An encoder and a linear layer: relations, and the kinds `encoder` and `spans`."""

    encoder: Annotated[str, Field(min_length=1), ENCODER] = "minilm"
    """`minilm`, `mpnet`, a folder, a hub name"""
    blind: bool = True
    """read entities as their types"""
    typed_markers: bool = False
    """marks for each entity type"""
    pool: Literal["sum", "start", "cls"] = "sum"
    """`sum` of an entity's pieces, its opening mark (`start`), the text's first piece (`cls`)"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """before the linear layer"""
    max_length: Annotated[int, Field(ge=24)] = 128
    """word pieces read at once"""
    max_span_width: Annotated[int, Field(ge=1, le=64)] = 12
    """of `spans`: the most words of an entity"""


class LightnerTable(Table):
    """LightNER (Chen et al. 2022): prompts on a frozen BART that writes entities one by one."""

    bart: str = ""
    """a folder or a hub name"""
    prompts: Positive = 10
    """their number, N_q"""
    hidden: Positive = 400
    """width of their projections, h"""
    prompts_in: Literal["both", "decoder"] = "both"
    """which self-attention has prompts"""
    tune: Literal["prompts", "all", "lora"] = "prompts"
    """what is trained"""
    rank: Positive = 8
    """of `lora`, and its alpha"""
    constrained: bool = True
    """write only well-formed entities"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """in training"""
    max_length: Annotated[int, Field(ge=16)] = 256
    """word pieces read at once"""
    adversary: Literal["none", "dann", "fada", "fade"] = "none"
    """learn not to tell sites apart"""
    reversal: Annotated[float, Field(ge=0)] = 1.0
    """share of the adversary's gradient at the end"""


class LinearTable(Table):
    """A linear CRF on hashed features."""

    bits: Annotated[int, Field(ge=8, le=22)] = 16
    """the table has 2^`bits` rows: 8 to 22"""


class BagsTable(Table):
    """Bags: all sentences that name one pair of entities."""

    reader: Literal["pcnn", "encoder"] = "pcnn"
    """`pcnn` or `encoder` (`[classifier]`)"""
    denoise: Literal["none", "one", "att", "ave", "att-ra"] = "att"
    """how sentences become one bag; not for lazy-mil"""
    same_entity: Literal["concept", "letters"] = "concept"
    """`concept`, else letters; or `letters`"""


class PcnnTable(Table):
    """The piecewise CNN (Zeng et al. 2015)."""

    word_dim: Positive = 50
    """length of a word's vector"""
    position_dim: Positive = 5
    """of each of two positions"""
    filters: Positive = 230
    """of the convolution"""
    width: Odd = 3
    """in words"""
    activation: Literal["tanh", "relu"] = "tanh"
    """of the convolution"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """before the linear layer"""
    max_length: Annotated[int, Field(ge=8)] = 120
    """words read of a sentence"""
    max_distance: Positive = 60
    """words; farther ones share its position"""
    vectors: Annotated[str | None, VECTORS] = None
    """`glove-50`, or a text file of word2vec or GloVe"""


# --- The table `[privacy]`
#
# It bounds what training tells of one unit of text.


Unit = Literal["document", "sentence", "patient"]


class PrivacyTable(Table):
    """The promise of noise: it hides one `unit` of text, up to ε = `epsilon` at δ = `delta`."""

    unit: Unit
    """what is hidden"""
    epsilon: Annotated[float, Field(gt=0, le=100)] | None = None
    """of the whole run"""
    delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    """of ε"""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest norm of a unit's gradient"""
    noise: Annotated[float, Field(gt=0.05, le=1024)] | None = None
    """σ in clips"""
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """probability that a unit is drawn in a round"""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """the most rounds"""
    units: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """of all sites, about"""
    patients: Annotated[str, Field(max_length=10)] = ""
    """a document's name up to these characters is its patient"""
    steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    """of dp-feded: draws and steps per round"""
    holdout_scores: Literal["withheld", "sent"] = "withheld"
    """`sent`: without noise, so the promise leaves that text out"""


SIMULATED = "simulated"
REFERENCES = ("pooled", "alone", "public-only")
"""Baselines, as federations of one site: all text in one place, each site by itself, and the public
set alone."""


class DataTable(Table):
    """Options for reading files, unless a site says otherwise."""

    format: str | None = None
    """detected if left out"""
    scheme: str | None = None
    """`iob1`, `iob2`, `iobes`, `bilou`, `io`; detected if left out"""
    encoding: Encoding | None = None
    """UTF-8, or what a byte order mark says"""
    language: Language = AUTO
    """of text without sentences: two letters, or `auto`"""
    sentences: Sentences = "rules"
    """`lines`: each line of such text is a sentence"""
    abbreviations: tuple[str, ...] = ()
    """more that end no sentence: `["Urb.", "-gasse."]`"""
    columns: Columns | None = None
    """of token and tag: `[0, 3]`, `["words", "labels"]`; found if left out"""
    annotators: str | None = None
    """of several: `first`, `majority` or a name; else the first"""
    skip_broken: bool = False
    """name unreadable documents and leave them out"""
    types: tuple[str, ...] = ()
    """the entity types; empty: all that sites have"""
    relations: tuple[str, ...] = ()
    """the same of relations; needed under noise"""
    dev_share: Share = 0.1
    """held out where a site names no `dev`"""
    test_share: Share = 0.2
    """held out where a site names no `test`"""
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """of the training documents; for learning curves"""
    train_on: TrainOn = "own tokens"
    """`own tokens`: those of raw text; `file tokens`: the file's"""
    mask_common: Annotated[float, Field(ge=0, le=1)] = 0.0
    """share of entities of several sites whose letters training text hides"""
    canaries: NotNegative = 0
    """documents for `confide audit`; a random half is not trained on"""


class SiteTable(Table):
    """One site: its files and how to read them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    """letters, digits, `_.-`"""
    train: Paths
    """files or folders"""
    dev: Paths = ()
    """else a share of `train`"""
    test: Paths = ()
    """else a share of `train`"""
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
    """their type → ours: `{ ADR = "ADE", Misc = "" }`; `""` drops one"""
    relations: dict[str, str] = {}
    """the same for relations"""
    annotates: tuple[str, ...] = ()
    """common types or relations that it annotates, if not all; others are dropped"""
    test_annotates: tuple[str, ...] = ()
    """further types that its test text annotates"""
    types: tuple[str, ...] = ()
    """the types it wants, if not all: held-out text and `predict --site` decide among these"""
    train_on: TrainOn | None = None
    tag_scheme: TagScheme | None = None
    """of its own tagger, where each site has one"""
    context: Annotated[str | None, ENCODER] = None
    """where its copy of the frozen encoder is"""
    vectors: Annotated[str | None, VECTORS] = None
    """word vectors that it reads for itself: a file, or `glove-50`"""
    key: Annotated[str | None, PATH] = None
    """its key file"""
    canaries: NotNegative = 0


class SplitTable(Table):
    """One corpus, dealt to simulated sites."""

    sites: Positive
    """their number"""
    train: Paths
    """files"""
    dev: Paths = ()
    """dealt too"""
    test: Paths = ()
    """as `dev`"""
    by: Literal[
        "iid", "file", "domain", "attribute", "dirichlet", "types", "quantity", "pair",
    ] = "iid"  # fmt: skip
    """`iid`, `file`, `domain`, `attribute` (one author, patient or ward, one site), `dirichlet`
    (skewed types or relations), `types` (a few types a site), `quantity` (skewed sizes), `pair`
    (one pair of entities, one site)"""
    attribute: Annotated[str, Field(min_length=1)] | None = None
    """of `attribute`: its name in the documents, such as `"ward"`"""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """of `dirichlet` (0.5), `quantity` (1): smaller is more uneven; of `types` (2): types, or
    relations, at each site"""
    holdout_from: Literal["site", "corpus"] = "site"
    """hold out at each `site`, or of the `corpus` before it is dealt"""
    disjoint_by: str = ""
    """an attribute (`file`) or `pair` that training text may not share with `dev` and `test`"""
    tags: dict[str, str] = {}
    relations: dict[str, str] = {}
    seed: int = 1
    """of the dealing only"""


class PairsTable(Table):
    """Pairs of entities that are looked at for a relation (`kinds.relations.batches.Rules`)."""

    types: tuple[tuple[str, str], ...] = ()
    """of entity types, head first: `[["Drug", "Effect"]]`; empty: those of training text"""
    direction: Literal["directed", "undirected"] = "directed"
    """`undirected`: two entities are one pair"""
    max_sentences: Most = 0
    """sentence ends between the two"""
    max_tokens: Most = math.inf
    """tokens between the two"""
    attribute: Annotated[str, Field(max_length=100)] = ""
    """an attribute of entities, such as `"assertion"`, to learn in place of relations"""


class PublicTable(Table):
    """The public set: text that the server and all sites may read."""

    files: Paths = ()
    """its own; of real sites, at the server"""
    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """of the training documents of a `[split]`"""
    labelled: bool = True
    """false: its relations or entities are hidden"""
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
    """One site's training within a round.

    The defaults are those of a tagger, from benchmarks/defaults/init; defaults.toml has the others.
    The paper's settings stand in its recipes.
    """

    optimiser: Literal["sgd", "adam", "adamw", "adagrad"] = "adam"
    """of each site"""
    learning_rate: Annotated[float, Field(gt=0)] = 0.005
    """of round 1"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """of `sgd`"""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """factor on the rate after each round"""
    clip: Limit = 5.0
    """largest norm of a gradient"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """of the optimiser"""
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """share of words read as unknown"""
    batch_size: Positive = 4
    """sentences, pairs or bags that a step learns from"""
    local_epochs: Positive = 2
    """passes per round"""
    local_steps: NotNegative = 0
    """the most batches per round; 0: no bound"""
    optimiser_state: Literal["reset", "keep"] = "reset"
    """`keep`: it goes on in the next round, in the site's memory"""
    unannotated_types: Annotated[
        float, BeforeValidator(_share_of_unannotated), Field(ge=0, le=1)
    ] = 0.0
    """a token (or pair) without a type is `negative` (0), or may have one that the site does not
    annotate: `ignore` (1)"""


class VocabularyTable(Table):
    """The rule for words and characters of the shared vocabulary."""

    normalise: Literal["none", "lower", "lower-digits"] = "lower-digits"
    """of words"""
    min_count: Positive = 1
    """fewest occurrences"""
    min_sites: Positive = 1
    """fewest sites that report a word"""


class SelectTable(Table):
    """Which round is kept: development counts decide."""

    by: Literal[
        "strict", "relaxed", "micro", "macro", "auc", "auc_2000", "precision_at", "last",
    ] = "strict"  # fmt: skip
    """score of development text, or the `last` round"""
    patience: Annotated[int, Field(ge=0)] = 0
    """stop after this many rounds without a better score; 0: never"""
    every: Positive = 1
    """rounds between scorings and checkpoints"""
    average: Positive = 1
    """keep the mean of about the last N rounds' weights"""
    calibrate: bool = True
    """fit confidences to development counts"""


class GuardsTable(Table):
    """A site's own limits: what it refuses, whatever the server asks."""

    min_sentences: Positive = 1
    """every step with fewer training sentences or examples"""
    min_token_count: Positive = 1
    """(never reports words and characters rarer than this)"""
    min_batch: Positive = 1
    """a gradient of fewer examples; a short last batch joins the one before"""
    min_sites: Positive = 1
    """a run of fewer real sites"""
    max_rounds: Positive = 100_000
    """a later round"""
    max_norm: Norm | None = None
    """(scales changes down to this norm)"""
    private: tuple[str, ...] = ()
    """to share these parts: of a tagger `word`, `character`, `cnn`, `bilstm`, `crf`; of a linear
    CRF `table`, `crf`; if any, also every method but fedner, dp-fedner, feded"""
    masked: bool = False
    """a run without masks"""
    max_epsilon: Annotated[float, Field(gt=0, le=1000)] = 10.0
    """to spend more ε over all runs on its disk"""
    delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    """of that ε"""
    unit: Literal["any", "document", "sentence", "patient"] = "any"
    """noise that hides another unit"""
    patients: Annotated[str, Field(max_length=10)] = ""
    """names of documents read otherwise"""
    reply_every: Annotated[float, Field(ge=0, le=600)] = 0.0
    """(sends a sum under noise at a multiple of these seconds)"""


class Settings(Table):
    """The settings of one run."""

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    """version of this file's keys"""
    name: str = ""
    """of the run; else the file's"""
    task: TaskName = "ner"
    """`ner` entities, `re` relations between marked entities, `bags` facts"""
    method: str = "fedavg"
    """a method of the task, or a reference: `pooled`, `alone`, `public-only`"""
    base: str = "fedavg"
    """the method that a reference runs"""
    seed: int = 1
    """same settings, key, seed, version, machine: same numbers"""
    rounds: Positive = 20
    """the most rounds"""
    workers: Positive = 1
    """processes that play the sites; numbers stay the same"""
    threads: Positive = 1
    """of each process"""
    device: Device = "cpu"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`"""
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] | None = None
    """one for each worker in turn, in place of `device`"""
    precision: Precision = "auto"
    """of computing; weights are always float32"""
    micro_batch_size: NotNegative = 0
    """the most examples computed at once; 0: as many as should fit"""
    key: Annotated[str | None, PATH] = None
    """the sites' key file; else one is made. `"simulated"`: from the seed, no protection"""
    start_from: Annotated[str, PATH] = ""
    """folder of a run whose model round 1 begins with"""
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
    """keys that only one method knows"""
    when: dict[str, Tree] = {}
    """`[when.METHOD]`: any of these keys under one method"""

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        names = [site.name for site in self.site]
        twice = sorted({name for name in names if names.count(name) > 1})
        rates, own = TASKS[self.task].kinds, self.federation
        masked, single = own.sums == "masked", own.sums == "masked" and not own.groups
        looks = {
            "combine": single and own.combine != "mean",
            "max_norm_ratio": single and own.limit < math.inf,
            "fraction": masked and own.fraction < 1.0,
        }
        faults = {
            f"schema {printable(self.schema_, 40)} is newer than this confide, which reads schema"
            f" {SCHEMA}": self.schema_ > SCHEMA,
            "give either [[site]] tables or one [split] table, not both": (
                self.site and self.split is not None
            ),
            f"two sites are called {', '.join(map(repr, twice))}": twice,
            f"select.by must be {', '.join(rates)} or last for task {self.task!r}, not"
            f" {self.select.by!r}": self.select.by not in (*rates, "last"),
            'pairs.attribute is for task = "re"': (
                self.pairs.attribute and TASKS[self.task].kind != "relations"
            ),
            "pairs.types name each type twice where pairs.attribute is learnt, of one entity alone:"
            ' [["problem", "problem"]]': (
                self.pairs.attribute and any(head != tail for head, tail in self.pairs.types)
            ),
            'split.by = "attribute" needs the attribute\'s name: split.attribute = "ward"': (
                self.split and self.split.by == "attribute" and self.split.attribute is None
            ),
            'split.attribute is for split.by = "attribute"': (
                self.split and self.split.by != "attribute" and self.split.attribute
            ),
            'encoder.factors = "exact" is for method = "fedex", which sees each update': (
                self.encoder.factors == "exact" and "fedex" not in (self.method, self.base)
            ),
            "give either device or devices, not both": self.devices and self.device != "cpu",
            f"workers = {self.workers} leave some of the {len(self.devices or ())} devices idle:"
            " set workers to as many, or more": self.workers < len(self.devices or ()),
            "give either public.files or public.share, not both": (
                self.public.files and self.public.share
            ),
            "public.share needs a corpus that is dealt to sites: [split]": (
                self.public.share and self.split is None
            ),
            "[privacy] is for sums that nobody can open: without masks every site would need all"
            ' the noise for itself; set federation.sums to "masked"': (self.privacy and not masked),
            "federation.groups are for sums that nobody can open, whose groups are combined:"
            ' set federation.sums to "masked", and federation.combine to "median", "trimmed" or'
            ' "clipped"': own.groups and (own.combine == "mean" or not masked),
            f'federation.up = "{own.up}" has a scale for every row of every site, and'
            ' federation.sums = "masked" adds up whole numbers of one scale: set federation.up to'
            ' "float16" or "int8", or leave it out': (
                masked and own.up not in ("rows", "float16", "int8")
            ),
            **{
                f"federation.{name} = {getattr(own, name)!r} must look at single replies, or at"
                ' changing sets of sites, and federation.sums = "masked" shows none: leave it out,'
                ' or set federation.sums = "plain"': is_so
                for name, is_so in looks.items()
            },
        }
        found = [fault for fault, is_so in faults.items() if is_so]
        if found:
            raise ValueError("\n".join(found))
        return self

    @property
    def trained_by(self) -> str:
        """METHOD-KIND: the method (`base` if it is a reference) and the kind of model."""
        return f"{self.base if self.method in REFERENCES else self.method}-{self.kind}"

    @property
    def kind(self) -> str:
        """The kind of model that is trained."""
        return kind_of(self.task, self.model.kind)

    @property
    def sharing(self) -> FederationTable:
        """`[federation]`, or its defaults for a reference: nothing of its single site travels."""
        return FederationTable() if self.method in REFERENCES else self.federation


def kind_of(task: str, model: str) -> str:
    """The kind of model for a task: the task's own or, if it has none, `model` (`model.kind`)."""
    return (TASKS[task].kind if task in TASKS else "") or model


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
