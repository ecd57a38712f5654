"""The token-wise kinds: gradients of each sentence in one pass, a CRF's loss by token, annotation.

Every pair of sides gives the same numbers before a time counts. Times are processor time of one
thread, taken in turn, each side once before it counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread on every side

import numpy as np
import torch
from torch import Tensor, nn

from confide.kinds import encoder
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.pieces import token_batch
from confide.kinds.tagger.model import TaggerTrainer
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training.batches import Example, TagSet, examples_from
from confide.training.crf import Scores, negative_log_likelihood, token_losses
from confide.training.encoder import load_encoder
from confide.training.tagger import TaggerSizes, batch_of
from confide.training.trainer import LastLayerGradients
from confide.training.vocabulary import count_characters, count_words, numbered

sys.path.append(str(Path(__file__).parents[1]))

from turns import in_turn

CORPUS = "$CONFIDE_DATA/crossner/politics/train.txt"
Losses = Callable[[int], tuple[Tensor, Tensor]]


def politics(limit: int) -> tuple[list[Example], tuple[str, ...]]:
    examples, _ = examples_from(read(locate(CORPUS)).documents)
    return examples[:limit], tuple(sorted({span[2] for one in examples for span in one.spans}))


def crf_kind(examples: list[Example], types: tuple[str, ...]) -> TaggerTrainer:
    words = [token for one in examples for token in one.tokens]
    tags = TagSet(types)
    known, letters = numbered(count_words(words, "lower")), count_characters(words)
    characters = numbered(letters, kind="character")
    sizes = TaggerSizes(words=len(known), characters=len(characters), tags=len(tags))
    return TaggerTrainer(sizes, tags, known, characters, "lower")


# --- gradients of each sentence -------------------------------------------------------------


def one_by_one(losses: Losses, rows: int, weight: nn.Parameter) -> LastLayerGradients:
    """A loop that asks autograd for the gradient of that weight alone."""
    found: list[list[np.ndarray]] = [[], []]
    for row in range(rows):
        for place, loss in enumerate(losses(row)):
            (slope,) = torch.autograd.grad(loss.sum(), weight, retain_graph=place == 0)
            found[place].append(slope.flatten().numpy())
    return LastLayerGradients(np.array(found[0]), np.array(found[1]))


def backwards(
    losses: Losses, rows: int, weight: nn.Parameter, *, model: nn.Module
) -> LastLayerGradients:
    """A loop as one writes it first: backward, and look at the weight's gradient."""
    found: list[list[np.ndarray]] = [[], []]
    for row in range(rows):
        for place, loss in enumerate(losses(row)):
            model.zero_grad()
            loss.sum().backward(retain_graph=place == 0)
            assert weight.grad is not None
            found[place].append(weight.grad.flatten().numpy().copy())
    model.zero_grad()
    return LastLayerGradients(np.array(found[0]), np.array(found[1]))


def slopes_of_tokens(
    examples: list[Example], types: tuple[str, ...]
) -> dict[str, Callable[[], LastLayerGradients]]:
    made = TokenTrainer(load_encoder("minilm"), EncoderSpec(types))
    model = made.initial(1)
    spans = [one.spans for one in examples]
    encoded = made.annotated(made.prepared(examples), spans, source=set(types[::2]))

    def losses(row: int) -> tuple[Tensor, Tensor]:
        batch = token_batch(encoded.text, np.array([row]), annotated=encoded)
        return encoder.split_loss(model(batch), batch)

    return {
        "one pass": lambda: made.row_gradients(model, encoded),
        "loop, that weight": lambda: one_by_one(losses, len(encoded), model.tag.weight),
        "loop, backward": lambda: backwards(losses, len(encoded), model.tag.weight, model=model),
    }


def slopes_of_crf(
    examples: list[Example], types: tuple[str, ...]
) -> dict[str, Callable[[], LastLayerGradients]]:
    made = crf_kind(examples, types)
    model = made.initial(1).eval()
    spans = [one.spans for one in examples]
    encoded = made.annotated(made.prepared(examples), spans, source=set(types[::2]))

    def losses(row: int) -> tuple[Tensor, Tensor]:
        batch = batch_of(encoded.text, np.array([row]))
        return made.losses(model, encoded, batch, output=model(batch))

    weight = model.crf.linear.weight
    return {
        "one pass": lambda: made.row_gradients(model, encoded),
        "loop, that weight": lambda: one_by_one(losses, len(encoded), weight),
        "loop, backward": lambda: backwards(losses, len(encoded), weight, model=model),
    }


