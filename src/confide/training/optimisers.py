"""Optimisers: those of local training, by name, Adam over arrays, and the server's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adagrad import adagrad as adagrad_step
from torch.optim.adam import adam as adam_step
from torch.optim.sgd import sgd as sgd_step

from confide.errors import SettingsError
from confide.training.weights import Arrays

Parameters = Iterable[nn.Parameter]


class Moments:
    """An optimiser's memory: its running means, and of how many steps they are.

    Given to one training after another, it lets each go on where the last one ended.
    """

    def __init__(self, arrays: dict[str, NDArray[np.float32]] | None = None) -> None:
        self._arrays = arrays or {}
        self._steps: FusedSteps | None = None
        self._parameters: list[nn.Parameter] = []

    def into(self, steps: Steps, parameters: list[nn.Parameter]) -> None:
        """Give an optimiser its memory back; one that remembers nothing stays as it is.

        The memory of a parameter that has another shape now is dropped.
        """
        if not isinstance(steps, FusedSteps):
            return
        self._steps, self._parameters = steps, parameters
        for place, parameter in enumerate(parameters):
            mine = {
                key.partition("/")[2]: torch.from_numpy(array.copy())
                for key, array in self._arrays.items()
                if key.partition("/")[0] == str(place)
            }
            count = mine.pop(_STEP, None)
            if mine and all(moment.shape == parameter.shape for moment in mine.values()):
                if count is not None:
                    mine[_STEP] = count[0]
                steps.state[parameter] = {k: m.to(parameter.device) for k, m in mine.items()}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The optimiser's present memory, by place of the parameter and name of the mean."""
        if self._steps is None:
            return self._arrays
        return {
            f"{place}/{key}": moment.detach().cpu().numpy().reshape(moment.shape or 1).copy()
            for place, parameter in enumerate(self._parameters)
            for key, moment in sorted(self._steps.state.get(parameter, {}).items())
        }


_STEP = "step"
"""The number of steps that the running means are of."""


@dataclass(frozen=True)
class Term:
    """A term that a method adds to the loss of a site's training: μ/2 ‖w - w₀‖² + ⟨g, w⟩.

    `proximal` is μ, `towards` w₀ by parameter (None: the weights that training starts from), and
    `linear` g by parameter; of one that it does not name, g is 0. It is added to the gradient of
    each batch before that is clipped. Alone, μ and the start make FedProx (Li et al., "Federated
    Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2).
    """

    proximal: float = 0.0
    towards: Arrays | None = None
    linear: Arrays | None = None

    @property
    def keeps_still(self) -> bool:
        """True if a number whose gradient is always zero stays as it is without the term."""
        return self.linear is None and (self.towards is None or not self.proximal)


@dataclass(frozen=True)
class Optimiser:
    """An optimiser and its numbers. `clip` bounds the norm of the whole gradient; 0: no bound.

    `momentum` is SGD's; Adam's and AdamW's betas are 0.9, 0.999. `term` is added to the loss. The
    defaults are those of Luboshnikov & Makarov 2020, after Ma & Hovy 2016, 3.2. `most` bounds the
    steps of a training, whatever its epochs; 0: no bound. With `moments` it goes on from what an
    optimiser before it remembered; without, it starts afresh.
    """

    name: str = "sgd"
    learning_rate: float = 0.015
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 5.0
    term: Term | None = field(default=None, compare=False)
    most: int = 0
    moments: Moments | None = field(default=None, compare=False)

    def left(self, taken: int) -> int | None:
        """The number of steps left after those that were taken; None: any number."""
        return self.most - taken if self.most else None

    @property
    def keeps_still(self) -> bool:
        """True if a number whose gradient is always zero stays as it is, bit for bit."""
        return self.weight_decay == 0.0

    @property
    def rowwise(self) -> bool:
        """True if rows of a table can be stepped without regard to the others."""
        return self.name == "sgd" and self.momentum == 0.0

    @property
    def term_keeps_still(self) -> bool:
        """True if the term moves no row of a table that is not read."""
        return self.term is None or self.term.keeps_still


OPTIMISERS = ("sgd", "adam", "adamw", "adagrad")
_FIRST_SQUARES = 0.1


