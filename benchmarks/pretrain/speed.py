"""What a step's loss costs: torch's own, ours over every row, ours over drawn rows. CPU seconds.

And how many operations a second a product of matrices takes in float32 and in bfloat16.

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


def operations(left: Tensor, right: Tensor, turns: int = 100) -> float:
    """Of a product with the second one's transpose, in a second of processor time."""
    for _ in range(turns // 10):
        left @ right.T
    began = time.process_time()
    for _ in range(turns):
        left @ right.T
    return 2 * left.numel() * len(right) * turns / (time.process_time() - began)


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
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.randn(N, D).to(dtype), torch.randn(4 * D, D).to(dtype)
        print(f"{dtype!s:16} {operations(left, right) / 1e9:8.1f} GFLOP/s")


if __name__ == "__main__":
    main()
