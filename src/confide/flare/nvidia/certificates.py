"""Kits of sites, server and lead that make their own keys: no private key is ever anywhere else.

```
place    ask_to_join   makes KIT/request/client.key, KIT/identity    -> KIT/request/request.json
founder  approve       certifies the public key                      -> CONSORTIUM/answers/NAME.json
place    accept        checks the certificate, completes the kit     -> KIT/startup, KIT/local
```
Neither file is secret. The place's identity key signs the request, and the new key too, as X.509
wants it; the key of the consortium's authority signs the answer. People compare the fingerprints of
these two by telephone, so that a file that was changed on its way is found. A renewal needs no
call: founder and place know each other's key. Each of the three can be interrupted and run again.

The request says whose kit it is to be, and the founder has named server and lead before: nobody
becomes either under another name, and no site under theirs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import BaseModel, Field, ValidationError

from confide.errors import KeyFileError, KitError, os_errors_as, printable
from confide.federation.keys import load_private, save_private
from confide.federation.seals import digest, int_bytes, statement
from confide.files import (
    decode_json,
    file_bytes,
    for_the_owner,
    must_not_be_newer,
    private_folder,
    write_atomically,
)
from confide.flare import kit as kits
from confide.flare.kit import (
    ASKING,
    DESCRIPTION,
    SERVER,
    Consortium,
    Kind,
    Kit,
    open_consortium,
    open_kit,
)
from confide.flare.nvidia.consortium import (
    ROOT_CERTIFICATE,
    described,
    issue_certificate,
    open_root,
    provision,
    shown_name,
    write_project,
)
from confide.flare.peers import FOLDER, KEY, PSS, Identity, make_identity, read_identity
from confide.flare.peers import fingerprint_of as digest_of_key
from confide.settings.reading import expected

LONGEST = 2**16
"""The most bytes of a request or an answer."""
DAYS = 30
"""A founder takes no older request: its key may have been lost since."""
BITS = 2048
_TLS_KEY, _ASK_FILE = "client.key", "request.json"

Pem = Annotated[str, Field(max_length=10_000)]
Signature = Annotated[str, Field(pattern="^([0-9a-f]{2}){64,512}$")]
PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SigningRequest(BaseModel, strict=True, frozen=True, extra="forbid"):
    """A place asks for a certificate. `csr` is of X.509, `identity` the place's public key.

    `site` is its name, also if it is the server or the lead by its `kind`.
    """

    consortium: str
    site: str
    kind: Kind = "site"
    made: Annotated[str, Field(max_length=40)]
    csr: Pem
    identity: PublicKey
    signature: Signature

    def said(self) -> bytes:
        """The statement that the place's identity key signs."""
        texts = (self.consortium, self.site, self.made, self.csr, self.identity)
        return statement("request", *(text.encode() for text in (*texts, *_said(self.kind))))


class SignedAnswer(BaseModel, strict=True, frozen=True, extra="forbid"):
    """The founder's answer. `asked` is the digest of the request; certificates are in PEM."""

    consortium: str
    site: str
    host: Annotated[str, Field(max_length=253)]
    port: Annotated[int, Field(ge=1, le=65535)]
    asked: PublicKey
    identity: PublicKey
    certificate: Pem
    authority: Pem
    signature: Signature
    kind: Kind = "site"

    def said(self) -> bytes:
        """The statement that the authority's key signs."""
        texts = (
            self.consortium, self.site, self.host, self.asked, self.identity, self.certificate,
            self.authority, *_said(self.kind),
        )  # fmt: skip
        return statement("answer", *(text.encode() for text in texts), int_bytes(self.port))


def _said(kind: Kind) -> tuple[str, ...]:
    """The kind as it is signed: a site is not named, as in version 0.3."""
    return () if kind == "site" else (kind,)


S = TypeVar("S", SigningRequest, SignedAnswer)


