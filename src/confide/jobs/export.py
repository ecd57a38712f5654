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
from confide.files import text_of, write_of_run
from confide.kinds.encoder import TokenClassifier, TokenTrainer
from confide.kinds.pieces import predict_relation_batches, predict_token_batches
from confide.kinds.relations.batches import RelationExample
from confide.kinds.relations.model import RelationClassifier, RelationTrainer
from confide.kinds.tagger.model import TaggerTrainer
from confide.runs.card import CARD
from confide.runs.loading import release, release_task, release_tells, released, released_calibrator
from confide.seeds import seeded
from confide.training.batches import Example
from confide.training.encoder import (
    FrozenEncoder,
    MarkedEmbedding,
    first_line,
    layers_of,
    peft_library,
    tokenizer_of,
    updated,
)
from confide.training.tagger import Tagger, TaggerSizes, predict_batches

Target = Literal["onnx", "hf", "peft", "spacy"]

ABOUT = "confide.json"
"""The description of the model's inputs and outputs."""

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


Write = Callable[[Copy], dict[str, Any]]
"""Writes a model, checks it, and gives what `confide.json` says of it."""


def export(
    run: Path,
    *,
    to: Target,
    out: Path,
    site: str | None = None,
    key: Path | None = None,
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
    if to not in _TARGETS:
        raise SettingsError(
            "nobody knows this kind of export", expected=", ".join(_TARGETS), got=repr(to)
        )
    if int8 and to != "onnx":
        raise SettingsError("only ONNX can be written in int8", expected='to = "onnx"', got=to)
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise RunError("the folder holds something already", where=str(out), fix="name another one")
    with _beside(out.resolve()) as place:
        copy = Path(run)
        if release_task(copy) is None:
            copy = release(copy, out=place / "copy", site=site, key=key)
        if say is not None:
            say(f"{out}: {release_tells(copy)}")
        made = Copy(copy, _opened(copy), place / "made", int8)
        made.out.mkdir()
        about = _TARGETS[to]()(made) | {"calibration": made.model.calibrator._asdict()}
        write_of_run(made.out / ABOUT, json.dumps(about, indent=1, ensure_ascii=False).encode())
        _write_card(copy, made.out, _USES[to])
        try:
            made.out.replace(out.resolve())
        except OSError:  # where something is mounted, nothing can be renamed to
            with _writing(out):
                shutil.copytree(made.out, out, dirs_exist_ok=True)
    return out


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
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


def _opened(copy: Path) -> Any:
    found: Any = released(copy)
    return replace(found, calibrator=released_calibrator(copy))


def _write_card(copy: Path, out: Path, use: str) -> None:
    """The release's card, with how an export is used."""
    file = copy / CARD
    if file.is_file():
        text = _USE.sub(lambda _: f"## Use\n\n{use}\n", text_of(file, _CARD_BYTES))
        write_of_run(out / CARD, text.encode())


def _onnx() -> Write:

    return write_onnx


def _hf() -> Write:

    return write_hf


def _peft() -> Write:

    return write_peft


def _spacy() -> Write:

    return write_spacy


_TARGETS: dict[str, Callable[[], Write]] = {
    "onnx": _onnx,
    "hf": _hf,
    "peft": _peft,
    "spacy": _spacy,
}
_USES = {
    "onnx": "`model.onnx` runs in any ONNX runtime; `confide.json` says what its inputs and outputs"
    " mean.",
    "hf": "`transformers` loads this folder; `confide.json` says what confide does besides.",
    "peft": "`peft.PeftModel.from_pretrained` lays this adapter over the encoder that"
    " `confide.json` names.",
    "spacy": "`spacy.load` loads this folder where confide is installed.",
}


# --- Export to spaCy
#
# A pipeline with a release inside: it moves with its folder.


_PROBES = ("The patient took aspirin and had a severe headache.", "None.", "")


def write_spacy(copy: Copy) -> dict[str, Any]:
    """Write the pipeline; gives what it is about. Raises SettingsError if spaCy is missing."""
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            "a pipeline needs the library spaCy", fix="pip install 'confide[spacy]'"
        ) from error
    from confide.jobs.spacy_pipe import RELEASED, Released

    pipeline = spacy.blank("xx")
    component: Any = pipeline.add_pipe(RELEASED)
    assert isinstance(component, Released)
    component.take(copy.folder)
    pipeline.to_disk(copy.out)
    again = spacy.load(copy.out)
    for text in _PROBES:
        one, other = (
            [(span.start_char, span.end_char, span.label_) for span in nlp(text).ents]
            for nlp in (pipeline, again)
        )
        if one != other:
            raise SettingsError("spaCy does not find the same again", got=repr(text))
    return {"kind": "spacy", "component": RELEASED, "spacy": version("spacy")}


