"""The page Correct, from text to an exported file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time

import httpx2
import pytest

from cases import each
from confide.serve import correcting
from confide.serve.app import ServedPages, application
from confide.text.document import Document
from serve.served import HOST, ORIGIN, QUICK, browser, models

OWN = {"origin": ORIGIN}


@pytest.fixture
def there(tmp_path):
    own = {name: model for name, model in models().items() if name != "broken"}
    shown = ServedPages(own, QUICK, tmp_path / "kept", [Document("start", "drug7 was given.")])
    there = browser(shown)
    there.headers["origin"] = ORIGIN
    return there


def _next(there, annotator="ann", **more):
    return there.post("/pages/next", json={"annotator": annotator, **more}).json()


def test_from_text_to_an_export(there, tmp_path) -> None:
    added = there.post(
        "/pages/pool", json={"texts": [{"id": "n", "text": "Rash.\n\ndrug1 stopped."}]}
    )
    assert added.json() == {"added": 2, "sentences": 3}
    found = _next(there)
    item = found["item"]
    assert item["text"] == "drug1 stopped." and "disagree" in item["why"]
    assert item["tokens"] == [[0, 5], [6, 13], [13, 14]]
    marked = [{"id": "A1", "type": "MED", "fragments": [[0, 5]]}]
    body = {"annotator": "ann", "id": item["id"], "entities": marked}
    assert there.post("/pages/save", json=body).json() == {"saved": 1}
    line = json.loads((tmp_path / "kept/ann.jsonl").read_text())
    assert line["entities"] == [{"id": "A1", "type": "MED", "fragments": [[0, 5]]}]
    assert _next(there)["done"] == 1 and _next(there)["item"]["id"] != item["id"]
    again = _next(there, id=item["id"])["item"]
    assert again["saved"] and again["entities"][0]["type"] == "MED"
    file = there.get("/corrections/export?annotator=ann&format=conll")
    assert "attachment" in file.headers["content-disposition"]
    assert ["drug1", "B-MED"] in [line.split() for line in file.text.splitlines()]


def test_sentences_of_a_stated_language_stay_whole_from_text_to_export(there) -> None:
    text = "Rash.\n\nVive en la Avda. Diagonal con drug1."
    body = {"texts": [{"id": "n", "text": text}], "language": "es"}
    assert there.post("/pages/pool", json=body).json()["added"] == 2
    item = _next(there)["item"]
    assert item["text"] == "Vive en la Avda. Diagonal con drug1."
    there.post("/pages/save", json={"annotator": "ann", "id": item["id"], "entities": []})
    file = there.get("/corrections/export?annotator=ann&format=conll").text
    (sentence,) = file.strip().split("\n\n")
    assert "Avda" in sentence and "drug1" in sentence


def test_the_other_annotator_starts_anew_and_agreement_is_shown(there) -> None:
    for name, kind in (("ann", "DRUG"), ("bob", "ADE")):
        item = _next(there, name)["item"]
        marked = [{"id": "1", "type": kind, "fragments": [[0, 5]]}]
        there.post("/pages/save", json={"annotator": name, "id": item["id"], "entities": marked})
    page = there.get("/correct").text
    assert "Do ann and bob agree?" in page and "ADE" in page
    assert "bob (1)" in page


def test_skipped_sentences_wait(there) -> None:
    item = _next(there)["item"]
    assert _next(there, skip=[item["id"]])["item"] is None
    assert _next(there)["item"]["id"] == item["id"]


@each(
    "marked",
    [
        [{"id": "1", "type": "X", "fragments": [[0, 99]]}],
        [{"id": "1", "type": "X", "fragments": [[5, 5]]}],
        [{"id": "1", "type": "X", "fragments": [[5, 2]]}],
        [{"id": "1", "type": "X", "fragments": [[4, 6], [0, 2]]}],
        [{"id": "1", "type": "X", "fragments": [[0, 2], [2, 4]]}],
        [{"id": "1", "type": "X", "fragments": [[0, 4], [2, 6]]}],
        [{"id": "1", "type": "X Y", "fragments": [[0, 2]]}],
        [{"id": "1", "type": "X", "fragments": []}],
        [{"id": "1", "type": "X", "fragments": [[0, 2]]}] * 2,
        [{"id": "1", "type": "X", "fragments": [[-1, 2]]}],
        [{"id": "1", "type": "X", "fragments": [[0, 2.5]]}],
    ],
)
def test_marks_that_are_none_are_refused(there, tmp_path, marked) -> None:
    body = {"annotator": "ann", "id": _next(there)["item"]["id"], "entities": marked}
    assert there.post("/pages/save", json=body).status_code == 422
    assert not (tmp_path / "kept").exists()


def test_a_relation_needs_both_ends(there) -> None:
    body = {"annotator": "ann", "id": _next(there)["item"]["id"], "entities": []}
    body["relations"] = [{"type": "r", "head": "1", "tail": "2"}]
    assert there.post("/pages/save", json=body).status_code == 422


def test_relations_are_kept(there, tmp_path) -> None:
    marked = [{"id": n, "type": "X", "fragments": [[at, at + 2]]} for n, at in (("1", 0), ("2", 6))]
    body = {"annotator": "ann", "id": _next(there)["item"]["id"], "entities": marked}
    body["relations"] = [{"type": "r", "head": "1", "tail": "2"}]
    assert there.post("/pages/save", json=body).status_code == 200
    (found,) = json.loads((tmp_path / "kept/ann.jsonl").read_text())["relations"]
    assert (found["type"], found["head"], found["tail"]) == ("r", "1", "2")


@each("name", ["../x", "a/b", "", ".hidden", "a" * 101, "a\u0000b"])
def test_a_name_that_is_no_name_is_refused(there, name: str) -> None:
    assert there.post("/pages/next", json={"annotator": name}).status_code == 422
    found = there.get("/corrections/export", params={"annotator": name})
    assert found.status_code == 422


def test_what_is_not_there_is_refused(there) -> None:
    body = {"annotator": "ann", "id": "nowhere", "entities": []}
    assert there.post("/pages/save", json=body).status_code == 404
    assert there.post("/pages/next", json={"annotator": "ann", "id": "no"}).status_code == 404
    assert there.get("/corrections/export?annotator=ann&format=jsonl").status_code == 404
    assert there.get("/corrections/export?annotator=ann&format=ddi").status_code == 422


def test_another_page_cannot_save(there) -> None:
    body = {"annotator": "ann", "id": "start", "entities": []}
    for origin in ("http://evil.example", "null"):
        found = there.post("/pages/save", json=body, headers={"origin": origin})
        assert found.status_code == 403


def test_a_damaged_file_is_said_and_left_alone(there, tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/ann.jsonl").write_text('CANARY\n{"id": "x", "text": "a"}\n')
    found = there.post("/pages/next", json={"annotator": "ann"})
    assert found.status_code == 500 and "CANARY" not in found.text
    assert (tmp_path / "kept/ann.jsonl").read_text().startswith("CANARY")


def test_a_correction_that_no_disk_takes_is_said_and_can_be_sent_again(
    there, tmp_path, monkeypatch
) -> None:
    item = _next(there)["item"]
    body = {"annotator": "ann", "id": item["id"], "entities": []}
    whole = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, data: whole(handle, data[:7]))
        found = there.post("/pages/save", json=body)
    assert found.status_code == 507 and "NOT saved" in found.text
    assert (tmp_path / "kept/ann.jsonl").read_bytes() == b""
    assert there.post("/pages/save", json=body).json() == {"saved": 1}
    assert json.loads((tmp_path / "kept/ann.jsonl").read_text())["text"] == item["text"]


@pytest.fixture
def long(there):
    """The id of a text of two sentences, each of which has something to find."""
    text = "drug1 came. A rash. drug8 left."
    there.post("/pages/pool", json={"texts": [{"id": "n", "text": text}]})
    return _next(there, whole=True, skip=[])["item"]["id"]


def test_a_whole_text_with_a_relation_from_sentence_to_sentence(there, tmp_path, long) -> None:
    item = _next(there, whole=True)["item"]
    assert item["whole"] and item["text"] == "drug1 came. A rash. drug8 left."
    assert [one["fragments"] for one in item["entities"]] == [[[0, 5]], [[20, 25]]]
    body = {"annotator": "ann", "id": long}
    body["entities"] = [
        {"id": "a", "type": "DRUG", "fragments": [[0, 5]]},
        {"id": "b", "type": "ADE", "fragments": [[14, 18]]},
    ]
    body["relations"] = [{"type": "causes", "head": "a", "tail": "b"}]
    assert there.post("/pages/save", json=body).json() == {"saved": 1}
    line = json.loads((tmp_path / "kept/ann.jsonl").read_text())
    assert line["relations"][0]["head"] == "a" and line["text"] == item["text"]
    found = _next(there, whole=True)
    assert (found["done"], found["sentences"], found["item"]["text"]) == (1, 2, "drug7 was given.")
    assert _next(there)["done"] == 2, "its sentences are done with it"
    part = _next(there, id=f"{long}.s2")["item"]
    assert part["saved"] and [one["type"] for one in part["entities"]] == ["ADE"]
    assert part["entities"][0]["fragments"] == [[2, 6]]
    again = {"annotator": "ann", "id": f"{long}.s2", "entities": []}
    refused = there.post("/pages/save", json=again)
    assert refused.status_code == 409 and "NOT saved" in refused.json()["what"]


def test_a_whole_text_shows_what_was_saved_of_its_sentences(there, long) -> None:
    second = _next(there, id=f"{long}.s1")["item"]
    marked = [
        {"id": "T1", "type": "MED", "fragments": [[0, 5]]},
        {"id": "A1", "type": "ACT", "fragments": [[6, 10]]},
    ]
    linked = [{"type": "does", "head": "T1", "tail": "A1"}]
    body = {"annotator": "ann", "id": second["id"], "entities": marked, "relations": linked}
    assert there.post("/pages/save", json=body).status_code == 200
    item = _next(there, whole=True, id=long)["item"]
    seen = [(one["type"], one["fragments"]) for one in item["entities"]]
    assert seen == [("MED", [[0, 5]]), ("ACT", [[6, 10]]), ("DRUG", [[20, 25]])]
    ids = {one["id"]: one["type"] for one in item["entities"]}
    assert len(ids) == 3, "ids of a sentence do not clash with those of the text"
    (relation,) = item["relations"]
    assert (ids[relation["head"]], ids[relation["tail"]]) == ("MED", "ACT")
    back = {"annotator": "ann", "id": long, "entities": [
        {name: one[name] for name in ("id", "type", "fragments")} for one in item["entities"]
    ]}  # fmt: skip
    assert there.post("/pages/save", json=back).status_code == 200
    file = there.get("/corrections/export?annotator=ann&format=jsonl").text.splitlines()
    assert [json.loads(line)["id"] for line in file] == [long], "no sentence is there twice"
    other = _next(there, "bob", whole=True, id=long)["item"]
    assert [one["type"] for one in other["entities"]] == ["DRUG", "DRUG"], "nobody else's"


def test_what_another_model_finds_in_a_saved_sentence_is_not_offered_again(there, long) -> None:
    first = {"annotator": "ann", "id": f"{long}.s1", "entities": []}
    there.post("/pages/save", json=first)
    item = _next(there, whole=True, id=long)["item"]
    assert [one["fragments"] for one in item["entities"]] == [[[20, 25]]]
    assert all(one["fragments"][0][0] >= 12 for one in item["others"])


def test_a_part_of_a_word_is_saved(there, tmp_path) -> None:
    marked = [{"id": "A1", "type": "DRUG", "fragments": [[0, 4]]}]
    body = {"annotator": "ann", "id": _next(there)["item"]["id"], "entities": marked}
    assert there.post("/pages/save", json=body).status_code == 200
    line = json.loads((tmp_path / "kept/ann.jsonl").read_text())
    assert line["entities"][0]["fragments"] == [[0, 4]]


def test_a_save_waits_for_no_slow_work(tmp_path, monkeypatch) -> None:
    """Files that take long to read, or exports, fill no thread that a save needs."""
    end, running, most = threading.Event(), [], []

    def slow(*given: object) -> object:
        running.append(1)
        most.append(len(running))
        end.wait(60)
        running.pop()
        return []

    monkeypatch.setattr("confide.serve.models.documents_in", slow)
    monkeypatch.setattr(correcting, "export_corrections", lambda *given: (slow(), b"", ".txt")[1:])
    own = {"ours": models()["ours"]}
    shown = ServedPages(own, QUICK, tmp_path / "kept", [Document("start", "drug7 was given.")])
    app = application(shown, hosts=frozenset({HOST}), tell=print)
    transport = httpx2.ASGITransport(app)

    async def main() -> float:
        async with httpx2.AsyncClient(
            transport=transport, base_url=ORIGIN, headers=OWN, timeout=60
        ) as there:
            item = (await there.post("/pages/next", json={"annotator": "ann"})).json()["item"]
            saved = {"annotator": "ann", "id": item["id"], "entities": []}
            await there.post("/pages/save", json=saved)
            export = "/corrections/export?annotator=ann"
            slow = [there.post("/pages/open?name=a.txt", content=b"x") for _ in range(50)]
            slow += [there.get(export) for _ in range(50)]
            waiting = [asyncio.create_task(one) for one in slow]
            await asyncio.sleep(0.5)
            try:
                begun = time.monotonic()
                done = await asyncio.wait_for(there.post("/pages/save", json=saved), 10)
                taken = time.monotonic() - begun
            finally:
                end.set()
            assert done.json() == {"saved": 1}
            await asyncio.gather(*waiting)
            return taken

    assert asyncio.run(main()) < 2
    assert max(most) <= 2
