"""The page of annotated documents: problems first, annotators side by side, no scripts."""

from __future__ import annotations

import json
import os
import re
import stat
from html.parser import HTMLParser

import pytest

from confide.errors import DataError
from confide.report.review import MOST_CHARACTERS, render_review, review
from confide.text.checking import check
from confide.text.document import Document, Entity, Relation
from confide.text.formats import Options, write
from text.generated import put

TEXT = "Rash after aspirin & <b>rest</b>."


@pytest.fixture
def task(tmp_path):
    def result(*spans):
        return [{"id": f"r{a}", "type": "labels",
                 "value": {"start": a, "end": b, "text": TEXT[a:b], "labels": [kind]}}
                for kind, a, b in spans]  # fmt: skip

    done = [
        {"completed_by": "ann", "result": result(("ADE", 0, 4), ("Drug", 11, 18))},
        {"completed_by": "bob", "result": result(("ADE", 0, 4), ("Event", 0, 18))},
    ]
    rows = [{"id": "quiet", "data": {"text": "Nothing."}, "annotations": [{"result": []}]},
            {"id": "loud", "data": {"text": TEXT}, "annotations": done}]  # fmt: skip
    return put(tmp_path, "t.json", json.dumps(rows))


class Balanced(HTMLParser):
    """Counts marks and texts, and fails for elements that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.names = [], "", set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(page):
    found = Balanced()
    found.feed(page)
    assert found.open == []
    return found


def test_disagreements_stand_side_by_side_and_first(task, tmp_path):
    page = review(tmp_path / "out.html", task).read_text(encoding="utf-8")
    found = parsed(page)
    assert page.index("loud") < page.index("quiet")
    assert page.count('<div class="side">') == 3
    assert "&lt;b&gt;rest&lt;/b&gt;" in page and "<b>rest" not in page
    rows = re.findall(
        r'<th scope="row" dir="auto">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', page
    )
    assert rows == [
        ("Rash after aspirin", "Event", "bob", "ann"),
        ("aspirin", "Drug", "ann", "bob"),
    ]
    assert page.count(" alone") == 3  # aspirin; Rash after aspirin in two stretches
    assert not {"script", "img", "link", "iframe"} & found.names
    assert "default-src 'none'" in page and "http" not in re.sub(r"http-equiv", "", page)


def test_what_is_lost_comes_first(tmp_path):
    lossy = [[0, 999, "ADE"], [0, 4, "ADE"]]
    rows = [
        {"id": "first-one", "text": TEXT, "entities": [[0, 4, "ADE"]]},
        {"id": "lossy", "text": TEXT, "entities": lossy},
    ]
    path = put(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    page = render_review(check(path))
    assert page.index("lossy") < page.index("first-one")
    assert "1 lost" in page and "beyond-text" in page
    assert page.index("beyond-text") < page.index("points nowhere")


def test_nested_entities_and_relations(tmp_path):
    document = Document("d", TEXT, (
        Entity("T1", "Outer", ((0, 18),)), Entity("T2", "Inner", ((0, 4),)),
        Entity("T3", "Pieces", ((5, 10), (11, 18))),
    ), (Relation("R", "causes", "T1", "T2"),))  # fmt: skip
    write([document], tmp_path / "a.jsonl", "jsonl")
    page = render_review(check(tmp_path / "a.jsonl"))
    assert TEXT in parsed(re.sub("<small>(Inner|Outer|Pieces)</small>", "", page)).text
    assert "Rash after aspirin – causes → Rash" in page
    assert page.count("<small>Pieces</small>") == 1


def test_long_documents_and_many_of_them_are_cut_and_that_is_said(tmp_path):
    rows = [{"id": f"d{n}", "text": "x" * (MOST_CHARACTERS + 7)} for n in range(3)]
    path = put(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    page = render_review(check(path), most=2)
    assert "shows 2; 1 more" in page
    assert "7 more characters" in page
    assert page.count("x" * 1000) < 2 * MOST_CHARACTERS


def test_problems_of_lines_go_to_the_sentence_before(tmp_path):
    path = put(tmp_path, "a.conll", "a\tB-X\nb\tO\n\nc\tO\nd\tI-X\n")
    page = render_review(check(path, options=Options(scheme="iob2")))
    first = page.index("<summary>")
    assert page.index("malformed-tag</strong>") > first
    assert page.index("a:4") < page.index("a:1</span>")


def test_a_page_that_cannot_be_written(task, tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        review(tmp_path, task)


def test_the_page_is_its_owners_alone(task, tmp_path):
    before = os.umask(0o022)
    try:
        page = review(tmp_path / "r.html", task)
    finally:
        os.umask(before)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
