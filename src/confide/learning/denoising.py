"""Denoising training of a BART: steps, measures on held-out text, and snapshots.

Lewis et al. 2020, section 2: the model reads noised text and is trained to restore it. With `train
= "decoder"` (the default) the encoder and the table of pieces stay bit for bit as they are: the
encoder's states need no gradient, and only the decoder changes.

A step's numbers depend only on the weights, the batch and the step's own seed, so training resumed
from a snapshot gives the same numbers as uninterrupted training.

Shapes: B passages, P noised pieces, Q written ones, N written ones without padding, D numbers of a
state, V pieces of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.denoising import DenoisingBatch, Specials
from confide.errors import DataError
from confide.learning.devices import (
    Precision,
    at_home,
    beside,
    drawing,
    enough_memory,
    home,
    predicting,
    where_is,
)
from confide.learning.fit import in_parts
from confide.learning.optimisers import Descent, Optimiser, each_adamw
from confide.learning.weights import Arrays
from confide.models.bart import WritingBart
from confide.models.denoising import cross_entropy, drawn_rows, likeliest
from confide.scoring.texts import TextCounts
from confide.seeds import derive_seed

Trained = Literal["decoder", "all"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Denoising:
    """How a BART is trained.

    `warm_up` is the share of the training over which the learning rate rises; after that it falls
    linearly to 0. In a step's loss, `sampled` rows of the table stand for all that are not targets
    of the batch; 0: every row takes part. Measures always use every row. `device` and `precision`
    are those of `learning.devices.place_of`.
    """

    train: Trained = "decoder"
    learning_rate: float = 1e-3
    warm_up: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.0
    sampled: int = 4096
    device: str = "cpu"
    precision: Precision = "auto"
    seed: int = 1


class Measure(NamedTuple):
    """Scores on held-out text: mean loss of a piece (nats), and shares of right pieces.

    `hidden` is the share of right pieces among those that their passage's noised text lacks.
    """

    loss: float
    right: float
    hidden: float
    pieces: int


def rate(share: float, how: Denoising) -> float:
    """The learning rate after this share (0 to 1) of the training."""
    up = share / how.warm_up if how.warm_up > 0 else 1.0
    down = (1.0 - share) / (1.0 - how.warm_up) if how.warm_up < 1 else 1.0
    return how.learning_rate * max(0.0, min(1.0, up, down))


class Denoiser:
    """A BART in training.

    Adam's moments are made at the first step. `parameters` are the trained ones, by name.
    `optimiser` overrides how steps are taken; the learning rate is still that of `how`.
    """

    def __init__(
        self, model: WritingBart, how: Denoising, *, optimiser: Optimiser | None = None
    ) -> None:
        self.model, self.bart, self.how = model, model.model, how
        self._optimiser = optimiser or Optimiser(
            "adamw", how.learning_rate, weight_decay=how.weight_decay, clip=how.clip
        )

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters: those of the decoder without the tied table, or all."""
        chosen = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if self.how.train == "all" or name.startswith("model.decoder.")
        }
        self.model.requires_grad_(False)
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        return chosen

    @cached_property
    def _descent(self) -> Descent:
        return Descent(self.parameters.values(), self._optimiser, make=each_adamw)

    @property
    def _steps(self) -> torch.optim.Optimizer:
        steps = self._descent.steps
        assert isinstance(steps, torch.optim.Optimizer)
        return steps

    def step(self, batch: DenoisingBatch, *, number: int, share: float) -> float:
        """Take step `number`, after this share of the training; gives the mean loss."""
        how, descent = self.how, self._descent
        seed = derive_seed(how.seed, "step", number)
        self.bart.decoder.train(how.dropout > 0)
        self.bart.encoder.train(how.dropout > 0 and how.train == "all")
        table_VD = self.bart.shared.weight
        generator = torch.Generator().manual_seed(seed)
        rows = None
        if how.sampled:
            size = len(table_VD)
            rows = drawn_rows(batch.targets_N, size, count=how.sampled, generator=generator)
            rows = None if rows is None else rows.on(self.device)
        place = where_is(self.model)

        def losses() -> Iterator[Tensor]:
            for plain in in_parts(batch, place.at_once):
                part = beside(plain, self.model)
                states_ND = self._states(part)
                yield cross_entropy(states_ND, table_VD, part.targets_N, rows=rows) / batch.tokens

        for group in self._steps.param_groups:
            group["lr"] = rate(share, how)
        with drawing(self.model, seed) if how.dropout > 0 else nullcontext(), enough_memory(place):
            value = float(home(descent.step_down(losses())))
        if not np.isfinite(value):
            raise DataError(
                "the training diverged: its loss is not a number", fix="lower the learning rate"
            )
        return value

    def measured(self, batches: Iterable[DenoisingBatch]) -> Measure:
        """The mean over all written pieces, as `counted`."""
        found = self.counted(batches)
        pieces = max(1, found.pieces)
        return Measure(
            loss=found.loss / pieces,
            right=found.right / pieces,
            hidden=found.hidden_right / max(1, found.hidden),
            pieces=found.pieces,
        )

    def counted(self, batches: Iterable[DenoisingBatch]) -> TextCounts:
        """The counts of all written pieces, without dropout and with every row of the table."""
        table_VD = self.bart.shared.weight
        counts = TextCounts()
        with predicting(self.model):
            for batch in (beside(batch, self.model) for batch in batches):
                states_ND = self._states(batch)
                same_N = likeliest(states_ND, table_VD) == batch.targets_N
                counts += TextCounts(
                    pieces=batch.tokens,
                    right=int(same_N.sum()),
                    hidden=int(batch.hidden_N.sum()),
                    hidden_right=int((same_N & batch.hidden_N).sum()),
                    loss=float(cross_entropy(states_ND, table_VD, batch.targets_N)),
                )
        return counts

    def losses(self, batch: DenoisingBatch) -> list[float]:
        """The mean loss of a piece of each passage, without dropout."""
        table_VD, lengths = self.bart.shared.weight, batch.real_BQ.sum(1).tolist()
        ends = list(accumulate(lengths))
        with predicting(self.model):
            there = beside(batch, self.model)
            states_ND, targets_N = self._states(there), there.targets_N
            return [
                float(cross_entropy(states_ND[start:end], table_VD, targets_N[start:end]))
                / max(1, end - start)
                for start, end in zip([0, *ends], ends, strict=False)
            ]

    def _states(self, batch: DenoisingBatch) -> Tensor:
        """states_ND of the decoder at every piece to write; float32."""
        states_BQD: Tensor = self.bart(batch.source_BP, batch.written_BQ, mask_BP=batch.seen_BP)
        return states_BQD[batch.real_BQ].float()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.bart.shared.weight.device

    def written(self, source: Sequence[int], specials: Specials, *, longest: int) -> list[int]:
        """What the model writes for noised pieces (with special ones around), greedily.

        Gives at most `longest` pieces, without special ones.
        """
        bart, out, piece = self.bart, list[int](), specials.start
        with predicting(self.model):
            reading = bart.read(torch.tensor([list(source)], device=self.device))
            cache = bart.decoder.cache(1)
            while len(out) < longest:
                last_11D = bart.tokens(torch.tensor([[piece]], device=self.device))
                state_11D = bart.decoder(last_11D, reading, cache=cache)
                piece = int(likeliest(state_11D[0], bart.shared.weight))
                if piece == specials.end:
                    break
                out.append(piece)
        return out

    # --- snapshots -----------------------------------------------------------------------------

    def trained(self) -> Arrays:
        """Copies of the trained parameters, by name."""
        return {name: at_home(p).copy() for name, p in self.parameters.items()}

    def snapshot(self) -> Arrays:
        """All that training resumes from: trained weights, and Adam's moments, by name."""
        found = self.trained()
        for name, parameter in self.parameters.items():
            state = self._steps.state.get(parameter, {})
            for moment in _MOMENTS:
                if moment in state:
                    found[f"{moment}:{name}"] = at_home(state[moment]).copy()
        return found

    def restore(self, values: Mapping[str, NDArray[np.float32]], *, steps: int) -> None:
        """Resume from a snapshot taken after `steps` steps. Raises DataError if it does not fit."""
        expected = set(self.parameters)
        expected |= (
            {f"{m}:{name}" for m in _MOMENTS for name in self.parameters} if steps else set()
        )
        odd = expected ^ set(values)
        odd |= {
            n for n, p in self.parameters.items() if n not in odd and values[n].shape != p.shape
        }
        if odd:
            raise DataError("the snapshot belongs to a different model", got=min(odd))
        for name, parameter in self.parameters.items():
            parameter.data = torch.from_numpy(values[name].copy()).to(self.device)
            if steps:
                moments = {m: torch.from_numpy(values[f"{m}:{name}"].copy()) for m in _MOMENTS}
                moments = {m: moment.to(self.device) for m, moment in moments.items()}
                self._steps.state[parameter] = {"step": torch.tensor(float(steps)), **moments}

    def arrays(self) -> Arrays:
        """Every weight by Hugging Face's names, each once, and the zero bias."""
        found = {name: at_home(p) for name, p in self.model.named_parameters()}
        rows = self.bart.sizes.vocabulary
        return found | {"final_logits_bias": np.zeros((1, rows), np.float32)}
