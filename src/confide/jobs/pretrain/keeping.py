"""The folder of a pretraining: what it holds, and how that is written and read.

training/checkpoint.safetensors  everything needed to continue, complete or absent
curve.jsonl, curve.svg  measures on held-out text, one line each
pretraining.json        base, settings, names and counts of texts, results; no text
config.json, model.safetensors, tokenizer files   the BART, once the training is done
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from confide.errors import CheckpointError, RunError, printable
from confide.federation.files import write_of_run
from confide.userfiles import Tree

CHECKPOINT, CURVE, PLOT, FACTS = (
    "training/checkpoint.safetensors", "curve.jsonl", "curve.svg", "pretraining.json"
)  # fmt: skip
_SCHEMA = 1

Arrays = dict[str, NDArray[np.float32]]


@dataclass
class Place:
    """Where a training stands: its next batch, the work done, and the measures so far.

    `losses` and `steps_since` are the sum and the count of losses since the last measure.
    """

    epoch: int = 0
    batch: int = 0
    steps: int = 0
    pieces: int = 0
    seconds: float = 0.0
    losses: float = 0.0
    steps_since: int = 0
    curve: list[Tree] = field(default_factory=list)


def keep(folder: Path, arrays: Arrays, *, place: Place, identity: Tree) -> None:
    """Write the checkpoint. Raises RunError if the disk refuses it."""
    told = {"schema": _SCHEMA, "place": asdict(place), "identity": identity}
    write_of_run(folder / CHECKPOINT, save(arrays, metadata={"told": json.dumps(told)}))


def kept(folder: Path) -> tuple[Arrays, Place, Tree]:
    """Read the checkpoint: (arrays, place, identity).

    Raises RunError if there is none, CheckpointError if it is damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise RunError(
            "there is no pretraining to continue",
            expected=CHECKPOINT,
            where=str(folder),
            fix="leave out --resume",
        )
    try:
        with safe_open(path, "numpy") as file:
            told = json.loads((file.metadata() or {})["told"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if told["schema"] != _SCHEMA:
            raise CheckpointError(
                "another version of confide wrote this checkpoint",
                expected=f"schema {_SCHEMA}",
                got=printable(f"schema {told['schema']}", 40),
                where=str(path),
            )
        return arrays, Place(**told["place"]), dict(told["identity"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "the checkpoint is damaged", where=str(path), fix="start again in another folder"
        ) from error


def write_curve(folder: Path, place: Place, drawing: str) -> None:
    """Write the measures, one JSON object per line, and their drawing."""
    lines = "".join(json.dumps(one) + "\n" for one in place.curve)
    write_of_run(folder / CURVE, lines.encode())
    write_of_run(folder / PLOT, drawing.encode())


def write_facts(folder: Path, facts: Tree) -> None:
    """Write `pretraining.json`."""
    write_of_run(folder / FACTS, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())
