"""A BART out of MiniLM on the training parts of free corpora; --sample writes noised text again.

python benchmarks/pretrain/run.py --out bart --minutes 32
python benchmarks/pretrain/run.py --out bart --sample 5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from confide.data.batches.denoising import Batching, denoising_batch
from confide.data.batches.noise import Noise
from confide.data.batches.passages import Cutter, passages
from confide.data.corpus.corpora import locate
from confide.jobs.pretrain import Budget, pretrain
from confide.jobs.pretrain.plan import planned
from confide.learning.bart_files import load_bart
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.text_pieces import load_pieces
from confide.models.bart import WritingBart
from confide.text.formats import read

ROOT = "$CONFIDE_DATA"
DOMAINS = ("ai", "literature", "music", "politics", "science")
COLUMNS = ("ncbi_disease_ner", "bc5cdr_ner", "bc2gm_ner")
# The ADE corpus has no split. Sentences with an annotated effect are where models are measured, so
# only those without one are learnt from.
TEXTS = [
    f"{ROOT}/ade_corpus_v2/ADE-NEG.txt",
    f"{ROOT}/ncbi_disease_ner/train.tsv",
    f"{ROOT}/bc5cdr_ner/train.tsv",
    f"{ROOT}/psytar/all/train.txt",
    f"{ROOT}/bc2gm_ner/train.tsv",
    f"{ROOT}/biored/Train.PubTator",
    *(f"{ROOT}/crossner/{domain}/train.txt" for domain in DOMAINS),
]
WITHOUT = [
    *(f"{ROOT}/{name}/{part}.tsv" for name in COLUMNS for part in ("devel", "test")),
    *(f"{ROOT}/psytar/all/{part}.txt" for part in ("dev", "test")),
    *(f"{ROOT}/biored/{part}.PubTator" for part in ("Dev", "Test")),
    f"{ROOT}/ade_corpus_v2/DRUG-AE.rel",
    *(f"{ROOT}/crossner/{d}/{part}.txt" for d in DOMAINS for part in ("dev", "test")),
]
UNSEEN = f"{ROOT}/bc5cdr_ner/devel.tsv"


def sample(folder: Path, count: int) -> None:
    """Noised sentences that were not learnt from, and what the model writes for them."""
    pieces = load_pieces(folder)
    denoiser = Denoiser(WritingBart(load_bart(str(folder)).loaded.model), Denoising())
    cutter = Cutter(pieces, pieces.continues_V, longest=126)
    found = [one for one in cutter.cut(read(locate(UNSEEN)).documents[:200]) if len(one.ids_P) < 40]
    how = Batching(pieces.specials, Noise())
    chosen = np.random.default_rng(1).permutation(len(found))[:count]
    for place in chosen:
        batch = denoising_batch(passages(found), np.array([place]), how, seed=1)
        source = batch.source_BP[0].tolist()
        written = denoiser.written(source, pieces.specials, longest=60)
        print("text   ", pieces.text(found[place].ids_P.tolist()))
        print("noised ", pieces.text(source[1:-1]))
        print("written", pieces.text(written), "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--sample", type=int)
    given = parser.parse_args()
    if given.sample:
        sample(given.out, given.sample)
        return
    done = pretrain(
        TEXTS,
        out=given.out,
        budget=Budget(given.steps, given.minutes),
        plan=planned(given.set),
        without=WITHOUT,
        resume=given.resume,
        say=lambda line: print(line, flush=True),
    )
    print(done)


if __name__ == "__main__":
    main()
