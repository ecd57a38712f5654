"""Which documents a site trains on, and which are held out or public, where no files say so.

Without noise exact shares are drawn. Under noise (`[privacy]`) each document's own unit decides by
itself, so that a unit more or less moves no other: where shares are cut from a permutation, one
document more deals all of them anew, and far more than one unit of the training text changes.

Where a file does not say where its documents begin, each of its sentences is a document
(`Document.unmarked`), and the next one is often of the same text and names the same things. Held
out one by one, they would be scored by a model that has read their neighbours, so shares of them
are drawn in blocks of neighbours. Under noise a sentence still decides by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, groupby, pairwise
from math import ceil

import numpy as np

from confide.data.corpus.pairing import grouped
from confide.errors import DataError
from confide.kinds.units import patient_of
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.settings.privacy import PrivacyTable
from confide.tasks import TASKS
from confide.text.document import Document
from confide.text.segment import segmented

PARTS = ("train", "dev", "test")
LONGEST_BLOCK, SHORTEST_BLOCK, BLOCKS = 20, 10, 5
"""Neighbouring sentences in a block at most, and at least where the share has so many; and the
number of blocks that the smallest share gets, if they are no shorter than that."""
Parts = dict[str, list[Document]]


def held_out(parts: Parts, settings: Settings, name: str, *, given: Sequence[str] = ()) -> Parts:
    """The parts of a site (or of a corpus, ""), with dev and test text held out if it lacks files.

    Without noise at least one document stays for training; a site of one document holds out
    nothing. Parts that are `given` stay as they are, even if this site has none of them. For bags,
    a share of the pairs of entities is held out, each pair with all its documents. Sentences of
    unknown documents are held out by `blocks`. Raises DataError as `_by_unit`.
    """
    wanted = [
        (held, share)
        for held, share in (
            ("test", settings.data.test_share),
            ("dev", settings.data.dev_share),
        )
        if not parts[held] and held not in given
    ]
    if not wanted:
        return parts
    train = parts["train"]
    if settings.privacy is not None:
        names, shares = zip(*wanted, strict=True)
        found = _by_unit(train, shares, settings, "hold out", name)
        return {**parts, **dict(zip((*names, "train"), found, strict=True))}
    bags = TASKS[settings.task].bags
    smallest = min((share for _, share in wanted if share), default=0.0)
    units = grouped(train, settings.bags.same) if bags else blocks(train, share=smallest)
    order = np.random.default_rng(derive_seed(settings.seed, "hold out", name))
    shuffled = [units[place] for place in order.permutation(len(units))]
    found_parts = dict(parts)
    for held, share in wanted:
        count = min(int(share * len(units) + 0.5), len(shuffled) - 1)
        found_parts[held] = list(chain.from_iterable(shuffled[:count]))
        shuffled = shuffled[count:]
    return {**found_parts, "train": list(chain.from_iterable(shuffled))}


def blocks(documents: Sequence[Document], *, share: float | None = None) -> list[list[Document]]:
    """Documents one by one, sentences of unknown documents in blocks of neighbours, all in order.

    A block is of one file, and of about the same length as all others there: 10 sentences, or, if
    a `share` of the file is to be drawn, a fifth of that, but from 10 to 20 and no more than it.

    >>> one = [Document(str(n), "", source=f"a.conll:{n}", unmarked=True) for n in range(100)]
    >>> [len(block) for block in blocks(one, share=0.2)]
    [10, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    >>> [len(block) for block in blocks([*one[:9], Document("letter", "")], share=0.2)]
    [1, 2, 2, 2, 2, 1]
    """
    found: list[list[Document]] = []
    for file, neighbours in groupby(documents, key=_file_of):
        run = list(neighbours)
        longest = 1 if file is None else SHORTEST_BLOCK
        if file is not None and share is not None:
            drawn = ceil(share * len(run))
            longest = max(1, min(LONGEST_BLOCK, max(SHORTEST_BLOCK, drawn // BLOCKS), drawn))
        count = ceil(len(run) / longest)
        edges = [place * len(run) // count for place in range(count + 1)]
        found += [run[a:b] for a, b in pairwise(edges)]
    return found


def _file_of(document: Document) -> str | None:
    """The file of a sentence whose document is unknown; None for any other document."""
    return document.source.rpartition(":")[0] if document.unmarked else None


def public_share(
    train: list[Document], settings: Settings
) -> tuple[list[Document], list[Document]]:
    """A corpus's training documents as (those to deal, those in the public set), each in order.

    A larger share contains every smaller one. Raises DataError as `_by_unit`.
    """
    share = settings.public.share
    if not share:
        return train, []
    if settings.privacy is not None:
        public, rest = _by_unit(train, (share,), settings, "public")
        return rest, public
    if len(train) < 2:
        return train, []
    order = np.random.default_rng(derive_seed(settings.seed, "public")).permutation(len(train))
    count = min(max(1, int(share * len(train) + 0.5)), len(train) - 1)
    return [train[n] for n in sorted(order[count:])], [train[n] for n in sorted(order[:count])]


def train_share(train: list[Document], settings: Settings, name: str) -> list[Document]:
    """The share of a site's training documents that it trains on: at least one, in order.

    A larger share contains every smaller one. Under noise it may be none. Raises DataError as
    `_by_unit`.
    """
    share = settings.data.train_share
    if share == 1.0:
        return train
    if settings.privacy is not None:
        return _by_unit(train, (share,), settings, "train share", name)[0]
    order = np.random.default_rng(derive_seed(settings.seed, "train share", name))
    count = max(1, int(share * len(train) + 0.5))
    return [train[place] for place in sorted(order.permutation(len(train))[:count])]


def _by_unit(
    documents: Sequence[Document], shares: Sequence[float], settings: Settings, *names: str
) -> list[list[Document]]:
    """About so large shares of the documents, and the rest; each document's unit decides alone.

    Raises DataError if units are sentences and a document has several: one sentence would then
    decide about others.
    """
    privacy = settings.privacy
    assert privacy is not None
    edges = list(accumulate(shares))
    found: list[list[Document]] = [[] for _ in (*shares, "rest")]
    for document in documents:
        draw = derive_seed(settings.seed, *names, _unit_of(document, privacy)) / 2**63
        found[bisect_right(edges, draw)].append(document)
    return found


def _unit_of(document: Document, privacy: PrivacyTable) -> str:
    """What decides about a document: its patient's name, or its text (not its place in a file)."""
    if privacy.unit == "patient":
        return patient_of(document, privacy.patients)
    if privacy.unit == "sentence" and (count := _sentences(document)) > 1:
        raise DataError(
            "under noise by the sentence, no share of this text can be drawn",
            expected="one sentence a document",
            got=f"{count} in document {document.id}",
            fix='name held-out text in files (`dev`, `test`), or set privacy.unit = "document"',
        )
    return document.text


def _sentences(document: Document) -> int:
    return len((document if document.sentences else segmented(document)).sentences)
