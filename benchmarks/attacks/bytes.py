"""What one site's bytes of one round tell a curious server: plainly, and under masks.

    python benchmarks/attacks/bytes.py --out runs/bytes [--only rows|vectors|pieces] [--seed N]

Five sites, FedAvg, one round of training; the server keeps every byte that comes from site-1, and
tries to tell which words (of pieces, which pieces) the text of site-1 has: a row of a table moves
if its word occurs. It takes what comes for what a plain reply would be, or reads the lanes as the
change that they hold, and takes the rows that moved most for those of the site, as many as it has.

rows      a tagger: which keyed digests the site has
vectors   the same from public vectors: which word each row is, the nearest in the file
pieces    relations with a public encoder: which word pieces the site has, in clear

`chance` is what the same number of rows at random would give. The common model of the next round is
looked at in the same way (`sum`): what a sum tells, no mask hides. Finished cells are in
OUT/bytes.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lying import dealt, read_conll, written
from run import machine

import confide.runs.run
from confide.data.batches.vocabulary import SPECIALS, KeyedVocabulary, normalise
from confide.federation.changes import restored
from confide.federation.federation import Delivery
from confide.federation.inprocess import SequentialEngine
from confide.federation.keys import read_key
from confide.federation.messages import decode
from confide.federation.secure.exchanges import opened
from confide.federation.secure.messages import Masked, Opening
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.settings import parse

SITES, EACH, WATCHED = 5, 300, "site-1"
HOW = "lower-digits"
WORDS, PIECES = "word.weight", "encoder.embeddings.word_embeddings.weight"
ATTACKS = ("rows", "vectors", "pieces")


@dataclass
class Heard:
    """What the server saw of one site, and what it asked."""

    asks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    replies: dict[tuple[str, int], bytes] = field(default_factory=dict)


def listening(heard: Heard) -> type[SequentialEngine]:
    """The engine of one machine, that keeps the first ask and reply of each step and round."""

    class Listening(SequentialEngine):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            for found in super().deliver(step, round, asks=asks, timeout=timeout):
                if found.site == WATCHED:
                    heard.asks.setdefault((step, round), asks[found.site])
                    heard.replies.setdefault((step, round), bytes(found.reply))
                yield found

    return Listening


def step_of(name: str, method: str) -> Any:
    return next(step for step in METHODS[method].steps if step.name == name)


def changes_in(heard: Heard, method: str, table: str, sums: str) -> tuple[np.ndarray, ...]:
    """The table as asked, the site's change of it as its bytes say, and that of the sum."""
    step = step_of("train", method)
    if sums == "plain":
        ask = decode(step.ask, heard.asks["train", 1])
        reply = restored(step, ask, decode(step.reply, heard.replies["train", 1]))
        own = reply.weights[table] / np.float32(reply.weight) - ask.weights[table]
        after = decode(step.ask, heard.asks["train", 2])
    else:
        opening = decode(Opening, heard.asks["train", 1])
        ask = decode(step.ask, opening.ask_B.tobytes())
        _, layout = opened(step, opening, ask)
        lanes = decode(Masked, heard.replies["mask", 1]).lanes_B
        part = next(p for p in layout.parts if (p.field, p.name) == ("weights", table))
        own = layout.views(np.array(lanes))["weights", table].view("<i4") / part.scale
        own = own.reshape(part.shape)
        after = decode(step.ask, decode(Opening, heard.asks["train", 2]).ask_B.tobytes())
    return ask.weights[table], own, after.weights[table] - ask.weights[table]


def guessed(change_VD: np.ndarray, held_V: np.ndarray, own_V: np.ndarray) -> dict[str, float]:
    """How many of a site's rows are among as many rows that moved most, and the area under ROC."""
    ranks = np.linalg.norm(change_VD[held_V].astype(np.float64), axis=1)
    own = own_V[held_V]
    draw = np.random.default_rng(0).permutation(len(ranks))  # of equals, whichever
    order = draw[np.argsort(-ranks[draw], kind="stable")]
    places = np.argsort(np.argsort(ranks[draw], kind="stable"))[np.argsort(draw)] + 1
    k, others = int(own.sum()), int((~own).sum())
    area = (places[own].sum() - k * (k + 1) / 2) / max(1, k * others)
    return {
        "rows": len(ranks), "has": k, "found": float(own[order[:k]].mean()),
        "chance": k / len(ranks), "area": float(area), "moved": float((ranks > 0).mean()),
        "moved_rightly": float(own[ranks > 0].mean()) if (ranks > 0).any() else 0.0,
    }  # fmt: skip


