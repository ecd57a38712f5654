"""sites/NAME/sentences.json: what each sentence of a site's test text counted. Numbers, no text.

docs/result.md describes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from confide.errors import RunError
from confide.runs.result import Whole, must_not_be_newer, read_record
from confide.scoring.bootstrap import Table
from confide.tasks import TASKS, USUAL, Counted
from confide.userfiles import json_of

SENTENCES = "sentences.json"
SENTENCES_SCHEMA = 1

Matching = Counted
Counts = Annotated[list[Whole], Field(min_length=3, max_length=3)]

_DAMAGED = "this file does not hold the counts of a site's sentences"


class Sentences(NamedTuple):
    """(true, predicted, gold) of each of a site's sentences, and a digest of its test text."""

    site: str
    fingerprint: str
    counts_N3: Table


class SentencesFile(BaseModel):
    """A site's sentences.json, as docs/result.md describes it."""

    model_config = ConfigDict(strict=True, frozen=True)

    schema_: Annotated[int, Field(alias="schema", ge=1)]
    site: str
    fingerprint: str
    strict: list[Counts] | None = None
    relaxed: list[Counts] | None = None
    micro: list[Counts] | None = None
    best: list[Counts] | None = None
    ranked: list[list[Whole]] | None = None
    types: dict[str, list[Counts]] = {}

    @property
    def task(self) -> str:
        """The task whose kinds of counts the file holds."""
        kinds = self.model_fields_set
        known = (task.name for task in TASKS.values() if kinds & set(task.counted[:1]))
        return next(known, USUAL)


def sentences_file(file: Path) -> SentencesFile:
    """A site's sentences.json. Raises RunError if it is damaged or has a newer schema."""
    held = read_record(file, lambda text: SentencesFile.model_validate(json_of(text)), _DAMAGED)
    must_not_be_newer(held.schema_, SENTENCES_SCHEMA, what="these counts of sentences", file=file)
    return held


def read_sentences(
    file: Path, matching: Matching = "strict", *, held: SentencesFile | None = None
) -> Sentences:
    """The counts of one site's sentences; `held` is the file, if it was read before.

    Raises RunError if it is damaged or has a newer schema.
    """
    held = held or sentences_file(file)
    counts_N3 = np.array(getattr(held, matching) or (), dtype=np.int64).reshape(-1, 3)
    true_N, predicted_N, gold_N = counts_N3.T
    if not len(counts_N3) or (true_N > np.minimum(predicted_N, gold_N)).any():
        raise RunError(
            _DAMAGED,
            where=str(file),
            expected=f"{matching} counts (true, predicted, gold) of each sentence",
        )
    return Sentences(held.site, held.fingerprint, counts_N3)
