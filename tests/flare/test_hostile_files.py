"""A named pipe, a device or an endless file where a kit's file was: refused, and never waited for.

Every reader of a kit's own files is a line of `DOORS`, with the file that it reads and what it
raises or gives when that is no such file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cases import each
from confide.errors import ConfideError, KitError, RunError
from confide.files import MOST_JSON, write_atomically
from confide.flare import agreements
from confide.flare.agreements import COUNT_FILE
from confide.flare.kit import Kit, expires
from confide.flare.nvidia import certificates, consortium, lead, processes
from confide.flare.nvidia.certificates import SignedAnswer, SigningRequest
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.nvidia.processes import REVOKED, revoked
from confide.flare.peers import Pins, archive, open_signer, renew_identity
from confide.flare.site import SiteHome
from confide.runs.folder import RunFolder
from contract.corpus import tiny
from flare.homes import write_site_files
from flare.test_agreements import joining, said

SECONDS = 5


def _veil(path: Path) -> None:
    home = cast(SiteHome, SimpleNamespace(_file=SimpleNamespace(memory=str(path.parent))))
    SiteHome._veiled(home, "fingerprint")


def _vouched(kit: Kit) -> bool:
    place = open_signer(kit)
    return place.vouched(place.card)


DOORS: dict[str, tuple[str, Callable[[Path, Kit], Any], Any]] = {
    "peers": ("peers.json", lambda path, kit: Pins(path).read(), KitError),
    "notes": (
        lead.RECORD,
        lambda path, kit: lead.LeadRecord.read(RunFolder(path.parent)),
        RunError,
    ),
    "card": ("kit/identity/card.json", lambda path, kit: open_signer(kit), KitError),
    "certificate": ("kit/startup/client.crt", lambda path, kit: expires(kit), KitError),
    "place": ("kit/startup/client.crt", lambda path, kit: open_signer(kit), KitError),
    "key": ("kit/startup/client.key", lambda path, kit: renew_identity(kit), KitError),
    "root": ("kit/startup/rootCA.pem", lambda path, kit: _vouched(kit), False),
    "revoked": (f"kit/{REVOKED}", lambda path, kit: revoked(kit), KitError),
    "runs": ("kit/store/runs/one/meta", lambda path, kit: processes._submissions(kit), {}),
    "state": (f"kit/{processes.STATE}", lambda path, kit: processes._state(kit), {}),
    "authority": (
        consortium.ROOT_CERTIFICATE,
        lambda path, kit: consortium.open_root(path.parent),
        KitError,
    ),
    "request": (
        "request.json",
        lambda path, kit: certificates._read(SigningRequest, path),
        KitError,
    ),
    "answer": ("answer.json", lambda path, kit: certificates._read(SignedAnswer, path), KitError),
    "archive": ("card.json", lambda path, kit: archive(path), OSError),
    "count": (COUNT_FILE, lambda path, kit: agreements._read_count(path), OSError),
    "veil": ("veil.key", lambda path, kit: _veil(path), OSError),
}


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    made = create_consortium(
        "trial", sites=["north"], host="localhost", out=tmp_path_factory.mktemp("c") / "t"
    )
    open_signer(made.kit("north"), make=True)
    return made.kit("north")


class Waited(BaseException):
    """A reader waited. A site turns an Exception into a reply; this one gets through."""


@pytest.fixture
def in_time() -> Iterator[None]:
    """A reader that waits fails; it does not stop the tests."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _put(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(MOST_JSON + 1)  # no disk is used


@pytest.mark.usefixtures("in_time")
@each("kind", ["pipe", "device", "large"])
@each("door", DOORS)
def test_what_is_no_file_of_a_kit(founded: Kit, tmp_path: Path, door: str, kind: str) -> None:
    shutil.copytree(founded.path, tmp_path / "kit")
    kit = dataclasses.replace(founded, path=tmp_path / "kit")
    name, read, expected = DOORS[door]
    _put(kind, tmp_path / name)
    if isinstance(expected, type):
        with pytest.raises(expected) as caught:
            read(tmp_path / name, kit)
        assert not isinstance(caught.value, ConfideError) or caught.value.where
    else:
        assert read(tmp_path / name, kit) == expected


@pytest.mark.usefixtures("in_time")
def test_what_lies_where_a_new_file_is_written(tmp_path: Path) -> None:
    """In a folder that others write into, as by courier."""
    for kind in ("pipe", "device"):
        _put(kind, tmp_path / "reply.tmp")
        with pytest.raises(OSError):
            write_atomically(tmp_path / "reply", b"x")
    assert not (tmp_path / "reply").exists()


@pytest.mark.usefixtures("in_time")
def test_what_is_no_list_of_asks(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    file = write_site_files(tmp_path / "homes", settings)["site-2"]
    assert said(SiteHome(file), "join", joining(settings)) == ("Joined", "")
    (folder,) = (path.parent for path in (tmp_path / "homes").rglob("settings.toml"))
    _put("pipe", folder / "asked.txt")
    reply, _ = said(SiteHome(file), "join", joining(settings))
    assert reply != "Joined"
