"""A large encoder over real processes: the memory of server and sites, and the bytes.

A server and five sites as real processes on loopback, sums under masks or plain, fine-tune all of
an encoder of BERT-base size (random weights, a vocabulary of 30,000) on a few sentences, for two
rounds with development text scored after each. The peaks are those of a run's own processes, over
the 4 bytes of each weight.

    python benchmarks/speed/flare/large.py --json large.jsonl [--sites 5] [--layers 12]
        [--rounds 1] [--sums plain] [--travel "rows, whole" "rows, once" "int8, int4"]

Needs 24 GB of memory at its full size, 8 GB with two sites, whose sums can only be plain.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kits import Seen, founded, measured

from confide.corpora.synthetic import HABITS, documents
from confide.flare.nvidia import processes

RUN = """
method = "fedavg"
rounds = {rounds}
[model]
kind = "encoder"
[classifier]
encoder = "large"
max_length = 64
[encoder]
tune = "all"
[training]
optimiser = "adamw"
learning_rate = 2e-5
batch_size = 8
local_epochs = 1
[federation]
sums = "{sums}"
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


def consortium(folder: Path, model: Path, count: int, *, sentences: int, sums: str) -> list[Any]:
    """The kits of a server, `count` sites with made-up text and a copy of the model, and a lead."""
    parts = {}
    for part, of_each in (("train", sentences), ("dev", 8), ("test", 8)):
        size = of_each * count
        made = [one for habit in HABITS for one in documents(habit.site, part, sentences=size)]
        parts[part] = made[:size]
    names = [f"site-{number}" for number in range(1, count + 1)]
    more = f'context = "{model}"\n'
    if sums == "plain":
        more += f"[guards]\nmasked = false\nmin_sites = {min(3, count)}\n"
    kits = founded(folder, parts, sites=names, agreed=["fedavg-encoder"], more=more)
    shutil.copytree(model, Path(kits[0].path) / processes.MODELS / "large")
    return kits


def libraries() -> int:
    """The resident bytes of a process that has imported what a run imports, and nothing else."""
    code = (
        "import confide.flare.site, confide.kinds.encoder, nvflare.apis.controller_spec\n"
        "import transformers.models.bert.modeling_bert, psutil\n"
        "print(psutil.Process().memory_info().rss)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout)


def told(result: Any, seen: Seen) -> dict[str, Any]:
    """Bytes of all sites, and memory over the weights' bytes: at its peak, and at the middle."""
    assert result.bytes is not None
    model = 4 * result.parameters
    sizes = {name: [size for _, size in found] for name, found in seen.items()}
    server = sizes.pop("server")
    return {
        "rounds": result.rounds,
        "parameters": result.parameters,
        "GB up": round(sum(result.bytes.up.values()) / 1e9, 2),
        "GB down": round(sum(result.bytes.down.values()) / 1e9, 2),
        "server, models": round(max(server) / model, 2),
        "server, models, median of the time": round(statistics.median(server) / model, 2),
        "site, models": round(statistics.median(map(max, sizes.values())) / model, 2),
        "libraries, models": round(libraries() / model, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--sentences", type=int, default=24, help="of each site")
    parser.add_argument("--sums", choices=["masked", "plain"], default="masked")
    parser.add_argument("--travel", nargs="+", default=["rows, whole", "rows, once", "int8, int4"])
    parser.add_argument("--json", type=Path, help="append a line for each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = encoder(folder / "made" / "large", given.layers)
        kits = consortium(folder, model, given.sites, sentences=given.sentences, sums=given.sums)
        settings = RUN.format(sums=given.sums, rounds=given.rounds)
        measured(kits, settings, given.travel, told, folder=folder, keep=given.json)


if __name__ == "__main__":
    main()
