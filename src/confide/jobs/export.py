"""A trained model for other programs: ONNX, transformers, peft or spaCy.

An export is made of a release (`runs.loading`), so it takes the same explicit act: what it tells
whoever has it is said before a byte of it is written. Beside the model lie its card, and
`confide.json`: what its inputs and outputs mean.

Every export is checked before it counts: the written model gives the numbers of confide's own on
examples, or nothing is left in the folder.
"""

from __future__ import annotations

import copy as copies
import errno
import json
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from confide.errors import DataError, RunError, SettingsError, os_errors_as, printable
from confide.files import file_text, write_of_run
from confide.kinds.encoder import TokenClassifier, TokenTrainer
from confide.kinds.pieces import predict_relation_batches, predict_token_batches
from confide.kinds.relations.batches import RelationExample
from confide.kinds.relations.model import RelationClassifier, RelationTrainer
from confide.kinds.tagger.model import TaggerTrainer
from confide.runs import loading
from confide.runs.card import CARD
from confide.seeds import seeded
from confide.training import encoder as encoders
from confide.training.batches import Example
from confide.training.tagger import Tagger, TaggerSizes, predict_batches

Target = Literal["onnx", "hf", "peft", "spacy"]

ABOUT = "confide.json"
"""The description of the model's inputs and outputs."""
CLOSE = 1e-4
"""The largest difference between the numbers of a written model and confide's own."""

_CARD_BYTES = 1 << 22
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_USE = re.compile(r"## Use\n.*?(?=\n## )", re.DOTALL)


@dataclass(frozen=True)
class Copy:
    """A release, its opened model, and where to write."""

    folder: Path
    model: Any
    out: Path
    int8: bool = False


