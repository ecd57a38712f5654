"""A trained model for other programs: ONNX, transformers, peft or spaCy.

An export is made of a release (`runs.release`), so it takes the same explicit act: what it tells
whoever has it is said before a byte of it is written. Beside the model lie its card, and
`confide.json`: what its inputs and outputs mean.

Every export is checked before it counts: the written model gives the numbers of confide's own on
examples, or nothing is left in the folder.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from confide.errors import DataError, RunError, SettingsError, os_errors_as
from confide.federation.files import write_of_run
from confide.runs.card import CARD
from confide.runs.release import (
    release,
    release_task,
    release_tells,
    released,
    released_calibrator,
)
from confide.userfiles import text_of

Target = Literal["onnx", "hf", "peft", "spacy"]

ABOUT = "confide.json"
"""What the model's inputs and outputs mean."""

_CARD_BYTES = 1 << 22
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_USE = re.compile(r"## Use\n.*?(?=\n## )", re.DOTALL)


@dataclass(frozen=True)
class Copy:
    """A release, its opened model, and where to write."""

    folder: Path
    model: Any
    out: Path
    int8: bool = False


Write = Callable[[Copy], dict[str, Any]]
"""Writes a model, checks it, and gives what `confide.json` says of it."""


def export(
    run: Path,
    *,
    to: Target,
    out: Path,
    site: str | None = None,
    key: Path | None = None,
    int8: bool = False,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write the model of a run or release to the folder `out`, for other programs.

    Args:
        run: the folder of a run or of a release.
        to: "onnx" (taggers, encoders and relation classifiers), "hf" (a folder that
            `AutoModelForTokenClassification` or `AutoModelForSequenceClassification` loads), "peft"
            (the adapter of a run with `encoder.tune = "lora"`) or "spacy" (a pipeline that
            `spacy.load` loads).
        out: a new or empty folder.
        site: the site whose own model to write, if every site has its own.
        key: the sites' shared key file; by default the one that the run's settings name.
        int8: of ONNX, the weights of linear layers take a byte each.
        say: is told what the export tells whoever has it, before anything is written.

    Raises:
        SettingsError: this model cannot be written so, or a library is missing.
        RunError: there is no such run, the folder holds something, or it cannot be written.
        KeyFileError, DataError: as `confide.api.release` does.
    """
    if to not in _TARGETS:
        raise SettingsError(
            "nobody knows this kind of export", expected=", ".join(_TARGETS), got=repr(to)
        )
    if int8 and to != "onnx":
        raise SettingsError("only ONNX can be written in int8", expected='to = "onnx"', got=to)
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise RunError("the folder holds something already", where=str(out), fix="name another one")
    with _beside(out.resolve()) as place:
        copy = Path(run)
        if release_task(copy) is None:
            copy = release(copy, out=place / "copy", site=site, key=key)
        if say is not None:
            say(f"{out}: {release_tells(copy)}")
        made = Copy(copy, _opened(copy), place / "made", int8)
        made.out.mkdir()
        about = _TARGETS[to]()(made) | {"calibration": made.model.calibrator._asdict()}
        write_of_run(made.out / ABOUT, json.dumps(about, indent=1, ensure_ascii=False).encode())
        _write_card(copy, made.out, _USES[to])
        try:
            made.out.replace(out.resolve())
        except OSError:  # where something is mounted, nothing can be renamed to
            with _writing(out):
                shutil.copytree(made.out, out, dirs_exist_ok=True)
    return out


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` to make it in, which holds words in the clear: gone at the end.

    A killed process leaves it; the next export to `out` removes it. Raises RunError if the system
    cannot write it, and DataError for the system's other errors: what is exported cannot be read.
    """
    place = out.with_name(f".{out.name}.new")
    shutil.rmtree(place, ignore_errors=True)
    try:
        with _writing(out):
            place.mkdir(parents=True, mode=0o700)
        yield place
    except OSError as error:
        named = Path(error.filename) if error.filename else None
        ours = named is not None and (named.is_relative_to(place) or named.is_relative_to(out))
        if ours or error.errno in _FULL:
            with _writing(out):
                raise
        raise DataError(
            f"what the export needs cannot be read ({error.strerror or error})",
            where=None if named is None else str(named),
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _writing(out: Path) -> AbstractContextManager[None]:
    return os_errors_as(
        RunError, "the export cannot be written", where=out, fix="free some disk space"
    )


def _opened(copy: Path) -> Any:
    found: Any = released(copy)
    return replace(found, calibrator=released_calibrator(copy))


def _write_card(copy: Path, out: Path, use: str) -> None:
    """The release's card, with how an export is used."""
    file = copy / CARD
    if file.is_file():
        text = _USE.sub(lambda _: f"## Use\n\n{use}\n", text_of(file, _CARD_BYTES))
        write_of_run(out / CARD, text.encode())


def _onnx() -> Write:
    from confide.jobs.export.onnx_file import write_onnx

    return write_onnx


def _hf() -> Write:
    from confide.jobs.export.hugging import write_hf

    return write_hf


def _peft() -> Write:
    from confide.jobs.export.adapters import write_peft

    return write_peft


def _spacy() -> Write:
    from confide.jobs.export.pipeline import write_spacy

    return write_spacy


_TARGETS: dict[str, Callable[[], Write]] = {
    "onnx": _onnx,
    "hf": _hf,
    "peft": _peft,
    "spacy": _spacy,
}
_USES = {
    "onnx": "`model.onnx` runs in any ONNX runtime; `confide.json` says what its inputs and outputs"
    " mean.",
    "hf": "`transformers` loads this folder; `confide.json` says what confide does besides.",
    "peft": "`peft.PeftModel.from_pretrained` lays this adapter over the encoder that"
    " `confide.json` names.",
    "spacy": "`spacy.load` loads this folder where confide is installed.",
}
