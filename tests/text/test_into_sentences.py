"""Cutting documents into sentences as a site says, and entities that cross their ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import SettingsError
from confide.text.checking import check, convert
from confide.text.document import Document, Entity, Sentence
from confide.text.formats import Options, read
from confide.text.segment import (
    Crossing,
    Crossings,
    RuleSegmenter,
    Splitting,
    WordsCut,
    count_words_cut,
    into_sentences,
    line_segmenter,
    segmented,
    tokenise,
)
from confide.text.tagging import flat_spans

SPANISH = (
    "El paciente vive en la Avda. Diagonal, 21 y no toma nada. Lo vio la Dra. Ruiz en la consulta."
)


def cut(text, splitting):
    (document,) = into_sentences([Document("d", text)], splitting)
    return [text[one.start : one.end] for one in segmented(document).sentences]


@given(
    st.text(st.sampled_from("aZé1 .,!?\n\rАب中ไ้た。؟।-(mgDr"), max_size=60) | st.text(max_size=60),
    st.sampled_from(["", "auto", "en", "es", "fr", "de", "zh", "th", "ar", "lt"]),
    st.sampled_from(["rules", "lines"]),
)
def test_every_character_but_white_space_is_in_one_token_of_one_sentence(text, language, how):
    if language:
        (document,) = into_sentences([Document("d", text)], Splitting(language, how))
        found = segmented(document).sentences
    else:
        found = RuleSegmenter("")(text)
    spans = [token for sentence in found for token in sentence.tokens]
    covered = [position for start, end in spans for position in range(start, end)]
    assert covered == [n for n, character in enumerate(text) if not character.isspace()]
    assert all((one.start, one.end) == (one.tokens[0][0], one.tokens[-1][1]) for one in found)


def test_the_text_tells_its_language():
    first, second = SPANISH.split(" Lo ")
    assert cut(SPANISH, Splitting()) == [first, f"Lo {second}"]
    assert len(cut(SPANISH, Splitting("fr"))) > 2


def test_english_and_untold_text_keep_the_plain_rules():
    english = Document("d", "The patient lives on Elm Ave. Nothing else is known of him. He left.")
    assert into_sentences([english], Splitting()) == [english]  # cut when it is needed, as ever
    assert segmented(english).sentences == RuleSegmenter()(english.text)


def test_documents_with_sentences_stay_as_they_are():
    ready = segmented(Document("d", "A. B. Eins zwei. Drei."))
    assert into_sentences([ready], Splitting("de", "lines")) == [ready]


def test_lines_and_own_abbreviations():
    text = "Two. Words\nof one note\r\n\r\nThe Xq. Clinic. End."
    assert cut(text, Splitting(sentences="lines")) == [
        "Two. Words",
        "of one note",
        "The Xq. Clinic. End.",
    ]
    assert cut("The Xq. Clinic. End.", Splitting()) == ["The Xq.", "Clinic.", "End."]
    assert cut("The Xq. Clinic. End.", Splitting(abbreviations=("Xq.",))) == [
        "The Xq. Clinic.",
        "End.",
    ]


def test_an_unknown_language_is_refused():
    with pytest.raises(SettingsError, match="language"):
        Splitting("sp")


@each(
    ("language", "text", "count"),
    [
        ("fr", "Adressé par le Pr. Dubois, bd. Voltaire. Il va bien.", 2),
        (
            "de",
            "Am 3. Januar i. v. gegeben in der Hauptstr. 7, z. B. heute. Die Patientin ging.",
            2,
        ),
        ("es", "Visto por el Dr. J. A. Sanz en la Ctra. N-340. Se va.", 2),
        ("ar", "هل هناك ألم؟ لا", 2),
        ("hi", "दर्द है। बुखार नहीं।", 2),
        ("zh", "患者胸痛。无发热！", 2),
    ],
)
def test_sentences_of_other_languages(language, text, count):
    assert len(RuleSegmenter(language)(text)) == count


@each(
    ("text", "expected"),
    [
        ("CRP上升", ["CRP", "上", "升"]),
        ("がん", ["が", "ん"]),
        ("ไข้", ["ไ", "ข้"]),
        ("ยา5mg", ["ย", "า", "5", "mg"]),
        ("한국어 말", ["한국어", "말"]),
        ("ទឹក", ["ទឹ", "ក"]),
        ("مريض.", ["مريض", "."]),
    ],
)
def test_tokens_of_scripts_with_and_without_blanks(text, expected):
    assert [text[a:b] for one in RuleSegmenter()(text) for a, b in one.tokens] == expected


# --- entities across the ends of sentences --------------------------------------------------------


def test_crossings_count_types_and_the_words_before():
    text = "En la Avda. Sur y la Ctra. Norte. Fin."
    street = (Entity("1", "S", ((6, 15),)), Entity("2", "S", ((21, 32),)))
    inside = tuple(Entity(f"f{n}", "F", ((34, 37),)) for n in range(99))
    broken = (Entity("3", "D", ((0, 2), (34, 37))),)
    document = Document("d", text, (*street, *inside, *broken, Entity("x", "F", ((6, 15),))))
    counts = Crossings()
    counts.add(segmented(document))
    assert counts.by_type() == {"S": Crossing(2, 2, {"Avda.": 1, "Ctra.": 1})}  # F: 1 of 100 is 1 %


def test_check_warns_and_the_right_language_mends_it(tmp_path):
    start = SPANISH.index("Avda")
    row = {"text": SPANISH, "entities": [{"type": "S", "start": start, "end": start + 18}]}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    wrong = check(file, options=Options(language="fr"))
    assert wrong.crossings["S"] == Crossing(1, 1, {"Avda.": 1})
    assert wrong.counts["trainable"] == 0
    report = check(file)
    assert (report.crossings, report.counts["trainable"]) == ({}, 1)
    assert "language es" in report.details[str(file)]
    convert(file, "conll", tmp_path / "a.conll")
    assert len(read(tmp_path / "a.conll").documents[0].sentences) == 2


def test_lines_split_at_any_line_end():
    assert [one.start for one in line_segmenter("a\r\nb\rc\n")] == [0, 3, 5]


def test_own_tokens_are_those_of_raw_text(tmp_path: Path) -> None:
    """What a column file says is learnt as it would be read: borders of entities stay borders."""
    path = tmp_path / "a.conll"
    path.write_text("am O\n25. B-Day\nMai-Juni I-Day\n, O\nvom O\nOLG B-Court\n", "utf-8")
    (columns,) = read(path, "conll").documents
    own, kept = (
        into_sentences([columns], Splitting(tokens=one))[0] for one in ("own tokens", "file tokens")
    )
    assert kept == columns
    assert own == replace(columns, sentences=own.sentences)
    words = [own.text[start:end] for start, end in own.sentences[0].tokens]
    assert words == ["am", "25", ".", "Mai", "-", "Juni", ",", "vom", "OLG"]
    raw = "am 25. Mai-Juni, vom OLG"
    assert words == [raw[start:end] for start, end in tokenise(raw)]
    assert flat_spans(own) == ([[(1, 6, "Day"), (8, 9, "Court")]], [])
    assert count_words_cut([columns]) == WordsCut(3, 2)  # "25." and "Mai-Juni", but not "OLG"
    assert count_words_cut([own]).cut == 0
    assert count_words_cut([replace(columns, sentences=())]) == WordsCut()


def test_an_entity_within_an_own_token_is_widened_and_counted() -> None:
    text = "Nonsmoker"
    told = Document(
        "d", text, (Entity("T1", "Habit", ((3, 9),)),), (), (Sentence(0, 9, ((0, 3), (3, 9))),)
    )
    assert count_words_cut([told]) == WordsCut(1, 1)
    (own,) = into_sentences([told], Splitting(tokens="own tokens"))
    spans, (problem,) = flat_spans(own)
    assert spans == [[(0, 1, "Habit")]]
    assert problem.kind == "not-on-token-border" and not problem.lost
