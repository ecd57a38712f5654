"""The options about reading that check, convert and review share."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from confide.cli import main  # noqa: F401  the command line is complete
from confide.cli.options import ReadingOptions, parse_columns
from confide.cli.verbs import app
from confide.errors import SettingsError
from text.generated import put


def run(*words, code=0):
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def test_columns_by_name_and_number():
    assert parse_columns("0,3") == (0, 3)
    assert parse_columns("words, none") == ("words", None)
    assert parse_columns(None) is None
    for wrong in ("0", "0,", "0,1,2", ""):
        with pytest.raises(SettingsError, match="TOKEN,TAG"):
            parse_columns(wrong)


def test_what_is_not_said_is_the_default():
    from confide.text.formats import Options

    assert ReadingOptions().options() == Options()


def test_strict_ends_with_1_on_a_loss(tmp_path):
    path = put(tmp_path, "a.jsonl", json.dumps({"text": "Rash", "entities": [[0, 99, "A"]]}) + "\n")
    run("check", path)
    run("check", path, "--strict", code=1)
    out = tmp_path / "b.jsonl"
    assert "beyond-text" in run("convert", path, "--to", "jsonl", "--out", out, "--strict", code=1)
    run("check", out, "--strict")


def test_columns_annotators_and_skip_broken(tmp_path):
    table = put(tmp_path, "a.txt", "1 Rash x B-A\n2 , y O\n")
    found = json.loads(run("check", table, "--format", "conll", "--columns", "1,3", "--json"))
    assert found["types"] == {"A": 1}
    rows = [{"text": "a", "answer": "accept", "_annotator_id": who, "spans": []}
            for who in ("ann", "bob")]  # fmt: skip
    path = put(tmp_path, "p.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    run("check", path, code=2)
    run("check", path, "--skip-broken", "--strict", code=1)
    found = json.loads(run("check", path, "--skip-broken", "--annotators", "bob", "--json"))
    assert "annotators bob of ann (1), bob (1)" in next(iter(found["details"].values()))


def test_review_writes_a_page(tmp_path):
    path = put(tmp_path, "a.conll", "Rash\tB-A\n")
    run("review", tmp_path / "r.html", path)
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()


def test_strict_ends_with_1_for_every_kind_of_loss(tmp_path):
    """Without it, what can be read is read, and an error in a file is code 2."""

    def row(**more):
        return json.dumps(more) + "\n"

    far = [{"start": 0, "end": 4, "type": "A", "text": "pain"}]
    export = {"projects": [{"documents": [{"id": 1, "text": "Rash", "annotations": [
        {"start": 0, "end": 99, "cui": "1"}]}]}]}  # fmt: skip
    cells = 'id,text,label\n1,Rash,"[{""start"": 0, ""end"": 99, ""label"": ""A""}]"\n'
    kinds = {
        "columns": ("a.conll", "a\tO\nb\tB-X\n", ["--columns", "0,7"], 2),
        "names of columns": ("a.csv", "id,text\n1,Rash\n", ["--columns", "id,note"], 2),
        "cells": ("a.csv", cells, [], 0),
        "offsets": ("a.jsonl", row(text="😀 abcd", label=[[3, 5, "A"]]), [], 0),
        "mismatch": ("a.jsonl", row(text="Rash", entities=far), [], 0),
        "numbers": ("a.jsonl", row(text="Rash", label=[[0, 1.5, "A"]]), [], 2),
        "broken": ("a.jsonl", row(text="Rash") + "{\n", ["--skip-broken"], 0),
        "broken, not skipped": ("a.jsonl", row(text="Rash") + "{\n", [], 2),
        "relation": (
            "a.jsonl",
            row(text="a", relations=[{"type": "R", "head": 1, "tail": 2}]),
            [],
            0,
        ),
        "medcattrainer": ("a.json", json.dumps(export), [], 0),
        "spacy": ("a.json", json.dumps([["Rash", {"entities": [[0, 99, "A"]]}]]), [], 0),
        "ner-annotator": (
            "a.json",
            json.dumps({"classes": [], "annotations": [["Rash", {"entities": [[0, 99, "A"]]}]]}),
            [],
            0,
        ),
    }
    for kind, (name, content, options, code) in kinds.items():
        path = put(tmp_path / kind, name, content)
        run("check", path, *options, code=code)
        run("check", path, *options, "--strict", code=1)
        out = tmp_path / kind / "out.jsonl"
        run("convert", path, *options, "--to", "jsonl", "--out", out, "--strict", code=1)
    good = put(tmp_path, "b.json", json.dumps([["Rash", {"entities": [[0, 4, "A"]]}]]))
    run("check", good, "--strict")
