"""What one site's bytes of one round tell a curious server: plainly, masked, masked with noise.

    python benchmarks/security/attacks/bytes.py --out runs/bytes [--only ATTACK] [--sums plain] \
        [--seed N]
    python benchmarks/security/attacks/bytes.py --table

Five sites, one round of training; the server keeps every byte that comes from site-1, and every sum
that it opens. It takes what comes for what a plain reply would be, or reads the lanes as the change
that they hold. `plain` and `masked` are FedAvg; `noise` is DP-FedSGD under masks, which draws every
document and spends all of ε = 8 in the round: nothing is better for the server.

frequency a tagger: which word each keyed digest (each bucket) is, by how often it occurs
rows      a tagger: which keyed digests the site has, by the rows that moved most
vectors   the same from public vectors: which word each row is, the nearest in the file
pieces    relations with a public encoder: which word pieces the site has, in clear
inversion a public encoder, one step on four sentences: which piece stood where (inverting.py)

`chance` is what guesses without the bytes give. The opened sum is looked at in the same way
(`sum`): what a sum tells, no mask hides. Under noise no word is counted and no table has a row for
a word (`sent: false`). Finished cells are in OUT/bytes.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from counting import frequencies
from inverting import inversion
from listening import changes_in, ran, settings_of, site_tables, step_of
from lying import dealt, read_conll, written

from confide.federation.keys import read_key
from confide.federation.messages import decode
from confide.federation.secure.messages import Opening
from confide.kinds.agreement import COUNT_BUCKETS
from confide.settings import parse
from confide.training.vocabulary import SPECIALS, KeyedVocabulary, normalise

sys.path.append(str(Path(__file__).parents[2]))

from resumable import machine

SITES, EACH, PAIRS = 5, 300, 60
HOW = "lower-digits"
WORDS, PIECES = "word.weight", "encoder.embeddings.word_embeddings.weight"
ATTACKS = ("frequency", "rows", "vectors", "pieces", "inversion")
SUMS = ("plain", "masked", "noise")
HERE = Path(__file__).parent


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


def ner_texts(given: argparse.Namespace, each: int) -> tuple[list[Any], list[dict[str, str]]]:
    """NCBI-disease dealt to the sites: the sentences, and the parts as they are written."""
    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    train = dealt(read_conll(str(corpus / "train.tsv")), SITES, each=each, seed=given.seed)
    held_out = written(read_conll(str(corpus / "test.tsv"))[:50])
    return train, [{"train": written(one), "test": held_out, "dev": held_out} for one in train]


def tagger(
    given: argparse.Namespace, sums: str, attack: str, vectors: Path | None
) -> list[dict[str, Any]]:
    train, texts = ner_texts(given, EACH)
    model = {"vectors": str(vectors), "word_dim": 50} if vectors else {}
    tree = settings_of(given, sums) | {
        "site": site_tables(given, texts, "conll"), "data": {"format": "conll", "scheme": "iob2"},
        "model": model,
        "training": {"optimiser": "adam", "learning_rate": 0.008, "batch_size": 16,
                     "local_epochs": 1},
    }  # fmt: skip
    heard, folder = ran(given, tree)
    method, key = "fedavg-tagger", read_key(folder.key_file(parse(tree)))
    counts = words_of(train[0])
    if attack == "frequency":
        public = read_conll(str(Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner/devel.tsv"))
        return frequencies(
            heard, method=method, sums=sums, own=counts, public=words_of(public), key=key
        )
    before, own, summed = changes_in(heard, method, WORDS, sums)
    form = decode(step_of("take", method).ask, heard.asks["take", 0]).form
    words = KeyedVocabulary(form.word_digests_V16, "word", key)
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


def unsent(given: argparse.Namespace, attack: str) -> list[dict[str, Any]]:
    """A tagger under noise: whether any word is counted, and how many rows are words'."""
    _, texts = ner_texts(given, 4)
    tree = settings_of(given, "noise") | {
        "site": site_tables(given, texts, "conll"),
        "data": {"format": "conll", "scheme": "iob2", "types": ["Disease"]},
        "model": {"context": "minilm", "character": "none", "word_dim": 4, "bilstm_hidden": 8},
    }
    heard, _ = ran(given, tree)
    step = step_of("add_noisily", "dp-fedsgd-tagger")
    opening = decode(Opening, heard.asks[step.name, 1])
    weights = decode(step.ask, opening.ask_B.tobytes()).weights
    rows = len(weights[WORDS]) - SPECIALS if WORDS in weights else 0
    counted = {"count_vocabulary", COUNT_BUCKETS.name} & {name for name, _ in heard.asks}
    sent = bool(counted) if attack == "frequency" else rows > 0
    return [{"attack": attack, "seen": "bytes", "sent": sent, "rows": rows}]


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
    """Relations in GAD with the public encoder `minilm`, 60 sentences a site."""
    from confide.training.encoder import load_encoder, tokenizer_of

    lines = (Path(os.environ["CONFIDE_DATA"]) / "gad_re/1/train.tsv").read_text().splitlines()
    order = np.random.default_rng(given.seed).permutation(len(lines))
    texts = []
    for number in range(SITES):
        parts = {"train": order[number * PAIRS :][:PAIRS], "dev": order[-4:], "test": order[-4:]}
        texts.append({p: "".join(f"{lines[i]}\n" for i in places) for p, places in parts.items()})
    tree = settings_of(given, sums) | {
        "site": site_tables(given, texts, "tsv"), "task": "re", "data": {"format": "biobert"},
        "classifier": {"encoder": "minilm"},
        "training": {"optimiser": "adamw", "learning_rate": 1e-4, "batch_size": 8,
                     "local_epochs": 1},
    }  # fmt: skip
    if sums == "noise":
        tree["data"] |= {"types": ["GENE", "DISEASE"], "relations": ["related"]}
        tree["pairs"] = {"types": [["GENE", "DISEASE"]]}
    heard, _ = ran(given, tree)
    _, own, summed = changes_in(heard, f"{tree['method']}-relations", PIECES, sums)
    tokenizer = tokenizer_of(load_encoder("minilm").folder)
    text = [lines[i].split("\t")[0] for i in order[:PAIRS]]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bytes"))
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--sums", choices=SUMS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table()
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "bytes.jsonl"
    for attack in ATTACKS:
        for sums in SUMS:
            cell = f"{attack}/{sums}/{given.seed}"
            done = kept.read_text() if kept.exists() else ""
            wanted = given.only in (None, attack) and given.sums in (None, sums)
            if not wanted or f'"cell": "{cell}"' in done:
                continue
            with open(kept, "a", encoding="utf-8") as file:
                for row in tried(given, attack, sums):
                    numbers = {
                        k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()
                    }
                    line = {"cell": cell, "sums": sums, **numbers}
                    line |= {"seed": given.seed, **machine(), "command": COMMAND}
                    file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), flush=True)


