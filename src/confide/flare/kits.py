"""Startup kits: a consortium's folder, and one kit each for the server, the sites and the lead.

```
OUT/consortium.toml              who takes part, and where the server is
OUT/authority/                   the root key: whoever has it can let anyone in
OUT/kits/server, SITE…, LEAD
```
A kit holds a private key and the certificates of its owner (`startup/`), our policies (`local/`,
see `policies`), and later what its processes leave. It is given to its owner alone.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import tomli_w

from confide import __version__
from confide.errors import EngineError, KitError, MissingDataError, SettingsError
from confide.flare import policies
from confide.flare.describing import check_schema, parts_of
from confide.flare.naming import SERVER, check_host, check_names
from confide.flare.policies import Kind, write_private
from confide.settings.tomlfile import read_toml
from confide.userfiles import bytes_of, json_of, text_of

if TYPE_CHECKING:
    from types import ModuleType

SCHEMA = 1
PORT = 8002
DAYS = 365

_DESCRIPTION, _PROJECT, _AUTHORITY, _KITS = "confide.json", "consortium.toml", "authority", "kits"
ROOT_KEY = Path(_AUTHORITY, "root.key")
"""In the consortium's folder."""
_NOT_OURS = ("*.sh", "*.ipynb", "readme*", "*.md")
"""FLARE's scripts and their descriptions: they start its processes without what we add."""


@dataclass(frozen=True)
class Kit:
    """A startup kit. `identity` is the server's name in its certificate; `user` the lead's."""

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
        """What its owner shows to the others."""
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
    """A consortium's folder. `days` is how long a new kit's certificate is good."""

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
        """The kit of `server`, of a site or of the lead."""
        return open_kit(self.path / _KITS / name)

    def kits(self) -> tuple[Kit, ...]:
        """All kits: the server's, the sites', the lead's. They must still lie here."""
        return tuple(self.kit(name) for name in (SERVER, *self.sites, self.lead))


# --- making -----------------------------------------------------------------------------