def _read(kind: type[S], path: Path) -> S:
    """A request or an answer in a file, of the right form but not yet believed. Raises KitError."""
    what = "a request of `confide site request`"
    if kind is SignedAnswer:
        what = "an answer of `confide consortium approve`"
    try:
        held = decode_json(file_bytes(path, LONGEST))
        must_not_be_newer(int(held.pop("schema")), 1, kind=KitError, what="this file", where=path)
        found = kind.model_validate(held)
        found.said()
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        said = f"{printable(str(wrong['loc'][0]), 40)}: expected {expected(wrong)}"
        raise KitError(f"this is not {what}", got=said, where=str(path)) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        got = error.strerror if isinstance(error, OSError) else None
        raise KitError(f"this is not {what}", got=got, where=str(path)) from error
    return found


def _write(path: Path, made: SigningRequest | SignedAnswer) -> None:
    with os_errors_as(KitError, f"{path.name} could not be written", where=path):
        text = json.dumps({"schema": 1} | made.model_dump(), indent=1) + "\n"
        write_atomically(path, text.encode())


# --- 1. The place asks


@dataclass(frozen=True)
class AskedToJoin:
    """The file for the founder, whose kit it is to be, and the identity key's fingerprint."""

    file: Path
    site: str
    fingerprint: str
    kind: Kind


@for_the_owner()
def ask_to_join(
    path: Path, *, site: str | None = None, consortium: str | None = None, kind: Kind | None = None
) -> AskedToJoin:
    """Make a place's keys, in a new kit at `path` or for a renewal, and ask for a certificate.

    A kit that is complete says itself whose it is. A new one is a site's unless `kind` says
    otherwise; the server's name is `server`, the lead's `lead` unless `site` says another. Raises
    KitError, KeyFileError.
    """
    if (path / "local" / DESCRIPTION).exists():
        kit = open_kit(path)
        pairs = (site, kit.name), (consortium, kit.consortium), (kind, kit.kind)
        for given, known in pairs:
            if given not in (None, known):
                raise KitError(
                    f"the kit is of another {kit.kind}",
                    expected=known, got=given, where=str(path),
                )  # fmt: skip
        site, consortium, kind = kit.name, kit.consortium, kit.kind
    else:
        kind = kind or "site"
        site = site or {"server": SERVER, "lead": "lead"}.get(kind)
        _check_new(path)
    if site is None or consortium is None:
        raise KitError(
            "there is no kit yet, so its name and its consortium's are needed",
            where=str(path),
            fix="give --name and --consortium, as the founder wrote them",
        )
    kits.check_form("consortium", consortium)
    _check_name(kind, site)
    with os_errors_as(KitError, "the kit's folder could not be made", where=path):
        private_folder(path)
        private_folder(path / ASKING)
    key_file, identity_file = path / ASKING / _TLS_KEY, path / FOLDER / KEY
    if not key_file.exists():  # `over`: whole or not at all, even if this is killed
        new = generate_private_key(public_exponent=65537, key_size=BITS)
        save_private(key_file, new, passphrase=None, over=True)
    key = _own_key(key_file)
    identity = read_identity(identity_file) if identity_file.exists() else None
    identity = identity or make_identity(identity_file)
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, site)]))
        .sign(key, hashes.SHA256())
    )
    asked = SigningRequest(
        consortium=consortium,
        site=site,
        kind=kind,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        csr=csr.public_bytes(Encoding.PEM).decode("ascii"),
        identity=identity.public.hex(),
        signature="00" * 64,
    )
    file = path / ASKING / _ASK_FILE
    _write(file, asked.model_copy(update={"signature": identity.sign(asked.said())}))
    return AskedToJoin(file, site, identity.fingerprint, kind)


def _check_new(path: Path) -> None:
    """Raise KitError if a folder holds something other than a request for a kit."""
    if path.exists() and not (path / ASKING).exists() and any(path.iterdir()):
        raise KitError("this folder holds something else", expected="a new folder", where=str(path))