# --- Models as functions of plain tensors
#
# They are written as ONNX, and checked.
#
# Decoding is not part of a graph: `confide.json` has the scores of moves between tags.
#
# Shapes: B sentences or examples, P pieces, L words, U distinct words, C characters, X numbers of
# a frozen encoder's state, Y tags, R relations.


Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Graph:
    """A function of tensors by name. `axes` names the axes of each input that may have any size.

    `probes` are examples of inputs, of different sizes; `about` says what they mean. `together`:
    the function takes any number of tensors, as `*given`.
    """

    module: nn.Module
    axes: dict[str, dict[int, str]]
    output: str
    probes: list[Inputs]
    about: dict[str, Any]
    together: bool = True


def graph_of(extractor: Any) -> Graph:
    """The graph of a trained model. Raises SettingsError if its kind has none."""
    make = _GRAPHS.get(type(extractor.model))
    if make is None:
        raise SettingsError(
            "this kind of model cannot be written so",
            expected="a tagger, an encoder that tags words, or a relation classifier",
            got=type(extractor.model).__name__,
            fix='use `confide release`, whose copy confide reads anywhere, or to = "spacy"',
        )
    graph = make(extractor.trainer, extractor.model)
    graph.module.eval()
    return graph


class _Words(nn.Module):
    """An encoder that tags words, without the batch around it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, firsts: Tensor) -> Tensor:
        """logits_BLY."""
        found = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask)
        rows_B1 = torch.arange(input_ids.shape[0])[:, None]
        logits_BLY: Tensor = self.model.tag(found.last_hidden_state[rows_B1, firsts])
        return logits_BLY


class _Pairs(nn.Module):
    """A relation classifier, without the batch around it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tensor:
        """logits_BR."""
        ids_BP, mask_BP, head_BP, tail_BP, openings_B2 = given
        batch = SimpleNamespace(
            ids_BP=ids_BP, mask_BP=mask_BP, head_BP=head_BP, tail_BP=tail_BP,
            openings_B2=openings_B2, features_BF=None,
        )  # fmt: skip
        logits_BR: Tensor = self.model(batch)
        return logits_BR


class _Tagger(nn.Module):
    """A BiLSTM-CRF's emissions, without the batch around them."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *given: Tensor) -> Tensor:
        """emissions_BLY."""
        own = dict.fromkeys(_OF_TAGGER.values(), None) | dict(zip(self.names, given, strict=True))
        batch = SimpleNamespace(**{field: own[name] for field, name in _OF_TAGGER.items()})
        emissions_BLY: Tensor = self.model(batch)
        return emissions_BLY


_OF_TAGGER = {
    "words_BL": "words",
    "lengths_B": "lengths",
    "forms_BL": "forms",
    "characters_UC": "characters",
    "character_lengths_U": "character_lengths",
    "context_BLX": "context",
}
"""Names of a tagger's inputs: in a batch, and in an export."""

_LETTERS = ("forms", "characters", "character_lengths")


def _words_graph(trainer: TokenTrainer, model: nn.Module) -> Graph:
    text = trainer.prepared(probe_sentences(trainer.types))
    pieces = trainer.pieces
    probes = []
    for batch in predict_token_batches(text, pieces_per_batch=64):
        mask_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
        probes.append(
            {"input_ids": batch.ids_BP, "attention_mask": mask_BP, "firsts": batch.firsts_BL}
        )
    axes = {"input_ids": "BP", "attention_mask": "BP", "firsts": "BL"}
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
        "moves": _rules(trainer.tags.rules),
    }
    return Graph(_Words(model), _axes(axes), "logits", probes, about, together=False)


