"""How much of an encoder is trained, as kinds ask and say it (`learning.tuning`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confide.errors import DataError, SettingsError
from confide.federation.failures import Refusal
from confide.learning.tuning import Tuning
from confide.settings import Settings as RunSettings

TUNING = "what of the encoder is trained: all, top N, lora RANK ALPHA, bias or frozen"
"""What the field `tuning` of a form carries."""


def tuning_of(run: RunSettings) -> Tuning:
    """What the settings say."""
    own = run.encoder
    return Tuning(own.tune, layers=own.layers, rank=own.rank, alpha=own.alpha)


def check_no_encoder(run: RunSettings, model: str) -> None:
    """Raise SettingsError if a part of an encoder is to be tuned where no encoder is trained."""
    if run.encoder.tune != "all":
        raise SettingsError(
            f"{model} has no encoder that could be tuned",
            expected='encoder.tune = "all"',
            got=repr(run.encoder.tune),
            fix="remove [encoder], or choose a model with an encoder",
        )


@contextmanager
def keeping_features() -> Iterator[None]:
    """Refuse if the features of a frozen encoder cannot be kept on the site's disk."""
    try:
        yield
    except DataError as error:
        raise Refusal("features") from error
