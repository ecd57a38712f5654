"""Every kind of model with a tiny text: how it trains, predicts and takes gradients.

The functions find the model by its trainer, which places it where the process computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.fx.experimental._config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from confide.kinds.bags.model import BagTrainer, bag_scores
from confide.kinds.bags.site import BagSpec
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.lightner.adversaries import AdversarialTrainer
from confide.kinds.lightner.model import LightnerTrainer, load_bart
from confide.kinds.lightner.site import LightnerSpec
from confide.kinds.relations.batches import RelationExample
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.training import devices
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.vocabulary import ClearVocabulary
from kinds.tagger.test_training import made_of
from training.barts import bart_folder
from training.corpora import tiny as corpus
from training.encoders import tiny_bert

ADAM = Optimiser("adamw", learning_rate=5e-3, clip=1.0)
WORDS = ("pain", "ab", "took", "the", "cd", ".")


@dataclass(frozen=True)
class Trained:
    """A trainer, a model of it, and what is done with that."""

    made: Any
    model: Any
    fit: Callable[..., Any]
    find: Callable[[], Any]
    others: tuple[Callable[[], Any], ...] = ()


def models_in(place: Path) -> Path:
    """The folder with a tiny encoder, `bert`, and a tiny `bart`."""
    tiny_bert(place / "bert", initializer_range=0.1)
    bart_folder(place / "bart")
    return place


def without_dropout(model: Any) -> None:
    """Turn off what is drawn in training."""
    for module in model.modules():
        if hasattr(module, "rate"):
            module.rate = 0.0
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def pairs(count: int = 12) -> list[RelationExample]:
    """The word before the tail decides."""
    found = []
    for number in range(count):
        causes = number % 3 == 0
        text = f"{'pain ' * (number % 3)}ab {'took' if causes else 'the'} cd ."
        spans = [((at, at + 2),) for at in (text.index("ab"), text.index("cd"))]
        found.append(
            RelationExample(
                id=str(number),
                text=text,
                head=spans[0],
                tail=spans[1],
                head_type="head",
                tail_type="pain",
                relation="causes" if causes else "none",
            )
        )
    return found


def of_entities(made: Any, count: int) -> Trained:
    """A model that finds entities."""
    examples = corpus(count).examples
    model, text = made.initial(1), made.prepared(examples)
    encoded = made.annotated(text, [one.spans for one in examples], source={"Drug"})
    each = np.linspace(0.5, 1.5, len(encoded)).astype(np.float32)
    how = {"weights_S": each, "epochs": 1, "batch_size": 8, "optimiser": ADAM, "seed": 1}
    return Trained(
        made,
        model,
        lambda **other: made.fit(model, encoded, **how | other),
        lambda: made.find(model, text),
        (
            lambda: made.row_gradients(model, encoded),
            lambda: made.gradient(model, encoded, size=4, clip=1.0, seed=1),
        ),
    )


def a_tagger(folder: Path) -> Trained:
    """BiLSTM-CNNs-CRF."""
    return of_entities(made_of(corpus(16)), 16)


def an_encoder(folder: Path) -> Trained:
    """An encoder that tags words."""
    form = EncoderSpec(("Drug", "Effect"), longest=32, dropout=0.0)
    return of_entities(TokenTrainer(load_encoder(str(folder / "bert")), form), 16)


def _lightner(folder: Path, **changes: Any) -> LightnerTrainer:
    form = LightnerSpec(("Drug", "Effect"), prompts=3, hidden=8, longest=48, dropout=0.0, **changes)
    return LightnerTrainer(load_bart(str(folder / "bart")), form)


def a_lightner(folder: Path) -> Trained:
    """Prompts on a BART that writes entities."""
    return of_entities(_lightner(folder), 16)


def kept_states(folder: Path) -> Trained:
    """A LightNER whose encoder's states are kept."""
    return of_entities(_lightner(folder, where="decoder"), 16)


def an_adversary(folder: Path) -> Trained:
    """A LightNER that learns not to tell sites apart."""
    plain = _lightner(folder)
    made = AdversarialTrainer(plain.bart, plain.form, kind="fada", sites=3, site=1)
    own = of_entities(made, 16)
    return replace(own, others=own.others[:1])


def relations(folder: Path) -> Trained:
    """A relation classifier."""
    made = RelationTrainer(
        load_encoder(str(folder / "bert")),
        RelationSpec(("none", "causes"), longest=32, dropout=0.0),
    )
    model, encoded = made.initial(1), made.prepared(pairs())
    return Trained(
        made,
        model,
        lambda: made.fit(
            model, made.annotated(encoded), epochs=1, batch_size=8, optimiser=ADAM, seed=1
        ),
        lambda: made.row_logits(model, encoded),
    )


