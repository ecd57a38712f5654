"""The tables of the models: taggers, relation classifiers and bag rankers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from confide.settings.base import NotNegative, Odd, Positive, Table, TagScheme


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
    """How much of an encoder is trained (`learning.tuning`), by whatever kind has one.

    `tune`: all of it, its `top` layers (`layers`), updates of low rank (`lora`: `rank`, and `alpha`
    over it for their weight), its biases, or nothing.
    """

    tune: Literal["all", "top", "lora", "bias", "frozen"] = "all"
    layers: Annotated[int, Field(ge=1, le=9999)] = 2
    rank: Annotated[int, Field(ge=1, le=9999)] = 8
    alpha: Annotated[int, Field(ge=1, le=9999)] = 16


class ClassifierTable(Table):
    """The relation classifier: an encoder, given by folder or name, and a linear layer.

    `blind` replaces entities by their types; `typed` gives each type marks of its own; `pool` says
    what represents an entity, the sum of its pieces or its opening mark, or that the first piece of
    the text represents both (`cls`); `longest` is the length limit in pieces; `width` is
    the most words of a span, where spans are classified.
    """

    encoder: Annotated[str, Field(min_length=1)] = "minilm"
    blind: bool = True
    typed: bool = False
    pool: Literal["sum", "start", "cls"] = "sum"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    longest: Annotated[int, Field(ge=24)] = 128
    width: Annotated[int, Field(ge=1, le=64)] = 12


class LightnerTable(Table):
    """LightNER (Chen et al. 2022): prompts on a frozen BART that writes entities one by one.

    `bart` is a folder or name; `prompts` and `hidden` are N_q and h; `where` says which
    self-attention has prompts; `tune` what is trained: prompts, everything, or updates of low
    `rank`; `longest` is in pieces; without `constrained` any symbol may follow any other. With an
    `adversary` it learns besides not to tell sites apart (Wang et al. 2023, App. A); `reversal` is
    how much of the adversary's gradient reaches the model at the end.
    """

    bart: str = ""
    prompts: Positive = 10
    hidden: Positive = 400
    where: Literal["both", "decoder"] = "both"
    tune: Literal["prompts", "all", "lora"] = "prompts"
    rank: Positive = 8
    constrained: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    longest: Annotated[int, Field(ge=16)] = 256
    adversary: Literal["none", "dann", "fada", "fade"] = "none"
    reversal: Annotated[float, Field(ge=0)] = 1.0


class LinearTable(Table):
    """A linear CRF on hashed features: its table has 2 to the power of `bits` rows."""

    bits: Annotated[int, Field(ge=8, le=22)] = 16


class BagsTable(Table):
    """How a bag is read: all sentences that name one pair of entities.

    `reader` reads each sentence: a `pcnn` (`[pcnn]`) or an `encoder` (`[classifier]`). `denoise` is
    how FedAvg and `chain` combine the sentences of a bag. `same` decides when two mentions are one
    entity: if they share their first concept (or their letters, if they have none), or always by
    their letters.
    """

    reader: Literal["pcnn", "encoder"] = "pcnn"
    denoise: Literal["none", "one", "att", "ave", "att-ra"] = "att"
    same: Literal["concept", "letters"] = "concept"


class PcnnTable(Table):
    """The piecewise CNN (Zeng et al. 2015): its sizes, and how many words of a sentence it reads.

    `farthest`: words farther than this from an entity get the position of this distance.
    """

    word_dim: Positive = 50
    position_dim: Positive = 5
    filters: Positive = 230
    width: Odd = 3
    activation: Literal["tanh", "relu"] = "tanh"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    longest: Annotated[int, Field(ge=8)] = 120
    farthest: Positive = 60
    vectors: str | None = None
