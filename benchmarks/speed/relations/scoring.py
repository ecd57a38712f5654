"""(b) Logits of a public set: ours, and a plain loop of 32 examples at once padded to 128 pieces.

Both have the same weights and must give the same logits.
"""

from __future__ import annotations

import statistics

import torch
from common import check_equal, gad, in_turn, keep, logits_plain, parser_of, plain_model, ratio


def main() -> None:
    parser = parser_of(__doc__, repeats=5)
    parser.add_argument("--examples", type=int, default=0, help="of GAD's test set; 0: all")
    parser.add_argument("--batch-size", type=int, default=32, help="of the plain loop")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer, encoded = gad("test", options.examples, options.seed)
    ours = trainer.initial(options.seed)
    plain, also = plain_model(trainer, ours), plain_model(trainer, ours)
    check_equal(trainer.row_logits(ours, encoded), logits_plain(plain, encoded, options.batch_size))
    times = in_turn(
        {
            "ours": lambda: trainer.row_logits(ours, encoded),
            "ours, products of torch": lambda: trainer.row_logits(also, encoded),
            "plain": lambda: logits_plain(plain, encoded, options.batch_size),
        },
        options.repeats,
    )
    measured = {}
    for name, taken in times.items():
        measured[f"{name}, examples/s"] = len(encoded) / statistics.median(taken)
        measured[f"{name}, faster than plain by"] = ratio(times["plain"], taken)
    keep("scoring", measured, options)


if __name__ == "__main__":
    main()
