"""A BART made from an encoder, and its training on passages."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from confide.data.batches.denoising import Batching, DenoisingBatch, denoising_batch, epoch_plan
from confide.data.batches.least import check_covers
from confide.data.batches.noise import Noise
from confide.data.batches.passages import Cutter, Passages
from confide.learning.bart_files import filled, sizes_of
from confide.learning.bart_making import bart_arrays, bart_config, write_bart
from confide.learning.denoising import Denoiser
from confide.learning.encoder_files import Config
from confide.learning.fit import FitReport
from confide.learning.text_pieces import Pieces, load_pieces
from confide.models.bart import WritingBart
from confide.seeds import derive_seed


class MadeBart(NamedTuple):
    """A BART made from the encoder in `base`, its `config.json`, and its pieces."""

    model: WritingBart
    config: Config
    pieces: Pieces
    base: Path


def made_bart(base: Path, *, decoder_layers: int, dropout: float = 0.0) -> MadeBart:
    """The BART of that encoder. Raises what `make_bart` and `load_pieces` raise."""
    config = bart_config(base, decoder_layers)
    made = {name: torch.tensor(value) for name, value in bart_arrays(base, config).items()}
    sizes = replace(sizes_of(config, base), dropout=dropout)
    with TemporaryDirectory() as folder:  # the tokenizer as it will be read beside that config.json
        write_bart(Path(folder), {}, config=config, tokenizer=base)
        pieces = load_pieces(Path(folder))
    return MadeBart(WritingBart(filled(sizes, made, where=base)), config, pieces, base)


@dataclass(frozen=True)
class Reading:
    """How text becomes noised passages. `longest` includes special pieces."""

    pieces: Pieces
    noise: Noise
    longest: int

    def cutter(self) -> Cutter:
        """The cutter of documents into passages."""
        return Cutter(self.pieces, self.pieces.continues_V, longest=self.longest - 2)

    def batching(self, pieces_per_batch: int) -> Batching:
        """How passages become batches of this many pieces."""
        return Batching(self.pieces.specials, self.noise, self.longest, pieces_per_batch)

    def measured(self, passages: Passages, *, seed: int, most: int = 0) -> list[DenoisingBatch]:
        """Batches whose noise and order depend only on the seed; none without passages.

        They stop at `most` pieces to write; 0: all.
        """
        if not len(passages):
            return []
        how = self.batching(max(2048, self.longest))
        plan = epoch_plan(passages, how, seed=seed)
        found: list[DenoisingBatch] = []
        for places in plan:
            found.append(denoising_batch(passages, places, how, seed=seed))
            if most and sum(batch.tokens for batch in found) >= most:
                break
        return found


def fit_texts(
    denoiser: Denoiser, passages: Passages, how: Batching, *, epochs: int, most: int = 0, seed: int
) -> FitReport:
    """Train for some epochs at a constant rate; the report's loss is per piece, in nats.

    Training ends after `epochs` or `most` steps (0: no bound), whichever comes first.

    Raises DataError if there is no passage, or if the training diverges, and SmallBatchError as
    `fit.train` does.
    """
    started, steps, tokens, seen, loss = time.perf_counter(), 0, 0, 0, 0.0
    for epoch in range(epochs):
        own = derive_seed(seed, "epoch", epoch)
        pieces, losses = 0, 0.0
        for places in islice(epoch_plan(passages, how, seed=own), most - steps if most else None):
            check_covers(len(places))
            batch = denoising_batch(passages, places, how, seed=own)
            losses += denoiser.step(batch, number=steps, share=0.0) * batch.tokens
            steps, pieces, seen = steps + 1, pieces + batch.tokens, seen + len(places)
        loss, tokens = losses / pieces, tokens + pieces
        if most and steps == most:
            break
    return FitReport(loss, seen, tokens, steps, time.perf_counter() - started)
