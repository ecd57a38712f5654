"""Where a real site computes: as its own file says, whatever the run's settings say."""

from __future__ import annotations

import torch

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.learning.devices import compute_at, place_of
from confide.settings import Settings, SiteFile
from confide.userfiles import Tree


def own_computing(file: SiteFile) -> Tree:
    """What a site's own file says of devices, in place of the run's settings."""
    return {name: getattr(file, name) for name in ("device", "precision", "at_once")}


def compute_as(settings: Settings) -> None:
    """Let this process compute so. Raises Refusal if this machine has no such device."""
    torch.set_num_threads(settings.threads)
    try:
        compute_at(place_of(settings.device, settings.precision, at_once=settings.at_once))
    except SettingsError as error:
        raise Refusal("device-missing") from error