COMMAND = "python benchmarks/security/attacks/bytes.py --out runs/bytes"


def tried(given: argparse.Namespace, attack: str, sums: str) -> list[dict[str, Any]]:
    """One attack on one way to send."""
    if attack == "inversion":
        return inversion(given, sums)
    if attack == "pieces":
        return pieces(given, sums)
    if sums == "noise":
        return unsent(given, attack)
    glove = Path(os.environ["CONFIDE_DATA"]) / "glove_subset" / "glove.6B.50d.head2446.txt"
    return tagger(given, sums, attack, glove_in_utf8(given, glove) if attack == "vectors" else None)


def table() -> None:
    """Each attack's number by what is sent, chance, and that of the opened sums."""
    lines = [json.loads(one) for one in (HERE / "bytes.jsonl").read_text().splitlines()]
    print("| attack | chance | " + " | ".join(f"{s}, {x}" for x in ("bytes", "sum") for s in SUMS))
    for attack in ATTACKS:
        own = {(one["sums"], one["seen"]): one for one in lines if one["attack"] == attack}
        chance = [one["chance"] for one in own.values() if "chance" in one]
        cells = [
            "–" if one is None else "not sent" if one.get("sent") is False else
            f"{100 * one['found']:.1f}"
            for one in (own.get((s, x)) for x in ("bytes", "sum") for s in SUMS)
        ]  # fmt: skip
        print(
            f"| {attack} | {100 * min(chance):.1f} to {100 * max(chance):.1f} |", *cells, sep=" | "
        )


def glove_in_utf8(given: argparse.Namespace, path: Path) -> Path:
    """The vectors with their few lines left out that are not UTF-8."""
    lines = path.read_bytes().splitlines()
    good = [line for line in lines if line.isascii() and len(line.split()) == 51]
    out = given.out / "glove.txt"
    out.write_bytes(b"\n".join(good) + b"\n")
    return out


if __name__ == "__main__":
    sys.exit(main())
