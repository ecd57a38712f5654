"""What `confide init` should write: models and their settings by corpus and size, beside peers.

    python benchmarks/defaults/init/run.py --out runs/defaults [--corpora NAME...] [--sizes N...] \
        [--rows NAME...] [--seeds N...]
    python benchmarks/defaults/init/run.py --table

A row is a set of settings, `init` (whatever `confide init` writes, unchanged), or a peer. Each
finished cell is a line of measured.jsonl and is not run again. Seconds are those of one core for
the whole command, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cells
import relations

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure, read_lines

CORPORA = {**cells.CORPORA, **relations.CORPORA}

HERE = Path(__file__).parent
STATES = ("model.context=minilm", "training.learning_rate=0.008", "options.rows=seen")
SMALL = (*STATES, "model.word_dim=50", "model.bilstm_hidden=64")


def passes(wished: float) -> tuple[str, ...]:
    """The rounds of two passes over each site's text each; 10 to 40 passes in all."""
    return (f"rounds={round(max(10, min(40, wished)) / 2)}",)


ROWS = {
    "states": lambda size: (*STATES, *passes(700 / math.sqrt(size))),
    "small": lambda size: (*SMALL, *passes(700 / math.sqrt(size))),
    "wide": lambda size: (*SMALL, "model.bilstm_hidden=100", *passes(700 / math.sqrt(size))),
    "wide-dropout": lambda size: (
        *SMALL, "model.bilstm_hidden=100", "model.dropout=0.3", *passes(700 / math.sqrt(size)),
    ),
    "scratch": lambda size: ("options.rows=seen", *passes(15_000 / size)),
    "linear": lambda size: ("model.kind=linear",),
}  # fmt: skip
"""Settings by the number of training sentences; all else has its default."""
PEERS = ("crf", "spacy", "ngrams")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--corpora", nargs="+", default=list(cells.CORPORA), choices=CORPORA)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(cells.SIZES))
    parser.add_argument("--rows", nargs="+", default=["init"], choices=[*ROWS, "init", *PEERS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        help="a Python with sklearn-crfsuite and scikit-learn",
    )
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    every = (
        {"corpus": corpus, "size": size, "row": row, "seed": seed}
        for seed in given.seeds
        for corpus, size in there(given.corpora, given.sizes)
        for row in given.rows
    )
    measure(every, given.keep, lambda cell: measured(cell, given))


def measured(cell: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """What a row comes to on a corpus of a size."""
    corpus, size, row = cell["corpus"], cell["size"], cell["row"]
    about = relations if corpus in relations.CORPORA else cells
    folder = about.written(corpus, size, given.out)
    if row in PEERS:
        return peer(row, folder, given.peer_python)
    return ours(row, size, cell["seed"], folder)


def there(names: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    """The cells that the training text suffices for."""
    return [
        cell
        for about in (cells, relations)
        for cell in about.cells([name for name in names if name in about.CORPORA], sizes)
    ]


def timed(command: list[str], log: Path) -> float:
    """Run a command on one thread; its seconds of processor, those of its children included.

    It finds no encoder's states of earlier runs.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["CONFIDE_CACHE"] = f"{log}-states"
    shutil.rmtree(environment["CONFIDE_CACHE"], ignore_errors=True)
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: see {log}")
    return round(used.ru_utime + used.ru_stime, 1)


def ours(row: str, size: int, seed: int, folder: Path) -> dict[str, object]:
    """A federated run of a cell: strict F1 on development and test text, seconds, megabytes."""
    settings = folder / f"{row}.toml"
    confide = [sys.executable, "-m", "confide"]
    if row == "init":
        files = [
            *folder.glob("site*/*.conll"),
            *folder.glob("t*.t[sx][vt]"),
            *folder.glob("dev.t*"),
        ]
        timed([*confide, "init", *sorted(map(str, files)), "--out",
               str(settings), "--force"], folder / "init.log")  # fmt: skip
        settled: tuple[str, ...] = ()
    else:
        settings.write_text(plain(folder), encoding="utf-8")
        settled = ROWS[row](size)
    out = folder / f"{row}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    overrides = [word for one in (*settled, f"seed={seed}") for word in ("--set", one)]
    began = time.time()
    seconds = timed([*confide, "run", str(settings), "--out", str(out), *overrides],
                    folder / f"{row}-{seed}.log")  # fmt: skip
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    scores = result["scores"]["overall"]
    by = "strict" if "strict" in scores else "micro"
    curve = [(one["round"], percent(one["dev"][by])) for one in result["history"] if one["dev"]]
    best = max(curve, key=lambda point: point[1], default=(0, 0.0))
    return {
        "test": percent(scores[by]["f1"]),
        "dev": best[1],
        "best_round": best[0],
        "rounds": result["rounds"],
        "curve": [score for _, score in curve],
        "ece": percent(result["calibration"]["after"]["error"]) if result["calibration"] else None,
        "cpu": seconds,
        "wall": round(time.time() - began, 1),
        "mb": round(sum(result["bytes"]["up"].values()) / cells.SITES / 1e6, 2),
    }


def percent(value: float | None) -> float:
    return round(100 * (value or 0.0), 2)


def plain(folder: Path) -> str:
    """A cell's sites, trained by FedAvg with the defaults of settings."""
    sites = "".join(
        f'\n[[site]]\nname = "site{site}"\n'
        + "".join(f'{part} = "site{site}/{part}.conll"\n' for part in ("train", "dev", "test"))
        for site in range(1, cells.SITES + 1)
    )
    return (
        f'schema = 2\nname = "{folder.name}"\n\n[data]\nformat = "conll"\nscheme = "iob2"\n{sites}'
    )


def peer(row: str, folder: Path, python: str) -> dict[str, object]:
    """A peer on the pooled text of a cell, in a process of its own."""
    found = folder / f"{row}.json"
    command = [sys.executable if row == "spacy" else python, str(HERE / f"peer_{row}.py")]
    seconds = timed([*command, str(folder), str(found)], folder / f"{row}.log")
    return json.loads(found.read_text(encoding="utf-8")) | {"cpu": seconds}


def table(lines: list[dict]) -> None:
    """A line for each cell, a column for each row."""
    rows = sorted({one["row"] for one in lines})
    print("| corpus | sentences | " + " | ".join(rows) + " |")
    print("|---" * (2 + len(rows)) + "|")
    for corpus, size in sorted({(one["corpus"], one["size"]) for one in lines}):
        shown = []
        for row in rows:
            cell = (corpus, size, row)
            own = [one for one in lines if (one["corpus"], one["size"], one["row"]) == cell]
            if own:
                mean = sum(one["test"] for one in own) / len(own)
                cpu = sum(one["cpu"] for one in own) / len(own)
                shown.append(f"{mean:.1f} ({cpu:.0f} s)")
            else:
                shown.append("")
        print(f"| {corpus} | {size:,} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
