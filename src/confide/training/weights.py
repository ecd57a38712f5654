"""A model's parameters as named numpy arrays: copying and setting them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from confide.errors import DataError
from confide.seeds import seeded
from confide.training.batches import TagRules
from confide.training.devices import at_home, on, placed, where_is
from confide.training.encoder import CORRECTED
from confide.training.tagger import CrfTagger, LinearSizes, LinearTagger, Tagger, TaggerSizes
from confide.training.vocabulary import VectorFile

Arrays = dict[str, NDArray[np.float32]]
"""A model's parameters, or what is computed for each of them, by name."""


def initial(
    sizes: TaggerSizes | LinearSizes, seed: int, *, rules: TagRules | None = None
) -> CrfTagger:
    """A new tagger, or a linear one, whose weights depend only on its sizes and the seed.

    `rules` (of `TagSet.rules`) constrain its CRF; without them every move between tags is allowed.
    """
    allowed = None
    if rules is not None:
        moves, starts, ends = (torch.from_numpy(part) for part in rules)
        allowed = (moves, starts, ends)
    with seeded(seed):
        model: CrfTagger = (
            Tagger(sizes, allowed)
            if isinstance(sizes, TaggerSizes)
            else LinearTagger(sizes, allowed)
        )
    return placed(model)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, in the model's order; cached per model."""
    found = _NAMED.get(model)
    if found is None:
        found = _NAMED[model] = dict(model.named_parameters())
    return found


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained by name, in the model's order."""
    return {name: p for name, p in named_parameters(model).items() if p.requires_grad}


def gradients_of(parameters: Mapping[str, nn.Parameter]) -> Arrays:
    """The gradient of each parameter, by name; zeros for one that has none."""
    return {
        name: at_home(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in parameters.items()
    }


_NAMED: WeakKeyDictionary[nn.Module, dict[str, nn.Parameter]] = WeakKeyDictionary()


def arrays(model: nn.Module) -> Arrays:
    """A copy of every parameter, by name, in the model's order."""
    return {name: _copied(p) for name, p in named_parameters(model).items()}


def trained(model: nn.Module) -> Arrays:
    """A copy of every parameter that training may change, by name, in the model's order.

    Those below updates of low rank are among them if the server corrects them.
    """
    corrected = getattr(getattr(model, "encoder", None), "corrected", False)
    return {
        name: _copied(p)
        for name, p in named_parameters(model).items()
        if p.requires_grad or (corrected and name.endswith(CORRECTED))
    }


def _copied(parameter: nn.Parameter) -> NDArray[np.float32]:
    """A copy of a parameter; one that comes from another device is one already."""
    found: NDArray[np.float32] = at_home(parameter)
    return found.copy() if parameter.device.type == "cpu" else found


def load_weights(
    model: nn.Module, values: Mapping[str, NDArray[np.float32]], *, lent: bool = False
) -> None:
    """Set the parameters named in `values`; others stay as they are.

    With `lent`, the model uses these very arrays instead of copies, so it must not be trained. To
    another device they travel once, to whichever sites of the process they are lent. Raises
    `DataError` if a name is unknown or a shape differs; then nothing has changed.
    """
    parameters = named_parameters(model)
    for name, value in values.items():
        if name not in parameters:
            raise DataError("the model has no such parameter", got=name)
        if tuple(parameters[name].shape) != value.shape:
            raise DataError(
                f"parameter {name} has the wrong shape",
                expected=str(tuple(parameters[name].shape)),
                got=str(value.shape),
            )
    there, apart = _THERE.setdefault(model, {}), where_is(model).device.type != "cpu"
    for name, value in values.items():
        parameter = parameters[name]  # replaced, never overwritten: the array may be lent
        if lent and there.get(name) is value:
            continue
        there.pop(name, None)
        fresh = _lent(value) if lent or apart else np.array(value, order="C")
        parameter.data = torch.from_numpy(fresh).to(parameter.device, parameter.dtype)
        if lent and apart and not value.flags.writeable:
            there[name] = value
    for module in model.modules() if apart else ():
        if isinstance(module, nn.RNNBase):  # or a GPU would lay its weights end to end in each step
            module.flatten_parameters()


_THERE: WeakKeyDictionary[nn.Module, dict[str, NDArray[np.float32]]] = WeakKeyDictionary()
"""The arrays that a model was lent on another device, and that nobody can have changed since."""


def _lent(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The array for a tensor that nobody writes to; torch warns of one that is read-only."""
    fresh = np.ascontiguousarray(value)
    return fresh if fresh.flags.writeable else np.asarray(_Writable(fresh))


class _Writable:
    """The memory of an array, as numpy asks for it."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self._array = array
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False)}


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode for the duration."""
    if not any(module.training for module in model.modules()):
        yield  # to say it to each part of an encoder takes longer than a small step
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def set_rows(table: nn.Embedding, vectors: VectorFile) -> None:
    """Copy vectors into a word table. Raises `DataError` if the width differs."""
    if vectors.dims != table.embedding_dim:
        raise DataError(
            "the word vectors do not fit the model",
            expected=f"{table.embedding_dim} numbers per word",
            got=str(vectors.dims),
            fix="set `word_dim` of the model to the file's width",
        )
    with torch.no_grad():
        places_K = on(vectors.ids_K.astype(np.int64), table.weight)
        table.weight[places_K] = on(vectors.rows_KD, table.weight)