def export(
    run: Path | str,
    *,
    to: Target,
    out: Path | str,
    site: str | None = None,
    key: Path | str | None = None,
    int8: bool = False,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write the model of a run or release to the folder `out`, for other programs.

    Args:
        run: the folder of a run or of a release.
        to: "onnx" (taggers, encoders and relation classifiers), "hf" (a folder that
            `AutoModelForTokenClassification` or `AutoModelForSequenceClassification` loads), "peft"
            (the adapter of a run with `encoder.tune = "lora"`) or "spacy" (a pipeline that
            `spacy.load` loads).
        out: a new or empty folder.
        site: the site whose own model to write, if every site has its own.
        key: the sites' shared key file; by default the one that the run's settings name.
        int8: of ONNX, the weights of linear layers take a byte each.
        say: is told what the export tells whoever has it, before anything is written.

    Raises:
        SettingsError: this model cannot be written so, or a library is missing.
        RunError: there is no such run, the folder holds something, or it cannot be written.
        KeyFileError, DataError: as `confide.api.release` does.
    """
    if to not in TARGETS:
        raise SettingsError("unknown kind of export", expected=", ".join(TARGETS), got=repr(to))
    if int8 and to != "onnx":
        raise SettingsError("only ONNX can be written in int8", expected='to = "onnx"', got=to)
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise RunError("the folder holds something already", where=str(out), fix="name another one")
    write, use = TARGETS[to]
    with _workplace(out.resolve()) as place:
        folder = Path(run)
        if loading.release_task(folder) is None:
            folder = loading.release(folder, out=place / "copy", site=site, key=key)
        if say is not None:
            say(f"{out}: {loading.release_tells(folder)}")
        model: Any = loading.load_release(folder)
        calibrator = loading.released_calibrator(folder)
        made = place / "made"
        made.mkdir()
        about = write(Copy(folder, replace(model, calibrator=calibrator), made, int8))
        about |= {"calibration": calibrator._asdict()}
        write_of_run(made / ABOUT, json.dumps(about, indent=1, ensure_ascii=False).encode())
        if (card := folder / CARD).is_file():
            text = _USE.sub(lambda _: f"## Use\n\n{use}\n", file_text(card, _CARD_BYTES))
            write_of_run(made / CARD, text.encode())
        try:
            made.replace(out.resolve())
        except OSError:  # where something is mounted, nothing can be renamed to
            with _writing(out):
                shutil.copytree(made, out, dirs_exist_ok=True)
    return out


@contextmanager
def _workplace(out: Path) -> Iterator[Path]:
    """A folder beside `out` to make it in, which holds words in the clear: gone at the end.

    A killed process leaves it; the next export to `out` removes it. Raises RunError if the system
    cannot write it, and DataError for the system's other errors: what is exported cannot be read.
    """
    place = out.with_name(f".{out.name}.new")
    shutil.rmtree(place, ignore_errors=True)
    try:
        with _writing(out):
            place.mkdir(parents=True, mode=0o700)
        yield place
    except OSError as error:
        named = Path(error.filename) if error.filename else None
        ours = named is not None and (named.is_relative_to(place) or named.is_relative_to(out))
        if ours or error.errno in _FULL:
            with _writing(out):
                raise
        raise DataError(
            f"what the export needs cannot be read ({error.strerror or error})",
            where=None if named is None else str(named),
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _writing(out: Path) -> AbstractContextManager[None]:
    return os_errors_as(
        RunError, "the export cannot be written", where=out, fix="free some disk space"
    )


# --- spaCy: a pipeline with a release inside, which moves with its folder


_TEXTS = ("The patient took aspirin and had a severe headache.", "None.", "")


def write_spacy(copy: Copy) -> dict[str, Any]:
    """Write the pipeline; gives what it is about. Raises SettingsError if spaCy is missing."""
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            "a pipeline needs the library spaCy", fix="pip install 'confide[spacy]'"
        ) from error
    from confide.jobs.spacy_pipe import RELEASE, ReleaseComponent

    pipeline = spacy.blank("xx")
    component: Any = pipeline.add_pipe(RELEASE)
    assert isinstance(component, ReleaseComponent)
    component.take(copy.folder)
    pipeline.to_disk(copy.out)
    again = spacy.load(copy.out)
    for text in _TEXTS:
        one, other = (
            [(span.start_char, span.end_char, span.label_) for span in nlp(text).ents]
            for nlp in (pipeline, again)
        )
        if one != other:
            raise SettingsError("spaCy does not find the same again", got=repr(text))
    return {"kind": "spacy", "component": RELEASE, "spacy": version("spacy")}


# --- Models as functions of plain tensors, without the batch around them
#
# They are written as ONNX, and every export is compared with them. Decoding is not part of a graph:
# `confide.json` has the scores of moves between tags.
#
# Shapes: B sentences or examples, P pieces, L words, U distinct words, C characters, X numbers of
# a frozen encoder's state, Y tags, R relations.


class _Function(nn.Module):
    """A model, called with tensors in the order of a graph's inputs."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        """The graph's output."""
        return self.call(self.model, *inputs)


@dataclass(frozen=True)
class Graph:
    """A model as a function of tensors. `axes` has a letter for each axis of each input.

    Axes may have any size, but for those that are numbers. `probes` are inputs by name, of
    different sizes; `about` says what they mean.
    """

    module: nn.Module
    axes: dict[str, str]
    output: str
    probes: list[dict[str, Tensor]]
    about: dict[str, Any]

    def largest_difference(self, other: Callable[[dict[str, Tensor]], Tensor]) -> float:
        """The largest difference of another function's outputs; padding does not count."""
        away = torch.zeros(1)
        with torch.no_grad():
            for probe in self.probes:
                apart = (other(probe) - self.module(*probe.values())).abs()
                if "lengths" in probe:
                    apart = apart[torch.arange(apart.shape[1]) < probe["lengths"][:, None]]
                away = torch.maximum(away, apart.max())  # NaN stays
        return float(away)


def graph_of(extractor: Any) -> Graph:
    """The graph of a trained model. Raises SettingsError if its kind has none."""
    trainer, model = extractor.trainer, extractor.model
    if isinstance(model, TokenClassifier):
        graph = _tokens_graph(trainer, model)
    elif isinstance(model, RelationClassifier):
        graph = _pairs_graph(trainer, model)
    elif isinstance(model, Tagger):
        graph = _tagger_graph(trainer, model)
    else:
        raise SettingsError(
            "this kind of model cannot be written so",
            expected="a tagger, an encoder that tags words, or a relation classifier",
            got=type(model).__name__,
            fix='use `confide release`, whose copy confide reads anywhere, or to = "spacy"',
        )
    graph.module.eval()
    return graph


def _tokens_graph(trainer: TokenTrainer, model: TokenClassifier) -> Graph:
    def logits(model: Any, *inputs: Tensor) -> Tensor:
        ids_BP, mask_BP, firsts_BL = inputs
        found = model.encoder(input_ids=ids_BP, attention_mask=mask_BP)
        rows_B1 = torch.arange(ids_BP.shape[0])[:, None]
        logits_BLY: Tensor = model.tag(found.last_hidden_state[rows_B1, firsts_BL])
        return logits_BLY

    pieces = trainer.pieces
    probes = [
        {
            "input_ids": batch.ids_BP,
            "attention_mask": _mask(batch.ids_BP, batch.mask_BP),
            "firsts": batch.firsts_BL,
        }
        for batch in predict_token_batches(trainer.prepared(_sentences()), pieces_per_batch=64)
    ]
    about = {
        "kind": "encoder",
        "encoder": Path(trainer.encoder.name).name,
        "labels": list(trainer.tags.tags),
        "scheme": trainer.form.tag_scheme,
        "before": list(pieces.before),
        "after": list(pieces.after),
        "unknown": pieces.unknown,
        "longest": pieces.longest,
        "inputs": "input_ids [B,P] and attention_mask [B,P] of the pieces of each sentence's words;"
        " firsts [B,L] is the place of each word's first piece",
        "output": "logits [B,L,Y] of each word's tag; decode the likeliest path of valid moves",
        "moves": _moves(trainer.tags.rules),
    }
    axes = {"input_ids": "BP", "attention_mask": "BP", "firsts": "BL"}
    return Graph(_Function(model, logits), axes, "logits", probes, about)


def _pairs_graph(trainer: RelationTrainer, model: RelationClassifier) -> Graph:
    fields = ("ids_BP", "mask_BP", "head_BP", "tail_BP", "openings_B2")

    def logits(model: Any, *inputs: Tensor) -> Tensor:
        batch = SimpleNamespace(**dict(zip(fields, inputs, strict=True)), features_BF=None)
        logits_BR: Tensor = model(batch)
        return logits_BR

    marking = trainer.marking
    encoded = trainer.prepared(_pairs(marking.types, trainer.form.relations[0]))
    probes = [
        {
            "input_ids": batch.ids_BP,
            "attention_mask": _mask(batch.ids_BP, batch.mask_BP),
            "head": batch.head_BP,
            "tail": batch.tail_BP,
            "openings": batch.openings_B2,
        }
        for batch in predict_relation_batches(encoded, pieces_per_batch=64)
    ]
    about = {
        "kind": "relations",
        "encoder": Path(trainer.encoder.name).name,
        "labels": list(trainer.form.relations),
        "attribute": trainer.form.attribute,  # of entities, each its own head and tail; "": none
        "pool": trainer.form.pool,
        "blind": trainer.form.blind,
        "marks": {  # the pieces that open and close a head and a tail; "" if all types share them
            name: [*marking.around(name, tail=False), *marking.around(name, tail=True)]
            for name in (marking.types or ("",))
        },
        "before": list(marking.before),
        "after": list(marking.after),
        "longest": marking.longest,
        "inputs": "input_ids [B,P] and attention_mask [B,P] of a text with marks around head and"
        " tail; head [B,P] and tail [B,P] are true at their pieces; openings [B,2] are the places"
        " of their opening marks",
        "output": "logits [B,R] of the relation",
    }
    axes = {"input_ids": "BP", "attention_mask": "BP", "head": "BP", "tail": "BP", "openings": "B2"}
    return Graph(_Function(model, logits), axes, "logits", probes, about)


_TAGGER_INPUTS = {
    "words": ("words_BL", "BL"),
    "lengths": ("lengths_B", "B"),
    "forms": ("forms_BL", "BL"),
    "characters": ("characters_UC", "UC"),
    "character_lengths": ("character_lengths_U", "U"),
    "context": ("context_BLX", "BL0"),
}
"""The inputs of a tagger by name: the field of a batch, and the axes."""


def _tagger_graph(trainer: TaggerTrainer, model: Tagger) -> Graph:
    sizes = trainer.sizes
    assert isinstance(sizes, TaggerSizes)  # of no other trainer
    names = ["words", "lengths"]
    if sizes.character != "none":
        names += ["forms", "characters", "character_lengths"]
    if sizes.context_dim:
        names.append("context")

    def emissions(model: Any, *inputs: Tensor) -> Tensor:
        batch = SimpleNamespace(**dict.fromkeys(field for field, _ in _TAGGER_INPUTS.values()))
        for name, tensor in zip(names, inputs, strict=True):
            setattr(batch, _TAGGER_INPUTS[name][0], tensor)
        emissions_BLY: Tensor = model(batch)
        return emissions_BLY

    probes = []
    for batch in predict_batches(trainer.prepared(_sentences()), tokens_per_batch=48):
        probe = {name: getattr(batch, _TAGGER_INPUTS[name][0]) for name in names}
        if sizes.context_dim:
            states_X = torch.linspace(-1, 1, sizes.context_dim)
            probe["context"] = states_X.expand(*batch.words_BL.shape, -1)
        probes.append(probe)
    about = {
        "kind": "tagger",
        "labels": list(trainer.tags.tags),
        "scheme": trainer.tags.scheme,
        "normalised": trainer.how,
        "words": list(getattr(trainer.words, "texts", ())),
        "characters": list(getattr(trainer.characters, "texts", ())),
        "inputs": "words [B,L]: 0 is padding, 1 an unknown word, 2 the first of `words`; lengths"
        " [B]; forms [B,L] says which row of characters [U,C] spells each word, of"
        " character_lengths [U]; context [B,L,X] is the frozen encoder's state of each word",
        "output": "emissions [B,L,Y]; the best path adds `moves`",
        "moves": _moves(model.crf.scores()),
    }
    axes = {name: _TAGGER_INPUTS[name][1] for name in names}
    return Graph(_Function(model, emissions), axes, "emissions", probes, about)


def _mask(ids_BP: Tensor, mask_BP: Tensor | None) -> Tensor:
    return torch.ones_like(ids_BP) if mask_BP is None else mask_BP


def _moves(scores: Any) -> dict[str, Any]:
    return {
        "between": scores.moves_YY.tolist(),
        "start": scores.starts_Y.tolist(),
        "end": scores.ends_Y.tolist(),
    }


# Examples that every model reads: sentences of several lengths, and pairs of entities in them.


def _sentences() -> list[Example]:
    words = ("the", "patient", "took", "aspirin", "and", "had", "Headache", "(", "severe", ")")
    return [
        Example(0, number, tuple(words[place % len(words)] for place in range(length)))
        for number, length in enumerate((1, 2, 3, 5, 8, 13))
    ]


def _pairs(types: tuple[str, ...], relation: str) -> list[RelationExample]:
    found, names = [], types or ("thing",)
    for number, sentence in enumerate(_sentences()):
        text = " ".join((*sentence.tokens, "aspirin", "causes", "pain", "."))
        head, tail = text.rindex("aspirin"), text.rindex("pain")
        found.append(
            RelationExample(
                id=str(number),
                text=text,
                head=((head, head + 7),),
                tail=((tail, tail + 4),),
                head_type=names[number % len(names)],
                tail_type=names[(number + 1) % len(names)],
                relation=relation,
            )
        )
    return found


# --- transformers: the folder of a trained encoder, with the family's own class for its task
#
# `AutoModelForTokenClassification` has confide's layer as it is. Between the first piece's state
# and the last layer, `AutoModelForSequenceClassification` has a layer of its own, which is set so
# that it passes the state on: tanh(εx) / ε is x for a small ε, and a rectifier passes x + c for a
# large c. The folder is written only if its logits are confide's on examples.


_SMALL, _LARGE = 1e-4, 64.0


def write_hf(copy: Copy) -> dict[str, Any]:
    """Write the folder; gives what it is about. Raises SettingsError if no class fits the model."""
    trainer = copy.model.trainer
    if isinstance(trainer, TokenTrainer):
        return _write_token_classifier(copy, trainer)
    if isinstance(trainer, RelationTrainer):
        return _write_sequence_classifier(copy, trainer)
    raise SettingsError(
        "transformers has no class for this kind of model",
        expected="an encoder that tags words, or a relation classifier",
        got=type(copy.model.model).__name__,
        fix='use to = "spacy", or of a tagger "onnx"',
    )


def _write_token_classifier(copy: Copy, trainer: TokenTrainer) -> dict[str, Any]:
    model, graph = copy.model.model, graph_of(copy.model)
    theirs = _their_model(trainer.encoder, "TokenClassification", trainer.tags.tags)
    theirs.base_model.load_state_dict(_plain_states(model.encoder), strict=False)
    _copy_layer(model.tag, _last_layer(theirs, len(trainer.tags)))
    away = graph.largest_difference(_token_logits(theirs))
    if not away <= CLOSE:
        raise _other_head(theirs)
    theirs.save_pretrained(copy.out)
    _save_tokenizer(encoders.tokenizer_of(trainer.encoder.folder, fast=False), copy)
    return {**graph.about, "class": type(theirs).__name__, "largest_difference": away}


def _write_sequence_classifier(copy: Copy, trainer: RelationTrainer) -> dict[str, Any]:
    if trainer.form.pool != "cls":
        raise SettingsError(
            "transformers has no class that reads two entities' pieces",
            expected='a model trained with classifier.pool = "cls"',
            got=f"classifier.pool = {trainer.form.pool!r}",
            fix='use to = "onnx"',
        )
    from transformers import AddedToken

    model, encoder, marking = copy.model.model, trainer.encoder, trainer.marking
    theirs = _their_model(encoder, "SequenceClassification", trainer.form.relations)
    # the tokenizer gets the marks, under numbers of its own
    tokenizer = encoders.tokenizer_of(encoder.folder, fast=False)
    names: dict[str, list[str]] = {}
    for kind in marking.types or ("",):
        end = f":{kind}" if kind else ""
        names[kind] = [f"[H{end}]", f"[/H{end}]", f"[T{end}]", f"[/T{end}]"]
    flat = [name for four in names.values() for name in four]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in flat])
    ids: list[int] = tokenizer.convert_tokens_to_ids(flat)
    # so do the rows of their table
    table = model.encoder.get_input_embeddings()
    table_VD = table.weight.detach()
    if isinstance(table, encoders.MarkedEmbedding):
        table_VD = torch.cat((table.weight, table.marks_KD)).detach()
    plain_VD, marks_KD = table_VD[: marking.first], table_VD[marking.first :]
    rows = max(len(plain_VD), max(ids) + 1)
    theirs.resize_token_embeddings(rows, mean_resizing=False)
    states, table = _plain_states(model.encoder), theirs.get_input_embeddings()
    with torch.no_grad():
        table.weight[: len(plain_VD)] = plain_VD
        table.weight[torch.tensor(ids)] = marks_KD
    name = next(name for name, one in theirs.base_model.named_modules() if one is table)
    states[f"{name}.weight"] = table.weight.detach().clone()
    theirs.base_model.load_state_dict(states, strict=False)
    moved = torch.arange(max(len(table_VD), rows))
    moved[marking.first : len(table_VD)] = torch.tensor(ids)
    graph = graph_of(copy.model)

    def logits(probe: dict[str, Tensor]) -> Tensor:
        mask_BP = probe["attention_mask"]
        found: Tensor = theirs(input_ids=moved[probe["input_ids"]], attention_mask=mask_BP).logits
        return found

    away = _fit_head(theirs, model.relation, lambda: graph.largest_difference(logits))
    theirs.save_pretrained(copy.out)
    _save_tokenizer(tokenizer, copy)
    return {
        **graph.about,
        "marks": names,
        "class": type(theirs).__name__,
        "inputs": "a text with `marks` around head and tail: [opens head, closes head, opens tail,"
        " closes tail]; with `blind`, each entity's type stands for its words",
        "output": "logits of the relation",
        "largest_difference": away,
    }


