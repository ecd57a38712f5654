"""Counts of held-out text as tables of a fixed form, so that they can be summed unseen.

A site's own reply lists the labels that occur in its text. Where no single reply may be seen, all
sites count into the same tables instead: one row for each label of the model, and a last one for
everything else (`OTHER`).

Shapes: Y labels, `OTHER` among them; B bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from confide.kinds.evaluation import BagsScored, RelationsScored, Scored
from confide.scoring import calibration
from confide.scoring.bags import BINS

OTHER = "(other)"
"""Stands for all labels that the model does not have."""
Counted = NDArray[np.int64]


class HasSure(Protocol):
    """A reply with finds by label and confidence."""

    @property
    def sure_N4(self) -> NDArray[np.int32]: ...  # noqa: D102, N802


def rows_of(names: Sequence[str], labels: Sequence[str]) -> NDArray[np.intp]:
    """The row of each name among these labels; the last row for others."""
    place = {label: row for row, label in enumerate(labels)}
    return np.array([place.get(name, len(labels)) for name in names], np.intp)


def _added(table: Counted, rows: NDArray[np.intp], many: int) -> Counted:
    found = np.zeros((many, *table.shape[1:]), np.int64)
    np.add.at(found, rows, table)
    return found


def _sure(reply: HasSure, rows: NDArray[np.intp], many: int) -> Counted:
    found = np.zeros((many, calibration.BINS, 2), np.int64)
    type_N, bin_N, right_N, found_N = reply.sure_N4.astype(np.int64).T
    np.add.at(found, (rows[type_N], bin_N), np.stack([right_N, found_N], 1))
    return found


def _sure_back(sure_YB2: Counted) -> NDArray[np.int32]:
    row_N, bin_N = np.nonzero(sure_YB2[:, :, 1])
    return np.concatenate([np.stack([row_N, bin_N], 1), sure_YB2[row_N, bin_N]], 1).astype(np.int32)


class EntityTables:
    """Tables of entity counts."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of every table."""
        many = len(labels) + 1
        return {
            "strict": (many, 3),
            "relaxed": (many, 3),
            "sure": (many, calibration.BINS, 2),
            "rest": (2,),
        }

    def of(self, reply: Scored, labels: Sequence[str]) -> Mapping[str, Counted]:
        """A reply as tables."""
        rows, many = rows_of(reply.types, labels), len(labels) + 1
        return {
            "strict": _added(reply.strict_Y3, rows, many),
            "relaxed": _added(reply.relaxed_Y3, rows, many),
            "sure": _sure(reply, rows, many),
            "rest": np.array([reply.sentences, reply.malformed], np.int64),
        }

    def back(self, tables: Mapping[str, Counted], labels: Sequence[str]) -> Scored:
        """The reply with these counts."""
        return Scored(
            types=[*labels, OTHER],
            strict_Y3=tables["strict"],
            relaxed_Y3=tables["relaxed"],
            sentences=int(tables["rest"][0]),
            malformed=int(tables["rest"][1]),
            sure_N4=_sure_back(tables["sure"]),
        )


class RelationTables:
    """Tables of relation counts."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of every table."""
        many = len(labels) + 1
        return {"confusion": (many, many), "missed": (many,), "sure": (many, calibration.BINS, 2)}

    def of(self, reply: RelationsScored, labels: Sequence[str]) -> Mapping[str, Counted]:
        """A reply as tables."""
        rows, many = rows_of(reply.labels, labels), len(labels) + 1
        confusion_YY = np.zeros((many, many), np.int64)
        np.add.at(confusion_YY, (rows[:, None], rows[None, :]), reply.confusion_YY)
        return {
            "confusion": confusion_YY,
            "missed": _added(reply.missed_Y, rows, many),
            "sure": _sure(reply, rows, many),
        }

    def back(self, tables: Mapping[str, Counted], labels: Sequence[str]) -> RelationsScored:
        """The reply with these counts."""
        return RelationsScored(
            labels=[*labels, OTHER],
            confusion_YY=tables["confusion"],
            missed_Y=tables["missed"],
            sure_N4=_sure_back(tables["sure"]),
        )


class BagTables:
    """Tables of bag counts."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of every table."""
        return {"candidates": (BINS,), "true": (BINS,), "best": (len(labels) + 1, 3), "rest": (2,)}

    def of(self, reply: BagsScored, labels: Sequence[str]) -> Mapping[str, Counted]:
        """A reply as tables."""
        return {
            "candidates": reply.candidates_B,
            "true": reply.true_B,
            "best": _added(reply.best_Y3, rows_of(reply.labels, labels), len(labels) + 1),
            "rest": np.array([reply.facts, reply.bags], np.int64),
        }

    def back(self, tables: Mapping[str, Counted], labels: Sequence[str]) -> BagsScored:
        """The reply with these counts."""
        return BagsScored(
            candidates_B=tables["candidates"],
            true_B=tables["true"],
            facts=int(tables["rest"][0]),
            bags=int(tables["rest"][1]),
            labels=[*labels, OTHER],
            best_Y3=tables["best"],
        )
