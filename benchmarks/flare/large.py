"""A large encoder over real processes: the memory of server and sites, and the bytes.

A server and five sites as real processes on loopback, sums under masks, fine-tune all of an encoder
of BERT-base size (random weights, a vocabulary of 30,000) on a few sentences, for two rounds with
development text scored after each. The peaks are those of a run's own processes, over the 4 bytes
of each weight.

    python benchmarks/flare/large.py --json benchmarks/flare/large.jsonl [--sites 5] [--layers 12]
        [--travel "rows, whole" "rows, once" "int8, int4"]

Needs 24 GB of memory at its full size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from kits import Memory, founded

from confide.data.corpus.synthetic import HABITS, documents
from confide.flare.nvidia import processes
from confide.flare.nvidia.lead import coordinate

RUN = """
method = "fedavg"
rounds = 2
[model]
kind = "encoder"
[classifier]
encoder = "large"
longest = 64
[encoder]
tune = "all"
[training]
optimiser = "adamw"
learning_rate = 2e-5
batch_size = 4
local_epochs = 1
[federation]
up = "{up}"
down = "{down}"
"""


def encoder(folder: Path, layers: int) -> Path:
    """Random weights of BERT-base's sizes, but for the number of layers."""
    import tokenizers
    import transformers

    folder.mkdir(parents=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(33, 127))]
    pieces += [f"##{chr(one)}" for one in range(33, 127)]
    pieces += [f"piece{number}" for number in range(30_000 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    config = transformers.BertConfig(vocab_size=len(pieces), num_hidden_layers=layers)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def consortium(folder: Path, model: Path, count: int, sentences: int) -> list[Any]:
    """The kits of a server, `count` sites with made-up text and a copy of the model, and a lead."""
    parts = {}
    for part, of_each in (("train", sentences), ("dev", 8), ("test", 8)):
        size = of_each * count
        made = [one for habit in HABITS for one in documents(habit.site, part, sentences=size)]
        parts[part] = made[:size]
    names = [f"site-{number}" for number in range(1, count + 1)]
    more = f'context = "{model}"\n'
    kits = founded(folder, parts, sites=names, agreed=["fedavg-encoder"], more=more)
    shutil.copytree(model, Path(kits[0].path) / processes.MODELS / "large")
    return kits


def measured(kits: list[Any], out: Path, up: str, down: str) -> dict[str, Any]:
    """One run: seconds, bytes of all sites, and peaks over the weights' bytes."""
    file = out.with_suffix(".toml")
    file.write_text(RUN.format(up=up, down=down))
    memory, start = Memory(), time.perf_counter()
    memory.start()
    try:
        result = coordinate(file, kit=kits[-1].path, out=out).result
    finally:
        seen = memory.stop()
    assert result.bytes is not None
    model = 4 * result.parameters
    found = {name: max(size for _, size in sizes) for name, sizes in seen.items()}
    sites = [size for name, size in found.items() if name != kits[0].name]
    return {
        "travel": f"{up}, {down}",
        "sites": len(kits) - 2,
        "parameters": result.parameters,
        "seconds": round(time.perf_counter() - start),
        "GB up": round(sum(result.bytes.up.values()) / 1e9, 2),
        "GB down": round(sum(result.bytes.down.values()) / 1e9, 2),
        "server, models": round(found.get(kits[0].name, 0) / model, 2),
        "site, models": round(statistics.median(sites) / model, 2) if sites else None,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--sentences", type=int, default=16, help="of each site")
    parser.add_argument("--travel", nargs="+", default=["rows, whole", "rows, once", "int8, int4"])
    parser.add_argument("--json", type=Path, help="append a line for each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = encoder(folder / "made" / "large", given.layers)
        kits = consortium(folder, model, given.sites, given.sentences)
        try:
            for kit in kits[:-1]:
                processes.start(kit, wait=120.0)
            for number, travel in enumerate(given.travel):
                up, down = travel.split(", ")
                line = json.dumps(measured(kits, folder / f"run-{number}", up, down))
                print(line, flush=True)
                if given.json:
                    with given.json.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
        finally:
            for kit in kits[-2::-1]:
                processes.stop(kit)


if __name__ == "__main__":
    main()