def _token_logits(theirs: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    """The logits of transformers' classifier of tokens, of each word's first piece."""

    def logits(probe: dict[str, Tensor]) -> Tensor:
        ids_BP, mask_BP = probe["input_ids"], probe["attention_mask"]
        logits_BPY: Tensor = theirs(input_ids=ids_BP, attention_mask=mask_BP).logits
        return logits_BPY[torch.arange(len(ids_BP))[:, None], probe["firsts"]]

    return logits


def _copy_layer(ours: nn.Linear, theirs: Any) -> None:
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)


def _save_tokenizer(tokenizer: Any, copy: Copy) -> None:
    tokenizer.name_or_path = ""
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.save_pretrained(copy.out)


def _their_model(encoder: encoders.FrozenEncoder, task: str, labels: Any) -> Any:
    """The family's class for a task, with the encoder's configuration and weights drawn anew."""
    import transformers

    config: Any = transformers.AutoConfig.from_pretrained(
        encoder.folder,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
        local_files_only=True,
        trust_remote_code=False,
    )
    config._name_or_path = ""  # where the encoder lies here
    kind: Any = getattr(transformers, f"AutoModelFor{task}")
    try:
        with seeded(1):
            return kind.from_config(config, trust_remote_code=False).float().eval()
    except ValueError as error:
        raise SettingsError(
            f"transformers has no {task} for this family of encoders",
            got=type(config).__name__,
            fix='use to = "onnx"',
        ) from error


