"""The options about reading that check, convert and review share."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from confide.cli import main  # noqa: F401  the command line is complete
from confide.cli.reading import How, columns_named
from confide.cli.verbs import app
from confide.errors import SettingsError
from text.generated import put


def run(*words, code=0):
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def test_columns_by_name_and_number():
    assert columns_named("0,3") == (0, 3)
    assert columns_named("words, none") == ("words", None)
    assert columns_named(None) is None
    for wrong in ("0", "0,", "0,1,2", ""):
        with pytest.raises(SettingsError, match="TOKEN,TAG"):
            columns_named(wrong)


def test_what_is_not_said_is_the_default():
    from confide.text.formats import Options

    assert How().options() == Options()


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
