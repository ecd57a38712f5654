"""MiniLM on GAD in float32 and in bfloat16, on a processor: training, logits, and a bare product.

python benchmarks/speed/relations/narrow.py --json benchmarks/speed/relations/measured.json
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from common import gad, in_turn, keep, parser_of, ratio

from confide.training.devices import Place, computing_at
from confide.training.optimisers import Optimiser


def main() -> None:
    parser = parser_of(__doc__, repeats=3)
    parser.add_argument("--examples", type=int, default=120, help="of GAD")
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    adamw = Optimiser("adamw", learning_rate=2.5e-5, clip=1.0)
    sides, measured = {}, {}
    for name, narrow in (("float32", False), ("bfloat16", True)):
        with computing_at(Place(narrow=narrow)):
            trainer, own = gad("train", options.examples, options.seed)
            model = trainer.initial(options.seed)
        fit = partial(trainer.fit, model, trainer.annotated(own), epochs=1, optimiser=adamw)
        sides[f"training, {name}"] = partial(fit, batch_size=options.batch_size, seed=options.seed)
        sides[f"logits, {name}"] = partial(trainer.row_logits, model, own)
        measured[f"product, {name}, GFLOP/s"] = product(getattr(torch, name)) / 1e9
    times = in_turn(sides, options.repeats)
    for what in ("training", "logits"):
        for name in ("float32", "bfloat16"):
            taken = statistics.median(times[f"{what}, {name}"])
            measured[f"{what}, {name}, examples/s"] = options.examples / taken
        wide, narrow = (times[f"{what}, {name}"] for name in ("float32", "bfloat16"))
        measured[f"{what}, bfloat16 is faster by"] = ratio(wide, narrow)
    keep("narrow", measured, options)


def product(dtype: torch.dtype, repeats: int = 40) -> float:
    """Operations a second of products of 512 x 384 by 384 x 1536 numbers with oneDNN."""
    left, right = torch.randn(512, 384).to(dtype), torch.randn(1536, 384).to(dtype)
    with torch.inference_mode():
        for turn in range(repeats + 3):
            if turn == 3:
                started = time.process_time()
            torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return repeats * 2.0 * left.numel() * len(right) / (time.process_time() - started)


if __name__ == "__main__":
    main()
