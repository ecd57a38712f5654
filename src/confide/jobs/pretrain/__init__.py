"""A small BART from a BERT encoder and one place's own text, on one machine.

The encoder becomes a BART (`confide.learning.bart_making`) that learns to restore noised text
(Lewis et al. 2020, section 2; `confide.learning.denoising`). It serves prompts, which need a
pretrained encoder and decoder, if no BART can be fetched or the text is from another field.

Nothing leaves the machine, and this is not federated. Like all trained weights, the result may
reveal text it was trained on: pretrain on text that may be shared, or keep the result where the
text is.

What we decide: only the decoder is trained by default, so the encoder stays the same to the bit,
and `delta` keeps the training in a small file. With a budget of steps, a training that was stopped
and resumed gives the same numbers as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.denoising import Batching, DenoisingBatch, denoising_batch, epoch_plan
from confide.errors import RunError
from confide.jobs.pretrain.keeping import (
    CHECKPOINT,
    Arrays,
    Place,
    keep,
    kept,
    write_curve,
    write_facts,
)
from confide.jobs.pretrain.plan import Budget, Pretraining, plain
from confide.jobs.pretrain.plot import plot
from confide.jobs.pretrain.texts import Texts, read_texts, short_name
from confide.learning.bart_making import base_digest, write_bart
from confide.learning.denoising import Denoiser, Measure, rate
from confide.learning.devices import has_narrow_units, place_of, placed
from confide.learning.encoder_files import find_folder
from confide.learning.text_pieces import Pieces
from confide.learning.texts import Reading, made_bart
from confide.seeds import derive_seed
from confide.userfiles import Tree

__all__ = ["Budget", "Pretrained", "Pretraining", "pretrain"]

_KEEP_EVERY = 300.0  # seconds
_SPEAK_EVERY = 15.0


@dataclass(frozen=True)
class Pretrained:
    """The BART's folder, how far it was trained, and its last measure on all held-out text."""

    folder: Path
    steps: int
    pieces: int
    seconds: float
    measure: Measure