def _pairs_graph(trainer: RelationTrainer, model: nn.Module) -> Graph:
    marking = trainer.marking
    probes = []
    encoded = trainer.prepared(probe_pairs(marking.types, trainer.form.relations[0]))
    for batch in predict_relation_batches(encoded, pieces_per_batch=64):
        mask_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
        probes.append(
            {
                "input_ids": batch.ids_BP,
                "attention_mask": mask_BP,
                "head": batch.head_BP,
                "tail": batch.tail_BP,
                "openings": batch.openings_B2,
            }
        )
    axes = {"input_ids": "BP", "attention_mask": "BP", "head": "BP", "tail": "BP", "openings": "B2"}
    about = {
        "kind": "relations",
        "encoder": Path(trainer.encoder.name).name,
        "labels": list(trainer.form.relations),
        "pool": trainer.form.pool,
        "blind": trainer.form.blind,
        "marks": marks_of(trainer),
        "before": list(marking.before),
        "after": list(marking.after),
        "longest": marking.longest,
        "inputs": "input_ids [B,P] and attention_mask [B,P] of a text with marks around head and"
        " tail; head [B,P] and tail [B,P] are true at their pieces; openings [B,2] are the places"
        " of their opening marks",
        "output": "logits [B,R] of the relation",
    }
    return Graph(_Pairs(model), _axes(axes), "logits", probes, about)


def _tagger(trainer: TaggerTrainer, model: nn.Module) -> Graph:
    sizes = trainer.sizes
    assert isinstance(sizes, TaggerSizes)  # of no other trainer
    names = tuple(
        name
        for name in _OF_TAGGER.values()
        if (name not in _LETTERS or sizes.character != "none")
        and (name != "context" or sizes.context_dim)
    )
    probes = []
    text = trainer.prepared(probe_sentences(trainer.types))
    for batch in predict_batches(text, tokens_per_batch=48):
        given = {name: getattr(batch, field) for field, name in _OF_TAGGER.items()}
        if "context" in names:
            given["context"] = torch.linspace(-1, 1, sizes.context_dim).expand(
                *batch.words_BL.shape, -1
            )
        probes.append({name: given[name] for name in names})
    shapes = {
        "words": "BL", "lengths": "B", "forms": "BL", "characters": "UC",
        "character_lengths": "U", "context": "BL0",
    }  # fmt: skip
    crf: Any = model
    scores = crf.crf.scores()
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
        "moves": {
            "between": scores.moves_YY.tolist(),
            "start": scores.starts_Y.tolist(),
            "end": scores.ends_Y.tolist(),
        },
    }
    axes = _axes({name: shapes[name] for name in names})
    return Graph(_Tagger(model, names), axes, "emissions", probes, about)


_GRAPHS: dict[type, Callable[[Any, Any], Graph]] = {
    TokenClassifier: _words_graph,
    RelationClassifier: _pairs_graph,
    Tagger: _tagger,
}


def _axes(shapes: dict[str, str]) -> dict[str, dict[int, str]]:
    """{"ids": "BP"} as {"ids": {0: "B", 1: "P"}}; a number is an axis of that size."""
    return {
        name: {place: letter for place, letter in enumerate(shape) if not letter.isdigit()}
        for name, shape in shapes.items()
    }


def _rules(rules: Any) -> dict[str, Any]:
    return {
        "between": rules.moves_YY.tolist(),
        "start": rules.starts_Y.tolist(),
        "end": rules.ends_Y.tolist(),
    }


def marks_of(trainer: RelationTrainer) -> dict[str, list[int]]:
    """The pieces that open and close a head and a tail, by entity type ("" if all share one)."""
    marking = trainer.marking
    return {
        name: [*marking.around(name, tail=False), *marking.around(name, tail=True)]
        for name in (marking.types or ("",))
    }


# --- examples that every model reads ------------------------------------------------------------


def _texts() -> Iterator[tuple[str, ...]]:
    words = ("the", "patient", "took", "aspirin", "and", "had", "Headache", "(", "severe", ")")
    for length in (1, 2, 3, 5, 8, 13):
        yield tuple(words[place % len(words)] for place in range(length))