def _plain_states(body: Any) -> dict[str, Tensor]:
    """The weights of a trained encoder by transformers' names, without rows for marks.

    Updates of low rank are added to the weights.
    """
    body = copies.deepcopy(body)
    for module in list(body.modules()):
        for name, child in module.named_children():
            if hasattr(child, "lora_A") and hasattr(child, "merge"):
                child.merge()
                setattr(module, name, child.get_base_layer())
    return {name: value for name, value in body.state_dict().items() if "marks_KD" not in name}


def _last_layer(theirs: Any, labels: int) -> nn.Linear:
    """The linear layer that gives the logits."""
    linear = (one for one in theirs.modules() if isinstance(one, nn.Linear))
    found = [one for one in linear if one.out_features == labels]
    if not found:
        raise _other_head(theirs)
    return found[-1]


def _fit_head(theirs: Any, ours: nn.Linear, away: Callable[[], float]) -> float:
    """Set their head so that it gives our layer's logits; gives how far it is from that."""
    inside = {id(one) for one in encoders.layers_of(theirs.base_model).modules()}
    dim = ours.in_features
    between = [
        one
        for one in theirs.modules()
        if isinstance(one, nn.Linear)
        and id(one) not in inside
        and (one.in_features, one.out_features) == (dim, dim)
    ]
    last = _last_layer(theirs, ours.out_features)
    weight, bias = ours.weight.detach(), ours.bias.detach()
    for scale, shift in ((1.0, 0.0), (_SMALL, 0.0), (1.0, _LARGE)):
        with torch.no_grad():
            for layer in between:
                layer.weight.copy_(scale * torch.eye(dim))
                if layer.bias is not None:
                    layer.bias.fill_(shift)
            last.weight.copy_(weight / scale)
            last.bias.copy_(bias - shift * weight.sum(1))
        if (found := away()) <= CLOSE:
            return found
    raise _other_head(theirs)


