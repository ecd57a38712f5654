"""Create a consortium: its root key, which signs every certificate, and kits of its members.

NVIDIA FLARE writes a kit's configuration; keys and certificates are ours. A kit that is made here
comes with a private key that its founder has had: for trials. Real places make their own
(`certificates`).
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
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from confide.errors import KeyFileError, KitError, LockedKeyError, os_errors_as
from confide.federation.keys import load_private, save_private
from confide.files import Tree, file_bytes, for_the_owner, write_atomically
from confide.flare import kit as kits
from confide.flare.kit import DAYS, KITS, PORT, PROJECT, SCHEMA, SERVER, Consortium, Kind, Kit
from confide.version import __version__

try:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Participant, Project
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
    sites: Sequence[str] | None,
    host: str,
    port: int = PORT,
    lead: str = "lead",
    out: Path | None = None,
    days: float = DAYS,
    passphrase: bytes | None = None,
) -> Consortium:
    """Create a consortium in the folder `out` (by default its name): the project file and kits.

    The kits are those of the server, the lead and these sites; others ask to be approved. With None
    there is no kit: all make their own keys. Sites and the lead reach the server at `host`, on this
    one port. A passphrase encrypts the root key.
    Raises KitError if a name, the host or the port is not allowed or the folder exists; EngineError
    without FLARE.
    """
    out = Path(name) if out is None else out
    made = Consortium(out, name, host, port, lead, tuple(sites or ()), days)
    _check(made)
    if out.exists():
        raise KitError(
            "this path already exists, and a consortium is never overwritten",
            where=str(out),
            fix="choose another folder; to add a site, use `confide consortium approve`",
        )
    beside = out.with_name(f".{out.name}.new")
    try:
        with os_errors_as(KitError, "the consortium's folder could not be written", where=out):
            beside.mkdir(parents=True, mode=0o700)
            new = dataclasses.replace(made, path=beside)
            create_root_key(new.authority, name, days=days, passphrase=passphrase)
            if sites is not None:
                names = (SERVER, *made.sites, made.lead)
                _make_kits(new, beside / KITS, names=names, passphrase=passphrase)
            write_project(new)
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
    write_project(grown)
    return kit


@for_the_owner()
def renew_kit(consortium: Path, name: str) -> Kit:
    """Make a new kit for `server`, a site or the lead, with a new key and certificate.

    The old kit works until its own certificate expires; it is not overwritten. Raises KitError,
    also for a site that makes its own keys.
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
    if held.answer(name).exists():
        raise KitError(
            f"{name} makes its own keys, and no one else ever has them",
            where=str(held.answer(name)),
            fix="run `confide site request KIT` there, and approve what it sends",
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
            _make_kits(made, beside, names=(name,))
            (beside / name).rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return kits.open_kit(path)


def _make_kits(
    made: Consortium, out: Path, *, names: Sequence[str], passphrase: bytes | None = None
) -> None:
    """Make the kits of these names (`server`, sites, the lead) in `out`, with keys made here.

    Asks for the passphrase of an encrypted root key if it is not given. Raises KitError,
    LockedKeyError.
    """
    root = open_root(made.authority, passphrase)
    for kit in provision(made, out, names=names):
        private, public = generate_keys()
        save_private(kit.key, private, passphrase=None)
        write_atomically(kit.certificate, issue_certificate(made, kit, public=public, root=root))
        write_atomically(kit.root, root[1])
        made_here = "Its private key was made by the founder: for trials only.\n"
        readme = kit.path / "README.txt"
        write_atomically(readme, file_bytes(readme), made_here.encode())
        for path in (kit.path, *kit.path.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)


def provision(made: Consortium, out: Path, *, names: Sequence[str]) -> list[Kit]:
    """Write kits of these names (`server`, sites, the lead) into `out`, but no key or certificate.

    Raises KitError.
    """
    org, identity = kits.organisation(made.name), described(made, SERVER, path=out).identity
    ports = {"fed_learn_port": made.port, "default_host": made.host}
    people = {SERVER: Participant("server", identity, org, ports)}  # FLARE needs one
    for name in names:
        if name == made.lead:
            user = described(made, name, path=out).user
            people[name] = Participant("admin", user, org, {"role": "lead"})
        elif name != SERVER:
            people[name] = Participant("client", name, org)
    project = Project(made.name, "a consortium of confide", list(people.values()))
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", require_signed_jobs=True),
    ]
    errors, logger = io.StringIO(), logging.Logger("provision", logging.ERROR)
    logger.addHandler(logging.StreamHandler(errors))
    found = []
    with tempfile.TemporaryDirectory(dir=made.path, prefix=".provision-") as work:
        context = Provisioner(work, builders).provision(project, logger=logger)
        folders = context.get_result_location()
        if context.get(CtxKey.BUILD_ERROR) or not folders:
            said = "; ".join(errors.getvalue().splitlines())
            raise KitError("the kits could not be provisioned", got=said)
        out.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            shutil.move(Path(folders) / people[name].name, out / name)
            kit = described(made, name, path=out / name)
            _finish(kit)
            found.append(kit)
    return found


