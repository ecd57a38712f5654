"""How many pairs a site needs, if a sum is masked along a random regular graph, not by all pairs.

Bell, Bonawitz, Gascón, Lepoint & Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020. Here the server says who took part after it has seen the
graph, and any set of t sites will do. So it can leave out n - t honest sites, all of them
neighbours of one site: what that site sends can be read unless more of its neighbours are honest,
but with probability 2^-40 among all sites. That it is not cut off together with others is a second
condition, not counted here.
"""

from __future__ import annotations

from math import comb


def cut_off(n: int, colluding: int, degree: int, left_out: int) -> float:
    """The probability that at most `left_out` of a site's neighbours are honest."""
    least = max(degree - left_out, 0)
    ways = sum(
        comb(colluding, found) * comb(n - 1 - colluding, degree - found)
        for found in range(least, min(colluding, degree) + 1)
    )
    return ways / comb(n - 1, degree)


def least_degree(n: int) -> tuple[int, int, int]:
    """The default's colluding sites, its threshold and the least degree; n - 1 is all pairs."""
    colluding = max(1, -(-n // 3) - 1)
    threshold = (n + colluding) // 2 + 1
    for degree in range(1, n - 1):
        if (n - colluding) * cut_off(n, colluding, degree, n - threshold) <= 2**-40:
            return colluding, threshold, degree
    return colluding, threshold, n - 1


if __name__ == "__main__":
    for sites in (10, 20, 50, 100, 200, 500, 1000):
        colluding, threshold, degree = least_degree(sites)
        print(f"{sites:5} sites, c {colluding}, t {threshold}: {degree} of {sites - 1} pairs")
