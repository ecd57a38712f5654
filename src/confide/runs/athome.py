"""What a site keeps for itself after a run: the model that is best for it (`confide.jobs.home`)."""

from __future__ import annotations

from dataclasses import dataclass

from confide.errors import MessageError, RunError
from confide.federation.messages import Arrays, carries, decode_file
from confide.runs.folder import RunFolder

CANDIDATES = FEDERATED, TUNED, ALONE = "federated", "tuned", "alone"
"""The model of the run; the same, trained on at home; one trained at home alone."""

HOME = "home.json"
"""What was compared, and what came of it."""
KEPT = "kept.safetensors"
"""The weights that a site keeps, where they are not those of the run."""


@dataclass(frozen=True)
class KeptAtHome:
    """A site's own weights, of the form of the run's model. They never leave the site."""

    model: str = carries("tuned or alone")
    round: int = carries("the round of the run's model that it was compared with")
    weights: Arrays = carries("the weights that are best on the site's development text")


def kept_at_home(folder: RunFolder, site: str | None) -> Arrays | None:
    """The weights that a site keeps; None if it keeps those of the run, or did not compare.

    A run that was continued since, and has another model now, is not compared yet: None as well.
    Raises RunError if the file is damaged.
    """
    if site is None:
        return None
    path = folder.home(site) / KEPT
    if not path.is_file():
        return None
    try:
        kept = decode_file(KeptAtHome, path.read_bytes())
        return kept.weights if kept.round == round_of(folder, site) else None
    except (MessageError, OSError) as error:
        raise RunError(
            "the weights that the site keeps cannot be read",
            where=str(path),
            fix="compare again with `confide home`, or delete the file to use the run's model",
        ) from error


def round_of(folder: RunFolder, site: str) -> int:
    """The round of the run's model for a site."""
    rounds = folder.result().best_rounds
    return rounds[site] if site in rounds else rounds[""]
