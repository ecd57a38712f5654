"""A public set of spans: its rows and labels, and what another place might send as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import DataError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.steps import Turn
from confide.kinds import spans
from confide.kinds.public import SEVERAL
from confide.kinds.spans import MOST_SPANS, PublicSpans, public_spans
from confide.methods.feded import TakePublic, certain, take_public_set
from confide.text.document import Document, Entity
from contract.corpus import tiny
from methods.relation_runs import started

TYPES = ["Disease", "Finding", "Site"]
TEXT = "signs of liver cancer. No cyst."


def marked(*entities: tuple[int, int, str]) -> Document:
    """The text with these entities, by characters."""
    made = [Entity(f"T{n}", kind, ((a, b),)) for n, (a, b, kind) in enumerate(entities)]
    return Document("n", TEXT, tuple(made))


NESTED = marked((0, 21, "Finding"), (9, 21, "Disease"), (9, 21, "Finding"), (9, 14, "Site"))


def test_rows_and_labels_say_the_same_spans_again() -> None:
    public, labels = public_spans([NESTED], width=3, types=TYPES)
    assert public.sentences == [["signs", "of", "liver", "cancer", "."], ["No", "cyst", "."]]
    assert public.rows == len(labels) == (3 + 3 + 3 + 2 + 1) + (3 + 2 + 1)
    assert public.row_sentences.tolist() == [0] * 12 + [1] * 6
    assert sorted(public.labelled_spans(labels)[0]) == [
        (2, 3, "Site"), (2, 4, "Disease"), (2, 4, "Finding"),
    ]  # fmt: skip
    assert public.labelled_spans(labels)[1] == [] and public.labelled_spans([]) == [[], []]
    wide, labels = public_spans([NESTED], width=4, types=TYPES)
    assert (0, 4, "Finding") in wide.labelled_spans(labels)[0]


def test_a_row_of_two_types_shares_its_certainty() -> None:
    _, labels = public_spans([NESTED], width=3, types=TYPES)
    wanted = certain(labels, ["O", *TYPES])
    (both,) = [row for row, label in enumerate(labels) if SEVERAL in label]
    assert wanted[both].tolist() == [0, 0.5, 0.5, 0]
    assert np.array_equal(wanted.sum(1), np.ones(len(labels), np.float32))


def test_a_part_is_read_as_the_whole_is() -> None:
    public, _ = public_spans([NESTED], width=2, types=TYPES)
    part = public.part(public.row_sentences == 1)
    assert part.sentences == [["No", "cyst", "."]] and part.width == 2
    part.check()
    assert part.digest != public.digest


def test_sets_that_no_model_can_learn_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="needs a public set"):
        public_spans([], width=3, types=TYPES)
    with pytest.raises(DataError, match="'Site', which no model learns"):
        public_spans([NESTED], width=3, types=TYPES[:2])
    monkeypatch.setattr(spans, "MOST_SPANS", 17)
    with pytest.raises(SettingsError, match=r"at most 17 spans; got 18;"):
        public_spans([NESTED], width=3, types=TYPES)


def test_a_site_takes_no_set_that_is_none(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=feded-spans"))
    state = method.start(federation)
    site, width = engine.site("site-1"), state.form.width

    def refusal(sentences: Any, width: int) -> str:
        ask = TakePublic(state.form, PublicSpans(sentences, width))
        with pytest.raises(Refusal) as caught:
            take_public_set(site, None, ask, Turn(0, "site-1", "take_public_set", 1))
        return caught.value.code

    one = [["a", "b"]]
    for wrong in (0, -1, MOST_SPANS + 1):
        assert refusal(one, wrong) == "bad-ask"
    assert refusal([["a"] * 1000] * 100, 12) == "bad-ask"  # more spans than a set may have
    assert refusal([[]], width) == refusal([], width) == refusal([["a", ""]], width) == "bad-ask"
    other = PublicSpans(one, width + 1)
    assert other.digest != PublicSpans(one, width).digest
    with pytest.raises(Refusal) as caught:
        state.form.at(site).predicted(state.weights, other)
    assert caught.value.code == "other-public-set"