def words_of(sentences: list[Any]) -> Counter[str]:
    return Counter(normalise(word, HOW) for sentence in sentences for word, _ in sentence)


def tagger(given: argparse.Namespace, sums: str, vectors: Path | None) -> list[dict[str, Any]]:
    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    train = dealt(read_conll(str(corpus / "train.tsv")), SITES, each=EACH, seed=given.seed)
    held_out = read_conll(str(corpus / "test.tsv"))[:50]
    tables = []
    for number, text in enumerate(train, 1):
        folder = given.out / "run" / f"data-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.conll").write_text(written(text), encoding="utf-8")
        (folder / "test.conll").write_text(written(held_out), encoding="utf-8")
        tables.append(
            {"name": f"site-{number}"}
            | {p: str(folder / f"{p}.conll") for p in ("train", "test")}
            | {"dev": str(folder / "test.conll")}
        )
    model = {"vectors": str(vectors), "word_dim": 50} if vectors else {}
    tree = settings_of(given, sums) | {
        "site": tables, "data": {"format": "conll", "scheme": "iob2"}, "model": model,
        "training": {"optimiser": "adam", "learning_rate": 0.008, "batch_size": 16,
                     "local_epochs": 1},
    }  # fmt: skip
    heard, folder = ran(given, tree)
    method = "fedavg-tagger"
    before, own, summed = changes_in(heard, method, WORDS, sums)
    form = decode(step_of("take", method).ask, heard.asks["take", 0]).form
    words = KeyedVocabulary(form.word_digests_V16, "word", read_key(folder.key_file(parse(tree))))
    counts = words_of(train[0])
    ids = dict(zip(counts, words.ids(list(counts)).tolist(), strict=True))
    own_V = np.zeros(len(before), bool)
    own_V[list(ids.values())] = True
    common_V = np.arange(len(before)) >= SPECIALS
    found = []
    for seen, change in (("bytes", own), ("sum", summed)):
        row = {"attack": "rows", "seen": seen, **guessed(change, common_V, own_V)}
        if vectors:
            read = in_clear(before + change, change, vectors)
            row |= {"attack": "vectors", **named(read, counts, ids, own_V, common_V)}
        found.append(row)
    return found


def file_of(path: Path) -> tuple[list[str], np.ndarray]:
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    width = len(lines[0])
    lines = [line for line in lines if len(line) == width]
    return [line[0] for line in lines], np.array([line[1:] for line in lines], np.float64)


def in_clear(after_VD: np.ndarray, change_VD: np.ndarray, vectors: Path) -> list[str]:
    """For each row the word of the file whose vector is nearest."""
    names, file_KD = file_of(vectors)
    unit = file_KD / np.linalg.norm(file_KD, axis=1, keepdims=True)
    return [names[place] for place in (after_VD @ unit.T).argmax(axis=1)]


def named(
    read: list[str], counts: Counter[str], ids: dict[str, int], own_V: np.ndarray, held_V: Any
) -> dict[str, float]:
    """Of the site's words, how many rows are read as the right word; by words and running words."""
    right = {w for w, row in ids.items() if row >= SPECIALS and normalise(read[row], HOW) == w}
    return {
        "distinct": len(right) / len(counts),
        "running": sum(counts[w] for w in right) / sum(counts.values()),
    }


