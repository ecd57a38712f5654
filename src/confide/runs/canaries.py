"""Canaries: documents of a site of which a coin let each into its training, or left it out.

The coins come from a secret in the site's own folder, so nobody else can know them. After the run
whoever can tell the two kinds apart shows how much the model tells (`confide audit`; Steinke et al.
2023). Between simulated sites the secret comes from the seed, so that numbers repeat.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from confide.errors import DataError, RunError, os_errors_as
from confide.federation.files import private_folder, write_of_run
from confide.federation.keys import simulated_key
from confide.seeds import derive_seed
from confide.settings import SIMULATED, Settings
from confide.text.document import Document
from confide.userfiles import bytes_of

COINS = "canaries.key"
"""The secret, in the folder that the site owns."""
_BYTES = 32


@dataclass(frozen=True)
class Canaries:
    """Documents, and for each whether it was let in."""

    documents: tuple[Document, ...] = ()
    within: tuple[bool, ...] = ()

    @property
    def out(self) -> list[Document]:
        """Those that were left out."""
        return [one for one, let in zip(self.documents, self.within, strict=True) if not let]


def canaries_of(settings: Settings, site: str) -> int:
    """How many documents of a site are canaries."""
    own = next((one for one in settings.site if one.name == site), None)
    return (own.canaries if own else 0) or settings.data.canaries


def dealt(
    train: list[Document], settings: Settings, site: str, *, folder: Path
) -> tuple[list[Document], Canaries]:
    """The training documents without the canaries that are left out, and all canaries.

    `folder` is the site's own. Raises DataError if the site has too few documents, and RunError if
    its secret cannot be read or kept.
    """
    count = canaries_of(settings, site)
    if not count:
        return train, Canaries()
    if count >= len(train):
        raise DataError(
            f"site {site} has too few training documents for so many canaries",
            expected=f"at most {len(train) - 1}",
            got=str(count),
            fix="lower `canaries`: half of them are left out of training",
        )
    draws = np.random.default_rng(derive_seed(settings.seed, "canaries", site))
    chosen = sorted(draws.permutation(len(train))[:count].tolist())
    within = _coins(_secret(settings, folder), site, count)
    out = {place for place, let in zip(chosen, within, strict=True) if not let}
    kept = [one for place, one in enumerate(train) if place not in out]
    return kept, Canaries(tuple(train[place] for place in chosen), within)


def has_coins(settings: Settings, site: str, folder: Path) -> bool:
    """Whether the site's coins can be known here; it may have no canaries at all."""
    return not canaries_of(settings, site) or _simulated(settings) or (folder / COINS).is_file()


def _simulated(settings: Settings) -> bool:
    return settings.split is not None or settings.key == SIMULATED


def _coins(secret: bytes, site: str, count: int) -> tuple[bool, ...]:
    return tuple(
        bool(hmac.digest(secret, f"{site}\0{number}".encode(), hashlib.sha256)[0] & 1)
        for number in range(count)
    )


def _secret(settings: Settings, folder: Path) -> bytes:
    if _simulated(settings):
        return simulated_key(derive_seed(settings.seed, "coins"))
    path = folder / COINS
    with os_errors_as(RunError, "the secret of the canaries cannot be kept or read", where=path):
        if not path.exists():
            private_folder(folder)
            write_of_run(path, secrets.token_bytes(_BYTES))
        return bytes_of(path)
