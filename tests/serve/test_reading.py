"""The page Read: texts and files, side by side."""

from __future__ import annotations

import gzip
from dataclasses import replace

from cases import each
from confide.serve.app import ServedPages
from confide.serve.gate import CallerLimits
from confide.serve.models import MARKED, stretches
from confide.text.document import Document, Entity
from confide.text.segment import Splitting, into_sentences
from serve.served import ORIGIN, QUICK, browser, models

ES = Splitting("es")
OWN = {"origin": ORIGIN}


def _read(texts, *names: str):
    body = {"texts": texts, "models": list(names)}
    return browser().post("/pages/read", json=body, headers=OWN)


def test_models_side_by_side() -> None:
    found = _read([{"id": "n", "text": "drug1 helped.\n\nNo rash."}], "ours", "other").json()
    assert found["sides"] == ["ours", "other"]
    (text,) = found["texts"]
    assert text["rows"] == [[0, 13], [15, 23]]
    assert len(text["found"]["ours"]["entities"]) == 1 and not text["found"]["other"]["entities"]


def test_what_a_file_marks_is_a_side_of_its_own() -> None:
    marked = {"id": "n", "text": "drug1", "entities": [{"type": "X", "start": 0, "end": 5}]}
    found = _read([marked], "other").json()
    assert found["sides"] == ["other", MARKED]
    assert found["texts"][0]["found"][MARKED]["entities"][0]["type"] == "X"


def test_offsets_count_characters_beyond_the_first_plane() -> None:
    (text,) = _read([{"id": "n", "text": "𝒳𝒴 drug1 שלום"}], "ours").json()["texts"]
    assert text["found"]["ours"]["entities"][0]["fragments"] == [[3, 8]]


def test_what_is_wrong_is_refused() -> None:
    assert _read([{"id": "n", "text": "a"}]).status_code == 422
    assert _read([{"id": "n", "text": "a"}], "nope").status_code == 404
    body = {"texts": [{"text": "a"}], "models": ["ours"]}
    assert browser().post("/pages/read", json=body).status_code == 403


def test_entities_join_the_rows_that_they_cross() -> None:
    def rows(*spans: tuple[int, int]):
        found = [Entity(f"T{n}", "X", (span,)) for n, span in enumerate(spans)]
        return stretches([Document("n", "One.\n\nTwo.\n\nThree.", tuple(found))])

    assert len(rows()) == 3
    assert rows((0, 8)) == [(0, 10), (12, 18)]
    assert rows((0, 18)) == [(0, 18)]


NOTE = "Vive en la Avda. Diagonal con drug1. No toma nada."


def test_rows_are_the_sentences_that_the_first_model_read() -> None:
    spanish = models()["ours"]
    read = replace(spanish, annotate=lambda some: spanish.annotate(into_sentences(some, ES)))
    shown = ServedPages({"ours": read}, limits=QUICK)
    body = {"texts": [{"id": "n", "text": NOTE}], "models": ["ours"]}
    (text,) = browser(shown).post("/pages/read", json=body, headers=OWN).json()["texts"]
    assert text["rows"] == [[0, 36], [37, 50]]
    assert _read([{"id": "n", "text": NOTE}], "ours").json()["texts"][0]["rows"][0] == [0, 16]


def test_a_caller_may_state_the_language() -> None:
    body = {"texts": [{"id": "n", "text": NOTE}], "models": ["ours"], "language": "es"}
    (text,) = browser().post("/pages/read", json=body, headers=OWN).json()["texts"]
    assert text["rows"] == [[0, 36], [37, 50]]
    assert text["found"]["ours"]["entities"][0]["fragments"] == [[30, 35]]


def _opened(raw: bytes, name: str, there=None):
    there = there or browser()
    return there.post(f"/pages/open?name={name}", content=raw, headers=OWN)


@each(
    ("raw", "name"),
    [
        (b"drug1 B-X\nhelped O\n", "a.conll"),
        (b'{"text": "drug1 helped", "label": [[0, 5, "X"]]}\n', "a.jsonl"),
        (gzip.compress(b"drug1 B-X\nhelped O\n", mtime=0), "a.conll.gz"),
    ],
)
def test_files_of_many_formats_are_opened(raw: bytes, name: str) -> None:
    (text,) = _opened(raw, name).json()["texts"]
    assert text["text"].strip() == "drug1 helped"
    assert text["entities"] == [{"type": "X", "start": 0, "end": 5}]


@each("name", ["../../../tmp/x.txt", "a.%2e%2e", "x." + "y" * 300, "", "%00"])
def test_a_file_s_name_leads_nowhere(name: str) -> None:
    assert _opened(b"just words", name).status_code in (200, 422)


def test_a_hostile_file_is_refused_without_its_words() -> None:
    for raw in (b"\xff\xfe\x00CANARY\x00", b'{"text": CANARY}', b"CANARY\tX-Y-Z\nb\tQ-1\n",
                gzip.compress(b"0" * 30_000_000), b"\x1f\x8bCANARY"):  # fmt: skip
        for name in ("a.jsonl", "a.conll", "a.gz"):
            told: list[str] = []
            found = _opened(raw, name, browser(told=told))
            assert not told and found.status_code in (200, 413, 422)
            assert found.status_code == 200 or "/tmp" not in found.text


def test_a_large_file_is_refused() -> None:
    small = CallerLimits(body=1000, pad=0)
    assert _opened(b"x" * 1001, "a.txt", browser(ServedPages(models(), small))).status_code == 413


def test_the_page_shows_models_escaped() -> None:
    own = models()
    own["ours"].name = '"><script>alert(1)</script>'
    page = browser(ServedPages(own, QUICK)).get("/read").text
    assert "<script>alert" not in page and "&lt;script&gt;" in page


def test_as_many_texts_as_the_limit_are_read_and_not_one_more() -> None:
    few = replace(QUICK, texts=2)
    there = browser(ServedPages(models(few), few))
    for many, status in ((2, 200), (3, 413)):
        asked = {"texts": [{"text": "drug1"}] * many, "models": ["ours"]}
        found = there.post("/pages/read", json=asked, headers={"origin": ORIGIN})
        assert found.status_code == status
