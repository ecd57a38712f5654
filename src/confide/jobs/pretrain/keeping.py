"""What lies in the folder of a pretraining, and how it is written and read.

training/checkpoint.safetensors  all that a training goes on from, there whole or not at all
curve.jsonl, curve.svg  measures on held-out text, one line each
pretraining.json        base, settings, names and counts of texts, what came of it; no text
config.json, model.safetensors, tokenizer files   the BART, once the training is done
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from confide.errors import CheckpointError, RunError
from confide.federation.files import write_of_run

CHECKPOINT, CURVE, PLOT, FACTS = (
    "training/checkpoint.safetensors", "curve.jsonl", "curve.svg", "pretraining.json"
)  # fmt: skip
_SCHEMA = 1

Arrays = dict[str, NDArray[Any]]


@dataclass
class Place:
    """Where a training stands: its next batch, what was done, and the measures so far.

    `losses` and `steps_since` are the sum and the count since the last measure.
    """

    epoch: int = 0
    batch: int = 0
    steps: int = 0
    pieces: int = 0
    seconds: float = 0.0
    losses: float = 0.0
    steps_since: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def keep(folder: Path, arrays: Arrays, *, place: Place, identity: dict[str, Any]) -> None:
    """Write the checkpoint. Raises RunError where the disk does not take it."""
    told = {"schema": _SCHEMA, "place": asdict(place), "identity": identity}
    write_of_run(folder / CHECKPOINT, save(arrays, metadata={"told": json.dumps(told)}))


def kept(folder: Path) -> tuple[Arrays, Place, dict[str, Any]]:
    """(arrays, place, identity). Raises RunError without one, CheckpointError for a damaged one."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise RunError(
            "there is no pretraining to go on with",
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
                "the checkpoint is of another version of confide",
                expected=str(_SCHEMA),
                got=str(told["schema"]),
                where=str(path),
            )
        return arrays, Place(**told["place"]), dict(told["identity"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "the checkpoint is damaged", where=str(path), fix="begin anew in another folder"
        ) from error


def write_curve(folder: Path, place: Place, drawing: str) -> None:
    """The measures, one JSON object a line, and their drawing."""
    lines = "".join(json.dumps(one) + "\n" for one in place.curve)
    write_of_run(folder / CURVE, lines.encode())
    write_of_run(folder / PLOT, drawing.encode())


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """`pretraining.json`."""
    write_of_run(folder / FACTS, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())
