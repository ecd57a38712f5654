"""What a federated run costs above the optimiser steps that it is made of.

Two sides in one process, one thread, one after the other, several times:

- `run`: `confide.runs.run.run`, sequential: 20 sites, messages through the codec, guards, memory,
  ledger, a checkpoint each round, dev text scored each round, test text at the end, reports.
- `bare`: a plain PyTorch program that reads the same files, numbers words with a dict, keeps one
  model and the sites' batches in memory, takes the same optimiser steps, averages state_dicts and
  scores the same texts as often. No message, no site, no file.

Both must arrive at the same weights, bit for bit. Printed are medians over the repetitions, of the
whole program and of its training alone (asks, steps and the mean; no scoring), and ratios of pairs.

The loop of optimiser steps is the same work on both sides and nearly all of it, so its noise on a
machine that others use drowns the rest. Rows "at equal steps" give both sides the mean of their two
loops' seconds: what remains of a difference is what the federation does around them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import Clock, keep, medians, settings_for, text_files

from confide.corpora.dealing import partition
from confide.federation.keys import new_key, read_key
from confide.federation.memory import CheckpointStore
from confide.federation.messages import decode
from confide.methods import METHODS
from confide.runs.run import Event, run
from confide.scoring import count_entities, scores, sum_counts
from confide.seeds import derive_seed, seeded
from confide.settings import Settings
from confide.text.document import Document
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training import trainer as training
from confide.training.batches import Encoded, Example, TagSet, encode_examples, examples_from
from confide.training.tagger import Tagger, TaggerSizes
from confide.training.trainer import FitReport, bare_sentences, with_entities
from confide.training.vocabulary import ClearVocabulary, keyed_digest, normalise

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import predict_spans, tagging_loss, train_batches

Weights = dict[str, torch.Tensor]
Prepared = tuple[list[Document], list[Example], Encoded]
"""Text without annotation, its sentences, and these as numbers."""


@dataclass
class Side:
    """What one side came to, and the time it took."""

    whole: Clock = field(default_factory=Clock)
    training: Clock = field(default_factory=Clock)
    steps: Clock = field(default_factory=Clock)
    weights: Weights = field(default_factory=dict)
    test_f1: float = 0.0


@dataclass(frozen=True)
class Place:
    """One site's text in the bare program."""

    name: str
    train: Encoded
    dev: tuple[Sequence[Document], Prepared]
    test: tuple[Sequence[Document], Prepared]