def init(
    name: str,
    *,
    sites: Sequence[str],
    host: str,
    port: int = PORT,
    lead: str = "lead",
    out: Path | None = None,
    days: float = DAYS,
    passphrase: bytes | None = None,
) -> Consortium:
    """Found a consortium in `out` (a folder of its name): the project file and all kits.

    Sites and the lead reach the server at `host`, on this one port. With a passphrase the root key
    is encrypted. Raises KitError where a name, the host or the port cannot be, or the folder is
    there already; EngineError without FLARE.
    """
    out = Path(name) if out is None else out
    made = Consortium(out, name, host, port, lead, tuple(sites), days)
    _check(made)
    authority = _load_authority()
    if out.exists():
        raise KitError(
            "there is something there already, and a consortium is never written over",
            where=str(out),
            fix="choose another folder; a further site joins with `confide consortium add`",
        )
    beside = out.with_name(f".{out.name}.new")
    try:
        beside.mkdir(parents=True, mode=0o700)
        new = dataclasses.replace(made, path=beside)
        authority.found(new.authority, name, days=days, passphrase=passphrase)
        names = (SERVER, *made.sites, made.lead)
        _provision(authority, new, beside / _KITS, names=names, passphrase=passphrase)
        _write_project(new)
        beside.rename(out)
    except OSError as error:
        raise KitError(
            f"the consortium's folder could not be written ({error.strerror})", where=str(out)
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_consortium(out)


def add(consortium: Path, site: str) -> Kit:
    """Make the kit of a further site. The others keep theirs, and the server's needs nothing."""
    held = open_consortium(consortium)
    grown = dataclasses.replace(held, sites=(*held.sites, site))
    _check(grown)
    kit = _make(grown, site)
    _write_project(grown)
    return kit


def renew(consortium: Path, name: str) -> Kit:
    """Make the kit of `server`, a site or the lead anew: a new key, and a certificate that lasts.

    The old kit works until its own certificate ends; nothing is written over it.
    """
    held = open_consortium(consortium)
    known = (SERVER, *held.sites, held.lead)
    if name not in known:
        raise KitError(
            "nobody of that name takes part",
            expected=", ".join(known),
            got=name,
            where=str(held.path),
        )
    return _make(held, name)


def _make(made: Consortium, name: str) -> Kit:
    """One more kit under the authority of a consortium that is there."""
    authority = _load_authority()
    path = made.path / _KITS / name
    if path.exists():
        raise KitError(
            "there is a kit of that name",
            where=str(path),
            fix="if it was given to its owner, delete it here; if it is in use here, move it away",
        )
    beside = made.path / f".{name}.new"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _provision(authority, made, beside, names=(name,))
        (beside / name).rename(path)
    except OSError as error:
        raise KitError(
            f"the kit could not be written ({error.strerror})", where=str(path)
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_kit(path)


def _load_authority() -> ModuleType:
    try:
        from confide.flare import authority
    except ImportError as error:
        raise no_engine() from error
    return authority


def no_engine() -> EngineError:
    """What is said where NVIDIA FLARE is not installed."""
    return EngineError(
        "NVIDIA FLARE is not installed, and real sites run on it",
        fix="install it with: pip install 'confide[flare]'",
    )


def _provision(
    authority: ModuleType,
    made: Consortium,
    out: Path,
    *,
    names: Sequence[str],
    passphrase: bytes | None = None,
) -> None:
    """Provision the kits of these names (`server`, sites, the lead) into `out`.

    FLARE makes no kit without a server: where its kit is not wanted, it is thrown away.
    """
    user = f"{made.lead}@confide.lead"
    sites = [name for name in names if name in made.sites]
    people = authority.participants(made, sites=sites, user=user if made.lead in names else "")
    folders = authority.provision(
        made.authority, out, name=made.name, participants=people, passphrase=passphrase
    )
    identity: str = people[0].name  # as FLARE has cut it, where the host's name is long
    owners: dict[str, tuple[Kind, str]] = {site: ("site", site) for site in sites}
    owners |= {identity: ("server", SERVER), user: ("lead", made.lead)}
    for own, folder in folders.items():
        kind, name = owners[own]
        if name not in names:
            shutil.rmtree(folder)
            continue
        folder.rename(out / name)
        kit = Kit(out / name, kind, name, made.name, made.host, made.port, identity)
        _finish(dataclasses.replace(kit, user=user) if kind == "lead" else kit)


def _finish(kit: Kit) -> None:
    """Our policies in, FLARE's scripts and samples out, all for the owner's eyes only."""
    for folder in (kit.path, kit.path / "startup"):
        for pattern in _NOT_OURS:
            for path in folder.glob(pattern):
                path.unlink()
    policies.write(kit.path, kit.kind)
    described = {"schema": SCHEMA, "confide": __version__} | _fields(kit)
    write_private(kit.path / "local" / _DESCRIPTION, json.dumps(described, indent=2) + "\n")
    write_private(kit.path / "README.txt", _readme(kit))
    for path in (kit.path, *kit.path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def _readme(kit: Kit) -> str:
    verb = f"confide {kit.kind} start KIT"
    if kit.kind == "lead":
        verb = "confide coordinate SETTINGS.toml --kit KIT"
    return (
        f"The startup kit of {kit.name} ({kit.kind}) in the consortium {kit.consortium}.\n"
        f"The server is at {kit.host}, port {kit.port}.\n"
        "It holds a private key: keep it where only its owner can read it.\n\n"
        f"    {verb}\n"
    )


def _write_project(made: Consortium) -> None:
    text = "# A consortium of confide. The folder `authority` beside this file is secret.\n"
    project = {"schema": SCHEMA} | _fields(made) | {"sites": list(made.sites)}
    beside = made.path / (_PROJECT + ".tmp")
    write_private(beside, text + tomli_w.dumps(project))
    beside.replace(made.path / _PROJECT)


def _fields(thing: Kit | Consortium) -> dict[str, Any]:
    """All fields but where it lies."""
    fields = dataclasses.asdict(thing)
    del fields["path"]
    return fields


def _check(made: Consortium) -> None:
    check_names(made.name, made.sites, lead=made.lead, host=made.host)
    check_host(made.host)
    if not 0 < made.port < 65536:
        raise KitError("this is not a port", expected="a number below 65536", got=str(made.port))
    if not made.days > 0:
        raise KitError(
            "a certificate must be good for some time", expected="days", got=f"{made.days:g}"
        )


# --- opening ----------------------------------------------------------------------------


def open_consortium(path: Path) -> Consortium:
    """Read a consortium's project file. Raises KitError: missing, damaged, or newer than us."""
    file = path / _PROJECT
    try:
        held = read_toml(file)
    except MissingDataError as error:
        raise KitError(
            "this is not a consortium's folder",
            expected=f"a file {_PROJECT} in it",
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
    """Open a startup kit, and see that it is of this `kind`. Raises KitError."""
    file = path / "local" / _DESCRIPTION
    try:
        held = json_of(text_of(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise KitError(
            "there is no startup kit" if path.exists() else "there is no such folder",
            expected="the folder of a kit that `confide consortium init` made",
            where=str(path),
        ) from error
    except (OSError, ValueError) as error:
        raise KitError("the kit's description is damaged", where=str(file)) from error
    check_schema(held, file, SCHEMA)
    try:
        kit = Kit(path.resolve(), **parts_of(Kit, held, file))
    except KeyError as error:
        raise KitError(f"the kit's description lacks {error}", where=str(file)) from error
    if kit.kind not in get_args(Kind):
        raise KitError("this is a kit of no known kind", got=repr(kit.kind), where=str(file))
    if kind is not None and kit.kind != kind:
        raise KitError(
            f"this is the kit of {_article(kit)}",
            expected=f"a {kind}'s kit",
            where=str(path),
            fix=f"use {_verb(kit)} with it, or take the right kit",
        )
    for part in (kit.certificate, kit.key, kit.root):
        if not part.is_file():
            raise KitError("the kit lacks a part", expected=part.name, where=str(part.parent))
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
    """When the kit's certificate ends, in UTC. Raises KitError where it cannot be read."""
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