def _other_head(theirs: Any) -> SettingsError:
    return SettingsError(
        "the class of transformers for this family has a head that cannot give these numbers",
        got=type(theirs).__name__,
        fix='use to = "onnx"',
    )


# --- peft: the adapter of a run with updates of low rank, as a folder that anyone's peft loads
#
# For an encoder that tags words, peft lays it over `AutoModelForTokenClassification` and puts the
# last layer in its place. For relations it is laid over `AutoModel`; the last layer and the rows
# of the marks, for which no class of transformers has a place, lie beside it in
# `head.safetensors`.


HEAD = "head.safetensors"
"""The head of a relation classifier, beside its adapter."""


def write_peft(copy: Copy) -> dict[str, Any]:
    """Write the adapter; gives what it is about.

    Raises SettingsError if the model was not trained with `encoder.tune = "lora"`.
    """
    trainer, model = copy.model.trainer, copy.model.model
    known = isinstance(trainer, (TokenTrainer, RelationTrainer))
    if not known or trainer.tuning.tune != "lora":
        raise SettingsError(
            "this model has no adapter",
            expected='a run with encoder.tune = "lora"',
            got=f"encoder.tune = {trainer.tuning.tune!r}" if known else "no encoder",
        )
    graph, encoder = graph_of(copy.model), trainer.encoder
    if isinstance(trainer, TokenTrainer):
        theirs = _their_model(encoder, "TokenClassification", trainer.tags.tags)
        theirs.base_model.load_state_dict(encoder.loaded.model.state_dict(), strict=False)
        last = _last_layer(theirs, len(trainer.tags))
        name = next(name for name, one in theirs.named_modules() if one is last)
        made = _adapted(theirs, trainer, task_type="TOKEN_CLS", modules_to_save=[name])
        _copy_updates(model.encoder, theirs.base_model)
        copied = made.base_model.model.get_submodule(name).modules_to_save["default"]
        _copy_layer(model.tag, copied)
        away = graph.largest_difference(_token_logits(made))
    else:
        theirs = encoder.loaded.body()
        made = _adapted(theirs, trainer, task_type="FEATURE_EXTRACTION")
        _copy_updates(model.encoder, theirs)
        ids = torch.arange(3, 9)[None]
        with torch.no_grad():
            one, other = (
                body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
                for body in (made, model.encoder)
            )
        away = float((one - other).abs().max())
        head = {
            "relation.weight": model.relation.weight,
            "relation.bias": model.relation.bias,
            "marks": model.encoder.get_input_embeddings().marks_KD,
        }
        save_file({name: p.detach().contiguous() for name, p in head.items()}, copy.out / HEAD)
    if not away <= CLOSE:
        raise SettingsError("peft does not give this model's numbers", got=f"{away:.1g} away")
    # nobody learns where the encoder lies here, and nothing is looked up elsewhere
    made.peft_config["default"].base_model_name_or_path = None
    made.save_pretrained(copy.out, save_embedding_layers=False)
    (copy.out / "README.md").unlink(missing_ok=True)  # peft's; the release's card takes its place
    return {**graph.about, "digest": encoder.digest, "largest_difference": away}