class TrainingWatch:
    """Times training from outside: from the first `train` ask of a round to the next other ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held = ExitStack()
        self._inside = False

    def __call__(self, event: Event) -> None:
        trains = event.step == "train"
        if event.kind == "ask" and trains != self._inside:
            self._inside = trains
            if trains:
                self._held.enter_context(self._clock.running())
            else:
                self._held.close()


@contextmanager
def timed_fit(clock: Clock) -> Iterator[None]:
    """Inside, the clock runs while a site fits its model."""
    fit = training.train_epochs

    def timed(*args: Any, **options: Any) -> FitReport:
        with clock.running():
            return fit(*args, **options)

    training.train_epochs = timed  # type: ignore[assignment]
    try:
        yield
    finally:
        training.train_epochs = fit


def federated(settings: Settings, out: Path) -> Side:
    """`confide run`."""
    side = Side()
    with side.whole.running(), timed_fit(side.steps):
        result = run(settings, out=out, on_event=TrainingWatch(side.training)).result
    side.test_f1 = result.scores.overall["strict"]["f1"]
    state = decode(
        METHODS["fedavg-tagger"].State,
        CheckpointStore(out / "checkpoints").load(settings.rounds).state.tobytes(),
    )
    side.weights = {name: torch.from_numpy(array) for name, array in state.weights.items()}
    return side


def bare(settings: Settings, key: bytes) -> Side:
    """The same optimiser steps in a plain program."""
    side = Side()
    with side.whole.running():
        places, model = _read(settings, key)
        weights = _copied(model)
        for number in range(1, settings.rounds + 1):
            with side.training.running():
                weights = _round(model, weights, places, settings, number, clock=side.steps)
            model.load_state_dict(weights)
            _score(model, [place.dev for place in places])
        side.test_f1 = _score(model, [place.test for place in places])
    side.weights = weights
    return side


def _round(
    model: Tagger,
    weights: Weights,
    places: Sequence[Place],
    settings: Settings,
    number: int,
    *,
    clock: Clock,
) -> Weights:
    total: Weights = {}
    for place in places:
        model.load_state_dict(weights)
        seed = derive_seed(settings.seed, number, place.name, "train")
        with clock.running():
            _epoch(model, place.train, settings, number, seed)
        for name, value in model.state_dict().items():
            if name in total:
                total[name] += value
            else:
                total[name] = value.double()
    return {name: (value / len(places)).float() for name, value in total.items()}


def _epoch(model: Tagger, encoded: Encoded, settings: Settings, number: int, seed: int) -> None:
    training = settings.training
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=training.learning_rate * training.decay ** (number - 1),
        momentum=training.momentum,
        fused=True,
    )
    batches = train_batches(
        encoded,
        batch_size=training.batch_size,
        seed=derive_seed(seed, "batches", 0),
        word_dropout=training.word_dropout,
    )
    model.train()
    with seeded(derive_seed(seed, "dropout")):
        for batch in batches:
            loss = tagging_loss(model, batch).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            optimiser.step()
            loss.item()
    model.eval()


def _score(model: Tagger, parts: Sequence[tuple[Sequence[Document], Prepared]]) -> float:
    counts = [count_entities(gold, _annotated(model, *text)) for gold, text in parts]
    return float(scores(sum_counts(counts))["strict"]["f1"])


def _annotated(
    model: Tagger, documents: list[Document], examples: list[Example], encoded: Encoded
) -> list[Document]:
    return with_entities(documents, examples, predict_spans(model, encoded))


def _prepared(documents: Sequence[Document], vocabulary: dict[str, object]) -> Prepared:
    bare, examples = bare_sentences(documents)
    return bare, examples, encode_examples(examples, **vocabulary)


def _read(settings: Settings, key: bytes) -> tuple[list[Place], Tagger]:
    """Every site's text as numbers, and a model. The words' order is the run's, for equal bits."""
    split, how = settings.split, settings.vocabulary.normalise
    assert split is not None
    dealt = {
        part: partition(
            [d for path in paths for d in read(locate(path), "conll", scheme="iob2").documents],
            split.sites,
            by=split.by,
            seed=split.seed,
        )
        for part, paths in (("train", split.train), ("dev", split.dev), ("test", split.test))
    }
    examples = {name: examples_from(share)[0] for name, share in dealt["train"].items()}
    words, characters, types = Counter[str](), Counter[str](), set[str]()
    for example in (one for share in examples.values() for one in share):
        words.update(normalise(token, how) for token in example.tokens)
        characters.update("".join(example.tokens))
        types.update(span[2] for span in example.spans)
    vocabulary = {
        "words": ClearVocabulary(_ordered(words, "word", key)),
        "characters": ClearVocabulary(_ordered(characters, "character", key), "character"),
        "tags": TagSet(tuple(sorted(types))),
        "how": how,
    }
    places = [
        Place(
            name,
            encode_examples(share, **vocabulary),
            (dealt["dev"][name], _prepared(dealt["dev"][name], vocabulary)),
            (dealt["test"][name], _prepared(dealt["test"][name], vocabulary)),
        )
        for name, share in examples.items()
    ]
    return places, _model(settings, vocabulary)


