"""Personal models: what a site keeps for itself after a run (`confide.jobs.home`)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from confide.errors import MessageError, RunError
from confide.federation.messages import Arrays, carries, decode_file
from confide.runs.folder import RunFolder
from confide.runs.result import read_record
from confide.scoring.calibration import Calibrator

CANDIDATES = FEDERATED, TUNED, ALONE = "federated", "tuned", "alone"
"""The model of the run; the same, trained on at home; one trained at home alone."""

HOME = "home.json"
"""The comparison of personal models, and its outcome."""
KEPT = "kept.safetensors"
"""The weights that a site keeps, where they are not those of the run."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Candidate(_Record):
    """A model that a site could keep. `passes` over its training text, at home.

    `dev` is the score that decides, `test` the same of test text; None without such text.
    """

    passes: int
    dev: float | None
    test: float | None
    seconds: float


class AtHome(_Record):
    """The model that a site came to keep: `federated`, `tuned` or `alone`. `why` says what decided.

    `undecided`: another scored better, but there was too little development text to tell.

    `by` is the kind of score, `round` that of the run's model.
    """

    site: str
    kept: str
    by: str
    why: str
    undecided: bool = False
    round: int
    candidates: dict[str, Candidate]


@dataclass(frozen=True)
class KeptAtHome:
    """A site's own weights, of the form of the run's model. They never leave the site."""

    model: str = carries("tuned or alone")
    round: int = carries("the round of the run's model that it was compared with")
    weights: Arrays = carries("the weights that are best on the site's development text")
    temperature: float = carries("of its confidences, from the site's development text")
    offset: float = carries("of their log odds, from the same")
    finds: int = carries("how many finds made both", added=True, before=-1)

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator of its confidences."""
        return Calibrator(self.temperature, self.offset, self.finds)


def kept_at_home(folder: RunFolder, site: str | None) -> KeptAtHome | None:
    """The model that a site keeps; None if it keeps those of the run, or did not compare.

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
        return kept if kept.round == round_of(folder, site) else None
    except (MessageError, OSError) as error:
        raise RunError(
            "the weights that the site keeps cannot be read",
            where=str(path),
            fix="compare again with `confide home`, or delete the file to use the run's model",
        ) from error


def compared_at_home(folder: RunFolder, site: str) -> AtHome | None:
    """Read a site's comparison; None if it has not compared the model that the run has now.

    Raises RunError if the file is damaged.
    """
    path = folder.home(site) / HOME
    if not path.is_file():
        return None
    what, fix = "what the site compared cannot be read", "compare again with `confide home`"
    found = read_record(path, AtHome.model_validate_json, what, fix=fix)
    return found if found.round == round_of(folder, site) else None


def round_of(folder: RunFolder, site: str) -> int:
    """The round of the run's model for a site; -1 if the run has none yet."""
    rounds = folder.result().best_rounds
    return rounds.get(site, rounds.get("", -1))