def _check_name(kind: Kind, name: str) -> None:
    """Raise KitError if no place of that kind has that name."""
    if kind == "site":
        kits.check_site(name, host="")
    elif kind == "lead":
        kits.check_form("lead", name)
    elif name != SERVER:
        raise KitError("the server has one name", expected=SERVER, got=repr(name))


def _own_key(path: Path) -> RSAPrivateKey:
    """A place's private key for TLS. Raises KeyFileError if others could have read it."""
    if path.stat().st_mode & 0o077:
        raise KeyFileError(
            "others can read this private key",
            expected="mode 0600",
            where=str(path),
            fix="delete the file, then ask for a certificate of a new key: `confide site request`",
        )
    key = load_private(path)
    if not isinstance(key, RSAPrivateKey):
        raise KeyFileError("this is not a key of a kit", expected="RSA", where=str(path))
    return key


# --- 2. The founder approves


@dataclass(frozen=True)
class Approval:
    """A request before its founder, who has approved it if there is a `file` for the place.

    `before` is the fingerprint that was approved under this name earlier, `authority` that of the
    consortium's authority, which the site compares.
    """

    site: str
    fingerprint: str
    before: str | None
    authority: str
    file: Path | None
    kind: Kind


@for_the_owner()
def approve(consortium: Path, file: Path, *, compared: bool = False) -> Approval:
    """Certify the key in a place's request, if its fingerprint was `compared` now or earlier.

    The same request gets the same answer again. Raises KitError, LockedKeyError.
    """
    held = open_consortium(consortium)
    asked = _read(SigningRequest, file)
    named_here = {"server": SERVER, "lead": held.lead}.get(asked.kind)
    sites = held.sites
    if named_here is None:
        sites = (*(site for site in held.sites if site != asked.site), asked.site)
        kits.check_member_names(held.name, sites, lead=held.lead, host=held.host)
    elif asked.site != named_here:
        raise KitError(
            f"the {asked.kind} of this consortium has another name",
            expected=named_here,
            got=printable(asked.site),
            where=str(file),
        )
    public = _checked_ask(asked, held, where=file)
    kept = held.answer(asked.site)
    before = _read(SignedAnswer, kept) if kept.exists() else None
    named = digest(asked.said()).hex()
    with os_errors_as(KitError, "the authority's certificate cannot be read", where=held.authority):
        authority = _fingerprint(file_bytes(held.authority / ROOT_CERTIFICATE))
    known = before is not None and before.identity == asked.identity
    fresh = before is None or before.asked != named
    found = Approval(
        asked.site,
        digest_of_key(bytes.fromhex(asked.identity)),
        digest_of_key(bytes.fromhex(before.identity)) if before else None,
        authority,
        kept,
        asked.kind,
    )
    if fresh:
        _check_age(asked, where=file)
        if not (known or compared):
            return dataclasses.replace(found, file=None)
        _write(kept, _answer(held, asked, public=public, named=named))
    if set(sites) != set(held.sites):
        write_project(dataclasses.replace(held, sites=sites))
    return found


