"""Startup kits: a consortium's folder, and one kit each for the server, the sites and the lead.

```
OUT/consortium.toml              who takes part, and where the server is
OUT/authority/                   the root key: whoever has it can let anyone in
OUT/kits/server, SITE…, LEAD
```
A kit holds its owner's private key and certificates (`startup/`), our policies (`local/`, see
`policies`), and later what its processes leave. Only its owner gets it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from confide.errors import EngineError, KitError, MissingDataError, SettingsError
from confide.flare.kits.describing import check_schema, parts_of
from confide.flare.kits.naming import SERVER
from confide.flare.kits.policies import Kind
from confide.settings.tomlfile import read_toml
from confide.userfiles import bytes_of, json_of, text_of

SCHEMA = 1
PORT = 8002
DAYS = 365

DESCRIPTION, PROJECT, _AUTHORITY, KITS = "confide.json", "consortium.toml", "authority", "kits"
ROOT_KEY = Path(_AUTHORITY, "root.key")
"""In the consortium's folder."""


@dataclass(frozen=True)
class Kit:
    """A startup kit. `identity` is the server's name in its certificate, `user` the lead's."""

    path: Path
    kind: Kind
    name: str
    consortium: str
    host: str
    port: int
    identity: str
    user: str = ""

    @property
    def certificate(self) -> Path:
        """The certificate that its owner shows to the others."""
        return self.path / "startup" / f"{'server' if self.kind == SERVER else 'client'}.crt"

    @property
    def key(self) -> Path:
        """The private key."""
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        """The certificate of the consortium's authority."""
        return self.path / "startup" / "rootCA.pem"


@dataclass(frozen=True)
class Consortium:
    """A consortium's folder. `days` is how long a new kit's certificate is valid."""

    path: Path
    name: str
    host: str
    port: int
    lead: str
    sites: tuple[str, ...]
    days: float = DAYS

    @property
    def authority(self) -> Path:
        """The folder of the root key."""
        return self.path / _AUTHORITY

    def kit(self, name: str) -> Kit:
        """The kit of `server`, a site or the lead. Raises KitError."""
        return open_kit(self.path / KITS / name)

    def kits(self) -> tuple[Kit, ...]:
        """All kits: the server's, the sites', the lead's. Raises KitError if one is gone."""
        return tuple(self.kit(name) for name in (SERVER, *self.sites, self.lead))


def no_engine() -> EngineError:
    """The error to raise if NVIDIA FLARE is not installed."""
    return EngineError(
        "NVIDIA FLARE is not installed, and real sites need it",
        fix="install it with: pip install 'confide[flare]'",
    )


def open_consortium(path: Path) -> Consortium:
    """Read a consortium's project file. Raises KitError: missing, damaged, or too new."""
    file = path / PROJECT
    try:
        held = read_toml(file)
    except MissingDataError as error:
        raise KitError(
            "this is not a consortium's folder",
            expected=f"a file {PROJECT} in it",
            where=str(path),
            fix="make one with `confide consortium init`",
        ) from error
    except SettingsError as error:
        raise KitError(f"this is not a project file ({error.what})", where=str(file)) from error
    check_schema(held, file, SCHEMA)
    try:
        sites = held["sites"]
        held["sites"] = tuple(sites) if isinstance(sites, list) else sites
        return Consortium(path, **parts_of(Consortium, held, file))
    except KeyError as error:
        raise KitError(f"the project file lacks {error}", where=str(file)) from error


def open_kit(path: Path, kind: Kind | None = None) -> Kit:
    """Open a startup kit. Raises KitError if it is missing, damaged or not of this `kind`."""
    file = path / "local" / DESCRIPTION
    try:
        held = json_of(text_of(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise KitError(
            "there is no startup kit" if path.exists() else "there is no such folder",
            expected="the folder of a kit that `confide consortium init` made",
            where=str(path),
        ) from error
    except (OSError, ValueError) as error:
        raise KitError(
            "the kit's description is damaged",
            where=str(file),
            fix="restore the file from a backup",
        ) from error
    check_schema(held, file, SCHEMA)
    try:
        kit = Kit(path.resolve(), **parts_of(Kit, held, file))
    except KeyError as error:
        raise KitError(f"the kit's description lacks {error}", where=str(file)) from error
    if kit.kind not in get_args(Kind):
        raise KitError(
            "the kit is of an unknown kind",
            expected=" or ".join(get_args(Kind)),
            got=repr(kit.kind),
            where=str(file),
        )
    if kind is not None and kit.kind != kind:
        raise KitError(
            f"this is the kit of {_article(kit)}",
            expected=f"a {kind}'s kit",
            where=str(path),
            fix=f"use {_verb(kit)} with it, or take the right kit",
        )
    for part in (kit.certificate, kit.key, kit.root):
        if not part.is_file():
            raise KitError(
                "a part of the kit is missing",
                expected=part.name,
                where=str(part.parent),
                fix="restore the kit from a backup, or ask the founder for a new one",
            )
    return kit


def _article(kit: Kit) -> str:
    return "the server" if kit.kind == SERVER else f"{kit.kind} {kit.name}"


def _verb(kit: Kit) -> str:
    return (
        "`confide coordinate --kit`"
        if kit.kind == "lead"
        else f"`confide {kit.kind} start|stop|status`"
    )


def expires(kit: Kit) -> datetime.datetime:
    """When the kit's certificate expires, in UTC. Raises KitError if it cannot be read."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise no_engine() from error
    try:
        return x509.load_pem_x509_certificate(bytes_of(kit.certificate)).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise KitError(
            "the kit's certificate cannot be read", where=str(kit.certificate)
        ) from error