# --- a CRF's loss by token ------------------------------------------------------------------


def recorded(emissions: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor) -> Tensor:
    """The same recursion, recorded by autograd step by step."""
    kind = emissions.dtype
    moves, starts, ends = (part.double() for part in scores)
    emissions = emissions.double()
    length, rows = emissions.shape[1], torch.arange(len(emissions))
    behind = ends.expand(len(emissions), -1)
    losses: list[Tensor] = []
    for t in range(length - 1, 0, -1):
        suffix = emissions[:, t] + behind
        inside = t < lengths_B
        pushed = (moves + suffix[:, None, :]).logsumexp(2)
        before, here = tags_BL[:, t - 1], tags_BL[:, t]
        loss = pushed[rows, before] - moves[before, here] - suffix[rows, here]
        losses.append(torch.where(inside, loss, 0.0))
        behind = torch.where(inside[:, None], pushed, ends)
    suffix = starts + emissions[:, 0] + behind
    losses.append(suffix.logsumexp(1) - suffix[rows, tags_BL[:, 0]])
    return torch.stack(losses[::-1], 1).to(kind)


def losses_by_token(batch: int, length: int, tags: int) -> dict[str, Callable[[], list[Tensor]]]:
    torch.manual_seed(1)
    lengths_B = torch.randint(length // 2, length + 1, (batch,))
    lengths_B[0] = length
    parts = [torch.randn(batch, length, tags), *(torch.randn(*s) for s in ((tags, tags), (tags,)))]
    parts = [part.requires_grad_() for part in (*parts, torch.randn(tags))]
    tags_BL = torch.randint(0, tags, (batch, length))
    weights = torch.rand(batch, length)

    def side(loss: Callable[..., Tensor], *, weigh: bool = True) -> list[Tensor]:
        found = loss(parts[0], Scores(*parts[1:]), tags_BL=tags_BL, lengths_B=lengths_B)
        slopes = torch.autograd.grad((found * weights).sum() if weigh else found.sum(), parts)
        return [found.detach(), *slopes]

    return {
        "by token": lambda: side(token_losses),
        "by token, recorded": lambda: side(recorded),
        "of the sentence": lambda: side(negative_log_likelihood, weigh=False),
    }


# --- time -----------------------------------------------------------------------------------


def compared(
    title: str, sides: Mapping[str, Callable[[], Any]], *, repeats: int, equal: int
) -> dict[str, float]:
    """Seconds of each side and how many times as long as the first; the first `equal` agree."""
    names = list(sides)
    wanted = sides[names[0]]()
    for name in names[1:equal]:
        for one, other in zip(sides[name](), wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-4)
    times = in_turn(sides, repeats)
    found = {f"{title}: {name}, s": statistics.median(times[name]) for name in names}
    for name in names[1:]:
        pairs = zip(times[name], times[names[0]], strict=True)
        found[f"{title}: {name} / {names[0]}"] = statistics.median(a / b for a, b in pairs)
    return found


def annotating(examples: list[Example], types: tuple[str, ...], repeats: int) -> dict[str, float]:
    """How long it takes to read a text once, and to lay annotation over it."""
    found: dict[str, float] = {}
    kinds: dict[str, Any] = {
        "classifier": TokenTrainer(load_encoder("minilm"), EncoderSpec(types)),
        "CRF": crf_kind(examples, types),
    }
    for name, made in kinds.items():
        text, spans = made.prepared(examples), [one.spans for one in examples]
        sides: dict[str, Callable[[], object]] = {
            "annotated": lambda made=made, text=text, spans=spans: made.annotated(
                text, spans, source=set()
            ),
            "prepared": lambda made=made: made.prepared(examples),
        }
        found |= compared(name, sides, repeats=repeats, equal=0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    examples, types = politics(options.sentences)
    often = {"repeats": options.repeats}
    measured = {
        **compared("gradients, classifier", slopes_of_tokens(examples, types), **often, equal=3),
        **compared("gradients, CRF", slopes_of_crf(examples, types), **often, equal=3),
    }
    for tags in (11, 37):
        sides = losses_by_token(16, 40, tags)
        measured |= compared(f"loss, {tags} tags", sides, repeats=10, equal=2)
    measured |= annotating(examples, types, repeats=5)
    for name, value in measured.items():
        print(f"{name:64} {value:10.4f}")
    if options.json:
        about = {name: version(name) for name in ("torch", "transformers", "numpy")}
        about |= {**vars(options), "json": None}
        found = {"about": about, "measured": measured}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
