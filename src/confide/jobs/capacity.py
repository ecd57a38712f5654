"""Would more text help this model at all? The capacity test, to take before federating.

Luboshnikov & Makarov 2020, "Model Capacity" (doi 10.1007/978-3-030-71214-3_8): cut the text at hand
into n equal parts, train on 1, 2, ..., n of them, score held-out text and look at the curve. If it
is flat, more text does not help this model, and more text is all that a federation brings.

What we decide: the parts are nested and drawn anew for each seed. Every training takes as many
steps, at the same learning rates, as one on all the text, so that small parts are not put at a
disadvantage by shorter training. The vocabulary is that of the parts used. The curve is a power law
(`confide.scoring.intervals`); its uncertainty comes from resampling seeds and held-out sentences.
Nothing leaves the machine: this is one place's training on its own text.

What a run takes of each site (`run_needs`) follows from a survey instead.
"""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from confide.corpora.dealing import partition
from confide.errors import DataError, SettingsError
from confide.federation.combining import NEEDED
from confide.federation.events import Event, Watcher, unwatched
from confide.files import Tree, write_atomically
from confide.jobs.planning import MEASURED
from confide.jobs.survey import read_survey
from confide.kinds.agreement import (
    NONE,
    AgreedWords,
    asked_of_buckets,
    bucket_count,
    find_encoder,
    with_cached,
)
from confide.kinds.linear import LinearSpec
from confide.kinds.protocol import train_config
from confide.kinds.tagger.model import EncodedSplit, Marks, TaggerTrainer
from confide.kinds.tagger.site import TaggerSpec
from confide.recipes import settings_file
from confide.report.plots import PLAIN, svg_file
from confide.runs.run import computing_as
from confide.runs.sites import gather
from confide.scoring import sentence_counts
from confide.scoring.intervals import LEAST_SIZES, Curve, fit_curve, micro_f1, resampled_curves
from confide.seeds import derive_seed
from confide.settings import Settings, load_settings
from confide.text.document import Document
from confide.training.batches import Example, TagSet, examples_from, with_context
from confide.training.context import contextual
from confide.training.optimisers import Moments
from confide.training.tagger import CrfTagger, Tagger
from confide.training.trainer import annotate_with, read_bare
from confide.training.vocabulary import count_characters, count_words, numbered, read_vectors
from confide.training.weights import set_rows
from confide.words import templates

# --- Training on parts of a corpus
#
# The parts grow, and each model is scored on held-out text.
#
# Legend: S seeds, K parts, N held-out sentences.


Learn = Callable[[Sequence[Document], float, int], Sequence[Document]]
"""(documents, how many times the usual epochs, seed) -> the held-out documents, annotated."""


@dataclass(frozen=True, eq=False)
class PartScores:
    """(true, predicted, gold) of every held-out sentence, and the sentences trained on."""

    counts_SKN3: NDArray[np.int64]
    sizes_K: tuple[float, ...]
    seconds: float

    @property
    def f1_SK(self) -> NDArray[np.float64]:  # noqa: N802
        """Strict micro-F1 of each training, as a fraction."""
        return micro_f1(self.counts_SKN3.sum(axis=2))