def _model(settings: Settings, vocabulary: dict[str, object]) -> Tagger:
    own = settings.model
    sizes = TaggerSizes(
        **{name: len(vocabulary[name]) for name in ("words", "characters", "tags")},  # type: ignore[arg-type]
        word_dim=own.word_dim,
        character=own.character,
        bilstm_hidden=own.bilstm_hidden,
        dropout=own.dropout,
    )
    moves, starts, ends = (torch.from_numpy(rule) for rule in vocabulary["tags"].rules)  # type: ignore[attr-defined]
    with seeded(derive_seed(settings.seed, "weights")):
        return Tagger(sizes, (moves, starts, ends))


def _ordered(counts: Counter[str], kind: str, key: bytes) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda text: (-counts[text], keyed_digest(key, kind, text))))


def _copied(model: Tagger) -> Weights:
    return {name: value.clone() for name, value in model.state_dict().items()}


def measure(
    settings: Settings, key: bytes, folder: Path, *, bare_first: bool = False
) -> tuple[dict[str, float], bool]:
    """Seconds of both sides and the ratio of each pair; whether weights and scores were equal."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    if bare_first:
        plain, ours = bare(settings, key), federated(settings, out)
    else:
        ours, plain = federated(settings, out), bare(settings, key)
    equal = ours.test_f1 == plain.test_f1 and all(
        torch.equal(value, plain.weights[name]) for name, value in ours.weights.items()
    )
    row = {}
    for part in ("whole", "training"):
        mine, theirs = vars(getattr(ours, part)), vars(getattr(plain, part))
        for kind, seconds in mine.items():
            row[f"{part}_{kind}_run"] = seconds
            row[f"{part}_{kind}_bare"] = theirs[kind]
            row[f"{part}_{kind}_ratio"] = seconds / theirs[kind]
            mean = (vars(ours.steps)[kind] + vars(plain.steps)[kind]) / 2
            around = seconds - vars(ours.steps)[kind], theirs[kind] - vars(plain.steps)[kind]
            row[f"{part}_{kind}_around_run"], row[f"{part}_{kind}_around_bare"] = around
            row[f"{part}_{kind}_ratio_at_equal_steps"] = (around[0] + mean) / (around[1] + mean)
    return row, equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus")
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--batch", type=int, default=10, help="sentences in a batch")
    parser.add_argument("--synthetic", action="store_true", help="made-up notes, no $CONFIDE_DATA")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = text_files(folder / "text", share=args.share, synthetic=args.synthetic)
        key_file = new_key(folder / "shared.key")
        settings = settings_for(
            files,
            sites=args.sites,
            rounds=args.rounds,
            key=f'"{key_file}"',
            **{"training.batch_size": args.batch, "select.by": '"last"'},
            **{"training.optimiser": '"sgd"', "training.learning_rate": 0.015},
        )
        measure(settings.model_copy(update={"rounds": 1}), read_key(key_file), folder)  # warm up
        for turn in range(args.repeat):
            row, equal = measure(settings, read_key(key_file), folder, bare_first=turn % 2 == 1)
            assert equal, "the two sides did not arrive at the same numbers"
            rows.append(row)
            print("  ".join(f"{k} {v:.3f}" for k, v in row.items() if "ratio" in k), flush=True)
    middle = medians(rows)
    print(f"\nmedians of {args.repeat}, {args.sites} sites, {args.rounds} rounds; equal weights")
    for part in ("whole", "training"):
        for kind in ("wall", "cpu"):
            ours, plain, ratio, equal = (
                middle[f"{part}_{kind}_{what}"]
                for what in ("run", "bare", "ratio", "ratio_at_equal_steps")
            )
            print(
                f"{part:9} {kind:5} run {ours:7.2f} s  bare {plain:7.2f} s"
                f"  {ratio:.3f} x   at equal steps {equal:.3f} x"
            )
    options = {name: value for name, value in vars(args).items() if name != "json"}
    keep(args.json, {"benchmark": "overhead", **options, "medians": middle, "rows": rows})


if __name__ == "__main__":
    main()
