"""Files that carry asks and replies by hand: encrypted for one place, signed, bounded in size.

    confide courier 1            the first line
    {"kind": "ask", ...}         the head, one line of JSON: everybody can read it
    boxes                        the content, encrypted
    64 bytes                     the sender's signature over all that is before

Each file has a key of its own, which only the receiver's kit opens (RSA-OAEP under the key of the
certificate on its card); content is ChaCha20-Poly1305 in boxes of `BOX` bytes, bound to the head.
The sender signs with its identity key. `before` chains the files of a run and site: an ask names
the last reply that came, a reply the ask that it answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pydantic import Field, Strict, TypeAdapter, ValidationError

from confide import files
from confide.errors import ConfideError, KitError, RunError, printable
from confide.federation import seals
from confide.federation.failures import CODES, Refusal
from confide.flare.kit import LARGEST, LONGEST_CARD, SERVER, Kit, Name, certificate_in
from confide.flare.peers import Card, Signer

MAGIC = b"confide courier 1\n"
LONGEST_HEAD = 2**16
"""The most bytes of a head; one that confide writes has about 6,000."""
MOST_PARTS = 16
"""The most asks in one file."""
MOST_FILE = LARGEST + 2**20
"""The most bytes of a file."""
BOX, TAG, SIGNATURE = 2**26, 16, 64
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), label=None)
_Digest = Annotated[str, Field(pattern="^([0-9a-f]{64})?$"), Strict()]
_Count = Annotated[int, Field(ge=1, le=10**6), Strict()]
Way = Literal["ask", "reply"]


@dataclass(frozen=True)
class Head:
    """The head of a file, which everybody can read.

    `exchange` counts the files to a site, and a reply has the number of its ask. `before`: the
    digest of the other side's last file, empty before the first. `card`: the sender's. `key`: the
    file's own key, encrypted for the receiver; `size`: the bytes of its boxes.
    """

    kind: Way
    run: Name
    site: Name
    exchange: _Count
    before: _Digest
    card: Annotated[str, Field(max_length=LONGEST_CARD), Strict()] = ""
    key: Annotated[str, Field(pattern="^[0-9a-f]{512,2048}$"), Strict()] = ""
    size: Annotated[int, Field(ge=1, le=MOST_FILE), Strict()] = 1

    @property
    def file_name(self) -> str:
        """The file's name: RUN.SITE.EXCHANGE.ask or .reply."""
        return f"{self.run}.{self.site}.{self.exchange:04d}.{self.kind}"


@dataclass(frozen=True)
class Part:
    """One ask or reply in a file; `seconds` that the site worked on a reply."""

    step: Annotated[str, Field(max_length=100), Strict()]
    round: Annotated[int, Field(ge=0, lt=2**31), Strict()]
    data: bytes
    seal: bytes
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0


_HEAD, _PART = TypeAdapter(Head), TypeAdapter(Part)


def file_refused(path: Path, code: str, *, got: str | None = None) -> Refusal:
    """The refusal of a file, by its code."""
    error = Refusal(code, got or "")
    found = None if got is None else printable(got)
    ConfideError.__init__(error, CODES[code], got=found, where=str(path))
    return error


# --- Writing


