"""The consortium's authority: the root key that signs every kit, and the kits made with it.

NVIDIA FLARE provisions the kits in a folder that is deleted afterwards, since its state holds a
copy of every site's private key. Only the root key and its certificate are kept.
"""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert

from confide.errors import KeyFileError, KitError, LockedKeyError
from confide.federation.keys import load_private, save_private
from confide.files import bytes_of
from confide.flare.kit import organisation, write_private

if TYPE_CHECKING:
    from confide.flare.kit import Consortium

ROOT_KEY, ROOT_CERTIFICATE = "root.key", "root.crt"
ROOT_DAYS = 3650


def found(folder: Path, name: str, *, days: float, passphrase: bytes | None = None) -> None:
    """Make a new root key and its certificate in `folder`, valid for ten years or `days`.

    A passphrase encrypts the root key. Raises KeyFileError.
    """
    folder.mkdir(mode=0o700)
    private, public = generate_keys()
    certificate = generate_cert(
        Identity(name), Identity(name), private, public, valid_days=max(ROOT_DAYS, days), ca=True
    )
    save_private(folder / ROOT_KEY, private, passphrase=passphrase)
    write_private(folder / ROOT_CERTIFICATE, serialize_cert(certificate))


def participants(made: Consortium, *, sites: Sequence[str], user: str) -> list[Participant]:
    """The server, these sites, and the lead if its `user` name is given, as FLARE needs them."""
    org = organisation(made.name)
    days = {"days": made.days}
    server = Participant("server", made.host, org, {"fed_learn_port": made.port, **days})
    people = [server, *(Participant("client", site, org, dict(days)) for site in sites)]
    if user:
        people.append(Participant("admin", user, org, {"role": "lead", **days}))
    return people


def provision(
    authority: Path,
    out: Path,
    *,
    name: str,
    participants: Sequence[Participant],
    passphrase: bytes | None = None,
) -> dict[str, Path]:
    """Provision startup kits into `out`: the folder of each participant, by its name.

    A participant's property `days` says how long its certificate is valid. Asks for the passphrase
    of an encrypted root key if it is not given. Raises KitError, LockedKeyError.
    """
    key, certificate = _root(authority, passphrase)
    project = Project(
        name,
        "a consortium of confide",
        list(participants),
        serialized_root_cert=certificate,
        root_private_key=key,
    )
    work = Path(tempfile.mkdtemp(dir=authority.parent, prefix=".provision-"))
    try:
        builders = [
            WorkspaceBuilder(),
            StaticFileBuilder(config_folder="config", require_signed_jobs=True),
            _Certificates(),
        ]
        said = _Silent()
        context = Provisioner(str(work), builders).provision(project, logger=said)
        made = context.get_result_location()
        if context.get(CtxKey.BUILD_ERROR) or not made:
            raise KitError("the kits could not be provisioned", got="; ".join(said.errors))
        out.mkdir(mode=0o700, exist_ok=True)
        for participant in participants:
            shutil.move(str(Path(made) / participant.name), out / participant.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {participant.name: out / participant.name for participant in participants}


def _root(folder: Path, passphrase: bytes | None) -> tuple[PrivateKeyTypes, bytes]:
    """The root key and its certificate. Raises KitError, LockedKeyError."""
    try:
        certificate = bytes_of(folder / ROOT_CERTIFICATE)
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


class _Silent:
    """A logger for FLARE's provisioning that keeps only the errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None:
        """Ignore it."""

    info = warning = debug

    def error(self, message: str) -> None:
        """Keep it, for the error that we raise."""
        self.errors.append(message)
