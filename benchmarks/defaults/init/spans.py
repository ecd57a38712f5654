"""Tagged sentences and strict F1 for the peers, with nothing but the standard library."""

from __future__ import annotations

from pathlib import Path


def sentences(path: Path) -> list[tuple[list[str], list[str]]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    pairs = [[line.split("\t") for line in block.splitlines()] for block in blocks]
    return [([token for token, _ in one], [tag for _, tag in one]) for one in pairs]


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """Entities as first and last token and type; an I without its B begins one."""
    found, start, kind = set(), -1, ""
    for at, tag in enumerate([*tags, "O"]):
        if kind and (tag[0] != "I" or tag[2:] != kind):
            found.add((start, at - 1, kind))
            kind = ""
        if tag[0] == "B" or (tag[0] == "I" and not kind):
            start, kind = at, tag[2:]
    return found


def f1(gold: list[list[str]], found: list[list[str]]) -> float:
    """Micro F1 over exact entities."""
    right = said = there = 0
    for one, other in zip(gold, found, strict=True):
        a, b = spans(one), spans(other)
        right, there, said = right + len(a & b), there + len(a), said + len(b)
    return 2 * right / max(1, said + there)