def described(made: Consortium, name: str, *, path: Path) -> Kit:
    """A kit at `path` of this name (`server`, a site or the lead), whether it is there or not."""
    kind: Kind = "server" if name == SERVER else "lead" if name == made.lead else "site"
    return Kit(
        path, kind, name, made.name, made.host, made.port,
        identity=made.host[:64],  # the longest name of a certificate
        user=f"{made.lead}@{kits.LEADS}" if kind == "lead" else "",
    )  # fmt: skip


def shown_name(kit: Kit) -> str:
    """The name in a kit's certificate."""
    return {"server": kit.identity, "site": kit.name, "lead": kit.user}[kit.kind]


def issue_certificate(
    made: Consortium, kit: Kit, *, public: RSAPublicKey, root: tuple[RSAPrivateKey, bytes]
) -> bytes:
    """A certificate of a kit's owner for a public key, in PEM; it never outlives the root's."""
    key, certificate = root
    issuer = x509.load_pem_x509_certificate(certificate)
    role = "lead" if kit.kind == "lead" else None
    now = datetime.datetime.now(datetime.UTC)
    issued = generate_cert(
        Identity(shown_name(kit), kits.organisation(made.name), role),
        Identity(str(issuer.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)),
        key,
        public,
        server_default_host=made.host if kit.kind == "server" else None,
        not_valid_before=now - datetime.timedelta(minutes=5),
        not_valid_after=min(now + datetime.timedelta(days=made.days), issuer.not_valid_after_utc),
    )
    return bytes(serialize_cert(issued))


def open_root(folder: Path, passphrase: bytes | None = None) -> tuple[RSAPrivateKey, bytes]:
    """The root key and its certificate. Raises KitError, LockedKeyError."""
    try:
        certificate = file_bytes(folder / ROOT_CERTIFICATE)
        public = kits.certificate_in(certificate).public_key()
        key = load_private(folder / ROOT_KEY, passphrase=passphrase)
    except LockedKeyError:
        raise
    except (OSError, ValueError, KeyFileError) as error:
        raise KitError(
            "the consortium's authority is missing or damaged, and no kit can be made without it",
            where=str(folder),
            fix="restore it from your backup; kits already made keep working",
        ) from error
    if not isinstance(key, RSAPrivateKey) or key.public_key() != public:
        raise KitError(
            "the authority's key and its certificate do not match",
            where=str(folder),
            fix="restore both from your backup",
        )
    return key, certificate


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
        f"    {verb}\n\n"
    )
    write_atomically(kit.path / "README.txt", readme.encode())


def write_project(made: Consortium) -> None:
    """Write a consortium's project file."""
    text = "# A consortium of confide. The folder `authority` beside this file is secret.\n"
    project = {"schema": SCHEMA} | _fields(made) | {"sites": list(made.sites)}
    write_atomically(made.path / PROJECT, (text + tomli_w.dumps(project)).encode())


def _fields(thing: Kit | Consortium) -> Tree:
    """All fields but the path."""
    return {name: value for name, value in dataclasses.asdict(thing).items() if name != "path"}