def probe_sentences(types: tuple[str, ...]) -> list[Example]:
    """Sentences of several lengths."""
    return [Example(0, number, words) for number, words in enumerate(_texts())]


def probe_pairs(types: tuple[str, ...], relation: str) -> list[RelationExample]:
    """Pairs of entities in sentences of several lengths, of every type that has marks."""
    found = []
    for number, words in enumerate(_texts()):
        text = " ".join((*words, "aspirin", "causes", "pain", "."))
        head, tail = text.rindex("aspirin"), text.rindex("pain")
        names = types or ("thing",)
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


# --- Export to transformers
#
# The folder of a trained encoder, with the family's own class for its task.
#
# `AutoModelForTokenClassification` has confide's layer as it is. Between the first piece's state
# and the last layer, `AutoModelForSequenceClassification` has a layer of its own, which is set so
# that it passes the state on: tanh(εx) / ε is x for a small ε, and a rectifier passes x + c for a
# large c. The folder is written only if its logits are confide's on examples.


CLOSE = 1e-4
_SMALL, _LARGE = 1e-4, 64.0


def write_hf(copy: Copy) -> dict[str, Any]:
    """Write the folder; gives what it is about. Raises SettingsError if no class fits the model."""
    trainer = copy.model.trainer
    write = _WRITE.get(type(trainer))
    if write is None:
        raise SettingsError(
            "transformers has no class for this kind of model",
            expected="an encoder that tags words, or a relation classifier",
            got=type(copy.model.model).__name__,
            fix='use to = "spacy", or of a tagger "onnx"',
        )
    return write(copy)


def _words(copy: Copy) -> dict[str, Any]:
    trainer, model = copy.model.trainer, copy.model.model
    theirs = their_model(trainer.encoder, "TokenClassification", trainer.tags.tags)
    theirs.base_model.load_state_dict(plain_states(model.encoder), strict=False)
    last = last_layer(theirs, len(trainer.tags))
    with torch.no_grad():
        last.weight.copy_(model.tag.weight)
        last.bias.copy_(model.tag.bias)
    graph = graph_of(copy.model)
    away = max(_word_distances(theirs, graph))
    if away > CLOSE:
        raise _other_head(theirs)
    theirs.save_pretrained(copy.out)
    _save_tokenizer(tokenizer_of(trainer.encoder.folder, fast=False), copy)
    return {**graph.about, "class": type(theirs).__name__, "largest_difference": away}


def _save_tokenizer(tokenizer: Any, copy: Copy) -> None:
    tokenizer.name_or_path = ""
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.save_pretrained(copy.out)


def _word_distances(theirs: nn.Module, graph: Graph) -> Iterator[float]:
    with torch.no_grad():
        for probe in graph.probes:
            said = theirs(
                input_ids=probe["input_ids"], attention_mask=probe["attention_mask"]
            ).logits
            rows_B1 = torch.arange(len(said))[:, None]
            yield distance_between(said[rows_B1, probe["firsts"]], graph.module(*probe.values()))


