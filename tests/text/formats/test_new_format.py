"""The price of a format: the code of the page on writing one is short and loses nothing."""

from __future__ import annotations

import io
import json
import tokenize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from confide.errors import FormatError
from confide.text import formats
from confide.text.document import Document
from confide.text.formats import Options, detect, read, write
from text.generated import any_documents, kinds, put

PAGE = Path(__file__).parents[3] / "docs" / "extend" / "writing-a-format.md"
CODE = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def spanjson():
    """The page's format, before all others in the table."""
    space = {"__name__": "spanjson"}
    exec(compile(CODE, str(PAGE), "exec"), space)
    before = formats.FORMATS
    formats.FORMATS = {"spanjson": space["SPANJSON"], **before}
    yield
    formats.FORMATS = before


def test_it_takes_no_more_than_forty_lines():
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(CODE).readline)
              if one.type not in LAYOUT]  # fmt: skip
    docstrings = [one for one in tokens if one.string.startswith('"""')]
    lines = {row for one in tokens for row in range(one.start[0], one.end[0] + 1)}
    lines -= {row for one in docstrings for row in range(one.start[0], one.end[0] + 1)}
    assert len(lines) <= 40


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(document=any_documents())
def test_whatever_does_not_come_back_was_named(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    problems = write([document], path, "spanjson")
    again = read(path, "spanjson").documents
    assert [one.text for one in again] == [document.text]
    whole = [(one.type.strip(), one.fragments) for one in document.entities]
    found = [(one.type, one.fragments) for one in again[0].entities]
    left = {
        "discontinuous": sum(len(fragments) > 1 for _, fragments in whole),
        "relations-unheld": len(document.relations),
        "document-attributes-unheld": len(document.attributes),
        "segmentation-unheld": len(document.sentences),
    }
    assert found == [one for one in whole if len(one[1]) == 1]
    assert {kind for kind, number in left.items() if number} <= set(kinds(problems))


def test_it_is_detected_and_a_broken_line_is_skipped_if_that_is_asked_for(tmp_path):
    good = {"content": "Rash.", "spans": [{"from": 0, "to": 4, "kind": "ADE"}], "x": [1]}
    rows = [good, {"content": 5, "spans": []}, {**good, "spans": [{"from": "?"}]}, good]
    path = put(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert detect(path) == "spanjson"
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.where == f"{path}:2"
    found = read(path, options=Options(skip_broken=True))
    assert len(found.documents) == 2
    assert sorted(kinds(found.problems)) == ["broken-document", "broken-document", "key-ignored"]
    assert write([Document("d", "a")], tmp_path / "b.jsonl", "spanjson") == []
