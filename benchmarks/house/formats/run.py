"""Every format against an independent counter, and a round trip of five corpora through each.

python benchmarks/house/formats/run.py --data "$CONFIDE_DATA" --json measured.json
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "security" / "fuzz"))

from counters import COUNTERS
from samples import samples

from confide.errors import DataError
from confide.text.document import Document, Problem
from confide.text.formats import FORMATS, Reading, read, write

NOT_COUNTED = ("table", "note-nlp", "omop")
ONLY_DOCUMENTS = ("fhir", "text", "notes")
CORPORA = {
    "BC5CDR": "bc5cdr_cid/CDR_TestSet.PubTator.txt.gz",
    "BioRED": "biored/Dev.PubTator",
    "PsyTAR": "psytar/PsyTAR_dataset.xlsx",
    "DDI": "ddi2013/DDICorpus-2013.zip!/DDICorpus/Test",
    "UNER": "uner_ewt/en_ewt-ud-dev.iob2",
}
PUBLISHED = {
    "conll": "ncbi_disease_ner/test.tsv", "pubtator": CORPORA["BioRED"],
    "bioc": "biored/Test.BioC.XML", "biobert": "gad_re/1/test.tsv",
    "chemprot": "chemprot_re/test.txt", "ddi": "ddi2013/DDICorpus-2013.zip",
    "nyt10": "gids/dev.tsv", "pgr": "pgr/10_12_2018_corpus/train.tsv",
    "ade-positive": "ade_corpus_v2", "psytar": CORPORA["PsyTAR"],
    "semeval": "semeval2010_task8/SemEval2010_task8_all_data.tar.gz",
}  # fmt: skip
OF_ENTITIES = (
    "discontinuous", "crosses-sentence", "no-token", "nested", "overlapping", "duplicate",
    "entities-unheld", "empty-span", "beyond-text",
)  # fmt: skip
OF_RELATIONS = ("relation-unheld", "relations-unheld", "relation-of-mentions",
                "dangling-relation")  # fmt: skip


def found_in(documents: list[Document]) -> tuple[int, int]:
    return (sum(len(one.entities) for one in documents),
            sum(len(one.relations) for one in documents))  # fmt: skip


def inner(name: str, path: Path) -> Path:
    """The part of an archive that is counted."""
    if name == "ddi":
        return Path(
            f"{path}!", "DDICorpus", "Test"
        )  # fmt: skip
    if name == "semeval":
        return Path(f"{path}!", "SemEval2010_task8_all_data", "SemEval2010_task8_training",
                    "TRAIN_FILE.TXT")  # fmt: skip
    return path


def counted(name: str, data: Path, folder: Path) -> list[dict]:
    """Our counts and the counter's, of published files, of our samples, and of what we write."""
    counter = COUNTERS.get(name)
    rows = []
    places: list[tuple[str, Path, Path]] = []
    if name in PUBLISHED:
        path = data / PUBLISHED[name]
        places.append((PUBLISHED[name], path, inner(name, path)))
    elif name not in NOT_COUNTED:
        for number, sample in enumerate(samples()[name]):
            place = folder / f"sample-{number}"
            for file, raw in sample.files.items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_bytes(raw)
            places.append((f"sample {number + 1}", place / sample.entry, place / sample.entry))
    for label, theirs, ours in places:
        reading = read(ours, name)
        documents = reading.documents
        entities, relations = found_in(documents)
        if name == "fhir":
            entities = len(documents)
        row = {"of": label, "entities": entities, "relations": relations, "counter": None}
        row["lost"] = sum(problem.lost for problem in reading.problems)
        try:
            row["counter"] = counter(theirs) if counter else None
        except (KeyError, AttributeError, IndexError, ImportError, OSError, ValueError) as error:
            row["counter"] = f"{type(error).__name__}: {error}"[:80]
        rows.append(row)
    return rows


def agrees(row: dict) -> bool | None:
    """Whether two counts are equal but for losses that were named; None without a counter."""
    if not isinstance(row["counter"], tuple | list):
        return None
    entities, relations = row["counter"]
    missing = 0 if entities < 0 else entities - row["entities"]
    links = 0 if relations is None else relations - row["relations"]
    return 0 <= missing <= row["lost"] and 0 <= links <= row["lost"]


