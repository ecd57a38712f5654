"""Seeds: names decide numbers, and nothing leaks out of a seeded block."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from confide.seeds import derive_seed, seeded


def test_a_name_decides_the_seed() -> None:
    assert derive_seed(1, "site-01", "train") == 4278710497023308209
    names = [(1, "a"), ("1", "a"), (1, "a", ""), ("1,a",), (1, "b"), (2, "a"), ("1a",)]
    assert len({derive_seed(*name) for name in names}) == len(names)
    assert all(0 <= derive_seed("x", n) < 2**63 for n in range(100))


def test_draws_inside_do_not_move_the_generator_outside() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(1):
        assert torch.equal(torch.rand(3), inside)


def test_threads_do_not_draw_from_each_others_seeds() -> None:
    def draw(seed: int) -> list[float]:
        with seeded(seed):
            return [float(torch.rand(())) for _ in range(200)]

    expected = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(draw, range(8))) == expected
