"""What a relation model calls the types of another model."""

from __future__ import annotations

import pytest

from confide.errors import DataError, SettingsError
from confide.kinds.relations.batches import as_known, known_type


def test_the_same_name_comes_before_one_of_another_case():
    assert known_type("Drug", ["drug", "Drug"]) == "Drug"
    assert known_type("DRUG", ["drug"]) == "drug"
    assert known_type("DRUG", ["drug", "Drug"]) == ""  # nobody knows which
    assert known_type("STRASSE", ["Straße"]) == "Straße"
    assert known_type("Dose", ["drug"]) == ""


def test_given_names_decide():
    known, pairs = ("A", "B", "C"), frozenset({("A", "B")})
    assert as_known(["a", "b"], known, pairs=pairs, given={}) == {"a": "A", "b": "B"}
    assert as_known("ab", known, given={"a": "B", "b": "A"}) == {"a": "B", "b": "A"}
    assert as_known("abc", known, pairs=pairs, given={"c": ""}) == {"a": "A", "b": "B", "c": ""}


def test_one_type_may_be_both_ends():
    assert as_known(["x"], ("A",), pairs=frozenset({("A", "A")}), given={"x": "A"}) == {"x": "A"}
    with pytest.raises(DataError, match=r"expected A and B.*got a.*--as FOUND=NAME"):
        as_known(["a"], ("A", "B"), pairs=frozenset({("A", "B")}), given={})


def test_the_example_is_of_names_that_are_left():
    pairs = frozenset({("CHEMICAL", "GENE")})
    with pytest.raises(DataError, match="--as Drug=NAME, where NAME is CHEMICAL or GENE"):
        as_known(["Drug", "Gene"], ("CHEMICAL", "GENE"), pairs=pairs, given={})
    with pytest.raises(DataError, match="--as Protein=NAME"):
        as_known(["Chemical", "Protein"], ("CHEMICAL", "GENE"), pairs=pairs, given={})


def test_what_is_left_out_is_no_end():
    with pytest.raises(DataError, match="no pair of these"):
        as_known("ab", ("A", "B"), pairs=frozenset({("A", "B")}), given={"a": ""})
    with pytest.raises(DataError, match="no pair of these"):
        as_known([], ("A",), given={})


def test_names_that_are_not_there():
    with pytest.raises(SettingsError, match="type 'x'"):
        as_known("ab", ("A", "B"), given={"x": "A"})
    with pytest.raises(SettingsError, match="type 'X'"):
        as_known("ab", ("A", "B"), given={"a": "X"})
