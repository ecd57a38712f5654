"""What a full stop means in a language, and which language a text is in."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import SettingsError
from confide.text.segment import RuleSegmenter, Splitting, language_of

TEXTS = {
    "en": "The patient was admitted with pain in the chest and is now on aspirin.",
    "es": "El paciente ingresa por dolor en el pecho y se le da aspirina para el dolor.",
    "fr": "Le patient est admis pour une douleur dans la poitrine et il est sous aspirine.",
    "de": "Der Patient wurde mit Schmerzen in der Brust aufgenommen und ist nicht auf Aspirin.",
    "it": "Il paziente è stato ricoverato per un dolore al petto e non ha la febbre.",
    "pt": "O paciente foi internado com dor no peito e não tem febre, mas está com tosse.",
    "nl": "De patiënt werd opgenomen met pijn op de borst en is niet met koorts.",
    "ru": "Больной поступил из дома с болью. Это было после еды, он не ел, как она и сказала.",
    "ar": "دخل المريض في المستشفى مع ألم في الصدر و لا حمى و كان على علاج",
    "zh": "患者因胸痛入院，现服用阿司匹林。",
    "ja": "患者は胸の痛みのために入院した。",
    "ko": "환자는 가슴 통증으로 입원하였다.",
    "th": "ผู้ป่วยเข้าโรงพยาบาลด้วยอาการเจ็บหน้าอก",
}


@each("language", TEXTS)
def test_one_sentence_tells_its_language(language):
    assert language_of([TEXTS[language]]) == language


def test_text_that_does_not_tell():
    assert language_of([]) == ""
    assert language_of(["Hb 9.8, Plt 210, CRP 12"]) == ""
    assert language_of(["los fue años los fue años", "und bei nicht und bei nicht"]) == ""


def test_many_latin_words_among_few_han_letters_do_not_turn_the_language():
    assert language_of([TEXTS["en"] * 5 + "胸痛"]) == "en"


def test_a_language_must_be_known():
    Splitting("auto")
    Splitting("eu")
    with pytest.raises(SettingsError, match="language"):
        Splitting("sp")


def test_own_abbreviations_and_ends_of_words():
    german = RuleSegmenter("de", ("Qz.", "-gasse."))
    assert len(german("Siehe Qz. Berlin.")) == 1
    assert len(german("In der Kirchgasse. Berlin.")) == 1
    assert len(german("In der Hauptstr. Berlin.")) == 1  # of the file
    assert len(RuleSegmenter("fr")("In der Hauptstr. Berlin.")) == 2


def test_a_language_without_words_of_ours_asks_the_library():
    assert not RuleSegmenter("lt").stops.never
    english = RuleSegmenter("en")
    assert len(english("Told Cpl. Jones.")) == 1
    assert len(english("Told pain. Jones.")) == 2
    assert len(english("Told \ud800. Jones.")) == 2