def number_of(problem: Problem) -> int:
    """How many things a problem is about: those of a whole file begin with their number."""
    match = re.match(r"(\d+) ", problem.what) if problem.kind.endswith("unheld") else None
    return int(match[1]) if match and problem.kind != "relation-unheld" else 1


def round_trip(name: str, documents: list[Document], folder: Path) -> dict:
    """What comes back of documents, what was lost by name, and what is missing without a name."""
    path = folder / f"out{FORMATS[name].suffix}"
    start = time.process_time()
    problems = write(documents, path, name)
    lost = Counter()
    for problem in problems:
        if problem.lost:
            lost[problem.kind] += number_of(problem)
    try:
        reading = read(path, name)
    except DataError:  # nothing could be written
        reading = Reading([])
    for problem in reading.problems:
        if problem.lost:
            lost[f"{problem.kind} (reading)"] += 1
    seconds = time.process_time() - start
    before, after = found_in(documents), found_in(reading.documents)
    missing_entities = before[0] - after[0]
    return {
        "entities": after[0],
        "relations": after[1],
        "documents": len(reading.documents),
        "lost": dict(lost.most_common()),
        "unnamed entities": missing_entities - sum(lost[kind] for kind in OF_ENTITIES),
        "unnamed relations": before[1] - after[1] - sum(lost[kind] for kind in OF_RELATIONS),
        "counter": _count(name, path),
        "seconds": round(seconds, 1),
    }


def _count(name: str, path: Path) -> list | str | None:
    counter = COUNTERS.get(name)
    try:
        return list(counter(path)) if counter else None
    except (KeyError, AttributeError, IndexError, ImportError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:80]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the published corpora")
    parser.add_argument("--json", type=Path, help="where the measurements go")
    parser.add_argument("--only", action="append", help="a format; repeat for more")
    given = parser.parse_args()
    names = given.only or [name for name in FORMATS if name not in NOT_COUNTED]
    found: dict[str, dict] = {"formats": {}, "round trips": {}}
    wrong = 0
    print("| format | read | written | files counted | equal |\n|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            rows = counted(name, given.data, Path(folder))
        same = [agrees(row) for row in rows]
        wrong += sum(one is False for one in same)
        written = "yes" if FORMATS[name].write else "no"
        equal = f"{same.count(True)} of {len(same) - same.count(None)}"
        print(f"| `{name}` | yes | {written} | {len(rows)} | {equal} |", flush=True)
        for row, one in zip(rows, same, strict=True):
            if one is not True:
                print(f"  {name}: {row}", file=sys.stderr)
        found["formats"][name] = {"files": rows, "equal": same, "written": written}
    corpora = {}
    for label, file in CORPORA.items():
        documents = read(given.data / file).documents
        corpora[label] = [replace(one, source="") for one in documents]
        print(f"\n{label}: {len(documents)} documents, "
              "{} entities, {} relations".format(*found_in(documents)))  # fmt: skip
    for label, documents in corpora.items():
        print(f"\n| {label}: format | entities | relations | lost, by name | unnamed | counter |")
        print("|---|---|---|---|---|---|")
        found["round trips"][label] = {}
        for name in names:
            if FORMATS[name].write is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = round_trip(name, documents, Path(folder))
                except Exception as error:
                    row = {"error": f"{type(error).__name__}: {error}"[:200]}
            found["round trips"][label][name] = row
            if "error" in row:
                print(f"| `{name}` | {row['error']} |")
                continue
            lost = ", ".join(f"{kind} {count:,}" for kind, count in row["lost"].items())
            unnamed = row["unnamed entities"], row["unnamed relations"]
            wrong += any(unnamed)
            print(f"| `{name}` | {row['entities']:,} | {row['relations']:,} | {lost or 'nothing'} |"
                  f" {unnamed[0]}, {unnamed[1]} | {row['counter']} |", flush=True)  # fmt: skip
    if given.json:
        found["machine"] = {"cpu": platform.processor() or platform.machine(),
                            "python": platform.python_version(),
                            "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