def pieces(given: argparse.Namespace, sums: str) -> list[dict[str, Any]]:
    """Relations in GAD with the public encoder of the extra `minilm`, 60 sentences a site."""
    from confide.learning.cutting import tokenizer_of
    from confide.learning.encoder import load_encoder

    lines = (Path(os.environ["CONFIDE_DATA"]) / "gad_re/1/train.tsv").read_text().splitlines()
    order = np.random.default_rng(given.seed).permutation(len(lines))
    tables = []
    for number in range(SITES):
        folder = given.out / "run" / f"data-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"train": order[number * 60 : number * 60 + 60], "dev": order[-4:]}
        parts["test"] = parts["dev"]
        for part, places in parts.items():
            (folder / f"{part}.tsv").write_text("".join(f"{lines[i]}\n" for i in places))
        tables.append({"name": f"site-{number + 1}"} | {p: str(folder / f"{p}.tsv") for p in parts})
    tree = settings_of(given, sums) | {
        "site": tables, "task": "re", "data": {"format": "biobert"},
        "classifier": {"encoder": "minilm"},
        "training": {"optimiser": "adamw", "learning_rate": 1e-4, "batch_size": 8,
                     "local_epochs": 1},
    }  # fmt: skip
    heard, _ = ran(given, tree)
    _, own, summed = changes_in(heard, "fedavg-relations", PIECES, sums)
    tokenizer = tokenizer_of(load_encoder("minilm").folder)
    text = [lines[i].split("\t")[0] for i in order[:60]]
    return [
        {"attack": "pieces", "seen": seen, **read_pieces(change, tokenizer, text)}
        for seen, change in (("bytes", own), ("sum", summed))
    ]


def read_pieces(change_VD: np.ndarray, tokenizer: Any, text: list[str]) -> dict[str, float]:
    """Pieces that are found, and words of one piece that are thereby read in clear."""
    counts: Counter[int] = Counter()
    words: Counter[tuple[int, ...]] = Counter()
    for line in text:
        for word in line.split():
            ids = tuple(tokenizer(word, add_special_tokens=False)["input_ids"])
            counts.update(ids)
            words[ids] += 1
    own_V = np.zeros(len(change_VD), bool)
    own_V[list(counts)] = True
    found = guessed(change_VD, np.ones(len(change_VD), bool), own_V)
    ranks = np.linalg.norm(change_VD.astype(np.float64), axis=1)
    taken = set(np.argsort(-ranks, kind="stable")[: int(own_V.sum())].tolist())
    alone = {ids for ids in words if len(ids) == 1 and ids[0] in taken}
    return found | {
        "distinct": len(alone) / len(words),
        "running": sum(words[ids] for ids in alone) / sum(words.values()),
    }


def settings_of(given: argparse.Namespace, sums: str) -> dict[str, Any]:
    most = {"most_norm": float("inf")} if sums == "plain" else {}
    return {
        "name": "bytes", "method": "fedavg", "key": "simulated", "seed": given.seed, "rounds": 2,
        "select": {"by": "last", "every": 2}, "federation": {"sums": sums, **most},
        "options": {"weighting": "equal"},
    }  # fmt: skip


def ran(given: argparse.Namespace, tree: dict[str, Any]) -> tuple[Heard, RunFolder]:
    """Run, and listen to it."""
    heard = Heard()
    confide.runs.run.SequentialEngine = listening(heard)  # type: ignore[misc]
    folder = given.out / "run" / "run"
    shutil.rmtree(folder, ignore_errors=True)
    confide.runs.run.run(parse(tree), out=folder)
    return heard, RunFolder(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "bytes.jsonl"
    done = kept.read_text() if kept.exists() else ""
    glove = Path(os.environ["CONFIDE_DATA"]) / "glove_subset" / "glove.6B.50d.head2446.txt"
    for attack in ATTACKS:
        for sums in ("plain", "masked"):
            cell = f'"cell": "{attack}/{sums}/{given.seed}"'
            if given.only not in (None, attack) or cell in done:
                continue
            found = (
                pieces(given, sums)
                if attack == "pieces"
                else tagger(
                    given, sums, glove_in_utf8(given, glove) if attack == "vectors" else None
                )
            )
            with open(kept, "a", encoding="utf-8") as file:
                for row in found:
                    numbers = {
                        k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()
                    }
                    line = {"cell": f"{attack}/{sums}/{given.seed}", "sums": sums, **numbers}
                    line |= {"seed": given.seed, **machine()}
                    file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), flush=True)


def glove_in_utf8(given: argparse.Namespace, path: Path) -> Path:
    """The vectors with their few lines left out that are not UTF-8."""
    lines = path.read_bytes().splitlines()
    good = [line for line in lines if line.isascii() and len(line.split()) == 51]
    out = given.out / "glove.txt"
    out.write_bytes(b"\n".join(good) + b"\n")
    return out


if __name__ == "__main__":
    sys.exit(main())
