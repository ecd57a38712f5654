"""What the three programs of this folder share: text, settings, and how a measurement is kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confide import settings as confide_settings
from confide.corpora.synthetic import HABITS, documents
from confide.settings import Settings
from confide.text.formats import write

CORPUS = {
    "train": "$CONFIDE_DATA/ncbi_disease_ner/train.tsv",
    "dev": "$CONFIDE_DATA/ncbi_disease_ner/devel.tsv",
    "test": "$CONFIDE_DATA/ncbi_disease_ner/test.tsv",
}


@dataclass
class Clock:
    """Seconds on the wall, and seconds of this process on a core."""

    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu


def text_files(folder: Path, *, share: float, synthetic: bool) -> dict[str, str]:
    """Train, dev and test files: NCBI-disease, or the first `share` of it, or synthetic notes."""
    folder.mkdir(parents=True, exist_ok=True)
    if synthetic or not os.environ.get("CONFIDE_DATA"):
        return _synthetic(folder, share)
    if share == 1.0:
        return CORPUS
    files = {}
    for part, path in CORPUS.items():
        sentences = Path(os.path.expandvars(path)).read_text("utf-8").strip().split("\n\n")
        kept = sentences[: max(1, int(share * len(sentences)))]
        target = folder / f"{part}.conll"
        target.write_text("\n\n".join(kept) + "\n", "utf-8")
        files[part] = str(target)
    return files


def _synthetic(folder: Path, share: float) -> dict[str, str]:
    files = {}
    for part in ("train", "dev", "test"):
        notes = [
            note
            for habit in HABITS
            for note in documents(habit.site, part, sentences=max(8, int(1800 * share)))
        ]
        files[part] = str(folder / f"{part}.conll")
        write(notes, Path(files[part]), "conll", scheme="iob2")
    return files


def settings_for(files: Mapping[str, str], *, sites: int, rounds: int, **changes: Any) -> Settings:
    """Settings with the tagger's default sizes and one local epoch; `changes` by dotted key."""
    tree = {
        "name": "benchmark",
        "rounds": rounds,
        "data": {"format": "conll", "scheme": "iob2", "train_on": "file tokens"},
        "split": {"sites": sites, **files},
        "training": {"local_epochs": 1},
    }
    return confide_settings.parse(tree, [f"{key}={value}" for key, value in changes.items()])


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def keep(path: Path | None, measured: Mapping[str, Any]) -> None:
    """Adds the machine and versions to what was measured and writes it, where a path is given."""
    if path is None:
        return
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[measured["benchmark"]] = {**measured, "machine": about}
    path.write_text(json.dumps(kept, indent=1) + "\n")
