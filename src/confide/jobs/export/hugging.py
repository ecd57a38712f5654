"""A trained encoder as a folder of transformers, with the family's own class for its task.

`AutoModelForTokenClassification` has confide's layer as it is. Between the first piece's state and
the last layer, `AutoModelForSequenceClassification` has a layer of its own, which is set so that it
passes the state on: tanh(εx) / ε is x for a small ε, and a rectifier passes x + c for a large c.
The folder is written only if its logits are confide's on examples.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from confide.errors import SettingsError
from confide.jobs.export import Copy
from confide.jobs.export.graphs import Graph, graph_of
from confide.learning.cutting import tokenizer_of
from confide.learning.encoder import FrozenEncoder
from confide.learning.relations import RelationTrainer
from confide.learning.tokens import TokenTrainer
from confide.learning.tuning import MarkedEmbedding, layers_of
from confide.seeds import seeded

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
            got=type(trainer).__name__.removesuffix("Trainer"),
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
            yield distance(said[rows_B1, probe["firsts"]], graph.module(*probe.values()))


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
                distance(
                    theirs(
                        input_ids=moved[probe["input_ids"]],
                        attention_mask=probe["attention_mask"],
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


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference."""
    return float((one - other).abs().max())


def _other_head(theirs: Any) -> SettingsError:
    return SettingsError(
        "the class of transformers for this family has a head that cannot give these numbers",
        got=type(theirs).__name__,
        fix='use to = "onnx"',
    )