def _pairs(copy: Copy) -> dict[str, Any]:
    trainer, model = copy.model.trainer, copy.model.model
    if trainer.form.pool != "cls":
        raise SettingsError(
            "transformers has no class that reads two entities' pieces",
            expected='a model trained with classifier.pool = "cls"',
            got=f"classifier.pool = {trainer.form.pool!r}",
            fix='use to = "onnx"',
        )
    encoder = trainer.encoder
    theirs = their_model(encoder, "SequenceClassification", trainer.form.relations)
    tokenizer = tokenizer_of(encoder.folder, fast=False)
    ids, names = _with_marks(tokenizer, trainer)
    table_VD = table_of(model.encoder)
    plain = table_VD[: trainer.marking.first]
    rows = max(len(plain), max(ids) + 1)
    theirs.resize_token_embeddings(rows, mean_resizing=False)
    states = plain_states(model.encoder)
    table = theirs.get_input_embeddings()
    with torch.no_grad():
        table.weight[: len(plain)] = plain
        table.weight[torch.tensor(ids)] = table_VD[trainer.marking.first :]
    name = next(name for name, one in theirs.base_model.named_modules() if one is table)
    states[f"{name}.weight"] = table.weight.detach().clone()
    theirs.base_model.load_state_dict(states, strict=False)
    graph = graph_of(copy.model)
    moved = torch.arange(int(max(len(table_VD), rows)))
    moved[trainer.marking.first : len(table_VD)] = torch.tensor(ids)

    def away() -> float:
        with torch.no_grad():
            return max(
                distance_between(
                    theirs(
                        input_ids=moved[probe["input_ids"]], attention_mask=probe["attention_mask"]
                    ).logits,
                    graph.module(*probe.values()),
                )
                for probe in graph.probes
            )

    found = _fill(theirs, model.relation, away)
    theirs.save_pretrained(copy.out)
    _save_tokenizer(tokenizer, copy)
    about = {**graph.about, "marks": names, "class": type(theirs).__name__}
    about["inputs"] = (
        "a text with `marks` around head and tail: [opens head, closes head, opens tail, closes"
        " tail]; with `blind`, each entity's type stands for its words"
    )
    return {**about, "output": "logits of the relation", "largest_difference": found}


_WRITE: dict[type, Callable[[Copy], dict[str, Any]]] = {
    TokenTrainer: _words,
    RelationTrainer: _pairs,
}


def their_model(encoder: FrozenEncoder, task: str, labels: Any) -> Any:
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


def plain_body(body: Any) -> Any:
    """A copy of a trained encoder whose updates of low rank are added to its weights."""
    body = copies.deepcopy(body)
    for module in list(body.modules()):
        for name, child in module.named_children():
            if hasattr(child, "lora_A") and hasattr(child, "merge"):
                child.merge()
                setattr(module, name, child.get_base_layer())
    return body


def plain_states(body: Any) -> dict[str, Tensor]:
    """The weights of an encoder by transformers' names, without rows for marks."""
    states = plain_body(body).state_dict()
    return {name: value for name, value in states.items() if "marks_KD" not in name}


def table_of(body: Any) -> Tensor:
    """The rows of an encoder's table, those of marks last."""
    table = body.get_input_embeddings()
    if isinstance(table, MarkedEmbedding):
        return torch.cat((table.weight, table.marks_KD)).detach()
    rows: Tensor = table.weight.detach()
    return rows


def _with_marks(tokenizer: Any, trainer: RelationTrainer) -> tuple[list[int], dict[str, Any]]:
    """The tokenizer's numbers of the marks, which it gets, in their order; and their names."""
    from transformers import AddedToken

    marking = trainer.marking
    names: dict[str, list[str]] = {}
    for kind in marking.types or ("",):
        tail = f":{kind}" if kind else ""
        names[kind] = [f"[H{tail}]", f"[/H{tail}]", f"[T{tail}]", f"[/T{tail}]"]
    flat = [name for four in names.values() for name in four]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in flat])
    ids: list[int] = tokenizer.convert_tokens_to_ids(flat)
    return ids, names


def last_layer(theirs: Any, labels: int) -> nn.Linear:
    """The linear layer that gives the logits."""
    found = [
        one for one in theirs.modules() if isinstance(one, nn.Linear) and one.out_features == labels
    ]
    if not found:
        raise _other_head(theirs)
    return found[-1]


def _fill(theirs: Any, ours: nn.Linear, away: Callable[[], float]) -> float:
    """Set their head so that it gives our layer's logits; gives how far it is from that."""
    inside = {id(one) for one in layers_of(theirs.base_model).modules()}
    dim = ours.in_features
    between = [
        one
        for one in theirs.modules()
        if isinstance(one, nn.Linear)
        and id(one) not in inside
        and (one.in_features, one.out_features) == (dim, dim)
    ]
    last = last_layer(theirs, ours.out_features)
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


def distance_between(one: Tensor, other: Tensor) -> float:
    """The largest difference."""
    return float((one - other).abs().max())


def _other_head(theirs: Any) -> SettingsError:
    return SettingsError(
        "the class of transformers for this family has a head that cannot give these numbers",
        got=type(theirs).__name__,
        fix='use to = "onnx"',
    )