def write_envelope(
    folder: Path, head: Head, parts: Sequence[Part], *, sender: Signer, to: Card
) -> Path:
    """Write the file of these parts for the owner of a card; its path in `folder`.

    Raises Refusal if the card is of no kit, RunError if the file is too large or cannot be written.
    """
    index = [
        {"step": one.step, "round": one.round, "seconds": one.seconds,
         "bytes": len(one.data), "seal": len(one.seal)}
        for one in parts
    ]  # fmt: skip
    blobs = [json.dumps(index).encode() + b"\n"]
    blobs += [blob for one in parts for blob in (one.seal, one.data)]
    plain = b"".join(blobs)
    size = len(plain) + TAG * -(-len(plain) // BOX)
    path = folder / head.file_name
    if size + LONGEST_HEAD > MOST_FILE:
        raise RunError(
            "the messages are too large for one file",
            expected=f"at most {files.size_in_words(MOST_FILE)}",
            got=files.size_in_words(size),
            where=str(path),
        )
    secret = secrets.token_bytes(32)
    key = _public_key(to).encrypt(secret, _OAEP).hex()
    head = dataclasses.replace(head, card=sender.card.encode(), key=key, size=size)
    line = json.dumps(dataclasses.asdict(head)).encode("ascii") + b"\n"
    cipher, digest = ChaCha20Poly1305(secret), hashlib.sha256()
    boxes = []
    for number, at in enumerate(range(0, len(plain), BOX)):
        boxes.append(cipher.encrypt(_nonce(number), plain[at : at + BOX], line))
        digest.update(boxes[-1])
    signature = bytes.fromhex(sender.identity.sign(_said(line, digest.digest())))
    files.write_of_run(path, b"".join((MAGIC, line, *boxes, signature)))
    return path


def _public_key(card: Card) -> RSAPublicKey:
    """The key of a card's certificate. Raises Refusal."""
    try:
        key = certificate_in(card.certificate.encode()).public_key()
    except ValueError as error:
        raise Refusal("uncertified", card.name) from error
    if not isinstance(key, RSAPublicKey):
        raise Refusal("uncertified", card.name)
    return key


def _said(line: bytes, boxes: bytes) -> bytes:
    return seals.statement("courier", line, boxes)


def _nonce(number: int) -> bytes:
    """The nonce of a box: every file has a key of its own."""
    return number.to_bytes(12, "little")


# --- Reading: whatever comes is hostile until it has been checked


@dataclass(frozen=True)
class Envelope:
    """A file that was checked: its bytes and their digest, its head and its parts."""

    raw: bytes = field(repr=False)
    digest: str
    head: Head
    parts: tuple[Part, ...]


def read_file(path: Path) -> bytes:
    """The bytes of a file that may be an envelope. Raises Refusal: no file, or far too large."""
    try:
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= MOST_FILE:
                return file.read(size + 1)
    except OSError as error:
        raise file_refused(path, "file-cut", got=error.strerror) from error
    raise file_refused(path, "file-cut", got=f"{size} bytes")


def read_head(path: Path) -> Head:
    """The head of a file, unverified. Raises Refusal: not one of ours."""
    try:
        with files.open_regular(path) as file:
            return _head(path, file.read(len(MAGIC) + LONGEST_HEAD))[0]
    except OSError as error:
        raise file_refused(path, "file-cut", got=error.strerror) from error


def open_envelope(
    path: Path, kind: Way, *, kit: Kit, place: Signer, only_compared: bool = False, site: str = ""
) -> Envelope:
    """Check a file for this kit, and decrypt it. `site`: whose reply it has to be.

    Its sender is the pinned server, or the pinned site, or is pinned now. Raises Refusal with a
    code, KitError.
    """
    own = site or place.name
    try:
        with files.open_regular(path) as file:  # a stranger's may be large, and is not held
            head = _signed(path, file, kind, own)[0]
    except OSError as error:
        raise file_refused(path, "file-cut", got=error.strerror) from error
    role, name = ("server", SERVER) if kind == "ask" else ("site", own)
    try:
        place.meet(Card.decode(head.card), role, name, only_compared=only_compared)
    except Refusal as error:
        raise file_refused(path, error.code, got=name) from error
    raw = read_file(path)
    again, line = _signed(path, io.BytesIO(raw), kind, own)
    if again != head:
        raise file_refused(path, "file-foreign", got="it changed while it was read")
    boxes = memoryview(raw)[len(MAGIC) + len(line) : -SIGNATURE]
    plain = b"".join(_opened(path, boxes, line, bytes.fromhex(head.key), kit=kit))
    return Envelope(raw, hashlib.sha256(raw).hexdigest(), head, tuple(_parts(path, plain)))


def _signed(path: Path, file: BinaryIO, kind: Way, site: str) -> tuple[Head, bytes]:
    """The head, and its line, of a file that is whole and signed by the key on its own card."""
    first = file.read(len(MAGIC) + LONGEST_HEAD)
    head, start = _head(path, first)
    if (head.kind, head.site) != (kind, site):
        raise file_refused(path, "file-foreign", got=f"the {head.kind} of {head.site}")
    size = file.seek(0, os.SEEK_END)
    if size != start + head.size + SIGNATURE:
        raise file_refused(path, "file-cut", got=f"{size} bytes")
    file.seek(start)
    digest, left = hashlib.sha256(), head.size
    while part := file.read(min(left, 2**20)):
        digest.update(part)
        left -= len(part)
    line, signature = first[len(MAGIC) : start], file.read(SIGNATURE)
    public = Card.decode(head.card).public
    if left or not seals.is_signed_by(public, signature.hex(), _said(line, digest.digest())):
        raise file_refused(path, "bad-signature")  # before a key is pinned: cards can be copied
    return head, line


def _head(path: Path, raw: bytes) -> tuple[Head, int]:
    """The head, and where the boxes begin."""
    end = raw.find(b"\n", len(MAGIC), len(MAGIC) + LONGEST_HEAD)
    if not raw.startswith(MAGIC) or end < 0:
        raise file_refused(path, "file-cut")
    try:
        tree = files.decode_json(raw[len(MAGIC) : end])
        return _HEAD.validate_python(tree), end + 1
    except (ValueError, ConfideError) as error:
        raise file_refused(path, "file-cut") from error


def _opened(
    path: Path, boxes: memoryview, line: bytes, wrapped: bytes, *, kit: Kit
) -> Iterator[bytes]:
    try:
        cipher = ChaCha20Poly1305(_private_key(kit).decrypt(wrapped, _OAEP))
        for number, at in enumerate(range(0, len(boxes), BOX + TAG)):
            yield cipher.decrypt(_nonce(number), bytes(boxes[at : at + BOX + TAG]), line)
    except (ValueError, InvalidTag) as error:
        raise file_refused(path, "file-foreign", got="it is encrypted for another kit") from error


def _private_key(kit: Kit) -> RSAPrivateKey:
    try:
        key = _loaded(files.file_bytes(kit.key))
    except (OSError, ValueError, TypeError) as error:
        raise KitError("the kit's key cannot be read", where=str(kit.key)) from error
    if not isinstance(key, RSAPrivateKey):
        raise KitError("the kit's key is of the wrong kind", expected="RSA", where=str(kit.key))
    return key


@lru_cache(maxsize=2)
def _loaded(pem: bytes) -> object:
    """The key in a PEM file; the check of its numbers takes a while."""
    return serialization.load_pem_private_key(pem, password=None)


def _parts(path: Path, plain: bytes) -> Iterator[Part]:
    end = plain.find(b"\n", 0, LONGEST_HEAD) + 1
    try:
        index: Any = files.decode_json(plain[:end])
        if not 1 <= len(index) <= MOST_PARTS:
            raise ValueError("too few parts, or too many")
        for one in index:
            sizes = [one.pop("seal"), one.pop("bytes")]
            if any(type(size) is not int or size < 0 for size in sizes) or sizes[0] > seals.LARGEST:
                raise ValueError("the seal is too large, or no size")
            seal, data = plain[end : end + sizes[0]], plain[end + sizes[0] : end + sum(sizes)]
            end += sum(sizes)
            if len(seal) + len(data) != sum(sizes):
                raise ValueError("a part is cut off")
            yield _PART.validate_python({**one, "seal": seal, "data": data})
        if end != len(plain):
            raise ValueError("there is more than the parts")
    except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
        raise file_refused(path, "file-cut") from error
