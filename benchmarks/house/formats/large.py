"""A large corpus: how fast it is read, and how much memory checking, converting and training take.

python benchmarks/house/formats/large.py speed --sentences 200000 --old ../older/src
python benchmarks/house/formats/large.py memory --sentences 1000000
python benchmarks/house/formats/large.py line --megabytes 200

The corpus is made up from a seed: words of a Zipf distribution, 8 to 32 to a sentence, and every
fourth sentence or so has an entity of one of four types. `speed` reads it from the page cache in
fresh processes that take turns, with this source and with an older one, and gives megabytes of the
file for each second of the processor, the best of three. `memory` runs the commands themselves and
gives the most memory that each held at once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate, islice
from pathlib import Path

TYPES = ("Drug", "Disease", "Dose", "Finding")
SOURCE = Path(__file__).resolve().parents[3] / "src"
Sentence = list[tuple[str, str]]

READ = """
import sys, time
from pathlib import Path
from confide.text.formats import read
path, format = sys.argv[1:]
start = time.process_time()
documents = read(path, format or None).documents
seconds = time.process_time() - start
print(seconds, len(documents), sum(len(one.entities) for one in documents))
"""
SEGMENT = """
import sys, time
from confide.text.formats import read
from confide.text.segment import segmented
from confide.text.reading import gc_paused
path, format = sys.argv[1:]
documents = read(path, format or None).documents
with gc_paused():
    start = time.process_time()
    for document in documents:
        segmented(document)
    seconds = time.process_time() - start
print(seconds, len(documents), sum(len(one.entities) for one in documents))
"""
SETTINGS = """
schema = 2
method = "fedavg"
rounds = 1

[[site]]
name = "one"
train = "{corpus}"

[data]
dev_share = 0.001
test_share = 0.001

[model]
character = "none"
word_dim = 16
bilstm_hidden = 16

[training]
optimiser = "adam"
learning_rate = 0.01
batch_size = 256
local_epochs = 1
"""


def sentences(count: int, seed: int) -> Iterator[Sentence]:
    """Made-up sentences, as words with their IOB2 tags."""
    draw = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 10))) for _ in range(30_000)]
    words = [word.capitalize() if draw.random() < 0.05 else word for word in words]
    words[::97] = [word[:-1] + "é" for word in words[::97]]
    weights = list(accumulate(1 / rank for rank in range(2, len(words) + 2)))
    for _ in range(count):
        length = draw.randint(8, 32)
        drawn = draw.choices(words, cum_weights=weights, k=length - 1)
        tags = ["O"] * length
        if draw.random() < 0.3:
            first, kind = draw.randrange(length - 3), draw.choice(TYPES)
            long = draw.randint(1, 3)
            tags[first : first + long] = [f"B-{kind}", *[f"I-{kind}"] * (long - 1)]
        yield list(zip([*drawn, "."], tags, strict=True))


def conll(rows: Iterator[Sentence], path: Path) -> None:
    """Two columns cut by tabs."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.writelines(f"{word}\t{tag}\n" for word, tag in row)
            file.write("\n")


def conll2003(rows: Iterator[Sentence], path: Path) -> None:
    """Four columns cut by blanks, a document mark for every ten sentences."""
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            if number % 10 == 0:
                file.write("-DOCSTART- -X- -X- O\n\n")
            file.writelines(f"{word} NN I-NP {tag}\n" for word, tag in row)
            file.write("\n")


def marked(row: Sentence, shift: int = 0) -> tuple[str, list[list[object]]]:
    """A sentence as text, and its entities by their offsets."""
    text, spans = "", []
    for word, tag in row:
        start = len(text) + shift
        text += f"{word} "
        if tag[0] == "B":
            spans.append([start, start + len(word), tag[2:]])
        elif tag[0] == "I":
            spans[-1][1] = start + len(word)
    return text[:-1], spans


def jsonl(rows: Iterator[Sentence], path: Path) -> None:
    """doccano's form: a line for every sentence, with its entities by offsets."""
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            text, spans = marked(row)
            line = {"id": number, "text": text, "label": spans}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def notes(rows: Iterator[Sentence], path: Path) -> None:
    """The same with documents of twenty sentences."""
    with path.open("w", encoding="utf-8") as file:
        number = 0
        while chosen := list(islice(rows, 20)):
            text, label = "", []
            for row in chosen:
                sentence, spans = marked(row, len(text))
                text += sentence + "\n"
                label += spans
            line = {"id": number, "text": text, "entities": label}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            number += 1


CORPORA = {
    "conll": (conll, ".conll"),
    "conll, 4 columns": (conll2003, ".conll"),
    "jsonl": (jsonl, ".jsonl"),
    "jsonl, 20 sentences a document": (notes, ".jsonl"),
}