# --- Export to peft
#
# The adapter of a run with updates of low rank, as a folder that anyone's peft loads.
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
    trainer = copy.model.trainer
    known = isinstance(trainer, (TokenTrainer, RelationTrainer))
    if not known or trainer.form.tuning.tune != "lora":
        raise SettingsError(
            "this model has no adapter",
            expected='a run with encoder.tune = "lora"',
            got=f"encoder.tune = {trainer.form.tuning.tune!r}" if known else "no encoder",
        )
    peft, graph = peft_library(), graph_of(copy.model)
    if isinstance(trainer, TokenTrainer):
        away = _over_words(copy, peft)
    else:
        away = _over_encoder(copy, peft)
    if away > CLOSE:
        raise SettingsError("peft does not give this model's numbers", got=f"{away:.1g} away")
    return {**graph.about, "digest": trainer.encoder.digest, "largest_difference": away}


def _config(copy: Copy, peft: Any, **own: Any) -> Any:
    trainer = copy.model.trainer
    tuning = trainer.form.tuning
    return peft.LoraConfig(
        r=tuning.rank,
        lora_alpha=tuning.alpha,
        lora_dropout=0.0,
        target_modules=updated(trainer.encoder.loaded.model),
        bias="none",
        inference_mode=True,
        **own,
    )


def _over_words(copy: Copy, peft: Any) -> float:
    trainer, model = copy.model.trainer, copy.model.model
    theirs = their_model(trainer.encoder, "TokenClassification", trainer.tags.tags)
    theirs.base_model.load_state_dict(trainer.encoder.loaded.model.state_dict(), strict=False)
    last = last_layer(theirs, len(trainer.tags))
    name = next(name for name, one in theirs.named_modules() if one is last)
    config = _config(copy, peft, task_type="TOKEN_CLS", modules_to_save=[name])
    made = _laid_over(theirs, config, peft)
    copied = _copy_updates(model.encoder, theirs.base_model)
    own = last_of(made, name)
    with torch.no_grad():
        own.weight.copy_(model.tag.weight)
        own.bias.copy_(model.tag.bias)
    graph, away = graph_of(copy.model), 0.0
    made.eval()
    with torch.no_grad():
        for probe in graph.probes:
            said = made(input_ids=probe["input_ids"], attention_mask=probe["attention_mask"]).logits
            rows_B1 = torch.arange(len(said))[:, None]
            ours = graph.module(*probe.values())
            away = max(away, distance_between(said[rows_B1, probe["firsts"]], ours))
    _save(made, copy, copied)
    return away


def _laid_over(theirs: Any, config: Any, peft: Any) -> Any:
    theirs.config._name_or_path = theirs.name_or_path = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of what transformers renamed
        return peft.get_peft_model(theirs, config)


def last_of(made: Any, name: str) -> Any:
    """The copy of a layer that peft trains."""
    wrapped = made.base_model.model.get_submodule(name)
    return wrapped.modules_to_save["default"]


def _over_encoder(copy: Copy, peft: Any) -> float:
    trainer, model = copy.model.trainer, copy.model.model
    theirs = trainer.encoder.loaded.body()
    config = _config(copy, peft, task_type="FEATURE_EXTRACTION")
    made = _laid_over(theirs, config, peft)
    copied = _copy_updates(model.encoder, theirs)
    made.eval()
    ids = torch.arange(3, 9)[None]
    mask = torch.ones_like(ids)
    with torch.no_grad():
        said = made(input_ids=ids, attention_mask=mask).last_hidden_state
        ours = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    head = {
        "relation.weight": model.relation.weight,
        "relation.bias": model.relation.bias,
        "marks": model.encoder.get_input_embeddings().marks_KD,
    }
    save_file({name: p.detach().contiguous() for name, p in head.items()}, copy.out / HEAD)
    _save(made, copy, copied)
    return distance_between(said, ours)


def _copy_updates(ours: Any, theirs: Any) -> int:
    """Copy the updates of low rank by name; gives how many."""
    own = {name: p for name, p in ours.named_parameters() if ".lora_" in name}
    there = {name: p for name, p in theirs.named_parameters() if ".lora_" in name}
    if own.keys() != there.keys():
        raise SettingsError("peft names the updates of this encoder in another way")
    with torch.no_grad():
        for name, parameter in own.items():
            there[name].copy_(parameter)
    return len(own)


