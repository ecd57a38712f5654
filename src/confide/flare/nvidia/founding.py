"""Founding a consortium, and making kits under its authority."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from confide import __version__
from confide.errors import KitError, os_errors_as
from confide.flare.kits import policies
from confide.flare.kits.naming import SERVER, check_host, check_names
from confide.flare.kits.policies import Kind, write_private
from confide.flare.kits.startup import (
    DAYS,
    DESCRIPTION,
    KITS,
    PORT,
    PROJECT,
    SCHEMA,
    Consortium,
    Kit,
    no_engine,
    open_consortium,
    open_kit,
)
from confide.userfiles import Tree

try:
    from confide.flare.nvidia import authority
except ImportError as error:
    raise no_engine() from error

_NOT_OURS = ("*.sh", "*.ipynb", "readme*", "*.md")
"""FLARE's scripts and their descriptions, which would start its processes without our part."""


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
    """Found a consortium in the folder `out` (by default its name): the project file and all kits.

    Sites and the lead reach the server at `host`, on this one port. A passphrase encrypts the root
    key. Raises KitError if a name, the host or the port is not allowed or the folder exists;
    EngineError without FLARE.
    """
    out = Path(name) if out is None else out
    made = Consortium(out, name, host, port, lead, tuple(sites), days)
    _check(made)
    if out.exists():
        raise KitError(
            "this path already exists, and a consortium is never overwritten",
            where=str(out),
            fix="choose another folder; to add a site, use `confide consortium add`",
        )
    beside = out.with_name(f".{out.name}.new")
    try:
        with os_errors_as(KitError, "the consortium's folder could not be written", where=out):
            beside.mkdir(parents=True, mode=0o700)
            new = dataclasses.replace(made, path=beside)
            authority.found(new.authority, name, days=days, passphrase=passphrase)
            names = (SERVER, *made.sites, made.lead)
            _provision(new, beside / KITS, names=names, passphrase=passphrase)
            _write_project(new)
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_consortium(out)


def add(consortium: Path, site: str) -> Kit:
    """Make the kit of a further site. All other kits stay as they are. Raises KitError."""
    held = open_consortium(consortium)
    grown = dataclasses.replace(held, sites=(*held.sites, site))
    _check(grown)
    kit = _make(grown, site)
    _write_project(grown)
    return kit


def renew(consortium: Path, name: str) -> Kit:
    """Make a new kit for `server`, a site or the lead, with a new key and certificate.

    The old kit works until its own certificate expires; it is not overwritten. Raises KitError.
    """
    held = open_consortium(consortium)
    known = (SERVER, *held.sites, held.lead)
    if name not in known:
        raise KitError(
            "this consortium has no participant of that name",
            expected=", ".join(known),
            got=name,
            where=str(held.path),
        )
    return _make(held, name)


def _make(made: Consortium, name: str) -> Kit:
    """One more kit under the authority of an existing consortium."""
    path = made.path / KITS / name
    if path.exists():
        raise KitError(
            "there is already a kit of that name",
            where=str(path),
            fix="if its owner has it, delete this copy; if it is used from here, move it away",
        )
    beside = made.path / f".{name}.new"
    try:
        with os_errors_as(KitError, "the kit could not be written", where=path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _provision(made, beside, names=(name,))
            (beside / name).rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_kit(path)


def _provision(
    made: Consortium,
    out: Path,
    *,
    names: Sequence[str],
    passphrase: bytes | None = None,
) -> None:
    """Provision the kits of these names (`server`, sites, the lead) into `out`.

    FLARE cannot provision without a server; if the server's kit is not wanted, it is deleted.
    """
    user = f"{made.lead}@confide.lead"
    sites = [name for name in names if name in made.sites]
    people = authority.participants(made, sites=sites, user=user if made.lead in names else "")
    folders = authority.provision(
        made.authority, out, name=made.name, participants=people, passphrase=passphrase
    )
    identity: str = people[0].name  # FLARE cuts long host names
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
    """Add our policies, remove FLARE's scripts and samples, and close all to others."""
    for folder in (kit.path, kit.path / "startup"):
        for pattern in _NOT_OURS:
            for path in folder.glob(pattern):
                path.unlink()
    policies.write(kit.path, kit.kind)
    described = {"schema": SCHEMA, "confide": __version__} | _fields(kit)
    write_private(kit.path / "local" / DESCRIPTION, json.dumps(described, indent=2) + "\n")
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
    beside = made.path / (PROJECT + ".tmp")
    write_private(beside, text + tomli_w.dumps(project))
    beside.replace(made.path / PROJECT)


def _fields(thing: Kit | Consortium) -> Tree:
    """All fields but the path."""
    fields = dataclasses.asdict(thing)
    del fields["path"]
    return fields


def _check(made: Consortium) -> None:
    check_names(made.name, made.sites, lead=made.lead, host=made.host)
    check_host(made.host)
    if not 0 < made.port < 65536:
        raise KitError("this is not a port", expected="1 to 65535", got=str(made.port))
    if not made.days > 0:
        raise KitError(
            "a certificate must be valid for some time",
            expected="a number of days above 0",
            got=f"{made.days:g}",
        )