def score_parts(
    train: Sequence[Document],
    held_out: Sequence[Document],
    *,
    learn: Learn,
    parts: int = 5,
    seeds: int = 3,
    seed: int = 1,
    watch: Watcher = unwatched,
) -> PartScores:
    """Train on 1, 2, ..., `parts` nested parts of the text, for each seed, and count strictly.

    Raises DataError for fewer than 4 parts or 2 seeds, or fewer documents than parts.
    """
    if parts < LEAST_SIZES:
        raise DataError(
            "too few parts for a curve", expected=f"at least {LEAST_SIZES}", got=str(parts)
        )
    if seeds < 2:
        raise DataError(
            "one seed does not say how sure the curve is", expected="at least 2", got=str(seeds)
        )
    started = time.perf_counter()
    sentences = [len(examples_from([document])[0]) for document in train]
    weight = {id(document): count for document, count in zip(train, sentences, strict=True)}
    counts: list[list[NDArray[np.int64]]] = []
    sizes_SK = np.zeros((seeds, parts))
    for draw in range(seeds):
        own_seed = derive_seed(seed, "capacity", draw)
        slices = list(partition(train, parts, by="iid", seed=own_seed).values())
        counts.append([])
        for k in range(1, parts + 1):
            done = draw * parts + k
            watch(Event("ask", round=done, site=f"{k} of {parts} parts", step=f"seed {draw + 1}"))
            part = [document for piece in slices[:k] for document in piece]
            predicted = learn(part, parts / k, derive_seed(own_seed, k))
            counts[-1].append(sentence_counts(held_out, predicted))
            sizes_SK[draw, k - 1] = sum(weight[id(document)] for document in part)
            spent = time.perf_counter() - started
            left = spent / done * (seeds * parts - done)
            score = float(micro_f1(counts[-1][-1].sum(axis=0)))
            watch(Event("round", round=done, dev_f1=score, seconds=spent, seconds_left=left))
    sizes = tuple(float(size) for size in sizes_SK.mean(axis=0))
    return PartScores(np.array(counts), sizes, time.perf_counter() - started)


# --- Training of one model
#
# On some documents, in the clear, as a single site would.


def training(
    settings: Settings,
    train: Sequence[Document],
    *,
    held_out: Sequence[Document],
    vectors: Path | None = None,
) -> Learn:
    """A function that trains the settings' model on part of `train` and annotates `held_out`.

    `vectors` is a file of word vectors to start from. Raises DataError if nothing in `train` is
    annotated and no type is declared, and SettingsError for other kinds than tagger and linear.
    """
    make = _modeller(settings)
    seen = {entity.type for document in train for entity in document.entities}
    tags = TagSet(settings.data.types or tuple(sorted(seen)), settings.model.tag_scheme)
    if not tags.types:
        raise DataError("the training text has no entity", expected="at least one")
    context = settings.model.context
    encoder = None if context == NONE else find_encoder(context)
    dim = encoder.dim if encoder else 0

    def learn(documents: Sequence[Document], stretch: float, seed: int) -> list[Document]:
        examples, _ = examples_from(documents)
        trainer = make(settings, tags, examples, dim)
        model = trainer.initial(derive_seed(seed, "weights"))
        if vectors is not None and isinstance(model, Tagger):
            set_rows(model.word, read_vectors(vectors, trainer.words, how=trainer.how))
        text, held = trainer.prepared(examples), read_bare(trainer, held_out)
        if encoder is not None:
            text = with_cached(text, examples, encoder)
            held = replace(held, text=with_cached(held.text, held.examples, encoder))
        spans = [one.spans for one in examples]
        encoded = trainer.annotated(text, spans, source={*tags.types})
        _train(trainer, model, encoded, settings, stretch=stretch, seed=seed)
        return annotate_with(trainer, model, held)

    return learn


def _tagger(
    settings: Settings, tags: TagSet, examples: Sequence[Example], dim: int
) -> TaggerTrainer:
    """The trainer of a tagger that knows the words of these examples."""
    own, how = settings.vocabulary, settings.vocabulary.normalise
    tokens = [token for example in examples for token in example.tokens]
    words = numbered(count_words(tokens, how), min_count=own.min_count)
    letters = numbered(count_characters(tokens), kind="character")
    vocabulary = AgreedWords(words=words.texts, characters=letters.texts)
    form = TaggerSpec.of(settings, tags.types, vocabulary, dim=dim)
    return replace(form.trainer(None), word_dropout=settings.training.word_dropout)


def _linear(
    settings: Settings, tags: TagSet, examples: Sequence[Example], dim: int
) -> TaggerTrainer:
    """The trainer of a linear CRF, whose features need no key where nothing leaves."""
    form = LinearSpec(
        types=list(tags.types),
        tag_scheme=tags.scheme,
        bits=settings.linear.bits,
        context=settings.model.context,
        context_dim=dim,
        nonce="",
        check="",
        features_key="",
    )
    return form.trainer(Marks(b""))


_MODELLERS: dict[str, Callable[[Settings, TagSet, Sequence[Example], int], TaggerTrainer]] = {
    "tagger": _tagger,
    "linear": _linear,
}


