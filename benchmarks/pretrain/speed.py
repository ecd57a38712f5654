"""What a step's loss costs: torch's own, ours over every row, ours over drawn rows. CPU seconds.

OMP_NUM_THREADS=1 python benchmarks/pretrain/speed.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from confide.models.denoising import cross_entropy, drawn_rows

N, D, V, TIMES = 512, 384, 30_522, 3


def cost(of: Callable[[], Tensor]) -> float:
    of().backward()
    best = float("inf")
    for _ in range(TIMES):
        began = time.process_time()
        of().backward()
        best = min(best, time.process_time() - began)
    return best


def main() -> None:
    torch.manual_seed(1)
    states, table = torch.randn(N, D, requires_grad=True), torch.randn(V, D) / 20
    targets = torch.randint(V, (N,)) // 30  # some thousand pieces, most more than once
    generator = torch.Generator().manual_seed(1)

    def drawn() -> Tensor:
        rows = drawn_rows(targets, V, count=4096, generator=generator)
        return cross_entropy(states, table, targets, rows=rows)

    plain = cost(lambda: functional.cross_entropy(states @ table.T, targets, reduction="sum"))
    every = cost(lambda: cross_entropy(states, table, targets))
    some = cost(drawn)
    for name, seconds in (("torch", plain), ("every row", every), ("4096 drawn rows", some)):
        print(f"{name:16} {1e3 * seconds:8.1f} ms  {plain / seconds:5.2f} times")


if __name__ == "__main__":
    main()
