"""Trained models as functions of plain tensors: what is written as ONNX, and checked.

Decoding is not part of a graph: `confide.json` has the scores of moves between tags.

Shapes: B sentences or examples, P pieces, L words, U distinct words, C characters, X numbers of a
frozen encoder's state, Y tags, R relations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from confide.data.batches.examples import Example
from confide.data.batches.relation_pieces import predict_relation_batches
from confide.data.batches.relations import RelationExample
from confide.data.batches.tagger import predict_batches
from confide.data.batches.token_pieces import predict_token_batches
from confide.errors import SettingsError
from confide.learning.crf_modelling import TaggerTrainer
from confide.learning.relations import RelationTrainer
from confide.learning.tokens import TokenTrainer
from confide.models.relation import RelationClassifier
from confide.models.tagger import Tagger, TaggerSizes
from confide.models.tokens import TokenClassifier

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
"""What a tagger's batch calls its inputs, and what an export does."""

_LETTERS = ("forms", "characters", "character_lengths")


def _words(trainer: TokenTrainer, model: nn.Module) -> Graph:
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


def _pairs(trainer: RelationTrainer, model: nn.Module) -> Graph:
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
    TokenClassifier: _words,
    RelationClassifier: _pairs,
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