def _checked_ask(asked: SigningRequest, held: Consortium, *, where: Path) -> RSAPublicKey:
    """The public key to certify. Raises KitError unless both keys signed this very request."""
    if asked.consortium != held.name:
        raise KitError(
            "the request is for another consortium",
            expected=held.name,
            got=printable(asked.consortium),
            where=str(where),
        )
    try:
        identity = Ed25519PublicKey.from_public_bytes(bytes.fromhex(asked.identity))
        identity.verify(bytes.fromhex(asked.signature), asked.said())
        csr = x509.load_pem_x509_csr(asked.csr.encode())
        public = _usable(csr.public_key())
        if not csr.is_signature_valid or _name(csr.subject) != asked.site:
            raise ValueError("another key, or another name")
    except (ValueError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise KitError(
            "the request was changed since it was made, or is damaged",
            expected="the signatures of the two keys of its place over it",
            where=str(where),
            fix="ask the place to send it again, and compare the fingerprint by telephone",
        ) from error
    return public


def _check_age(asked: SigningRequest, *, where: Path) -> None:
    now = datetime.now(UTC)
    try:
        made = datetime.fromisoformat(asked.made)
        good = now - timedelta(days=DAYS) <= made <= now + timedelta(days=1)
    except (ValueError, TypeError):  # no date, or one without a time zone
        good = False
    if not good:
        raise KitError(
            "the request has expired",
            expected=f"one of the last {DAYS} days, by this machine's clock",
            got=printable(asked.made),
            where=str(where),
            fix="run `confide site request` there again",
        )


def _answer(
    held: Consortium, asked: SigningRequest, *, public: RSAPublicKey, named: str
) -> SignedAnswer:
    """The signed answer; asks for the passphrase of an encrypted root key."""
    root = open_root(held.authority)
    kit = described(held, asked.site, path=held.path)
    answer = SignedAnswer(
        consortium=held.name,
        site=asked.site,
        kind=asked.kind,
        host=held.host,
        port=held.port,
        asked=named,
        identity=asked.identity,
        certificate=issue_certificate(held, kit, public=public, root=root).decode("ascii"),
        authority=root[1].decode("ascii"),
        signature="00" * 64,
    )
    signature = root[0].sign(answer.said(), PSS, hashes.SHA256()).hex()
    return answer.model_copy(update={"signature": signature})


# --- 3. The place accepts


@dataclass(frozen=True)
class Acceptance:
    """The fingerprint of the consortium's authority; and the kit, unless it is to be compared."""

    authority: str
    kit: Kit | None


@for_the_owner()
def accept(path: Path, file: Path, *, compared: bool = False) -> Acceptance:
    """Complete the kit at `path` with the certificate in the founder's answer.

    Its authority must be the kit's, or `compared`. A kit that is complete keeps all else that it
    holds. Raises KitError, KeyFileError.
    """
    asked = path / ASKING / _ASK_FILE
    if asked.exists():
        own = _read(SigningRequest, asked)
        name, consortium, kind = own.site, own.consortium, own.kind
    else:
        kit = open_kit(path)
        name, consortium, kind = kit.name, kit.consortium, kit.kind
    answer = _read(SignedAnswer, file)
    for what, got, wanted in (
        (kind, answer.site, name),
        ("consortium", answer.consortium, consortium),
        ("kind of place", answer.kind, kind),
    ):
        if got != wanted:
            raise KitError(
                f"the answer is for another {what}",
                expected=wanted,
                got=printable(got),
                where=str(file),
            )
    lead, sites = (name, ()) if kind == "lead" else ("", (name,) if kind == "site" else ())
    made = Consortium(path, consortium, answer.host, answer.port, lead, sites, 0)
    shape = described(made, name, path=path)
    certificate, authority = _checked_answer(answer, shape, where=file)
    identity = read_identity(path / FOLDER / KEY)
    key_file = _fitting_key(shape, certificate, identity=identity, answer=answer)
    root, shown = shape.root, shape.certificate
    if root.exists():
        _check_successor(root, shown, authority=authority, certificate=certificate)
    elif not compared:
        return Acceptance(_fingerprint(answer.authority.encode()), None)
    with os_errors_as(KitError, "the kit could not be written", where=path):
        private_folder(path / ASKING)
        work = Path(tempfile.mkdtemp(dir=path / ASKING))
        (new,) = provision(dataclasses.replace(made, path=work), work / "kits", names=(name,))
        description = new.path / "local" / DESCRIPTION
        for one in sorted(new.path.rglob("*")):
            if one.is_file() and one != description:
                write_atomically(path / one.relative_to(new.path), file_bytes(one))
        write_atomically(root, answer.authority.encode())
        write_atomically(shown, answer.certificate.encode())
        key_file.replace(shape.key)
        write_atomically(path / "local" / DESCRIPTION, file_bytes(description))  # now it is a kit
        newer = (path / ASKING / _TLS_KEY).exists()  # of a request that is not answered yet
        shutil.rmtree(work if newer else path / ASKING, ignore_errors=True)
    return Acceptance(_fingerprint(answer.authority.encode()), open_kit(path, kind))


def _checked_answer(
    answer: SignedAnswer, kit: Kit, *, where: Path
) -> tuple[x509.Certificate, x509.Certificate]:
    """The certificates of place and authority. Raises KitError unless the authority signed all."""
    kits.check_host(answer.host)
    try:
        authority = kits.certificate_in(answer.authority.encode())
        certificate = kits.certificate_in(answer.certificate.encode())
        _usable(certificate.public_key())
        public = _usable(authority.public_key())
        public.verify(bytes.fromhex(answer.signature), answer.said(), PSS, hashes.SHA256())
        authority.verify_directly_issued_by(authority)
        certificate.verify_directly_issued_by(authority)
        if _name(certificate.subject) != shown_name(kit):
            raise ValueError("another name")
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise KitError(
            "the answer was changed since the founder made it, or is damaged",
            expected="the signature of the consortium's authority over it",
            where=str(where),
            fix="ask the founder to send it again, and compare the fingerprint by telephone",
        ) from error
    now = datetime.now(UTC)
    for one in (authority, certificate):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise KitError(
                "the certificate is not valid today, by the clock of this machine",
                expected=f"a day from {one.not_valid_before_utc:%Y-%m-%d} to"
                f" {one.not_valid_after_utc:%Y-%m-%d}",
                got=f"{now:%Y-%m-%d}",
                where=str(where),
                fix="set the clock; if it has expired, run `confide site request` again",
            )
    return certificate, authority


def _fitting_key(
    kit: Kit, certificate: x509.Certificate, *, identity: Identity, answer: SignedAnswer
) -> Path:
    """The private key that was certified: the new one or, after an interruption, the kit's.

    Raises KitError, KeyFileError.
    """
    path, files = kit.path, [kit.path / ASKING / _TLS_KEY, kit.key]
    for file in filter(Path.exists, files):
        if _own_key(file).public_key() == certificate.public_key():
            break
    else:
        raise KitError(
            f"the certificate is for another key than this {kit.kind}'s",
            where=str(path),
            fix="take the answer to the request that lies here; or run `confide site request`"
            " again and send that to the founder",
        )
    if answer.identity != identity.public.hex():
        raise KitError(
            f"the answer is for another identity key than this {kit.kind}'s",
            where=str(path / FOLDER),
            fix="restore the folder `identity`, or run `confide site request` again",
        )
    return file


def _check_successor(
    root: Path, shown: Path, *, authority: x509.Certificate, certificate: x509.Certificate
) -> None:
    """Raise KitError unless the kit's authority issued it, not before what the kit has."""
    try:
        if kits.certificate_in(file_bytes(root)) != authority:
            raise KitError(
                "the answer is of another authority than the kit's",
                where=str(root),
                fix="ask the founder; a new consortium needs a kit in a new folder",
            )
        if shown.exists():
            old = kits.certificate_in(file_bytes(shown))
            if old.not_valid_before_utc > certificate.not_valid_before_utc:
                raise KitError(
                    "the answer is older than the kit's certificate",
                    where=str(shown),
                    fix="take the newest answer, or run `confide site request` again",
                )
    except (OSError, ValueError) as error:
        raise KitError("the kit's certificate cannot be read", where=str(root.parent)) from error


# --- Keys and names


def _usable(key: object) -> RSAPublicKey:
    """An RSA key of a size that is neither weak nor slow. Raises ValueError for any other."""
    if not isinstance(key, RSAPublicKey) or not BITS <= key.key_size <= 4096:
        raise ValueError("another kind of key")
    if key.public_numbers().e != 65537:
        raise ValueError("another exponent")
    return key


def _name(subject: x509.Name) -> str | None:
    """The one common name of a certificate or request; None if there are others."""
    found = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else None


def _fingerprint(pem: bytes) -> str:
    """The fingerprint of a certificate: SHA-256 of its DER, as `openssl x509 -fingerprint` says."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return hashlib.sha256(der).hexdigest()
