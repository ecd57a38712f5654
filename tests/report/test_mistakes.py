"""Errors of a site as pieces of text."""

from __future__ import annotations

from confide.report.mistakes import Piece, errors_view, pieces
from report.folders import errors


def test_text_is_cut_at_its_spans() -> None:
    text = "rash since ramopril"
    right = [(0, 4, "ADE")]
    assert pieces(text, [[11, 19, "DRUG", 0.9], [0, 4, "ADE"]], right=right) == (
        Piece("rash", "ADE"), Piece(" since "), Piece("ramopril", "DRUG", 0.9, right=False),
    )  # fmt: skip


def test_no_character_is_lost_or_doubled_where_spans_overlap() -> None:
    text = "pain in the left hip"
    cut = pieces(text, [[8, 20, "B"], [0, 11, "A"], [0, 4, "C"], [5, 99, "D"]], right=[])
    assert "".join(piece.text for piece in cut) == text
    assert [piece.type for piece in cut if piece.type] == ["A"]


def test_the_confusion_is_a_whole_table_with_nothing_last() -> None:
    view = errors_view(errors("ward"))
    assert view.types == ("ADE", "DRUG", "REASON", "")
    assert view.confusion == (
        ("ADE", (30, 0, 4, 6)), ("DRUG", (0, 88, 0, 2)), ("REASON", (3, 0, 20, 0)),
        ("", (5, 1, 0, 0)),
    )  # fmt: skip
    (mistake,) = view.worst
    assert [piece.right for piece in mistake.gold if piece.type] == [False, True]
    assert [piece.confidence for piece in mistake.predicted if piece.type] == [0.81, 0.99]


def test_a_site_without_errors() -> None:
    view = errors_view({"site": "ward", "confusion": {}, "worst": []})
    assert (view.types, view.confusion, view.worst) == (("",), (("", (0,)),), ())
