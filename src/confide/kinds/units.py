"""Units: the documents, sentences or patients of which noise hides any one.

Every training row belongs to one unit. What a unit adds to a sum is a function of its own rows
alone, so that with one unit more or less nothing else of the sum changes; but for the last bits of
floating-point numbers that are worked out for several sentences together, states of an encoder
among them. The account does not count these (docs/noise.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.flat import Rows
from confide.privacy.clipping import Sum, UnitSlopes, Whole, make_whole
from confide.text.document import Document


def units_of(
    places: Sequence[tuple[int, int]],
    documents: Sequence[Document],
    *,
    unit: str,
    patients: str = "",
) -> list[Rows]:
    """The rows of each unit, in the order of the documents; documents without a row have none.

    `unit` and `patients` are as in the settings (`settings.PrivacyTable`).
    """
    if unit == "sentence":
        names: list[object] = list(dict.fromkeys(places))
        of_rows: Sequence[object] = places
    else:
        owners = [
            patient_of(one, patients) if unit == "patient" else str(number)
            for number, one in enumerate(documents)
        ]
        names = list(dict.fromkeys(owners))
        of_rows = [owners[document] for document, _ in places]
    found: dict[object, list[int]] = {name: [] for name in names}
    for row, name in enumerate(of_rows):
        found[name].append(row)
    return [np.array(rows, np.int64) for rows in found.values()]


def patient_of(document: Document, patients: str) -> str:
    """Whose document it is: its name up to the first of these characters.

    >>> patient_of(Document("17-discharge", ""), "-")
    '17'
    >>> patient_of(Document("letter", ""), "-")
    'letter'
    """
    return document.id.partition(patients)[0] if patients else document.id


def clipped_sum(
    gradients: Iterable[UnitSlopes],
    *,
    like: Mapping[str, NDArray[np.floating]],
    clip: float,
    grid: int,
) -> Whole:
    """The sum of units' gradients, each as whole numbers of norm at most `grid` (= `clip`).

    `like` gives the names and shapes. The gradients are overwritten.
    """
    total = Sum(like, grid=grid)
    for some in gradients:
        make_whole(some, clip=clip, grid=grid)
        total.add(some)
    return total.whole()
