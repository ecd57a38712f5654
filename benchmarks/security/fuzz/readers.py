"""Files that anybody may have written, given to the readers: only our errors may come of them.

A small valid corpus in every format of `FORMATS` is changed: its bytes, lines, numbers, words and
tags, its nesting, its encoding, its length; it is packed with gzip, zip or tar, and the packed file
is changed too. Each is read as its format, or as what it is taken for, and checked as
`confide data check` does. A failure is an exception that is none of ours, more than `SLOW` seconds
of the processor, or a valid sample that is refused.

    python benchmarks/security/fuzz/run.py readers --count 100000 --seed 1
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from samples import Sample, samples
from spoiling import enlarged, spoiled
from tally import Tally
from watch import Watch

from confide.errors import ConfideError
from confide.text.checking import check
from confide.text.formats import FORMATS, Options, write

SLOW = 2.0
ONLY_WRITTEN = ("table", "note-nlp")
"""Their readers refuse everything."""
LARGE_ONES = 100
"""One input of so many is large."""
ENCODINGS = ("utf-16", "latin-1", "punycode", "cp1252", "x", "utf-8", "\0", "idna")


def attack(count: int, seed: int, formats: Sequence[str] = ()) -> Tally:
    """So many inputs, over all formats (or these) in turn; the same for the same seed."""
    watch = Watch((ConfideError,), SLOW)
    known = {name: own for name, own in samples().items() if not formats or name in formats}
    with tempfile.TemporaryDirectory() as folder:
        for name, several in known.items():
            for sample in several if name not in ONLY_WRITTEN else ():
                path = _laid(sample, Path(folder, "in"))
                refusal = Watch((), SLOW)
                refusal.attempt(
                    f"the sample of {name}", lambda path=path, name=name: _use(path, name)
                )
                for failure in refusal.tally(1).failures:
                    watch.fail("before the attack", failure)
        names = list(known)
        for number in range(count):
            draw = random.Random(f"{seed} {number}")  # a workbook has the date in it
            name = names[number % len(names)]
            path = _hostile(draw.choice(known[name]), Path(folder, "in"), draw)
            format = draw.choice([name, name, None, draw.choice(names)])
            encoding = draw.choice(ENCODINGS) if draw.random() < 0.05 else None
            label = f"input {number}, {name} as {format}, {path.name}"
            watch.attempt(label, lambda p=path, f=format, e=encoding: _use(p, f, encoding=e))
    return watch.tally(count)


def _use(path: Path, format: str | None, *, encoding: str | None = None) -> None:
    """What `confide data check` and `convert` do with a file."""
    report = check(path, format=format, options=Options(encoding=encoding))
    several = sum(len(one.text) + len(one.relations) for one in report.documents)
    if several + len(report.problems) < 5000:
        for name, kind in FORMATS.items():
            if kind.write is not None:
                write(report.documents, path.parent / f"out-{name}", name)


def _laid(sample: Sample, folder: Path) -> Path:
    """Write a sample into an empty folder: the path that is to be read."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, raw in sample.files.items():
        file = folder / "corpus" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
    return folder / "corpus" / sample.entry


def _hostile(sample: Sample, folder: Path, draw: random.Random) -> Path:
    files = dict(sample.files)
    name = draw.choice(sorted(files))
    change = enlarged if draw.randrange(LARGE_ONES) == 0 else spoiled
    if name.endswith(".xlsx") and draw.random() < 0.9:
        files[name] = _workbook(files[name], change, draw)
    else:
        files[name] = change(files[name], draw)
    kind = draw.randrange(40)
    if kind < 4 and sample.entry:
        files[name] = _gzipped(files[name], draw)
    path = _laid(Sample(files, sample.entry), folder)
    if kind in (4, 5, 6, 7):
        return _archived(files, sample.entry, folder, draw)
    if kind == 8:
        return _odd_place(path, draw)
    return path


def _workbook(raw: bytes, change, draw: random.Random) -> bytes:
    """A workbook one of whose parts has become something else."""
    with zipfile.ZipFile(io.BytesIO(raw)) as book:
        parts = {item.filename: book.read(item) for item in book.infolist()}
    name = draw.choice(sorted(parts))
    parts[name] = change(parts[name], draw)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as book:
        for part, content in parts.items():
            book.writestr(part, content)
    return buffer.getvalue()


def _gzipped(raw: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(12)
    if kind == 0:
        raw = raw + bytes(1 << 25)
    packed = gzip.compress(raw, mtime=0)
    if kind == 1:
        return packed + packed
    if kind == 2:
        return gzip.compress(packed, mtime=0)
    return spoiled(packed, draw) if kind < 6 else packed


def _archived(files: dict[str, bytes], entry: str, folder: Path, draw: random.Random) -> Path:
    """The files in an archive, which may be damaged; now and then one of another name."""
    suffix = draw.choice([".zip", ".tar", ".tar.gz", ".tgz"])
    buffer = io.BytesIO()
    if suffix == ".zip":
        how = draw.choice(
            [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
        )
        with zipfile.ZipFile(buffer, "w", how) as archive:
            for name, raw in files.items():
                archive.writestr(f"corpus/{name}", raw)
    else:
        format = draw.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
        with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
            for name, raw in files.items():
                more = draw.choice(["", "", "/" + "x" * 90, "x" * 300, "é"])
                item = tarfile.TarInfo(f"corpus/{name}{more}")
                item.size = len(raw)
                archive.addfile(item, io.BytesIO(raw))
    packed = buffer.getvalue()
    if suffix != ".zip" and draw.random() < 0.3:
        packed = spoiled(packed, draw)
    if suffix not in (".zip", ".tar"):
        packed = draw.choice(
            [gzip.compress, gzip.compress, bz2.compress, lzma.compress, zlib.compress]
        )(packed)
    if draw.random() < 0.5:
        packed = spoiled(packed, draw)
    place = folder / f"a{suffix}"
    place.write_bytes(packed)
    return Path(f"{place}!", "corpus", entry)


def _odd_place(path: Path, draw: random.Random) -> Path:
    """Something that is no file, where the file was."""
    place = path.parent / draw.choice(["p.txt", "p.conll", "p.xml", "p.zip", "p.rel"])
    kind = draw.randrange(6)
    if kind == 0:
        os.mkfifo(place)
    elif kind == 1:
        place.symlink_to(draw.choice(["/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem"]))
    elif kind == 2:
        place.symlink_to(place)
    elif kind == 3:
        place.mkdir()
    elif kind == 4:
        return path.parent / draw.choice(["x" * 300, "a\0b", "a\ud800"])
    else:
        place.touch()
    return draw.choice([place, Path(f"{place}!", "x"), place / "deeper"])
