"""(a) Fine-tuning MiniLM on relations, in batches of 4: ours, and a plain loop padded to 128.

Both begin with the same weights and must give the same logits. Then each trains an epoch in turn,
on examples of 128 pieces each, and on GAD's own sentences. Between them products of matrices of the
same sizes are timed, PyTorch's own and oneDNN's: what the processor could do at most.

Work is counted as multiplications and additions of the products alone. Forwards, for every piece
that is not padding, 2 x the numbers in the weights of all linear layers, and for attention 2 x 2 x
the square of the length x the width, in each layer; backwards twice that. Embeddings, softmax,
dropout, norms and the optimiser count as no work, and take time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import (
    PADDED,
    all_as_long,
    check_equal,
    gad,
    in_turn,
    keep,
    logits_plain,
    parser_of,
    plain_model,
    ratio,
    train_plain,
)
from torch import Tensor, nn

from confide.kinds.pieces import EncodedRelations
from confide.kinds.relations.model import RelationClassifier
from confide.training.devices import WideLinear, has_wide_products
from confide.training.optimisers import Optimiser

RATE = 2.5e-5
PRODUCTS = 60  # that are timed as one


def work(model: RelationClassifier, encoded: EncodedRelations) -> float:
    """Floating point operations of an epoch, forwards and backwards."""
    encoder: Any = model.encoder
    layers = encoder.config.num_hidden_layers
    weights = sum(m.weight.numel() for m in encoder.modules() if isinstance(m, nn.Linear))
    pieces, squares = encoded.lengths_S.sum(), (encoded.lengths_S.astype(float) ** 2).sum()
    head = len(encoded) * model.relation.weight.numel()
    forwards = 2 * (pieces * weights + head) + layers * 4 * squares * encoder.config.hidden_size
    return float(3 * forwards)


def limit(multiply: Callable[[Tensor, Tensor], Tensor], size: int) -> tuple[float, float]:
    """(operations, seconds) of products as large as the largest of a batch."""
    left, right = torch.randn(size * PADDED, 384), torch.randn(1536, 384)
    multiply(left, right)
    started = time.process_time()
    for _ in range(PRODUCTS):
        multiply(left, right)
    return 2.0 * PRODUCTS * left.numel() * len(right), time.process_time() - started


def wide(left: Tensor, right: Tensor) -> Tensor:
    layer = WideLinear(right.shape[1], right.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(right)
    with torch.inference_mode():
        found: Tensor = layer(left)
    return found


def main() -> None:
    parser = parser_of(__doc__, repeats=5)
    parser.add_argument("--examples", type=int, default=120, help="of GAD")
    parser.add_argument("--long", type=int, default=32, help="examples of 128 pieces each")
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size, seed = options.batch_size, options.seed
    trainer, own = gad("train", options.examples, seed)
    texts = {"128 pieces": all_as_long(own, options.long), "GAD's lengths": own}
    ours = trainer.initial(seed)
    plain = plain_model(trainer, ours)
    check_equal(trainer.row_logits(ours, own), logits_plain(plain, own, 32))

    found: dict[str, list[float]] = {"torch.mm": [], "oneDNN": []}

    def limits() -> None:
        for name, call in (("torch.mm", lambda a, b: a @ b.t()), ("oneDNN", wide)):
            operations, seconds = limit(call, size)
            found[name].append(operations / seconds / 1e9)

    sides: dict[str, Callable[[], object]] = {"limit": limits}
    settings = Optimiser("adamw", learning_rate=RATE, clip=0.0)
    for name, encoded in texts.items():
        sides[f"ours, {name}"] = lambda encoded=encoded: trainer.fit(
            ours,
            trainer.annotated(encoded),
            epochs=1,
            batch_size=size,
            optimiser=settings,
            seed=seed,
        )
        sides[f"plain, {name}"] = lambda encoded=encoded: train_plain(
            plain, encoded, size=size, rate=RATE, seed=seed
        )
    times = in_turn(sides, options.repeats)
    measured = {f"{name}, GFLOP/s": statistics.median(values) for name, values in found.items()}
    print(
        f"wide products: {has_wide_products()}; pieces of an example: {np.mean(own.lengths_S):.1f}"
    )
    for name, encoded in texts.items():
        steps = -(-len(encoded) // size)
        for side in ("ours", "plain"):
            taken = times[f"{side}, {name}"]
            measured[f"{side}, {name}, steps/s"] = steps / statistics.median(taken)
            for product, speeds in found.items():
                pairs = zip(taken, speeds[1:], strict=True)
                share = [work(ours, encoded) / 1e9 / seconds / speed for seconds, speed in pairs]
                measured[f"{side}, {name}, share of {product}"] = statistics.median(share)
        taken, other = times[f"ours, {name}"], times[f"plain, {name}"]
        measured[f"ours is faster by, {name}"] = ratio(other, taken)
    keep("training", measured, options)


if __name__ == "__main__":
    main()