def _modeller(
    settings: Settings,
) -> Callable[[Settings, TagSet, Sequence[Example], int], TaggerTrainer]:
    if settings.kind not in _MODELLERS:
        raise SettingsError(
            "the capacity test does not train this kind of model",
            expected=f"model.kind = {' or '.join(_MODELLERS)}",
            got=settings.kind,
            fix="for a first answer: --set model.kind=linear, without your own [training]",
        )
    return _MODELLERS[settings.kind]


def epochs_by_round(rounds: int, epochs: int) -> list[int]:
    """`epochs` spread over the rounds as evenly as whole numbers allow.

    >>> epochs_by_round(4, 10)
    [2, 3, 3, 2]
    """
    edges = [round(epochs * number / rounds) for number in range(rounds + 1)]
    return [end - start for start, end in pairwise(edges)]


def _batch_rounds(settings: Settings) -> bool:
    """Return whether a round is one mini-batch of all sites together."""
    return settings.trained_by.startswith("fedner-")


def _train(
    trainer: TaggerTrainer,
    model: CrfTagger,
    encoded: EncodedSplit,
    settings: Settings,
    *,
    stretch: float,
    seed: int,
) -> None:
    """Train all rounds of the settings, `stretch` times their epochs in all, one rate per round.

    If a round is one batch (FedNER), train equally many batches in one go.
    """
    training, rounds = settings.training, settings.rounds
    epochs = max(1, round(rounds * training.local_epochs * stretch))
    if _batch_rounds(settings):
        epochs, rounds = max(1, round(rounds * training.batch_size / len(encoded))), 1
    moments = Moments()
    for number, in_round in enumerate(epochs_by_round(rounds, epochs)):
        config = train_config(settings, number + 1)
        optimiser = replace(config.steps, most=0, moments=moments if config.keep else None)
        if in_round:
            trainer.fit(
                model,
                encoded,
                epochs=in_round,
                batch_size=config.batch_size,
                optimiser=optimiser,
                seed=derive_seed(seed, "round", number),
            )


# --- The verdict
#
# Measured scores become a plain verdict with its uncertainty.


SCHEMA = 1
FACTOR = 2.0
MATTERS = 0.01
LEVEL = 0.9
SAMPLES = 1000
BAND = 25

