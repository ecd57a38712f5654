"""Canaries on the wire where something is wrong, and that nothing but the frames is on it.

What a run sends when all is well is looked at method by method in test_real_methods.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from flare.real import Real
from flare.tapping import EVERY, Tap, frames_in, in_frames, seen
from test_canary import ALL, SITES, canaries, disguises, sightings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("tapped"),
]

OVERHEAD = 14
"""The most bytes that a WebSocket puts before a frame; a connection begins with some more."""
GREETING = 1024


@pytest.fixture(scope="module")
def real(tapped: Real) -> Real:
    tapped.become(tapped.first)
    return tapped


def test_a_packed_canary_would_be_seen() -> None:
    import gzip
    import io
    import zipfile
    import zlib

    word = canaries("site-2")["word"]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("some/name", f"... {word} ...")
    for packed in (zlib.compress(word.encode()), gzip.compress(word.encode()), held.getvalue()):
        assert not sightings(packed)
        assert seen([b"x" * 9 + packed + b"y" * 9]) == [word]
    assert seen([word.encode()[:4], word.encode()[4:]]) == [word]
    assert all(seen([b"\0" + form]) for form in disguises(word))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("confide.federation.site.SiteHost._answer", "ValueError"),
        ("confide.flare.site.SiteHome._answer", "ValueError"),
        ("confide.flare.site.SiteHome._note", "ValueError"),
        ("confide.flare.nvidia.components.ConfideExecutor.execute", ""),
    ],
)
def test_no_text_of_an_error_is_in_any_frame(real: Real, tap: Tap, place: str, said: str) -> None:
    """The last one is outside of what we catch: FLARE says so itself, and the run goes on."""
    words = canaries("site-2")
    text = f"{words['raised']}: {words['word']} {words['umlaut']} in {words['file']}"
    told = tap.folder / "site-2.raise"
    tap.new(*EVERY)
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
    up = tap.new("up", kit="site-2")
    assert in_frames("ValueError" if said else "EXECUTION_EXCEPTION", up), (
        "something was said of it"
    )
    assert seen(up) == seen(tap.new(*EVERY)) == []


def test_a_file_that_cannot_be_read_says_nothing_of_its_text(real: Real, tap: Tap) -> None:
    tap.new(*EVERY)
    path = Path(real.settings.site[1].train[0])
    before = path.read_text(encoding="utf-8")
    word = canaries("site-2")["note"]
    path.write_text(f"{before}\n{word} has too few columns\n{word}\n", encoding="utf-8")
    try:
        with pytest.raises(EngineError, match="site site-2, step join"):
            real.run("unreadable")
    finally:
        path.write_text(before, encoding="utf-8")
    assert seen(tap.new(*EVERY)) == []


def test_nothing_but_frames_was_given_to_tls(real: Real, tap: Tap) -> None:
    """So the frames are all that left, and they left for the server."""
    real.stop()  # so that no frame is between its two notes
    assert seen(tap.new(*EVERY)) == []
    for site in SITES:
        sending = sorted(tap.folder.glob(f"{site}-*.up"))
        spoke = [path for path in sending if path.stat().st_size]
        assert len(spoke) > 2, "the resident process, and one for each run"
        for path in sending:
            found = frames_in(path.read_bytes())
            written = sum(map(int, path.with_suffix(".tls").read_text().split()))
            places = path.with_suffix(".connected").read_text().splitlines()
            assert all("127.0.0.1" in place or "localhost" in place for place in places)
            to_server = [place for place in places if str(real.port) in place]
            sent = sum(map(len, found))
            assert bool(to_server) == bool(sent) == (path in spoke), "or it ended before it spoke"
            assert sent <= written <= sent + OVERHEAD * len(found) + GREETING * len(to_server)
