"""Sites that annotate different relations: SemEval-2010 task 8 at three sites, one model of all.

    python benchmarks/papers/tags/pairs.py --out runs/pairs [--variants NAME...] [--draws 1 2 3]
    python benchmarks/papers/tags/pairs.py --table

Each of the nine relations is annotated at one or two sites, drawn by the draw's number; elsewhere
its sentences say `Other`. Test text, a third at each site, says all. Every run is a line of
pairs.jsonl and is not made again. The encoder is the first three layers of MiniLM.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import tarfile
import time
from datetime import date
from pathlib import Path

from confide.runs.run import run
from confide.settings import parse

HERE = Path(__file__).parent
ARCHIVE = "semeval2010_task8/SemEval2010_task8_all_data.tar.gz"
TRAIN = "SemEval2010_task8_all_data/SemEval2010_task8_training/TRAIN_FILE.TXT"
TEST = "SemEval2010_task8_all_data/SemEval2010_task8_testing_keys/TEST_FILE_FULL.TXT"
SITES = ("site-1", "site-2", "site-3")
PLAIN = ("options.distil=false", "options.instance_weights=false")
VARIANTS: dict[str, tuple[str, ...]] = {
    "fedavg": PLAIN,
    "open": (*PLAIN, "training.unannotated_types=1"),
    "whole": (),
    "complete": PLAIN,
}


def blocks(member: str) -> list[list[str]]:
    """The sentences of a file, each as its lines: sentence, relation, comment."""
    with tarfile.open(Path(os.environ["CONFIDE_DATA"]) / ARCHIVE) as archive:
        file = archive.extractfile(member)
        assert file is not None, member
        text = file.read().decode("utf-8")
    return [block.splitlines() for block in text.replace("\r", "").strip().split("\n\n")]


def family(block: list[str]) -> str:
    return block[1].strip().partition("(")[0]


def drawn(families: list[str], draw: int) -> dict[str, list[str]]:
    """What each site annotates: every relation at one or two sites, no site without one."""
    random_ = random.Random(draw)
    while True:
        knows: dict[str, list[str]] = {site: [] for site in SITES}
        for name in families:
            for site in random_.sample(SITES, random_.choice((1, 2))):
                knows[site].append(name)
        if all(knows.values()):
            return knows


def written(folder: Path, *, draw: int, whole: bool) -> tuple[dict, list[dict]]:
    """The sites' files, and their tables; with `whole`, every site annotates every relation."""
    train, test = blocks(TRAIN), blocks(TEST)
    families = sorted({family(one) for one in train} - {"Other"})
    relations = sorted({one[1].strip() for one in train} - {"Other"})
    knows = dict.fromkeys(SITES, families) if whole else drawn(families, draw)
    random.Random(draw).shuffle(train)
    tables = []
    for place, site in enumerate(SITES):
        own = train[place :: len(SITES)]
        held = len(own) // 10
        parts = {"dev": own[:held], "test": test[place :: len(SITES)]}
        parts["train"] = [
            one if family(one) in knows[site] else [one[0], "Other", *one[2:]] for one in own[held:]
        ]
        table: dict = {"name": site}
        for part, found in parts.items():
            path = folder / f"{site}-{part}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join("\n".join(one) for one in found) + "\n", encoding="utf-8")
            table[part] = str(path.resolve())
        table["annotates"] = [name for name in relations if name.partition("(")[0] in knows[site]]
        table["test_annotates"] = relations
        tables.append(table)
    return knows, tables


def measured(variant: str, draw: int, out: Path, encoder: Path, more: list[str]) -> dict:
    folder = out / f"{variant}-{draw}"
    knows, tables = written(folder / "text", draw=draw, whole=variant == "complete")
    tree = {
        "name": "pairs",
        "task": "re",
        "method": "pseudo-complete",
        "rounds": 8,
        "seed": draw,
        "data": {"format": "semeval", "train_share": 0.25},
        "classifier": {"encoder": str(encoder.resolve())},
        "select": {"every": 4, "by": "micro"},
        "training": {"learning_rate": 2e-4, "batch_size": 8, "local_epochs": 1, "decay": 1.0},
        "options": {"warmup_rounds": 3},
        "site": tables,
    }
    began = time.perf_counter()
    result = run(parse(tree, [*VARIANTS[variant], *more]), out=folder / "run").result
    lacked, own = [0, 0, 0], [0, 0, 0]
    truth = drawn(sorted({name.partition("(")[0] for table in tables
                          for name in table["test_annotates"]}), draw)  # fmt: skip
    for site, scores in result.scores.sites.items():
        for name, one in scores["micro"]["types"].items():
            into = own if name.partition("(")[0] in truth[site] else lacked
            for at, key in enumerate(("true", "predicted", "support")):
                into[at] += one[key]
    return {
        "variant": variant,
        "draw": draw,
        "annotates": knows,
        "more": more,
        "micro": round(100 * result.scores.overall["micro"]["f1"], 2),
        "own": f1(own),
        "lacked": f1(lacked),
        "dev": [round(100 * turn.dev["micro"], 1) for turn in result.history if turn.dev],
        "seconds": round(time.perf_counter() - began),
        "date": date.today().isoformat(),
    }


def f1(three: list[int]) -> float:
    right, predicted, gold = three
    return round(200 * right / (predicted + gold), 2) if predicted + gold else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/pairs"))
    parser.add_argument("--keep", type=Path, default=HERE / "pairs.jsonl")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--draws", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--set", dest="more", nargs="*", default=[], help="for every run")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    lines = [json.loads(one) for one in given.keep.read_text().splitlines()] if (
        given.keep.exists()
    ) else []  # fmt: skip
    if given.table:
        table(lines)
        return
    encoder = given.out / "minilm-3"
    place = HERE.parent / "feded" / "cut.py"
    spec = importlib.util.spec_from_file_location("cut", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given.out.mkdir(parents=True, exist_ok=True)
    module.cut(encoder, layers=3)
    done = {(one["variant"], one["draw"], *one["more"]) for one in lines}
    for draw in given.draws:
        for variant in given.variants:
            if (variant, draw, *given.more) not in done:
                line = json.dumps(measured(variant, draw, given.out, encoder, given.more))
                print(line, file=sys.stderr, flush=True)
                with open(given.keep, "a", encoding="utf-8") as file:
                    file.write(line + "\n")


def table(lines: list[dict]) -> None:
    print(
        "| | micro F1 by draw | mean | own relations | relations never annotated there | seconds |"
    )
    print("|---" * 6 + "|")
    for variant in dict.fromkeys(one["variant"] for one in lines):
        own = [one for one in lines if one["variant"] == variant]
        means = [f"{statistics.mean(one[key] for one in own):.1f}"
                 for key in ("micro", "own", "lacked")]  # fmt: skip
        draws = ", ".join(f"{one['micro']:.1f}" for one in own)
        seconds = statistics.mean(one["seconds"] for one in own)
        print(f"| {variant} | {draws} | {' | '.join(means)} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
