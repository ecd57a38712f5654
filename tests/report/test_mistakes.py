"""Errors of a site as pieces of text."""

from __future__ import annotations

from confide.report.folder import Piece, errors_of, pieces
from confide.report.sections import relation_confusion, site_confusion
from confide.scoring import relation_scores
from confide.text.document import NO_RELATION
from report.folders import RELATIONS, errors, relation_counts, relation_errors


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
    found = errors_of(errors("ward"))
    view = site_confusion(found)
    assert view.columns == ["ADE", "DRUG", "REASON", ""]
    assert view.rows == [
        ("ADE", [30, 0, 4, 6]), ("DRUG", [0, 88, 0, 2]), ("REASON", [3, 0, 20, 0]),
        ("", [5, 1, 0, 0]),
    ]  # fmt: skip
    assert view.nothing == "nothing"
    (mistake,) = found.worst
    assert [piece.right for piece in mistake.marked if piece.type] == [False, True]
    assert [piece.confidence for piece in mistake.found if piece.type] == [0.81, 0.99]


def test_a_site_without_errors() -> None:
    found = errors_of({"site": "ward", "confusion": {}, "worst": []})
    view = site_confusion(found)
    assert (view.columns, view.rows) == ([""], [("", [0])])
    assert found.worst == []


def test_relations_come_first_then_none_then_what_was_not_looked_at() -> None:
    found = errors_of(relation_errors("ward"))
    view = site_confusion(found)
    assert view.columns == ["causes", "treats", NO_RELATION, ""]
    assert view.rows == [
        ("causes", [9, 1, 2, 3]), ("treats", [0, 5, 0, 0]), (NO_RELATION, [0, 1, 40, 0]),
    ]  # fmt: skip
    assert view.nothing == "not looked at"
    wrong, unseen = found.worst
    assert (wrong.gold, wrong.predicted, wrong.confidence) == ("causes", "treats", 0.93)
    assert (unseen.predicted, unseen.confidence) == (NO_RELATION, None)
    assert [(piece.text, piece.type) for piece in wrong.pieces] == [
        ("Ramopril", "head DRUG"), (" 5 mg caused ", ""), ("dry cough", "tail ADE"), (".", ""),
    ]  # fmt: skip


def test_head_and_tail_may_overlap_and_have_several_fragments() -> None:
    text = "left and right hip pain"
    case = {
        "text": text, "head": [[0, 4], [15, 18]], "tail": [[9, 99]], "head_type": "",
        "tail_type": "Sign", "gold": "a", "predicted": "b",
    }  # fmt: skip
    found = errors_of({"site": "s", "task": "re", "confusion": {}, "worst": [case]})
    (pair,) = found.worst
    assert "".join(piece.text for piece in pair.pieces) == text
    assert [(piece.text, piece.type) for piece in pair.pieces if piece.type] == [
        ("left", "head"), ("right ", "tail Sign"), ("hip", "head, tail Sign"),
        (" pain", "tail Sign"),
    ]  # fmt: skip


def test_missed_relations_have_a_column_only_where_there_are_some() -> None:
    scores = relation_scores(relation_counts(5))
    assert relation_confusion(scores).columns == [*RELATIONS, NO_RELATION, ""]
    assert relation_confusion(scores).rows[2] == ("treats", [0, 0, 5, 4, 2])
    assert "" not in relation_confusion({**scores, "missed": {}}).columns
    only = relation_confusion({"confusion": {}, "missed": {"treats": 2}})
    assert (only.columns, only.rows) == (["treats", ""], [("treats", [0, 2])])