Verdict = Literal["worth federating", "flat", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Point:
    """Scores after training on some parts: strict F1, its deviation over seeds, and each seed's."""

    parts: int
    sentences: float
    f1: float
    deviation: float
    seeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The outcome of a capacity test. Numbers only, no text; F1 is strict, as a fraction.

    `gain` is what `factor` times the text is expected to add, between `low` and `high` with
    confidence `level`. `chance` is the share of resampled curves that gain at least `matters`: at
    `level` or more the verdict is "worth federating", at 1 - `level` or less it is "flat". `band`
    has (sentences, low, high) of the curve, up to `factor` times the text.
    """

    name: str
    verdict: Verdict
    gain: float
    low: float
    high: float
    chance: float
    points: tuple[Point, ...]
    curve: Curve
    band: tuple[tuple[float, float, float], ...]
    held_out: int
    seconds: float
    factor: float = FACTOR
    level: float = LEVEL
    matters: float = MATTERS

    @property
    def text(self) -> str:
        """The report in words."""
        template = templates("confide.jobs").get_template("capacity.txt.j2")
        return template.render(report=self, full=self.points[-1]) + "\n"

    def to_json(self) -> Tree:
        """The report as plain values."""
        return {"schema": SCHEMA, **asdict(self)}


def conclude(measured: PartScores, *, name: str, seed: int = 1) -> CapacityReport:
    """Fit the curve and say what more text would add, and how certain that is."""
    f1_SK, sizes = measured.f1_SK, measured.sizes_K
    curve = fit_curve(sizes, f1_SK.mean(axis=0).tolist())
    curves = resampled_curves(
        measured.counts_SKN3, sizes, samples=SAMPLES, seed=derive_seed(seed, "capacity curves")
    )
    gains = np.array([other.gain(FACTOR) for other in curves])
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(gains, tails)
    chance = float((gains >= MATTERS).mean())
    verdict: Verdict = "cannot tell"
    if chance >= LEVEL or chance <= 1 - LEVEL:
        verdict = "worth federating" if chance >= LEVEL else "flat"
    points = tuple(
        Point(k, size, float(f1_S.mean()), float(f1_S.std(ddof=1)), tuple(f1_S.tolist()))
        for k, (size, f1_S) in enumerate(zip(sizes, f1_SK.T, strict=True), start=1)
    )
    grid = np.linspace(sizes[0], FACTOR * sizes[-1], BAND)
    heights = np.array([[other.at(size) for size in grid] for other in curves])
    band = (grid.tolist(), *np.quantile(heights, tails, axis=0).tolist())
    return CapacityReport(
        name=name,
        verdict=verdict,
        gain=curve.gain(FACTOR),
        low=float(low),
        high=float(high),
        chance=chance,
        points=points,
        curve=curve,
        band=tuple(zip(*band, strict=True)),
        held_out=measured.counts_SKN3.shape[2],
        seconds=measured.seconds,
    )


# --- The curve of a capacity test as an SVG drawing


COLOUR = "#0072b2"


def curve_svg(report: CapacityReport) -> str:
    """F1 over training sentences: every training, the curve up to twice the text, and its band."""
    with matplotlib.rc_context(PLAIN):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        sizes, low, high = np.array(report.band).T
        axes.fill_between(sizes, 100 * low, 100 * high, color=COLOUR, alpha=0.15, lw=0)
        have = report.points[-1].sentences
        heights = np.array([100 * report.curve.at(size) for size in sizes])
        axes.plot(sizes[sizes <= have], heights[sizes <= have], color=COLOUR, label="fitted")
        axes.plot(sizes, heights, "--", color=COLOUR, label="expected")
        for point in report.points:
            at = [point.sentences] * len(point.seeds)
            axes.plot(
                at, [100 * score for score in point.seeds], "o", color=COLOUR, ms=3.5, alpha=0.5
            )
        axes.axvline(have, color="0.5", lw=0.8, ls=":")
        axes.annotate(
            " the text at hand", (have, 0.02), xycoords=("data", "axes fraction"), color="0.35"
        )
        axes.set_xlabel("training sentences")
        axes.set_ylabel("F1 on held-out text (strict)")
        axes.set_title(f"{report.name}: {report.verdict}")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        return svg_file(figure)


def capacity(
    settings: str | Path | Settings,
    *,
    parts: int = 5,
    seeds: int = 3,
    site: str | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    on_event: Watcher | None = None,
) -> CapacityReport:
    """Train on 1, 2, ..., `parts` equal parts of the text, `seeds` times; say if more would help.

    Args:
        settings: a TOML file or the name of a recipe, with its `[when.pooled]` (`[when.alone]` for
            one site) applied; or settings, used as they are.
        parts: the number of parts, at least 4.
        seeds: the number of draws of parts and first weights, at least 2.
        site: use this site's text only; None: the text of all sites in the settings.
        overrides: `key=value` texts that replace the file's values.
        out: a folder for capacity.json, capacity.svg and capacity.txt; None: write nothing.
        on_event: called at every training.

    The held-out text is that of the development files, or the share that the settings hold out.
    Test text is never used, even if the settings hold it out of the training files.

    Raises:
        SettingsError: there is no such site, or the settings make no sense.
        DataError: too few parts, seeds or documents, or no entity in the held-out text.
    """
    watch = on_event or unwatched
    if not isinstance(settings, Settings):
        method = "alone" if site else "pooled"
        settings = load_settings(settings_file(settings), [f"method={method}", *overrides])
    with TemporaryDirectory() as nowhere:
        everyone = gather(settings, Path(nowhere), key_file=None).specs
    specs = [spec for spec in everyone if site in (None, spec.name)]
    if not specs:
        names = ", ".join(spec.name for spec in everyone)
        raise SettingsError("there is no such site", expected=names, got=repr(site))
    train = [document for spec in specs for document in spec.train]
    held_out = [document for spec in specs for document in spec.dev]
    if not any(document.entities for document in held_out):
        raise DataError("the held-out text has no entity", fix="name `dev` files that have some")
    name = site or settings.name or "capacity"
    watch(Event("start", rounds=parts * seeds, message=f"{name}: capacity"))
    with computing_as(settings):
        measured = score_parts(
            train,
            held_out,
            learn=training(settings, train, held_out=held_out, vectors=specs[0].vectors),
            parts=parts,
            seeds=seeds,
            seed=settings.seed,
            watch=watch,
        )
    report = conclude(measured, name=name, seed=settings.seed)
    if out is not None:
        text = json.dumps(report.to_json(), indent=1) + "\n"
        files = {"json": text, "svg": curve_svg(report), "txt": report.text}
        for end, content in files.items():
            write_atomically(Path(out) / f"capacity.{end}", content.encode())
    watch(Event("end", message=f"{name}: {report.verdict}"))
    return report


# --- What a run takes of a site, by a survey
#
# Time and memory are measured here, on a few made-up sentences as long as the sites' own; bytes
# follow from the numbers of the model. Nothing is read but settings and the survey.


WORDS = (13.0, 0.57)
"""A text of n tokens has about 13 n^0.57 different words: within a factor of two on five published
corpora of 4,000 to 440,000 tokens."""
_SAMPLE = 64
_BYTES = {"rows": 4.0, "whole": 4.0, "cached": 4.0, "float16": 2.0, "int8": 1.0, "int4": 0.5,
          "int2": 0.25}  # fmt: skip
"""Bytes of a number by `federation.up` and `down`; "top" sends a share of them."""
_COMMON = (
    "the", "of", "and", "patient", "was", "with", "after", "she", "took", "for", "no", "in", "pain",
    "on", "daily", "mg", "history", "days", "treated", "given", "left", "right", "mild", "severe",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnderNoise:
    """F1 in percent, `without` noise and `left` under ε, where ε × units was most like here."""

    epsilon: float
    corpus: str
    model: str
    units: int
    like: int
    without: float
    left: float


@dataclass(frozen=True, slots=True)
class RunNeeds:
    """The needs of a run at a site that has as much text as the surveyed sites on average.

    Attributes:
        sentences, rounds: its training sentences, and the rounds of the settings.
        words, numbers: the common vocabulary, and the model's numbers, of which not all may travel.
        seconds_to_read: once, to read its text and, if there is one, run the encoder.
        seconds_a_round: of training, on this machine.
        memory_mb: this process at its peak, with a sample of the text.
        upload_mb, download_mb: in a round, at most; None where it is not the model that travels.
        once_mb: up, once in a run: the sites' words by bucket, where sums are masked.
        units, unit: what noise would hide.
        noise: what it cost where it was measured.
        assumed: what the survey does not tell, in sentences.
    """

    sentences: int
    rounds: int
    words: int
    numbers: int
    seconds_to_read: float
    seconds_a_round: float
    memory_mb: float
    upload_mb: float | None
    download_mb: float | None
    once_mb: float
    units: int
    unit: str
    noise: tuple[UnderNoise, ...]
    assumed: tuple[str, ...]

    @property
    def text(self) -> str:
        """The needs in words."""
        template = templates("confide.jobs").get_template("needs.txt.j2")
        return template.render(needs=self) + "\n"


def run_needs(
    settings: str | Path, survey: str | Path, *, overrides: Sequence[str] = ()
) -> RunNeeds:
    """Time, memory and bytes of a site in a run of these settings, and whether noise is bearable.

    Args:
        settings: a TOML file or the name of a recipe; sites' text is not read.
        survey: a survey's run folder, or what `confide survey --json` wrote.
        overrides: `key=value` texts that replace values in the file.

    Raises SettingsError for other kinds than tagger and linear, RunError if this is no survey, and
    DataError if it counted nothing.
    """
    counts, chosen = read_survey(Path(survey)), load_settings(settings_file(settings), overrides)
    make = _modeller(chosen)
    tags = TagSet(chosen.data.types or tuple(counts.types), chosen.model.tag_scheme)
    if not tags.types or not counts.each:
        raise DataError("there is nothing to learn", expected="sentences and types of entities",
                        where=str(survey))  # fmt: skip
    length = max(2, round(counts.tokens / counts.sentences))
    words = min(counts.tokens, round(WORDS[0] * counts.tokens ** WORDS[1]))
    draw = np.random.default_rng(chosen.seed)
    text = []
    for place in range(min(_SAMPLE, counts.each)):
        tokens = tuple(draw.choice(_COMMON, length).tolist())
        first = int(draw.integers(length))
        span = (first, first + 1, tags.types[place % len(tags.types)])
        text.append(Example(place, 0, tokens, (span,)))
    every = Example(0, 0, tuple(map(_word, range(words))) * chosen.vocabulary.min_count)
    encoder = None if chosen.model.context == NONE else find_encoder(chosen.model.context)
    with computing_as(chosen):
        trainer = make(chosen, tags, [every], encoder.dim if encoder else 0)
        model = trainer.initial(derive_seed(chosen.seed, "weights"))
        for _ in range(2):  # the first warms up
            started = time.perf_counter()
            read = trainer.prepared(text)
            if encoder is not None:
                states = contextual([one.tokens for one in text], encoder, folder=None)
                read = with_context(read, *states)
            reading = (time.perf_counter() - started) / len(text)
        config, spans = train_config(chosen, 1), [one.spans for one in text]
        encoded = trainer.annotated(read, spans, source={*tags.types})
        for _ in range(2):
            started = time.perf_counter()
            trainer.fit(model, encoded, epochs=1, batch_size=config.batch_size,
                        optimiser=replace(config.steps, most=0), seed=1)  # fmt: skip
            training_one = (time.perf_counter() - started) / len(text)
    own = chosen.training
    trained = float(own.local_epochs * counts.each)
    if _batch_rounds(chosen):
        trained = own.batch_size / counts.sites
    elif own.local_steps:
        trained = min(trained, own.local_steps * own.batch_size)
    numbers = sum(one.numel() for one in model.parameters())
    travels = not chosen.public.files
    up, down = (
        _BYTES[how] * numbers / 1e6 if travels and how in _BYTES else None
        for how in (chosen.federation.up, chosen.federation.down)
    )
    if down is not None and chosen.federation.down != "cached":  # it travels again to be scored
        down *= 1 + 1 / chosen.select.every
    real = not chosen.site and chosen.split is None
    masked = chosen.federation.sums == "masked" or (
        chosen.federation.sums is None and real and counts.sites >= NEEDED
    )
    asked = asked_of_buckets(chosen.vocabulary, characters=chosen.model.character != "none")
    buckets = bucket_count(asked.word_bits) + bucket_count(asked.character_bits)
    unit = chosen.privacy.unit if chosen.privacy else "document"
    units = counts.sentences if unit == "sentence" else counts.documents
    return RunNeeds(
        sentences=counts.each,
        rounds=chosen.rounds,
        words=words,
        numbers=numbers,
        seconds_to_read=reading * counts.each,
        seconds_a_round=training_one * trained,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        upload_mb=up,
        download_mb=down,
        once_mb=8 * buckets / 1e6 if masked and chosen.kind == "tagger" else 0.0,
        units=units,
        unit=unit,
        noise=tuple(_under_noise(epsilon, units) for epsilon in (8, 3, 1)),
        assumed=(
            f"every site has as much text: {counts.each:,} sentences of {length} words",
            f"{words:,} different words: published texts of {counts.tokens:,} have as many within a"
            " factor of two",
            "this machine is like theirs; scoring is not counted, nor is NVIDIA FLARE's own memory"
            " (about 100 MB)",
        ),
    )


def _under_noise(epsilon: int, units: int) -> UnderNoise:
    """The measured cell whose ε × units is the nearest: that product is what counts."""
    cells = [
        UnderNoise(epsilon, one.corpus, one.model, one.units, like, one.without, left)
        for one in MEASURED["entities"]
        for like, left in ((8, one.at_8), (3, one.at_3), (1, one.at_1))
    ]
    far = [abs(math.log(one.like * one.units / (epsilon * max(1, units)))) for one in cells]
    return cells[min(range(len(cells)), key=lambda n: (far[n], -cells[n].left))]


def _word(number: int) -> str:
    """A made-up word of letters: digits would all count as one word."""
    letters = ""
    while number or not letters:
        number, last = divmod(number, 26)
        letters += chr(97 + last)
    return f"q{letters}"
