"""What a pretraining changed, as a small file, and the way back to a BART.

delta.safetensors  the differences, in float16, of all weights that differ from the BART built from
                   the base encoder; unchanged weights are left out
delta.json         the base's name and digest, and facts of the training: settings, names and counts
                   of its texts, its last measure; no text
README.md          the same for people

The base plus the delta gives each weight to half of float16's precision *of the difference*.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from confide.errors import DataError, MissingDataError, SettingsError, printable
from confide.federation.files import write_atomically
from confide.jobs.pretrain.keeping import FACTS
from confide.learning.bart_making import (
    bart_arrays,
    bart_config,
    base_digest,
    write_bart,
)
from confide.learning.encoder_files import find_folder, first_line
from confide.userfiles import MOST_JSON, Tree, bytes_of, json_of, must_be_files

WEIGHTS, TOLD, README = "delta.safetensors", "delta.json", "README.md"
_SCHEMA = 1

Arrays = dict[str, NDArray[np.float32] | NDArray[np.float16]]


class Delta(NamedTuple):
    """A delta on disk: its folder, the number of weights that it changes, and its size in bytes."""

    folder: Path
    weights: int
    bytes: int


def export_delta(folder: str | Path, *, out: str | Path, base: str | None = None) -> Delta:
    """Write the difference between a pretrained BART and its base encoder.

    `base` is the encoder's name or folder, if it is not the one that the training was given.
    Raises MissingDataError if the folder holds no finished pretraining, DataError if a file is
    damaged or cannot be written, SettingsError if the base is another encoder.
    """
    folder, out = Path(folder), Path(out)
    facts = _told(folder / FACTS, "the folder holds no finished pretraining")
    name = base or str(facts["settings"]["base"])
    found = find_folder(name)
    _check_base(found, facts, where=str(folder))
    made = bart_arrays(found, bart_config(found, facts["settings"]["decoder_layers"]))
    try:
        must_be_files([folder / "model.safetensors"])
        trained = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise DataError(
            "the BART's weights cannot be read", got=first_line(error), where=str(folder)
        ) from error
    changed = _difference(made, trained, where=str(folder))
    content = save(changed, metadata={"format": "pt"})
    told = {**facts, "delta": {"weights": sum(value.size for value in changed.values())}}
    try:
        write_atomically(out / WEIGHTS, content)
        write_atomically(out / TOLD, (json.dumps(told, indent=2) + "\n").encode())
        write_atomically(out / README, readme(told).encode())
    except OSError as error:
        raise _unwritable(out, error) from error
    return Delta(out, told["delta"]["weights"], len(content))


def import_delta(delta: str | Path, *, out: str | Path, base: str | None = None) -> Path:
    """Apply a delta to its base encoder, write the BART, and return its folder.

    Raises MissingDataError if there is no delta, DataError if it is damaged, SettingsError if it
    belongs to another encoder.
    """
    folder, out = Path(delta), Path(out)
    told = _told(folder / TOLD, "the folder holds no delta")
    found = find_folder(base or str(told["settings"]["base"]))
    _check_base(found, told, where=str(folder))
    config = bart_config(found, told["settings"]["decoder_layers"])
    arrays = bart_arrays(found, config)
    try:
        must_be_files([folder / WEIGHTS])
        with safe_open(folder / WEIGHTS, "numpy") as file:
            changed = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(
            "the delta is damaged or incomplete",
            expected=WEIGHTS,
            got=first_line(error),
            where=str(folder),
        ) from error
    for name, value in changed.items():
        if name not in arrays or arrays[name].shape != value.shape:
            raise DataError("the delta belongs to another base", got=name, where=str(folder))
        arrays[name] = arrays[name] + value.astype(np.float32)
    write_bart(out, arrays, config=config, tokenizer=found)
    try:
        write_atomically(out / FACTS, (json.dumps(told, indent=2) + "\n").encode())
    except OSError as error:
        raise _unwritable(out, error) from error
    return out


def _unwritable(out: Path, error: OSError) -> DataError:
    return DataError(
        f"the folder cannot be written ({error.strerror})",
        where=str(out),
        fix="name another folder with --out",
    )


def readme(told: Tree) -> str:
    """What people have to know about a delta."""
    settings, held_out = told["settings"], told["held_out"]
    rows = "".join(
        f"| {one['name']} | {one['documents']:,} | {one['passages']:,} | {one['pieces']:,} |\n"
        for one in told["texts"]
    )
    without = ", ".join(told["left_out"]["without"]) or "none"
    return f"""# A delta on {settings["base"]}

The difference between a BART with {settings["decoder_layers"]} decoder layers and the encoder that
it was built from (SHA-256 of its files: `{told["base_digest"]}`). To get the BART:
`confide pretrain import THIS_FOLDER --out FOLDER`.

Trained ({settings["how.train"]}) on noised text for {told["steps"]:,} steps, {told["pieces"]:,}
pieces. On held-out text: loss {held_out["loss"]:.3f} per piece, {100 * held_out["right"]:.1f} % of
pieces right, {100 * held_out["hidden"]:.1f} % of those that the noised text does not show.

| text | documents | passages | pieces |
|---|---|---|---|
{rows}
Sentences in these files were left out: {without}.
"""


def _told(path: Path, lacking: str) -> Tree:
    """The facts of a training, checked for the parts that are used here."""
    try:
        told = json_of(bytes_of(path, MOST_JSON))
    except FileNotFoundError as error:
        raise MissingDataError(lacking, expected=path.name, where=str(path.parent)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged", where=str(path.parent)) from error
    parts = ("settings", "base_digest", "texts", "left_out", "held_out")
    if not isinstance(told, dict) or not set(parts) <= set(told):
        raise DataError(
            f"{path.name} is damaged", expected=", ".join(parts), where=str(path.parent)
        )
    if told.get("schema") != _SCHEMA:
        raise DataError(
            f"another version of confide wrote {path.name}",
            expected=f"schema {_SCHEMA}",
            got=printable(f"schema {told.get('schema')}", 40),
            where=str(path.parent),
        )
    return told


def _check_base(base: Path, told: Tree, *, where: str) -> None:
    digest = base_digest(base)
    if digest != told["base_digest"]:
        raise SettingsError(
            "this was trained from another base encoder",
            expected=f"digest {told['base_digest'][:12]}…",
            got=f"{digest[:12]}… of {base}",
            where=where,
            fix="name that encoder with --from",
        )


def _difference(made: Mapping[str, NDArray[np.float32]], trained: Arrays, *, where: str) -> Arrays:
    changed: Arrays = {}
    for name, value in made.items():
        if name not in trained or trained[name].shape != value.shape:
            raise DataError("the BART was built from another base", expected=name, where=where)
        gap = trained[name].astype(np.float32) - value
        if not gap.any():
            continue
        if not np.isfinite(gap).all() or np.abs(gap).max() > np.finfo(np.float16).max:
            raise DataError("a weight is not a number, or too large", got=name, where=where)
        changed[name] = gap.astype(np.float16)
    return changed