class FusedSteps:
    """The steps of `torch.optim`'s SGD, Adam, AdamW and Adagrad, by their functions: the same bits.

    The classes load torch's compiler, 800 modules, in every process that makes one of them. Raises
    `SettingsError` for an unknown name.

    Adagrad's sums of squares (Duchi, Hazan & Singer 2011) begin at `_FIRST_SQUARES`. From 0, the
    first step of every weight would be a whole learning rate, however small its gradient: a linear
    CRF on German legal text then lost four points of F1.
    """

    def __init__(self, parameters: Parameters, settings: Optimiser) -> None:
        if settings.name not in OPTIMISERS:
            raise SettingsError(
                "unknown optimiser", expected=", ".join(OPTIMISERS), got=settings.name
            )
        self._parameters, self._settings = list(parameters), settings
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        """Of each parameter that has moved: its running means, by torch's names."""

    def zero_grad(self) -> None:
        """Discard all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Step every parameter that has a gradient."""
        how = self._settings
        moved: list[Tensor] = []
        slopes: list[Tensor] = []
        states: list[dict[str, Tensor]] = []
        for parameter in self._parameters:
            if parameter.grad is not None:
                if parameter not in self.state:
                    self.state[parameter] = self._start(parameter)
                moved.append(parameter)
                slopes.append(parameter.grad)
                states.append(self.state[parameter])
        # one kernel for all of them, where their device has one
        fused = all(one.device.type in ("cpu", "cuda", "mps") for one in moved)
        rates: Any = {"lr": how.learning_rate, "weight_decay": how.weight_decay, "maximize": False}
        if how.name == "sgd":
            sgd_step(
                moved,
                slopes,
                [state.get("momentum_buffer") for state in states],
                fused=fused,
                momentum=how.momentum,
                dampening=0.0,
                nesterov=False,
                **rates,
            )
            return
        counts = [state[_STEP] for state in states]
        if how.name == "adagrad":
            sums = [state["sum"] for state in states]
            adagrad_step(moved, slopes, sums, counts, lr_decay=0.0, eps=1e-10, **rates)
            return
        adam_step(
            moved,
            slopes,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[],
            state_steps=counts,
            fused=fused,
            decoupled_weight_decay=how.name == "adamw",
            **_ADAM,
            **rates,
        )

    def _start(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The means of a parameter before its first step."""
        if self._settings.name == "sgd":
            momentum = self._settings.momentum
            return {"momentum_buffer": torch.zeros_like(parameter)} if momentum else {}
        if self._settings.name == "adagrad":
            return {"sum": torch.full_like(parameter, _FIRST_SQUARES), _STEP: torch.zeros(())}
        return {
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
            _STEP: torch.zeros((), device=parameter.device),
        }


_ADAM: Any = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
"""Adam's numbers, the usual ones (Kingma & Ba 2015, Algorithm 1)."""


def clip(parameters: Sequence[nn.Parameter], most: float) -> None:
    """Scale the gradients so that their common norm is at most `most`.

    A sparse gradient, as of `nn.Embedding(sparse=True)`, must name each row only once.
    """
    slopes = [p.grad for p in parameters if p.grad is not None]
    # `values()` would scale a copy: a gradient is not marked as coalesced
    parts = [slope._values() if slope.is_sparse else slope for slope in slopes]
    total = nn.utils.get_total_norm(parts)
    nn.utils.clip_grads_with_norm_(parameters, most, total)


class Descent:
    """Takes the steps of any training: the one place where gradients are computed and used.

    `make` makes the optimiser of the parameters; `names` are theirs, where a term names some.
    """

    def __init__(
        self,
        parameters: Parameters,
        settings: Optimiser,
        *,
        make: Callable[[list[nn.Parameter], Optimiser], Steps] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        self._parameters, self._settings = list(parameters), settings
        self.steps = (make or FusedSteps)(self._parameters, settings)
        if settings.moments is not None:
            settings.moments.into(self.steps, self._parameters)
        self._pulls = _pulls(settings.term, names, self._parameters)

    def step_down(self, losses: Iterable[Tensor]) -> Tensor:
        """Take one step down the gradient of the sum of losses, clipped; gives the sum.

        Each loss is computed only after the gradient of the one before it.
        """
        self.steps.zero_grad()
        total: Tensor | None = None
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
            total = loss.detach() if total is None else total + loss.detach()
            del loss
        assert total is not None, "there is no loss"
        self._take()
        return total

    def _take(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                self._merge(parameter)
        if self._settings.term is not None:
            self._add_term(self._settings.term)
        if self._settings.clip > 0.0:
            clip(self._parameters, self._settings.clip)
        self.steps.step()

    @staticmethod
    def _merge(parameter: nn.Parameter) -> None:
        """Name each row of a sparse gradient only once."""
        slope = parameter.grad
        assert slope is not None
        rows = slope._indices()[0]
        if len(torch.unique(rows)) < len(rows):
            parameter.grad = slope.coalesce()

    @torch.no_grad()
    def _add_term(self, term: Term) -> None:
        """Add the gradient of the method's term; to a sparse gradient, only in its own rows."""
        for parameter, towards, linear in self._pulls:
            if parameter.grad is None and not term.keeps_still:
                parameter.grad = torch.zeros_like(parameter)
            slope = parameter.grad
            if slope is None:
                continue
            if slope.is_sparse:
                assert towards is not None, "rows are sparse only where the rest keeps still"
                rows_U = slope._indices()[0]
                slope._values().add_(parameter[rows_U] - towards[rows_U], alpha=term.proximal)
                continue
            if towards is not None:
                slope.add_(parameter - towards, alpha=term.proximal)
            if linear is not None:
                slope.add_(linear)


def _pulls(
    term: Term | None, names: Iterable[str], parameters: Sequence[nn.Parameter]
) -> list[tuple[nn.Parameter, Tensor | None, Tensor | None]]:
    """The parameters that a term pulls: towards what, and by which linear gradient."""
    if term is None:
        return []
    if term.proximal and term.towards is None and term.linear is None:
        return [(parameter, parameter.detach().clone(), None) for parameter in parameters]
    found = []
    for name, parameter in zip(names, parameters, strict=True):
        towards = parameter.detach().clone() if term.proximal else None
        if term.proximal and term.towards is not None:
            towards = _beside(term.towards.get(name), parameter)
        found.append((parameter, towards, _beside((term.linear or {}).get(name), parameter)))
    return [one for one in found if one[1:] != (None, None)]


def _beside(array: NDArray[np.float32] | None, parameter: nn.Parameter) -> Tensor | None:
    """A copy of the array on the parameter's device, in its number type."""
    if array is None:
        return None
    return torch.from_numpy(array.copy()).to(parameter.device, parameter.dtype)


class RowSteps:
    """SGD without momentum that moves only the rows that a sparse gradient names.

    The time of a step therefore does not depend on the size of a table. Weight decay applies to the
    rows that move. A gradient must name each row only once. Without weight decay the numbers are
    those of SGD.
    """

    def __init__(self, parameters: Parameters, settings: Optimiser) -> None:
        self._parameters, self._settings = list(parameters), settings

    def zero_grad(self) -> None:
        """Discard all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Step every w ← w - rate · (gradient + decay · w)."""
        rate, decay = self._settings.learning_rate, self._settings.weight_decay
        for parameter in self._parameters:
            slope = parameter.grad
            if slope is None:
                continue
            if slope.is_sparse:
                rows_U, values_UD = slope._indices()[0], slope._values()
                if decay:
                    values_UD.add_(parameter[rows_U], alpha=decay)
                parameter.index_add_(0, rows_U, values_UD, alpha=-rate)
            else:
                if decay:
                    slope.add_(parameter, alpha=decay)
                parameter.add_(slope, alpha=-rate)


Steps = FusedSteps | RowSteps
"""Anything that takes optimisation steps."""


def row_steps(parameters: Parameters, settings: Optimiser) -> RowSteps:
    """`RowSteps` of these parameters. Raises SettingsError if the optimiser is not `rowwise`."""
    if not settings.rowwise:
        raise SettingsError(
            "only SGD without momentum can move single rows",
            expected="sgd, momentum 0",
            got=f"{settings.name}, momentum {settings.momentum}",
        )
    return RowSteps(parameters, settings)


# --- Adam over named arrays
#
# With its moments as plain values that can be stored and sent.
#
# `torch.optim.Adam` ties moments to the life of a process; here a step takes parameters, gradient
# and moments and gives new ones, so that a server can keep them in its state and a site in its
# memory. Kingma & Ba 2015, Algorithm 1.


@dataclass(frozen=True)
class AdamMoments:
    """The number of steps taken, and the running means of the gradient and of its square."""

    steps: int
    means: Arrays
    squares: Arrays


def adam(
    parameters: Mapping[str, NDArray[np.float32]],
    gradients: Mapping[str, NDArray[np.float32]],
    *,
    moments: AdamMoments,
    learning_rate: float,
    weight_decay: float = 0.0,
) -> tuple[Arrays, AdamMoments]:
    """One step: gives new parameters and moments, and leaves its arguments unchanged.

    All arrays are float32; moments of a parameter that `moments` lacks start at zero.
    The numbers are those of `torch.optim.Adam` (betas 0.9 and 0.999, epsilon 1e-8).
    """
    names = list(parameters)
    values = [torch.from_numpy(parameters[name].copy()) for name in names]
    slopes = [torch.from_numpy(gradients[name]) for name in names]
    means, squares = (
        [_copied(kept.get(name), value) for name, value in zip(names, values, strict=True)]
        for kept in (moments.means, moments.squares)
    )
    if names:
        adam_step(
            values,
            slopes,
            means,
            squares,
            max_exp_avg_sqs=[],
            state_steps=[torch.tensor(float(moments.steps)) for _ in names],
            fused=True,
            lr=learning_rate,
            weight_decay=weight_decay,
            maximize=False,
            **_ADAM,
        )
    moved, mean, square = (
        {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        for tensors in (values, means, squares)
    )
    return moved, AdamMoments(moments.steps + 1, mean, square)


def _copied(value: NDArray[np.float32] | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if value is None else torch.from_numpy(value.copy())


# --- Server steps
#
# The server takes a step of its own towards the mean of the sites' weights.
#
# Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
# Classification", arXiv 1909.06335 (momentum: FedAvgM); Reddi, Charles, Zaheer, Garrett, Rush,
# Konečný, Kumar & McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (FedAdam,
# FedYogi). With Δ the mean less the weights before, and per number:
#
#     momentum:  m ← β m + Δ                w ← w + η m
#     adam:      m ← β m + (1 - β) Δ        v ← β₂ v + (1 - β₂) Δ²
#     yogi:      the same m                 v ← v - (1 - β₂) Δ² sign(v - Δ²)
#     both:      w ← w + η m / (√v + τ)     v begins at τ²


Server = Literal["mean", "momentum", "adam", "yogi"]


@dataclass(frozen=True)
class ServerStep:
    """Settings of the server's step: `rate` is η, `momentum` β, `squares` β₂ and `floor` τ."""

    name: Server = "mean"
    rate: float = 1.0
    momentum: float = 0.9
    squares: float = 0.99
    floor: float = 1e-3

    @property
    def adaptive(self) -> bool:
        """True if every number has a rate of its own."""
        return self.name in ("adam", "yogi")


def stepped(
    before: Mapping[str, NDArray[np.float32]],
    mean: Arrays,
    *,
    how: ServerStep,
    moments: Arrays,
    squares: Arrays,
) -> tuple[Arrays, Arrays, Arrays]:
    """The weights after the step, and the two running means; the arguments are unchanged.

    An array that `moments` or `squares` lacks starts as the formulas say. With the name "mean" the
    weights are the mean itself, bit for bit.
    """
    if how.name == "mean":
        return mean, {}, {}
    weights, kept, squared = Arrays(), Arrays(), Arrays()
    for name, start in before.items():
        change = mean[name] - start
        old = moments.get(name, np.zeros_like(start))
        if how.name == "momentum":
            kept[name] = how.momentum * old + change
            moved = how.rate * kept[name]
        else:
            kept[name] = how.momentum * old + (1 - how.momentum) * change
            v = squares.get(name, np.full_like(start, how.floor**2))
            large = np.square(change)
            if how.name == "adam":
                v = how.squares * v + (1 - how.squares) * large
            else:
                v = v - (1 - how.squares) * large * np.sign(v - large)
            squared[name] = v.astype(np.float32)
            moved = how.rate * kept[name] / (np.sqrt(v) + how.floor)
        kept[name] = kept[name].astype(np.float32)
        weights[name] = (start + moved).astype(np.float32)
    return weights, kept, squared
