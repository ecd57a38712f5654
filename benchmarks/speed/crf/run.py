"""Our CRF against pytorch-crf: loss with gradients, decoding; and our loss of partial annotation.

Equal numbers are checked first. Times are medians of processor time, taken in turn.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import torchcrf
from torch import Tensor

from confide.training.crf import (
    Scores,
    allowed_tags,
    negative_log_likelihood,
    partial_loss,
    viterbi,
    weights_outside,
)

SHAPES = {  # sentences, tokens, tags, lengths between 1 and `tokens`
    "32 x 40 x 11": (32, 40, 11, False),
    "32 x 40 x 11, ragged": (32, 40, 11, True),
    "10 x 25 x 9, ragged": (10, 25, 9, True),
    "32 x 40 x 73": (32, 40, 73, False),
}


def milliseconds(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """The median processor time of each, taken in turn so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 5):
        for call, kept in zip((ours, theirs), times, strict=True):
            started = time.process_time()
            call()
            if turn >= 5:
                kept.append(1000 * (time.process_time() - started))
    return statistics.median(times[0]), statistics.median(times[1])


def measure(shape: tuple[int, int, int, bool], repeats: int) -> dict[str, float]:
    batch, length, tags, ragged = shape
    lengths = torch.randint(1, length + 1, (batch,)) if ragged else torch.full((batch,), length)
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]
    peer = torchcrf.CRF(tags, batch_first=True)
    scores = Scores(peer.transitions, peer.start_transitions, peer.end_transitions)
    emissions = torch.randn(batch, length, tags, requires_grad=True)
    gold = torch.randint(0, tags, (batch, length)) * mask

    def gradients(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, [emissions, *scores]))

    def our_loss() -> list[Tensor]:
        return gradients(
            negative_log_likelihood(emissions, scores, tags_BL=gold, lengths_B=lengths).mean()
        )

    def their_loss() -> list[Tensor]:
        return gradients(-peer(emissions, gold, mask=mask, reduction="mean"))

    def our_tags() -> Tensor:
        with torch.inference_mode():
            return viterbi(emissions, scores, lengths_B=lengths)

    def their_tags() -> list[list[int]]:
        with torch.inference_mode():
            found: list[list[int]] = peer.decode(emissions, mask=mask)
            return found

    open_Y = torch.arange(tags) % 2 == 0  # half of the tags are possible outside entities
    allowed = allowed_tags(gold, weights_outside(open_Y.numpy(), 1.0))

    def partial() -> list[Tensor]:
        every = torch.zeros_like(allowed)
        loss = partial_loss(
            emissions, scores, inner_BLY=allowed, outer_BLY=every, lengths_B=lengths
        )
        return gradients(loss.mean())

    for mine, their in zip(our_loss(), their_loss(), strict=True):
        torch.testing.assert_close(mine, their, rtol=1e-4, atol=1e-5)
    rows = zip(our_tags(), lengths, strict=True)
    assert [row[:n].tolist() for row, n in rows] == their_tags(), "the paths differ"

    loss, peer_loss = milliseconds(our_loss, their_loss, repeats)
    whole, open_loss = milliseconds(our_loss, partial, repeats)
    decode, peer_decode = milliseconds(our_tags, their_tags, repeats)
    return {
        "loss_ms": loss,
        "peer_loss_ms": peer_loss,
        "loss_ratio": peer_loss / loss,
        "partial_ratio": open_loss / whole,
        "decode_ms": decode,
        "peer_decode_ms": peer_decode,
        "decode_ratio": peer_decode / decode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    measured = {name: measure(shape, options.repeats) for name, shape in SHAPES.items()}
    print(f"{'sentences x tokens x tags':26} {'loss + gradient, ms':>28} {'decoding, ms':>28}")
    for name, found in measured.items():
        cells = []
        for kind in ("loss", "decode"):
            mine, their = found[f"{kind}_ms"], found[f"peer_{kind}_ms"]
            cells.append(f"{mine:6.2f} against {their:6.2f} = {found[f'{kind}_ratio']:4.1f} x")
        partial = f"partial annotation: {found['partial_ratio']:.1f} x the loss"
        print(f"{name:26} {cells[0]:>28} {cells[1]:>28}  {partial}")
    if options.json:
        about = {
            "torch": torch.__version__,
            "pytorch-crf": version("pytorch-crf"),
            "machine": platform.processor() or platform.machine(),
            **vars(options),
            "json": None,
        }
        options.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
