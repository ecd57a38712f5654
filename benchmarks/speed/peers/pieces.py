"""Sentences as word pieces with a label for each, and labels of pieces as entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Sentence = tuple[list[str], list[str]]
IGNORED, LONGEST = -100, 128
TAGS = {"O": 0, "B-Disease": 1, "I-Disease": 2}
PIECES = 512
"""The most padded pieces of a batch that is only read, as ours has it."""


def rows_of(tokenizer: Any, sentences: Sequence[Sentence]) -> list[dict[str, list[int]]]:
    """The first piece of a word has the word's tag, the others have none."""
    cut = tokenizer(
        [tokens for tokens, _ in sentences],
        is_split_into_words=True, truncation=True, max_length=LONGEST,
    )  # fmt: skip
    rows = []
    for number, (_, tags) in enumerate(sentences):
        before, labels = None, []
        for word in cut.word_ids(number):
            labels.append(IGNORED if word is None or word == before else TAGS[tags[word]])
            before = word
        rows.append(
            {
                "input_ids": cut["input_ids"][number],
                "attention_mask": cut["attention_mask"][number],
                "labels": labels,
            }
        )
    return rows


def read(tokenizer: Any, texts: Sequence[str], kind: str) -> Iterator[Any]:
    """The texts in batches of like length, longest first."""
    left = sorted(texts, key=len, reverse=True)
    while left:
        most = len(tokenizer(left[0], truncation=True, max_length=LONGEST)["input_ids"])
        count = max(1, PIECES // most)
        batch, left = left[:count], left[count:]
        yield tokenizer(
            batch, padding=True, truncation=True, max_length=LONGEST, return_tensors=kind,
            return_offsets_mapping=True, return_special_tokens_mask=True,
        )  # fmt: skip


def entities(tags_BP: Any, offsets_BP2: Any, special_BP: Any) -> list[tuple[int, int, int]]:
    """Row, start and end in characters of pieces in a row that are not outside."""
    found: list[tuple[int, int, int]] = []
    for row, place in zip(*((tags_BP != 0) & (special_BP == 0)).nonzero(), strict=True):
        start, end = offsets_BP2[row, place].tolist()
        if found and found[-1][0] == row and found[-1][2] >= start - 1:
            found[-1] = (row, found[-1][1], end)
        else:
            found.append((row, start, end))
    return found
