"""A BART at a site: its passages, cut once, and the one model of the process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.denoising import DenoisingBatch, denoising_batch, epoch_plan
from confide.data.batches.noise import Noise
from confide.data.batches.passages import Passages, passages
from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.kinds.how import How
from confide.kinds.protocol import Fitted, Losses
from confide.kinds.text.form import TextForm
from confide.kinds.trained import Report
from confide.learning.bart_making import write_bart
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.texts import MadeBart, Reading, fit_texts
from confide.learning.weights import load
from confide.scoring.texts import TextCounts
from confide.seeds import derive_seed
from confide.text.document import Document

_MEASURE = derive_seed(1, "measure")
"""Seeds the noise of measures: the same in every round and every run."""


class TextSiteModel:
    """A BART at a site; annotation is ignored."""

    def __init__(self, site: Site, form: TextForm) -> None:
        self.site = site
        self.form = form
        self._passages: dict[str, Passages] = {}

    @property
    def size(self) -> int:
        """The number of training sentences."""
        return int(self.passages("train").sentences_N.sum())

    def check(self) -> None:
        """Cut the training text. Raises Refusal if the site's encoder differs."""
        self.passages("train")

    def vectors(self) -> str:
        """None: this kind has no word table."""
        return ""

    def rows_seen(self, how: How) -> Arrays:
        """Empty: this kind has no word table."""
        return {}

    def passages(self, part: str) -> Passages:
        """The passages of a part of the site's text, cut once.

        Sentences of the site's held-out text are removed from its training text.
        """
        if part not in self._passages:
            site = self.site
            without = [*site.dev, *site.test] if part == "train" else []
            reading = reading_of(self.form, self.form.bart(site))
            found = cut(reading, site.documents(part), without=without)
            self._passages[part] = found
        return self._passages[part]

    def fit(self, weights: Arrays, how: How, *, seed: int) -> Fitted:
        """Train on the site's own text; batches have the pieces of `batch_size` full passages."""
        found, form = self.passages("train"), self.form
        if not len(found):
            raise Refusal("no-training-text")
        made = form.bart(self.site)
        load(made.model, weights)
        denoiser = Denoiser(
            made.model,
            Denoising(
                train=form.part,
                learning_rate=how.learning_rate,
                warm_up=0.0,
                dropout=form.dropout,
                sampled=form.sampled,
                seed=seed,
            ),
            optimiser=how.steps,
        )
        batching = reading_of(form, made).batching(how.batch_size * form.longest)
        report = fit_texts(
            denoiser, found, batching, epochs=how.epochs, most=how.batches, seed=seed
        )
        return Fitted(denoiser.trained(), report.loss, report.sentences)

    def losses(self, weights: Arrays, how: How, documents: Sequence[Document]) -> Losses:
        """What these weights lose on each passage, by piece, with the same noise each time."""
        made = self.form.bart(self.site)
        load(made.model, weights, lent=True)
        denoiser, reading = Denoiser(made.model, Denoising()), reading_of(self.form, made)
        cutter, how_read = reading.cutter(), reading.batching(max(2048, self.form.longest))
        found = [cutter.cut([document]) for document in documents]
        text = passages([one for own in found for one in own])
        losses_S = np.zeros(len(text))
        for places in epoch_plan(text, how_read, seed=_MEASURE) if len(text) else ():
            batch = denoising_batch(text, places, how_read, seed=_MEASURE)
            losses_S[places] = denoiser.losses(batch)
        return Losses(
            "passages",
            losses_S,
            np.repeat(np.arange(len(found)), list(map(len, found))),
            [text[place].ids_P.tobytes() for place in range(len(text))],
        )

    def scored(self, weights: Arrays, part: str) -> TextScored:
        """Counts of the pieces of the held-out text that the BART restores."""
        made = self.form.bart(self.site)
        load(made.model, weights, lent=True)
        denoiser = Denoiser(made.model, Denoising(train=self.form.part))
        reading = reading_of(self.form, made)
        batches = reading.measured(self.passages(part), seed=_MEASURE, most=self.form.measured)
        return TextScored(*astuple(denoiser.counted(batches)))


@dataclass(frozen=True)
class TextScored:
    """Piece counts of one part of a site's held-out text."""

    pieces: int = carries("word pieces to write")
    right: int = carries("how many of them the model ranks first")
    hidden: int = carries("how many of them the noised text lacks")
    hidden_right: int = carries("how many of these the model ranks first")
    loss: float = carries("sum of the pieces' negative log probabilities")


def check_text_scored(ask: object, reply: TextScored) -> None:
    """Raise GuardError if counts contradict themselves."""
    hidden = min(reply.hidden, reply.right)
    if not 0 <= reply.right <= reply.pieces or not 0 <= reply.hidden <= reply.pieces:
        raise GuardError("right or hidden is out of range")
    if not 0 <= reply.hidden_right <= hidden or not 0 <= reply.loss < float("inf"):
        raise GuardError("hidden_right or loss is out of range")


def text_counts_of(reply: TextScored) -> TextCounts:
    """The counts in a reply."""
    return TextCounts(**vars(reply))


_MILLI = 1000.0  # a loss is counted in thousandths


class TextTables:
    """One table of a denoiser's counts; its loss in thousandths."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of the table."""
        return {"counts": (len(fields(TextScored)),)}

    def of(self, reply: TextScored, labels: Sequence[str]) -> Mapping[str, NDArray[np.int64]]:
        """A reply as a table."""
        counts = {**vars(reply), "loss": round(reply.loss * _MILLI)}
        return {"counts": np.array([counts[one.name] for one in fields(reply)], np.int64)}

    def back(self, tables: Mapping[str, NDArray[np.int64]], labels: Sequence[str]) -> TextScored:
        """The reply with these counts."""
        names = [one.name for one in fields(TextScored)]
        counts = dict(zip(names, tables["counts"].tolist(), strict=True))
        return TextScored(**{**counts, "loss": counts["loss"] / _MILLI})


@dataclass(frozen=True)
class TextModel:
    """A trained BART: it can be measured, and written as a folder."""

    made: MadeBart
    form: TextForm

    def counts(self, documents: Sequence[Document]) -> TextCounts:
        """Counts of the pieces of these documents that it restores."""
        denoiser = Denoiser(self.made.model, Denoising(train=self.form.part))
        return denoiser.counted(batches_of(self.form, self.made, documents))

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """The counts alone: there is no list of mistakes."""
        return Report(self.counts(documents))

    def write(self, folder: Path) -> None:
        """Write a folder that transformers reads as a BART. Raises DataError if that fails."""
        arrays = Denoiser(self.made.model, Denoising()).arrays()
        write_bart(folder, arrays, config=self.made.config, tokenizer=self.made.base)


def reading_of(form: TextForm, made: MadeBart) -> Reading:
    """How this BART reads text."""
    noise = Noise(form.masked, form.mean_span, form.permuted)
    return Reading(made.pieces, noise, form.longest)


def cut(
    reading: Reading, documents: Sequence[Document], *, without: Sequence[Document] = ()
) -> Passages:
    """The passages of documents, without the sentences of some other documents."""
    cutter = reading.cutter()
    cutter.leave_out(without)
    return passages(cutter.cut(documents))


def batches_of(
    form: TextForm, made: MadeBart, documents: Sequence[Document]
) -> list[DenoisingBatch]:
    """Batches of these documents, with the same noise each time."""
    reading = reading_of(form, made)
    return reading.measured(cut(reading, documents), seed=_MEASURE, most=form.measured)
