"""Every pair of a method and a kind, from the command line, on a published corpus cut short.

    python benchmarks/house/matrix/run.py --out runs/matrix

Three sites and three rounds are enough to see that a pair runs and learns, and no more: the scores
say nothing of which is better. Finished pairs are in OUT/measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))  # what cuts corpora

from shrinking import shrink

from confide.kinds import KINDS as EVERY
from confide.kinds.protocol import Kind
from confide.methods import METHODS
from confide.settings import REFERENCES, load_settings

NCBI = """
[data]
format = "conll"
[split]
sites = 3
train = "$CONFIDE_DATA/ncbi_disease_ner/train.tsv"
dev = "$CONFIDE_DATA/ncbi_disease_ner/devel.tsv"
test = "$CONFIDE_DATA/ncbi_disease_ner/test.tsv"
"""
SETTINGS = {
    "ner": NCBI,
    "re": """
public.share = 0.2
[data]
format = "biobert"
dev_share = 0.2
[split]
sites = 3
holdout_from = "corpus"
train = "$CONFIDE_DATA/euadr_re/4/train.tsv"
test = "$CONFIDE_DATA/euadr_re/4/test.tsv"
""",
    "bags": """
[data]
format = "nyt10"
dev_share = 0.2
[split]
sites = 3
holdout_from = "corpus"
train = "$CONFIDE_DATA/gids/test.tsv"
test = "$CONFIDE_DATA/gids/dev.tsv"
""",
}
"""What each task is tried on."""
SMALL = ("rounds=3", "select.every=1", "seed=1")
KINDS: dict[str, tuple[str, ...]] = {
    "tagger": ("model.bilstm_hidden=50", "training.optimiser=adam", "training.learning_rate=0.01"),
    "encoder": ("model.kind=encoder", "training.optimiser=adamw", "training.learning_rate=1e-4"),
    "lightner": (
        "model.kind=lightner",
        "lightner.tune=all",
        "training.optimiser=adamw",
        "training.learning_rate=1e-4",
    ),
    "spans": ("model.kind=spans", "training.optimiser=adamw", "training.learning_rate=1e-4"),
    "linear": ("model.kind=linear",),
    "relations": (),
    "bags": (),
}
READER = ("bags.reader=encoder", "training.optimiser=adamw", "training.learning_rate=1e-4")
ADAM = ("training.optimiser=adam", "training.learning_rate=1e-3", "rounds=30", "select.every=10")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="pairs whose name contains this")
    parser.add_argument("--bart", default="", help="a BART's folder, for LightNER")
    given = parser.parse_args()
    data = Path(os.environ["CONFIDE_DATA"])
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "measured.jsonl"
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    done = {json.loads(line)["pair"] for line in lines}
    for name, kind, own in cells():
        if given.only not in name or name in done:
            continue
        if kind.name == "lightner" and not given.bart:
            print(f"{name}: needs --bart")
            continue
        settings = given.out / f"{kind.task}.toml"
        settings.write_text(f'task = "{kind.task}"\n{SETTINGS[kind.task]}', encoding="utf-8")
        shrink(load_settings(settings), data, given.out / "data")
        own += [f"lightner.bart={given.bart}"] if kind.name == "lightner" else []
        print(once(name, settings, own, given.out), flush=True)


def cells() -> Iterator[tuple[str, Kind, list[str]]]:
    """Every pair, that of bags a second time with an encoder, and the references of every kind."""
    for name, pair in METHODS.items():
        own = [f"method={pair.method}", *SMALL, *KINDS[pair.kind.name]]
        own += ["public.share=0.2"] if pair.public and pair.task == "ner" else []
        own += ADAM if pair.method == "fedner" else ()
        yield name, pair.kind, own
        if pair.kind.name == "bags":
            yield f"{name}-encoder", pair.kind, [*own, *READER]
    for reference in REFERENCES:
        for kind in EVERY.values():
            public = kind.Spec.Public is not None
            if reference == "public-only" and not public:
                continue
            own = [f"method={reference}", *SMALL, *KINDS[kind.name]]
            if reference == "public-only":
                own += ["base=feded", *(["public.share=0.2"] if kind.task == "ner" else [])]
            yield f"{reference}-{kind.name}", kind, own


def once(name: str, settings: Path, overrides: list[str], out: Path) -> str:
    """Run a pair, and keep what it came to."""
    command = [sys.executable, "-m", "confide", "run", str(settings), "--out", str(out / name)]
    command += [part for one in overrides for part in ("--set", one)]
    start = time.time()
    environment = {**os.environ, "CONFIDE_DATA": str(out / "data")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        return f"{name}: FAILED: {ended.stderr.strip().splitlines()[-1:]}"
    result = json.loads((out / name / "result.json").read_text(encoding="utf-8"))
    kind, score = next(iter(result["scores"]["overall"].items()))
    number = score.get("f1", score.get("mean")) if isinstance(score, dict) else score
    losses = [entry["loss"] for entry in result["history"]]
    line = {
        "pair": name,
        "losses": [losses[0], losses[-1]],
        "score": {kind: number},
        "megabytes_up": sum(result["bytes"]["up"].values()) / 1e6,
        "seconds": round(time.time() - start, 1),
        "overrides": overrides,
    }
    with open(out / "measured.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return f"{name}: loss {losses[0]} -> {losses[-1]}, {line['score']}"


if __name__ == "__main__":
    main()
