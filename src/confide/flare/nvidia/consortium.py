"""Create a consortium: its root key, which signs every kit, and the kits of its members.

NVIDIA FLARE provisions the kits in a folder that is deleted afterwards, since its state holds a
copy of every site's private key. Only the root key and its certificate are kept.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from confide.errors import KeyFileError, KitError, LockedKeyError, os_errors_as
from confide.federation.keys import load_private, save_private
from confide.files import Tree, file_bytes, for_the_owner, write_atomically
from confide.flare import kit as kits
from confide.flare.kit import DAYS, KITS, PORT, PROJECT, SCHEMA, SERVER, Consortium, Kind, Kit
from confide.version import __version__

try:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Participant, Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert
except ImportError as error:
    raise kits.no_engine() from error

ROOT_KEY, ROOT_CERTIFICATE = "root.key", "root.crt"
ROOT_DAYS = 3650
_NOT_OURS = ("*.sh", "*.ipynb", "readme*", "*.md")
"""FLARE's scripts and their descriptions, which would start its processes without our part."""


@for_the_owner()
def create_consortium(
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
    """Create a consortium in the folder `out` (by default its name): the project file and all kits.

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
            create_root_key(new.authority, name, days=days, passphrase=passphrase)
            names = (SERVER, *made.sites, made.lead)
            _provision(new, beside / KITS, names=names, passphrase=passphrase)
            _write_project(new)
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return kits.open_consortium(out)


@for_the_owner()
def add_site(consortium: Path, site: str) -> Kit:
    """Make the kit of a further site. All other kits stay as they are. Raises KitError."""
    held = kits.open_consortium(consortium)
    grown = dataclasses.replace(held, sites=(*held.sites, site))
    _check(grown)
    kit = _make_kit(grown, site)
    _write_project(grown)
    return kit


@for_the_owner()
def renew_kit(consortium: Path, name: str) -> Kit:
    """Make a new kit for `server`, a site or the lead, with a new key and certificate.

    The old kit works until its own certificate expires; it is not overwritten. Raises KitError.
    """
    held = kits.open_consortium(consortium)
    known = (SERVER, *held.sites, held.lead)
    if name not in known:
        raise KitError(
            "this consortium has no participant of that name",
            expected=", ".join(known),
            got=name,
            where=str(held.path),
        )
    return _make_kit(held, name)


def create_root_key(
    folder: Path, name: str, *, days: float, passphrase: bytes | None = None
) -> None:
    """Make a new root key and its certificate in `folder`, valid for ten years or `days`.

    A passphrase encrypts the root key. Raises KeyFileError.
    """
    folder.mkdir(mode=0o700)
    private, public = generate_keys()
    certificate = generate_cert(
        Identity(name), Identity(name), private, public, valid_days=max(ROOT_DAYS, days), ca=True
    )
    save_private(folder / ROOT_KEY, private, passphrase=passphrase)
    write_atomically(folder / ROOT_CERTIFICATE, serialize_cert(certificate))


def _check(made: Consortium) -> None:
    kits.check_member_names(made.name, made.sites, lead=made.lead, host=made.host)
    kits.check_host(made.host)
    if not 0 < made.port < 65536:
        raise KitError("this is not a port", expected="1 to 65535", got=str(made.port))
    if not made.days > 0:
        raise KitError(
            "a certificate must be valid for some time",
            expected="a number of days above 0",
            got=f"{made.days:g}",
        )


def _make_kit(made: Consortium, name: str) -> Kit:
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
    return kits.open_kit(path)


def _provision(
    made: Consortium, out: Path, *, names: Sequence[str], passphrase: bytes | None = None
) -> None:
    """Provision the kits of these names (`server`, sites, the lead) into `out`.

    Asks for the passphrase of an encrypted root key if it is not given. Raises KitError,
    LockedKeyError.
    """
    key, certificate = _root(made.authority, passphrase)
    org, days, user = kits.organisation(made.name), {"days": made.days}, f"{made.lead}@confide.lead"
    server = Participant("server", made.host, org, {"fed_learn_port": made.port, **days})
    people = {SERVER: server}  # FLARE cannot provision without one
    for name in names:
        if name == made.lead:
            people[name] = Participant("admin", user, org, {"role": "lead", **days})
        elif name != SERVER:
            people[name] = Participant("client", name, org, dict(days))
    project = Project(
        made.name,
        "a consortium of confide",
        list(people.values()),
        serialized_root_cert=certificate,
        root_private_key=key,
    )
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", require_signed_jobs=True),
        _Certificates(),
    ]
    errors, logger = io.StringIO(), logging.Logger("provision", logging.ERROR)
    logger.addHandler(logging.StreamHandler(errors))
    with tempfile.TemporaryDirectory(dir=made.path, prefix=".provision-") as work:
        context = Provisioner(work, builders).provision(project, logger=logger)
        folders = context.get_result_location()
        if context.get(CtxKey.BUILD_ERROR) or not folders:
            said = "; ".join(errors.getvalue().splitlines())
            raise KitError("the kits could not be provisioned", got=said)
        out.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            kind: Kind = "server" if name == SERVER else "lead" if name == made.lead else "site"
            shutil.move(Path(folders) / people[name].name, out / name)
            kit = Kit(
                out / name, kind, name, made.name, made.host, made.port,
                identity=server.name,  # FLARE cuts long host names
                user=user if kind == "lead" else "",
            )  # fmt: skip
            _finish(kit)


def _root(folder: Path, passphrase: bytes | None) -> tuple[PrivateKeyTypes, bytes]:
    """The root key and its certificate. Raises KitError, LockedKeyError."""
    try:
        certificate = file_bytes(folder / ROOT_CERTIFICATE)
        public = x509.load_pem_x509_certificate(certificate).public_key()
        key = load_private(folder / ROOT_KEY, passphrase=passphrase)
    except LockedKeyError:
        raise
    except (OSError, ValueError, KeyFileError) as error:
        raise KitError(
            "the consortium's authority is missing or damaged, and no kit can be made without it",
            where=str(folder),
            fix="restore it from your backup; kits already made keep working",
        ) from error
    if key.public_key() != public:
        raise KitError(
            "the authority's key and its certificate do not match",
            where=str(folder),
            fix="restore both from your backup",
        )
    return key, certificate


class _Certificates(CertBuilder):  # type: ignore[misc]
    """FLARE's certificates, but valid for as long as asked instead of always 360 days."""

    def get_pri_key_cert(
        self, participant: Participant
    ) -> tuple[tuple[PrivateKeyTypes, PublicKeyTypes], x509.Certificate]:
        """A new key pair and its certificate, which never outlives the root's."""
        private, public = generate_keys()
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(days=participant.get_prop("days"))
        certificate = self._generate_cert(
            participant.subject,
            participant.org,
            self.issuer,
            self.pri_key,
            public,
            role=participant.get_prop("role"),
            server=participant if participant.type == "server" else None,
            not_valid_before=now - datetime.timedelta(minutes=5),
            not_valid_after=min(end, self.root_cert.not_valid_after_utc),
        )
        return private, certificate


def _finish(kit: Kit) -> None:
    """Add our policies, remove FLARE's scripts and samples, and close all to others."""
    unwanted = [
        *(kit.path / "local").iterdir(),
        *(path for pattern in _NOT_OURS for path in kit.path.glob(pattern)),
        *(path for pattern in _NOT_OURS for path in (kit.path / "startup").glob(pattern)),
    ]
    for path in unwanted:
        path.unlink()
    kits.write_policies(kit.path, kit.kind)
    described = {"schema": SCHEMA, "confide": __version__} | _fields(kit)
    file = kit.path / "local" / kits.DESCRIPTION
    write_atomically(file, (json.dumps(described, indent=2) + "\n").encode())
    verb = f"confide {kit.kind} start KIT"
    if kit.kind == "lead":
        verb = "confide coordinate SETTINGS.toml --kit KIT"
    readme = (
        f"The startup kit of {kit.name} ({kit.kind}) in the consortium {kit.consortium}.\n"
        f"The server is at {kit.host}, port {kit.port}.\n"
        "It holds a private key: keep it where only its owner can read it.\n\n"
        f"    {verb}\n"
    )
    write_atomically(kit.path / "README.txt", readme.encode())
    for path in (kit.path, *kit.path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def _write_project(made: Consortium) -> None:
    text = "# A consortium of confide. The folder `authority` beside this file is secret.\n"
    project = {"schema": SCHEMA} | _fields(made) | {"sites": list(made.sites)}
    write_atomically(made.path / PROJECT, (text + tomli_w.dumps(project)).encode())


def _fields(thing: Kit | Consortium) -> Tree:
    """All fields but the path."""
    return {name: value for name, value in dataclasses.asdict(thing).items() if name != "path"}