def _adapted(
    theirs: Any, trainer: Any, *, task_type: str, modules_to_save: list[str] | None = None
) -> Any:
    """A model of transformers with updates of the trainer's rank over it."""
    peft, tuning = encoders.peft_library(), trainer.tuning
    config = peft.LoraConfig(
        r=tuning.rank,
        lora_alpha=tuning.alpha,
        lora_dropout=0.0,
        target_modules=encoders.updated(trainer.encoder.loaded.model),
        bias="none",
        inference_mode=True,
        task_type=task_type,
        modules_to_save=modules_to_save,
    )
    theirs.config._name_or_path = theirs.name_or_path = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of what transformers renamed
        return peft.get_peft_model(theirs, config).eval()


def _copy_updates(ours: Any, theirs: Any) -> None:
    """Copy the updates of low rank by name. Raises SettingsError if there they have other names."""
    own = {name: p for name, p in ours.named_parameters() if ".lora_" in name}
    there = {name: p for name, p in theirs.named_parameters() if ".lora_" in name}
    if not own or own.keys() != there.keys():
        raise SettingsError("peft names the updates of this encoder in another way")
    with torch.no_grad():
        for name, parameter in own.items():
            there[name].copy_(parameter)


# --- ONNX, checked with onnxruntime; weights of linear layers in int8 if asked


