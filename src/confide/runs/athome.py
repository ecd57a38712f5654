"""What a site keeps for itself after a run: the model that is best for it (`confide.jobs.home`)."""

from __future__ import annotations

from dataclasses import dataclass

from confide.errors import MessageError, RunError
from confide.federation.messages import Arrays, carries, decode_file
from confide.runs.folder import RunFolder

FEDERATED, TUNED, ALONE = "federated", "tuned", "alone"
"""The model of the run; the same, trained on at home; one that was trained at home alone."""

HOME = "home.json"
"""What was compared, and what came of it."""
KEPT = "kept.safetensors"
"""The weights that a site keeps, where they are not those of the run."""


@dataclass(frozen=True)
class KeptAtHome:
    """A site's own weights, of the form of the run's model. They never leave the site."""

    model: str = carries("tuned or alone")
    weights: Arrays = carries("the weights that are best on the site's development text")


def kept_at_home(folder: RunFolder, site: str | None) -> Arrays | None:
    """The weights that a site keeps; None where it keeps those of the run, or did not compare.

    Raises RunError where the file is damaged.
    """
    if site is None:
        return None
    path = folder.home(site) / KEPT
    if not path.is_file():
        return None
    try:
        return decode_file(KeptAtHome, path.read_bytes()).weights
    except (MessageError, OSError) as error:
        raise RunError(
            "the weights that the site keeps cannot be read",
            where=str(path),
            fix="compare again with `confide home`, or delete the file to use the run's model",
        ) from error
