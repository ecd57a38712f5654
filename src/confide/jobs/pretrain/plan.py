"""The settings of a pretraining, and its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches

from confide.data.batches.noise import Noise
from confide.errors import RunError, SettingsError
from confide.learning.denoising import Denoising
from confide.settings.tomlfile import parse_toml
from confide.userfiles import Tree

_LEAST, _MOST = 16, 512  # pieces of a passage


@dataclass(frozen=True)
class Pretraining:
    """Everything that decides a pretraining's numbers, apart from text and budget.

    `longest` counts the pieces of a passage, special ones included; `batch` counts the pieces of a
    step with padding. `held_out` is the share of each text's documents to measure on: at most
    `measured` pieces of them along the way (`measures` times) and all of them at the end.
    """

    base: str = "minilm"
    decoder_layers: int = 3
    longest: int = 128
    batch: int = 1024
    held_out: float = 0.01
    measures: int = 20
    measured: int = 4096
    noise: Noise = field(default_factory=Noise)
    how: Denoising = field(default_factory=Denoising)

    def check(self) -> None:
        """Raise SettingsError for a value that makes no sense."""
        how, noise = self.how, self.noise
        bounds: dict[str, tuple[float, float, float]] = {
            "longest": (self.longest, _LEAST, _MOST),
            "batch": (self.batch, self.longest, 1 << 20),
            "held_out": (self.held_out, 0.0001, 0.5),
            "measures": (self.measures, 1, 10_000),
            "masked": (noise.masked, 0.0, 0.9),
            "mean_span": (noise.mean_span, 0.1, 20.0),
            "permuted": (noise.permuted, 0.0, 1.0),
            "learning_rate": (how.learning_rate, 1e-8, 1.0),
            "warm_up": (how.warm_up, 0.0, 1.0),
            "dropout": (how.dropout, 0.0, 0.9),
            "sampled": (how.sampled, 0, 1 << 30),
        }
        for name, (value, low, high) in bounds.items():
            if not low <= value <= high:
                raise SettingsError(
                    f"{name} is out of range", expected=f"{low} to {high}", got=str(value)
                )
        if how.train not in ("decoder", "all"):
            raise SettingsError(
                "train names an unknown part", expected="decoder or all", got=repr(how.train)
            )

    def same_as(self, other: Mapping[str, object], where: str) -> None:
        """Raise RunError, naming the first setting that differs."""
        defaults = plain(Pretraining())  # for settings that did not exist then
        for key, value in plain(self).items():
            if other.get(key, defaults[key]) != value:
                raise RunError(
                    f"the pretraining was started with another {key}",
                    expected=str(other.get(key, defaults[key])),
                    got=str(value),
                    where=where,
                    fix="give the same settings, or name another folder with --out",
                )


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of steps, or of minutes over all resumed parts.

    With steps, every run gives the same numbers; with minutes, they depend on the machine.
    """

    steps: int | None = None
    minutes: float | None = None

    def check(self) -> None:
        """Raise SettingsError unless exactly one of the two is given and positive."""
        if (self.steps is None) == (self.minutes is None):
            raise SettingsError(
                "it is not clear how long to train", expected="either --steps or --minutes"
            )
        if (self.steps if self.steps is not None else self.minutes or 0) <= 0:
            raise SettingsError("there is nothing to train", expected="more than 0")

    def share(self, *, steps: int, seconds: float) -> float:
        """The share that is used up, from 0 to 1."""
        if self.steps is not None:
            return min(1.0, steps / self.steps)
        assert self.minutes is not None
        return min(1.0, seconds / (60 * self.minutes))


def plain(plan: Pretraining) -> Tree:
    """The settings by dotted names, as JSON holds them."""
    found: Tree = {}
    for name in (one.name for one in fields(plan)):
        value = getattr(plan, name)
        if name in ("noise", "how"):
            found |= {f"{name}.{key}": inner for key, inner in asdict(value).items()}
        else:
            found[name] = value
    return found


def planned(
    overrides: Sequence[str], *, base: str = "minilm", decoder_layers: int = 3
) -> Pretraining:
    """The default settings, changed by `key=value` texts; keys need not name their part.

    Values are read as TOML. Raises SettingsError for an unknown key or a value of the wrong type.

    >>> planned(["train=all", "masked=0.15"]).how.train
    'all'
    """
    parts: dict[str, Tree] = {"": {}, "noise": {}, "how": {}}
    homes = {**_homes("noise", Noise()), **_homes("how", Denoising()), **_homes("", Pretraining())}
    for one in overrides:
        key, equals, text = (part.strip() for part in one.partition("="))
        if not equals or key not in homes:
            near = get_close_matches(key, homes, n=1)
            raise SettingsError(
                f"a pretraining has no setting {key!r}",
                expected=", ".join(homes),
                got=repr(one),
                fix=f"did you mean {near[0]}?" if near else None,
            )
        part, default = homes[key]
        value = _value(text)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise SettingsError(
                f"{key} has the wrong type",
                expected=f"a value like {default!r}",
                got=repr(text),
            )
        parts[part][key] = value
    return Pretraining(
        base=base,
        decoder_layers=decoder_layers,
        noise=Noise(**parts["noise"]),
        how=Denoising(**parts["how"]),
        **parts[""],
    )


def _homes(part: str, values: Noise | Denoising | Pretraining) -> dict[str, tuple[str, object]]:
    """The settings of a part: name to (part, default)."""
    own = {one.name: getattr(values, one.name) for one in fields(values)}
    apart = ("noise", "how", "base", "decoder_layers")
    return {name: (part, value) for name, value in own.items() if name not in apart}


def _value(text: str) -> object:
    try:
        value: object = parse_toml(f"value = {text}")["value"]
    except SettingsError:
        return text
    return value