MODEL = "model.onnx"


def write_onnx(copy: Copy) -> dict[str, Any]:
    """Write `model.onnx`; gives what it is about.

    Raises SettingsError if a library is missing, or no exporter of torch writes this model so that
    onnxruntime gives confide's numbers.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            "ONNX needs the libraries onnx and onnxruntime", fix="pip install 'confide[onnx]'"
        ) from error
    graph = graph_of(copy.model)
    file = copy.out / MODEL
    failures = []
    for modern in (False, True):  # the modern exporter takes ten times as long
        try:
            with _silent(), torch.no_grad():
                _write_onnx(graph, file, modern=modern)
            away = graph.largest_difference(_session(file))
        except Exception as error:  # whatever an exporter or a runtime raises
            failures.append(printable(encoders.first_line(error)))
            continue
        if away <= CLOSE:
            break
        failures.append(f"its numbers are {away:.1g} away")
    else:
        raise SettingsError(
            "torch cannot write this model as ONNX", got="; ".join(failures), fix='use to = "hf"'
        )
    if copy.int8:
        _quantise(file)
        away = graph.largest_difference(_session(file))
    return {**graph.about, "largest_difference": away, "int8": copy.int8}


def _write_onnx(graph: Graph, file: Path, *, modern: bool) -> None:
    probe = max(graph.probes, key=lambda one: next(iter(one.values())).numel())
    free = {
        name: {place: letter for place, letter in enumerate(axes) if not letter.isdigit()}
        for name, axes in graph.axes.items()
    }
    sizes: dict[str, Any] = {"dynamic_axes": free, "opset_version": 17}
    if modern:
        shapes = (dict.fromkeys(free[name], torch.export.Dim.DYNAMIC) for name in probe)
        sizes = {"dynamic_shapes": (tuple(shapes),)}
    torch.onnx.export(
        graph.module,
        tuple(probe.values()),
        str(file),
        input_names=list(probe),
        output_names=[graph.output],
        dynamo=modern,
        verbose=False,
        **sizes,
    )


def _session(file: Path) -> Callable[[dict[str, Tensor]], Tensor]:
    """The function of tensors that onnxruntime makes of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, torch.get_num_threads())
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    reads = {one.name for one in session.get_inputs()}

    def run(probe: dict[str, Tensor]) -> Tensor:
        inputs = {name: value.numpy() for name, value in probe.items() if name in reads}
        return torch.from_numpy(np.asarray(session.run(None, inputs)[0]))

    return run


def _quantise(file: Path) -> None:
    """Write linear layers' weights in int8, with a scale for each column, in place of the file.

    The weights take seven of the eight bits: without VNNI, processors add two products of bytes in
    16 bits and saturate above 2 × 255 × 64, so eight bits would give other numbers there.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantised = file.with_name("int8.onnx")
    with _silent():
        quantize_dynamic(
            str(file), str(quantised),
            weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
        )  # fmt: skip
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)  # of large models: the weights
    quantised.rename(file)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep exporters from warning of what is checked here."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


TARGETS: dict[str, tuple[Callable[[Copy], dict[str, Any]], str]] = {
    "onnx": (
        write_onnx,
        "`model.onnx` runs in any ONNX runtime; `confide.json` says what its inputs and outputs"
        " mean.",
    ),
    "hf": (
        write_hf,
        "`transformers` loads this folder; `confide.json` says what confide does besides.",
    ),
    "peft": (
        write_peft,
        "`peft.PeftModel.from_pretrained` lays this adapter over the encoder that `confide.json`"
        " names.",
    ),
    "spacy": (write_spacy, "`spacy.load` loads this folder where confide is installed."),
}
"""The function that writes each target and gives its description, and the use of what it wrote."""