def _save(made: Any, copy: Copy, copied: int) -> None:
    assert copied, "an adapter has updates"
    # nobody learns where the encoder lies here, and nothing is looked up elsewhere
    made.peft_config["default"].base_model_name_or_path = None
    made.save_pretrained(copy.out, save_embedding_layers=False)
    (copy.out / "README.md").unlink(missing_ok=True)  # peft's; the release's card takes its place


# --- Export to ONNX
#
# It is checked with onnxruntime; weights of linear layers are in int8 if asked.


MODEL = "model.onnx"


def write_onnx(copy: Copy) -> dict[str, Any]:
    """Write `model.onnx`; gives what it is about.

    Raises SettingsError if a library is missing, or no exporter of torch writes this model so that
    onnxruntime gives confide's numbers.
    """
    _libraries()
    graph = graph_of(copy.model)
    file = copy.out / MODEL
    failures = []
    for modern in (False, True):  # the modern exporter takes ten times as long
        try:
            with _silent(), torch.no_grad():
                _write(graph, file, modern=modern)
            away = distance(graph, file)
        except Exception as error:  # whatever an exporter or a runtime raises
            failures.append(printable(first_line(error)))
            continue
        if away <= CLOSE:
            break
        failures.append(f"its numbers are {away:.1g} away")
    else:
        raise SettingsError(
            "torch cannot write this model as ONNX", got="; ".join(failures), fix='use to = "hf"'
        )
    about = {**graph.about, "largest_difference": away, "int8": copy.int8}
    if copy.int8:
        _narrow(file)
        about["largest_difference"] = distance(graph, file)
    return about


def _libraries() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise SettingsError(
            "ONNX needs the libraries onnx and onnxruntime", fix="pip install 'confide[onnx]'"
        ) from error
    return onnxruntime


def _write(graph: Graph, file: Path, *, modern: bool) -> None:
    probe = max(graph.probes, key=lambda one: next(iter(one.values())).numel())
    names = list(probe)
    sizes: dict[str, Any]
    if modern:
        sizes = {"dynamic_shapes": _shapes(graph, names)}
    else:
        sizes = {"dynamic_axes": graph.axes, "opset_version": 17}
    torch.onnx.export(
        graph.module,
        tuple(probe.values()),
        str(file),
        input_names=names,
        output_names=[graph.output],
        dynamo=modern,
        verbose=False,
        **sizes,
    )


def _shapes(graph: Graph, names: list[str]) -> Any:
    dynamic = torch.export.Dim.DYNAMIC
    shapes = [dict.fromkeys(graph.axes[name], dynamic) for name in names]
    return (tuple(shapes),) if graph.together else tuple(shapes)


def distance(graph: Graph, file: Path) -> float:
    """Measure the largest difference of outputs, file from model, over probes of several sizes.

    Numbers of the padding do not count.
    """
    runtime = _libraries()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = max(1, torch.get_num_threads())
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    reads = {one.name for one in session.get_inputs()}
    away = 0.0
    for probe in graph.probes:
        given = {name: value.numpy() for name, value in probe.items() if name in reads}
        (said,) = session.run(None, given)
        with torch.no_grad():
            ours = graph.module(*probe.values()).numpy()
        apart = np.abs(said - ours)
        if "lengths" in probe:
            steps_L = np.arange(ours.shape[1])
            apart = apart[steps_L < probe["lengths"].numpy()[:, None]]
        away = max(away, float(apart.max(initial=0.0)))
    return away


def _narrow(file: Path) -> None:
    """Write linear layers' weights in int8, with a scale for each column, in place of the file.

    The weights take seven of the eight bits: without VNNI, processors add two products of bytes in
    16 bits and saturate above 2 × 255 × 64, so eight bits would give other numbers there.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    narrow = file.with_name("narrow.onnx")
    with _silent():
        quantize_dynamic(
            str(file), str(narrow),
            weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
        )  # fmt: skip
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)  # of large models: the weights
    narrow.rename(file)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep exporters from warning of what is checked here."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
