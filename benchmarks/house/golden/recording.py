"""What is kept of a run: scores, losses, and digests of weights, memory and what crossed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from confide.federation.memory import CheckpointStore


def recorded(folder: Path) -> dict[str, Any]:
    """The record of a finished run, from its files alone."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        "overall": result["scores"]["overall"],
        "sites": _digest(json.dumps(result["scores"]["sites"], sort_keys=True).encode()),
        "losses": [entry["loss"] for entry in result["history"]],
        "dev": [entry.get("dev") for entry in result["history"]],
        "best_rounds": result["best_rounds"],
        "weights": _weights(folder, result["best_rounds"]),
        "memory": _digest("".join(sorted(set(_remembered(folder)))).encode()),
        "predictions": _predictions(folder),
        "crossed": _crossed(folder),
    }


def _weights(folder: Path, rounds: Mapping[str, int]) -> str:
    """Of what the server ends with: the arrays of its state's weights, by name."""
    marks = []
    for part, round in sorted(rounds.items()):
        place = folder / "alone" / part if part else folder
        state = CheckpointStore(place / "checkpoints").load(round).state.tobytes()
        arrays = safetensors.numpy.load(state)
        named = {name: array for name, array in arrays.items() if name.startswith("weights/")}
        marks += [f"{part} {name} {_mark(array)}" for name, array in sorted(named.items())]
    return _digest("\n".join(marks).encode())


def _remembered(folder: Path) -> Iterator[str]:
    """Every array that a site remembers at the end, whatever it is called."""
    for memory in sorted(folder.glob("sites/*/memory")):
        newest = max(memory.glob("*.memory"), default=None)
        if newest is not None:
            arrays = safetensors.numpy.load(newest.read_bytes())
            yield from (_mark(array) for array in arrays.values() if array.size)


def _predictions(folder: Path) -> str:
    """What each site's own report counts by sentence: it follows from the predictions."""
    found = sorted(folder.glob("sites/*/sentences.json"))
    return _digest(b"".join(path.read_bytes() for path in found)) if found else ""


def _crossed(folder: Path) -> dict[str, int]:
    """Bytes that crossed: of arrays, and of all else together, by direction."""
    total: Counter[str] = Counter()
    for path in sorted(folder.rglob("ledger.jsonl")):
        if "sites" in path.relative_to(folder).parts:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if "field" in entry:
                what = "arrays" if entry["kind"] in ("array", "arrays") else "else"
                total[f"{entry['direction']} {what}"] += entry["bytes"]
    return dict(sorted(total.items()))


def _mark(array: np.ndarray) -> str:
    return _digest(f"{array.dtype} {array.shape} ".encode() + array.tobytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