def pretrain(
    texts: Sequence[str | Path],
    *,
    out: str | Path,
    budget: Budget,
    plan: Pretraining | None = None,
    without: Sequence[str | Path] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Pretrained:
    """Make a BART from an encoder, train it on texts, and write it to a folder.

    Args:
        texts: files or folders of any format that confide reads; annotation is ignored.
        out: the folder for the BART, in the form that transformers reads (see `keeping`).
        budget: how long to train; the learning rate falls to 0 over it.
        plan: all other settings.
        without: files whose sentences must not be learnt, such as development and test text.
        resume: continue from the last checkpoint in `out`. The budget may differ, so even a
            finished training can continue.
        say: called with the progress, line by line.

    Raises:
        SettingsError: a setting makes no sense, or the base is not a BERT encoder.
        MissingDataError, FormatError, DataError: a text cannot be read, or there is too little.
        RunError: the folder already holds a pretraining, or one with other settings or texts.
    """
    plan, folder = plan or Pretraining(), Path(out)
    plan.check()
    budget.check()
    before = _before(folder, resume=resume)
    base = find_folder(plan.base)
    made = made_bart(base, decoder_layers=plan.decoder_layers, dropout=plan.how.dropout)
    place = place_of(plan.how.device, plan.how.precision)
    if plan.how.precision == "auto" and place.device.type == "cpu":
        place = replace(place, narrow=has_narrow_units())
    denoiser = Denoiser(placed(made.model, place), plan.how)
    read = read_texts(
        texts,
        without=without,
        pieces=made.pieces,
        longest=plan.longest,
        share=plan.held_out,
        seed=plan.how.seed,
        say=say,
    )
    identity = {**plain(plan), "base_digest": base_digest(base), "texts": read.digest}
    training = _Training(denoiser, plan, read, made.pieces, folder, identity)
    if before is not None:
        training.restore(*before)
    measure = training.go(budget, say)
    write_bart(folder, denoiser.arrays(), config=made.config, tokenizer=base)
    done = training.place
    write_facts(folder, _facts(training, without, measure))
    return Pretrained(folder, done.steps, done.pieces, done.seconds, measure)


def _before(folder: Path, *, resume: bool) -> tuple[Arrays, Place, Tree] | None:
    """The checkpoint to continue from. Raises RunError if a training would be overwritten."""
    if resume:
        return kept(folder)
    if (folder / CHECKPOINT).is_file():
        raise RunError(
            "the folder already holds a pretraining",
            where=str(folder),
            fix="continue it with --resume, or name another folder with --out",
        )
    return None


class _Training:
    """One training in one process, from its last checkpoint to the end of its budget."""

    def __init__(
        self,
        denoiser: Denoiser,
        plan: Pretraining,
        texts: Texts,
        pieces: Pieces,
        folder: Path,
        identity: Tree,
    ) -> None:
        self.denoiser, self.plan, self.texts, self.pieces = denoiser, plan, texts, pieces
        self.folder, self.identity, self.place = folder, identity, Place()
        self._planned: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    def restore(self, arrays: Arrays, place: Place, identity: Tree) -> None:
        """Continue from this checkpoint. Raises RunError if it is another training's."""
        where = str(self.folder)
        self.plan.same_as(identity, where)
        for key, what in (("base_digest", "base encoder"), ("texts", "text")):
            if identity.get(key) != self.identity[key]:
                raise RunError(
                    f"the pretraining was started with another {what}",
                    where=where,
                    fix="give the same files, or name another folder with --out",
                )
        self.denoiser.restore(arrays, steps=place.steps)
        self.place = place

    def go(self, budget: Budget, say: Callable[[str], None]) -> Measure:
        """Train to the end of the budget, and measure all held-out text."""
        place, clock = self.place, _Clock(self.place.seconds)
        share = budget.share(steps=place.steps, seconds=place.seconds)
        if not place.curve:
            self._measure(share, say)
        parts = int(share * self.plan.measures)
        spoken = written = time.monotonic()
        while share < 1.0:
            self._step(share)
            place.seconds = clock.seconds
            share = budget.share(steps=place.steps, seconds=place.seconds)
            if int(share * self.plan.measures) > parts and share < 1.0:
                parts = int(share * self.plan.measures)
                self._measure(share, say)
                place.seconds = clock.seconds
            if place.steps_since and time.monotonic() - spoken > _SPEAK_EVERY:
                say(self._standing(share))
                spoken = time.monotonic()
            if time.monotonic() - written > _KEEP_EVERY:
                self._keep()
                written = time.monotonic()
        if place.curve[-1]["steps"] < place.steps:
            self._measure(share, say)
            self._keep()
        return self.denoiser.measured(self._batches(None))

    def _step(self, share: float) -> None:
        place, plan = self.place, self._plan_of(self.place.epoch)
        seed = derive_seed(self.plan.how.seed, "epoch", place.epoch)
        batch = denoising_batch(self.texts.learnt, plan[place.batch], self.batching, seed=seed)
        place.losses += self.denoiser.step(batch, number=place.steps, share=share)
        place.steps_since += 1
        place.steps += 1
        place.pieces += batch.tokens
        place.batch += 1
        if place.batch == len(plan):
            place.epoch, place.batch = place.epoch + 1, 0

    def _plan_of(self, epoch: int) -> list[NDArray[np.int64]]:
        if self._planned[0] != epoch:
            seed = derive_seed(self.plan.how.seed, "epoch", epoch)
            self._planned = (epoch, epoch_plan(self.texts.learnt, self.batching, seed=seed))
        return self._planned[1]

    @cached_property
    def batching(self) -> Batching:
        """How passages become batches."""
        return self.reading.batching(self.plan.batch)

    @property
    def reading(self) -> Reading:
        """How text becomes passages."""
        return Reading(self.pieces, self.plan.noise, self.plan.longest)

    def _batches(self, most: int | None) -> list[DenoisingBatch]:
        """Held-out text with the same noise each time; about `most` pieces of it, or all."""
        seed = derive_seed(self.plan.how.seed, "measure")
        return self.reading.measured(self.texts.measured, seed=seed, most=most or 0)

    @cached_property
    def _on_the_way(self) -> list[DenoisingBatch]:
        return self._batches(self.plan.measured)

    def _measure(self, share: float, say: Callable[[str], None]) -> None:
        place = self.place
        found = self.denoiser.measured(self._on_the_way)
        loss = place.losses / place.steps_since if place.steps_since else None
        done = {"steps": place.steps, "pieces": place.pieces, "seconds": round(place.seconds, 1)}
        learnt = {"rate": rate(share, self.plan.how), "loss": loss}
        measured = {"held_out_loss": found.loss, "right": found.right, "hidden": found.hidden}
        place.curve.append({**done, **learnt, **measured})
        place.losses, place.steps_since = 0.0, 0
        write_curve(self.folder, place, plot(place.curve))
        say(
            f"step {place.steps} · held-out loss {found.loss:.3f} · right {100 * found.right:.1f} %"
            f" · hidden {100 * found.hidden:.1f} %"
        )

    def _standing(self, share: float) -> str:
        place = self.place
        loss = place.losses / place.steps_since
        speed = place.pieces / max(place.seconds, 1e-9)
        return f"step {place.steps} · {100 * share:.0f} % · loss {loss:.3f} · {speed:,.0f} pieces/s"

    def _keep(self) -> None:
        arrays = self.denoiser.snapshot()
        keep(self.folder, arrays, place=self.place, identity=self.identity)


class _Clock:
    """Counts the seconds since it was made, on top of those before."""

    def __init__(self, before: float) -> None:
        self._began = time.monotonic() - before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def _facts(training: _Training, without: Sequence[str | Path], measure: Measure) -> Tree:
    place, texts = training.place, training.texts
    return {
        "schema": 1,
        "settings": plain(training.plan),
        "base_digest": training.identity["base_digest"],
        "texts": texts.facts,
        "texts_digest": texts.digest,
        "left_out": {"repeated": texts.repeated, "without": [short_name(one) for one in without]},
        "steps": place.steps,
        "pieces": place.pieces,
        "seconds": round(place.seconds, 1),
        "held_out": measure._asdict(),
    }
