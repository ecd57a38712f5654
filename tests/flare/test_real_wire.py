"""Canaries on the wire: every frame that real processes give to TLS, searched for planted strings.

A proxy would see nothing, since the wire is encrypted; so each process of the consortium is started
with `wiretap/` on its path, which keeps the frames just before they are encrypted.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from contract.corpus import tiny
from contract.entries import ENTRIES
from flare.real import Real, running
from test_canary import ALL, SITES, canaries, disguises, plant, sightings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]

TAP = Path(__file__).parent / "wiretap"
PACKED = re.compile(b"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08|PK\x03\x04")
"""How zlib, gzip and a part of a zip archive begin."""
OVERHEAD = 14
"""The most bytes that a WebSocket puts before a frame; a connection begins with some more."""
GREETING = 1024
EVERY = ("up", "down", "local")


@pytest.fixture(scope="module")
def tapped(tmp_path_factory) -> Iterator[Tap]:
    folder = tmp_path_factory.mktemp("tapped")
    path = os.pathsep.join(filter(None, (str(TAP), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRETAP", str(folder))
        patch.setenv("PYTHONPATH", path)
        yield Tap(folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory, tapped: Tap) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("wire")
    settings = tiny(folder, "rounds=3", site=plant(folder / "data"), data={})
    with running(folder, settings) as consortium:
        yield consortium


class Tap:
    """What the processes have kept; the same frame is looked at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked: dict[Path, int] = {}

    def new(self, *whats: str, kit: str = "*") -> list[bytes]:
        """The frames of a kit since the last look."""
        found = []
        for path in [path for what in whats for path in self.folder.glob(f"{kit}-*.{what}")]:
            start = self._looked.get(path, 0)
            self._looked[path] = path.stat().st_size
            found += frames_in(path.read_bytes()[start : self._looked[path]])
        return found


def frames_in(data: bytes) -> list[bytes]:
    """The frames in what a process has kept."""
    start, found = 0, []
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start : start + 8], "big")
        found.append(data[start + 8 : end])
        start = end
    return found


def unpacked(data: bytes) -> Iterator[bytes]:
    """What is compressed somewhere in these bytes."""
    for match in PACKED.finditer(data):
        start, kind = match.start(), match.group()
        if kind[:2] == b"PK":
            names, extra = (
                int.from_bytes(data[start + n : start + n + 2], "little") for n in (26, 28)
            )
            start, bits = start + 30 + names + extra, -15
        else:
            bits = 47 if kind[0] == 0x1F else 15
        try:
            plain = zlib.decompressobj(bits).decompress(data[start:])
        except zlib.error:
            continue
        if plain:
            yield plain


def seen(frames: list[bytes]) -> list[str]:
    """The canaries in frames, also where two frames of one message meet, and in what is packed."""
    whole = b"".join(frames)
    return sorted(
        {*sightings(whole), *(name for part in unpacked(whole) for name in sightings(part))}
    )


def in_frames(text: str, found: list[bytes]) -> bool:
    return any(text.encode() in frame for frame in found)


def test_a_packed_canary_would_be_seen() -> None:
    import gzip
    import io
    import zipfile

    word = canaries("site-2")["word"]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("some/name", f"... {word} ...")
    for packed in (zlib.compress(word.encode()), gzip.compress(word.encode()), held.getvalue()):
        assert not sightings(packed)
        assert seen([b"x" * 9 + packed + b"y" * 9]) == [word]
    assert seen([word.encode()[:4], word.encode()[4:]]) == [word]
    assert all(seen([b"\0" + form]) for form in disguises(word))


def test_no_text_is_in_any_frame_of_a_whole_run(real: Real, tapped: Tap) -> None:
    methods = {name: ENTRIES[name].learning if name == "fedner" else () for name in sorted(ENTRIES)}
    for method, more in methods.items():
        real.run(f"wire-{method}", f"method={method}", *more, "rounds=3")
    for site in SITES:
        up, down, local = (tapped.new(what, kit=site) for what in EVERY)
        for word in ("Drug", "Effect", "join", "improve", "train"):
            assert in_frames(word, up), f"{word} travels, and was not found: nothing is looked at"
        for word in ("wire-fedner-fedner-1", "local_epochs"):
            assert in_frames(word, down)
        assert all(sum(map(len, found)) > 50_000 for found in (up, down))
        for found in (up, down, local):
            assert seen(found) == []
    assert seen(tapped.new(*EVERY, kit="server")) == []


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("confide.federation.site.SiteHost._answer", "ValueError"),
        ("confide.flare.home.SiteHome._answer", "ValueError"),
        ("confide.flare.home.SiteHome._note", "ValueError"),
        ("confide.flare.executor.ConfideExecutor.execute", ""),
    ],
)
def test_no_text_of_an_error_is_in_any_frame(
    real: Real, tapped: Tap, place: str, said: str
) -> None:
    """The last one is outside of what we catch: FLARE says so itself, and the run goes on."""
    words = canaries("site-2")
    text = f"{words['raised']}: {words['word']} {words['umlaut']} in {words['file']}"
    told = tapped.folder / "site-2.raise"
    tapped.new(*EVERY)
    told.write_text(f"{place}\n{text}", encoding="utf-8")
    name = f"raises-{place.rsplit('.', 1)[1]}-{len(place)}"
    if said:
        with pytest.raises(EngineError, match="site site-2, step") as raised:
            real.run(name)
        assert said in str(raised.value)
        assert not [word for word in ALL if word in str(raised.value)]
        logs = [real.memory("site-2") / "site.log", *real.memory("site-2").rglob("site.log")]
        assert any(words["raised"] in log.read_text() for log in logs if log.exists())
    else:
        real.run(name)
    assert not told.exists(), "it was raised"
    up = tapped.new("up", kit="site-2")
    assert in_frames("ValueError" if said else "EXECUTION_EXCEPTION", up), (
        "something was said of it"
    )
    assert seen(up) == seen(tapped.new(*EVERY)) == []


def test_a_file_that_cannot_be_read_says_nothing_of_its_text(real: Real, tapped: Tap) -> None:
    tapped.new(*EVERY)
    path = Path(real.settings.site[1].train[0])
    before = path.read_text(encoding="utf-8")
    word = canaries("site-2")["note"]
    path.write_text(f"{before}\n{word} has too few columns\n{word}\n", encoding="utf-8")
    try:
        with pytest.raises(EngineError, match="site site-2, step join"):
            real.run("unreadable")
    finally:
        path.write_text(before, encoding="utf-8")
    assert seen(tapped.new(*EVERY)) == []


def test_nothing_but_frames_was_given_to_tls(real: Real, tapped: Tap) -> None:
    """After the tests above: so the frames are all that left, and they left for the server."""
    real.stop()  # so that no frame is between its two notes
    for site in SITES:
        sending = sorted(tapped.folder.glob(f"{site}-*.up"))
        assert len(sending) > 2, "the resident process, and one for each run"
        for path in sending:
            found = frames_in(path.read_bytes())
            written = sum(map(int, path.with_suffix(".tls").read_text().split()))
            places = path.with_suffix(".connected").read_text().splitlines()
            assert all("127.0.0.1" in place or "localhost" in place for place in places)
            to_server = [place for place in places if str(real.port) in place]
            sent = sum(map(len, found))
            assert to_server and sent
            assert sent <= written <= sent + OVERHEAD * len(found) + GREETING * len(to_server)