def made(folder: Path, name: str, count: int, seed: int) -> Path:
    """The file of a corpus, made if it is not there."""
    maker, suffix = CORPORA[name]
    path = folder / f"{name.replace(' ', '-').replace(',', '')}-{count}-{seed}{suffix}"
    if not path.exists():
        maker(sentences(count, seed), path)
    return path


def timed(code: str, path: Path, source: Path) -> tuple[float, str]:
    """Seconds of the processor that a fresh process took, and what it counted."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code, str(path), ""], env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    seconds, *counted = done.stdout.split()
    return float(seconds), " ".join(counted)


def speed(given: argparse.Namespace, folder: Path) -> list[dict]:
    """Megabytes for each second, of reading and of segmenting."""
    sources = {"new": SOURCE} | ({"old": given.old.resolve()} if given.old else {})
    rows = []
    for name in CORPORA:
        path = made(folder, name, given.sentences, given.seed)
        size = path.stat().st_size / 1e6
        for job, code in (("read", READ), ("segment", SEGMENT)):
            if job == "segment" and not name.startswith("jsonl"):
                continue
            best, counted = dict.fromkeys(sources, float("inf")), {}
            for _ in range(given.times):
                for which, source in sources.items():
                    seconds, counted[which] = timed(code, path, source)
                    best[which] = min(best[which], seconds)
            assert len(set(counted.values())) == 1, f"they read different things: {counted}"
            row = {"job": job, "corpus": name, "megabytes": round(size, 1)}
            row |= {f"{which} MB/s": round(size / one, 1) for which, one in best.items()}
            if "old" in best:
                row["times as fast"] = round(best["old"] / best["new"], 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def run_measured(command: list[str], source: Path) -> dict:
    """What a command took: seconds, and the most memory in MB, of all its processes."""
    start = time.perf_counter()
    measure = (
        "import os, subprocess, sys, resource\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,"
        " resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)"
    )
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", measure, *command], env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    code, kilobytes, seconds = done.stdout.split()[-3:]
    return {
        "exit": int(code),
        "GB": round(int(kilobytes) * 1024 / 1e9, 2),
        "seconds": round(time.perf_counter() - start, 1),
        "processor": round(float(seconds), 1),
        "said": done.stderr.strip()[-300:] if int(code) else "",
    }


def memory(given: argparse.Namespace, folder: Path, spare: Path) -> list[dict]:
    """The most memory of `data check`, `data convert` and `run`."""
    rows = []
    source = given.old.resolve() if given.old else SOURCE
    for name in given.corpus or CORPORA:
        path = made(folder, name, given.sentences, given.seed)
        settings = spare / "settings.toml"
        settings.write_text(SETTINGS.format(corpus=path), encoding="utf-8")
        other = "jsonl" if path.suffix == ".conll" else "conll"
        confide = [sys.executable, "-m", "confide"]
        commands = {
            "check": [*confide, "data", "check", str(path)],
            "convert": [*confide, "data", "convert", str(path), "--to", other,
                        "--out", str(spare / f"out.{other}")],
            "train": [*confide, "run", str(settings), "--out", str(spare / "run")],
        }  # fmt: skip
        for job, command in commands.items():
            if given.job and job not in given.job:
                continue
            row = {"job": job, "corpus": name, "sentences": given.sentences}
            row["megabytes"] = round(path.stat().st_size / 1e6, 1)
            row |= run_measured(command, source)
            rows.append(row)
            print(json.dumps(row), flush=True)
        shutil.rmtree(spare / "run", ignore_errors=True)
    return rows


def line(given: argparse.Namespace, folder: Path) -> list[dict]:
    """One document on one line of so many megabytes: read in how much memory, or refused."""
    rows = []
    source = given.old.resolve() if given.old else SOURCE
    for name in ("jsonl", "conll"):
        path = folder / f"line.{name}"
        text = "A line that is too long for anybody to have written it . " * (
            given.megabytes * 1_000_000 // 57
        )
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"text": text}) + "\n" if name == "jsonl" else f"{text}\tO\n")
        row = {"job": "check", "corpus": f"one line, {name}", "megabytes": given.megabytes}
        row |= run_measured([sys.executable, "-m", "confide", "data", "check", str(path)], source)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "memory", "line"))
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--corpus", action="append", choices=tuple(CORPORA))
    parser.add_argument("--job", action="append", choices=("check", "convert", "train"))
    parser.add_argument("--old", type=Path, help="the src folder of an older version")
    parser.add_argument("--folder", type=Path, help="where the corpora are kept")
    parser.add_argument("--json", type=Path, help="a file of lines to add the measurements to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, spare = given.folder or Path(name), Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if given.what == "memory":
            rows = memory(given, folder, spare)
        else:
            rows = {"speed": speed, "line": line}[given.what](given, folder)
    about = {"date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
             "cores": os.cpu_count(), "seed": given.seed}  # fmt: skip
    if given.json:
        with given.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row | about) + "\n" for row in rows)


if __name__ == "__main__":
    main()