def _bags(made: BagTrainer) -> Trained:
    made = replace(made, denoise="att")
    model, encoded = made.initial(1), made.prepared(pairs())
    groups = [np.arange(start, start + 3) for start in range(0, 12, 3)]
    how = {"epochs": 1, "batch_size": 4, "optimiser": ADAM, "seed": 1}
    return Trained(
        made,
        model,
        lambda: made.fit(model, made.annotated(encoded, groups), **how),
        lambda: bag_scores(model, encoded, groups, denoise="att"),
    )


def a_pcnn(folder: Path) -> Trained:
    """A piecewise CNN that reads bags."""
    form = BagSpec(
        ["none", "causes"], how="lower", sizes={"filters": 8, "farthest": 60}, dropout=0.0
    )
    return _bags(BagTrainer(form, ClearVocabulary(WORDS, "word")))


def bags(folder: Path) -> Trained:
    """An encoder that reads bags."""
    form = BagSpec(["none", "causes"], reader="encoder", longest=32, dropout=0.0)
    return _bags(BagTrainer(form, load_encoder(str(folder / "bert"))))


KINDS: dict[str, Callable[[Path], Trained]] = {
    "tagger": a_tagger,
    "encoder": an_encoder,
    "lightner": a_lightner,
    "kept states": kept_states,
    "adversary": an_adversary,
    "relations": relations,
    "pcnn": a_pcnn,
    "bags": bags,
}


class OneDevice(TorchDispatchMode):
    """Notes what a step asks of a device that is not the processor.

    `mixed`: operations whose tensors lie on different devices; single numbers may travel. `waits`:
    those that the processor waits for, were this a GPU: a number or a shape that depends on numbers
    is looked at, or memory that can be paged out is copied. `copies` there, `launched`: operations
    that are no mere views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mixed: list[str] = []
        self.seen: set[str] = set()
        self.waits: list[str] = []
        self.copies = self.launched = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        there = {one.device.type for one in given if one.dim()}
        self.seen |= there
        name = str(func)
        copied = "copy" in name or name.startswith("aten.to.")
        if len(there) > 1 and not copied:
            self.mixed.append(name)
        far = any(one.is_meta for one in given)
        if far and (_LOOKS.match(name) or (name.startswith("aten.index") and _by_mask(given))):
            self.waits.append(name)
        aten = torch.ops.aten
        numbers = (aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default)
        if func in numbers and given[0].is_meta:
            number = 1.0 if given[0].is_floating_point() else 1
            return (
                bool(number) if given[0].dtype is torch.bool or "nonzero" in str(func) else number
            )
        found = func(*args, **(kwargs or {}))
        made = found if isinstance(found, torch.Tensor) else given[0] if given else None
        if made is not None and made.is_meta:
            self.launched += not _is_view(func)
            if copied and "cpu" in there:
                self.copies += 1
                self.waits += [name] * (not (kwargs or {}).get("non_blocking"))
        return found


_LOOKS = re.compile(
    r"aten\.(item|_local_scalar_dense|is_nonzero|nonzero|equal|_?unique|masked_select)"
)


def _by_mask(given: list[torch.Tensor]) -> bool:
    return any(one.dtype is torch.bool for one in given[1:])


@cache
def _is_view(func: Any) -> bool:
    returned = [one.alias_info for one in func._schema.returns]
    return all(one is not None and not one.is_write for one in returned)


@contextmanager
def on_meta(patch: Any) -> Iterator[OneDevice]:
    """Compute on torch's meta device, which has shapes and no numbers; what comes home is zeros."""

    def home(values: torch.Tensor) -> torch.Tensor:
        values = values.detach()
        return torch.zeros(values.shape, dtype=values.dtype) if values.is_meta else values

    # every entry of a mask counts as true: what depends on numbers cannot be known here
    patch.setattr(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True)
    for module in (devices, *users()):
        if hasattr(module, "home"):
            patch.setattr(module, "home", home)
        if hasattr(module, "homeward"):
            patch.setattr(module, "homeward", lambda values: lambda: home(values))
        if hasattr(module, "at_home"):
            patch.setattr(module, "at_home", lambda values: home(values).numpy())
    with devices.computing_at(devices.Place(torch.device("meta"))), OneDevice() as watched:
        yield watched


def users() -> list[Any]:
    """The modules of confide that are loaded."""
    import sys

    return [module for name, module in sys.modules.items() if name.startswith("confide.")]
