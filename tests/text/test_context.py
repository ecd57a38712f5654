"""ConText's rules: what triggers say of mentions, how far they reach, and text that is hostile.

The sentences were written for these tests. They are no benchmark.
"""

from __future__ import annotations

import re
import time
import warnings

import pytest

from confide.errors import Note
from confide.text.context import PRESENT, VALUES, ContextRules, _cues, _rules, _table
from confide.text.document import Document, Entity, Sentence
from confide.text.segment import language_of

SHORT = {"absent": "absent", "possible": "possible", "if": "hypothetical", "past": "historical",
         "other": "associated_with_someone_else", "present": PRESENT}  # fmt: skip
SENTENCES = """
No [fever:absent], no [cough:absent] but [rash:present].
She denies [fever:absent], [chills:absent], or other constitutional [symptoms:absent].
He doesn't have [nausea:absent]; [pain:present] persists.
He did not have [fever:absent], [chills:absent] or [night sweats:absent].
He cannot sleep, [lethargic:present] and [dizzy:present].
He is not [febrile:absent] and has [rigors:present].
Without evidence of [pneumonia:absent].
Lungs are clear, negative for [wheezing:absent].
[Pneumonia:absent] was ruled out.
CT ruled out [embolism:absent].
[Embolism:absent] ruled out, [effusion:present] seen.
[Troponin:absent] negative x3.
[Cough:present], but pneumonia was ruled out.
[Chest x-ray:present] was negative for [pneumonia:absent].
[Fever:absent]: no.
[Chest pain:absent] and [cough:absent] resolved.
Review of systems is -ve for [anaemia:absent].
The patient is [symptom:absent]-free.
No [fever:absent] due to [pneumonia:present].
Patient denied [vomiting:absent] and has [diarrhoea:present].
No [cough:absent], history of [asthma:past].
No change in [mental status:present].
Gram negative [bacteria:present] in blood.
[Embolism:possible] cannot be ruled out.
Possible [pneumonia:possible], no [effusion:absent].
Likely [heart failure:possible] due to [infarction:present].
Admitted to rule out [infarction:possible].
[Pneumonia:possible] versus [atelectasis:possible].
The findings are suspicious for [malignancy:possible].
Opacity may represent [infiltrate:possible].
Abdominal pain, ? [appendicitis:possible].
Return for [fever:if] or worsening [pain:if].
If [chest pain:if] recurs, call the office.
Heparin for [thrombosis:if] prophylaxis.
She is at risk for [falls:if].
Acetaminophen as needed for [headache:if].
Her mother had [breast cancer:other] and she has [diabetes:present].
Family history of [stroke:other].
[Breast cancer:other] in her mother.
Family history: no [diabetes:other].
She was brought in by her daughter with [confusion:present].
Past medical history is significant for [diabetes:past].
[Infarction:past] three years ago, now [angina:present].
Status post [stroke:past].
History of present illness: [chest pain:present] since Monday.
The patient presents with a two day history of [dyspnoea:present].
"""

OTHERS = {
    "fr": """
Pas de [fièvre:absent] ni de [toux:absent], mais la patiente présente une [éruption:present].
La patiente n'a pas d'[antécédent allergique:absent].
Le patient nie toute [douleur:absent].
L'[embolie:absent] a été éliminée par le scanner.
[Pneumonie:possible] probable de la base droite.
Le tableau est en faveur d'une [appendicite:possible].
Une [embolie:possible] ne peut être exclue.
Le scanner est fait pour éliminer une [fracture:possible].
Revenir aux urgences en cas de [fièvre:if] ou de [vomissements:if].
La mère du patient avait un [cancer du sein:other] et il a un [diabète:present].
ANTECEDENTS FAMILIAUX DE [DIABETE:other].
Le patient a des antécédents d'[infarctus:past] et consulte pour une [dyspnée:present].
Elle a eu une [fracture:past] il y a trois ans.
Histoire de la maladie : [douleur thoracique:present] depuis hier.
""",
    "es": """
Sin [fiebre:absent] ni [tos:absent], pero la paciente presenta una [erupción:present].
El paciente no refiere [dolor torácico:absent].
Niega [náuseas:absent], [vómitos:absent] o [diarrea:absent].
Se ha realizado un TAC y la [embolia:absent] ha sido descartada.
Posible [neumonía:possible] en la base derecha.
El cuadro es sugestivo de [apendicitis:possible].
No se puede descartar una [fractura:possible].
Acudir a urgencias en caso de [fiebre:if] o [dolor:if].
La madre del paciente tuvo un [cáncer de mama:other] y la paciente tiene [diabetes:present].
Antecedentes familiares de [ictus:other].
El paciente tiene antecedentes de [infarto:past] y acude por [disnea:present].
Tuvo una [fractura:past] hace tres años.
Paciente con [asma:past] previa.
""",
}
"""Sentences of other languages, one document each; the language is told by all together."""


def marked(line: str) -> tuple[Document, list[str]]:
    """The document of a line, and the value of each of its entities."""
    text, entities, values = "", [], []
    for before, words, value in re.findall(r"([^\[]*)(?:\[([^:\]]*):(\w+)\])?", line):
        text += before
        if words:
            span = (len(text), len(text) + len(words))
            entities.append(Entity(f"T{len(entities) + 1}", "problem", (span,)))
            text += words
            values.append(SHORT[value])
    return Document("a", text, tuple(entities)), values


def values_of(document: Document, rules: ContextRules | None = None) -> list[str]:
    (found,) = (rules or ContextRules())([document])
    return [one.said("assertion") for one in found.entities]


def test_sentences_written_by_hand() -> None:
    lines = SENTENCES.strip().splitlines()
    wrong = {
        line: found
        for line, (document, wanted) in ((line, marked(line)) for line in lines)
        if (found := values_of(document)) != wanted
    }
    assert len(lines) >= 40 and wrong == {}
    # a corpus in columns has a blank before each mark, and some notes are in capitals
    for line in SENTENCES.strip().splitlines():
        document, wanted = marked(re.sub(r"(?<=[\w\]])([.,;:?])(?=\s|$)", r" \1", line))
        assert values_of(document) == wanted, document.text
        upper = Document("a", document.text.upper(), document.entities)
        assert values_of(upper) == wanted or "?" in line, upper.text
    document, wanted = marked("He does n't have [nausea:absent] .")
    assert values_of(document) == wanted


def test_other_languages() -> None:
    for language, lines in OTHERS.items():
        documents, wanted = zip(*map(marked, lines.strip().splitlines()), strict=True)
        assert language_of(one.text for one in documents) == language
        for document, values in zip(ContextRules()(documents), wanted, strict=True):
            found = [one.said("assertion") for one in document.entities]
            assert found == values, document.text
    short, wanted = marked("Pas de [fièvre:absent].")  # too short to tell
    assert values_of(short, ContextRules(language="fr")) == wanted != values_of(short)


def test_a_trigger_reaches_to_the_end_of_its_sentence_and_six_words_back() -> None:
    document, _ = marked("No [fever:absent]. [Cough:present] today.")
    assert values_of(document) == ["absent", PRESENT]
    joined = Document("a", document.text, document.entities, sentences=(Sentence(0, 24, ()),))
    assert values_of(joined) == ["absent", "absent"]
    for words, value in ((6, "absent"), (7, PRESENT)):
        document, _ = marked(f"[Rash:absent] {'word ' * words}was ruled out.")
        assert values_of(document) == [value]


def test_what_is_not_wanted_is_not_looked_at_and_other_attributes_stay() -> None:
    document, _ = marked("History of [asthma:past], no [fever:absent].")
    assert values_of(document, ContextRules().only(["absent", "present"])) == [PRESENT, "absent"]
    said = (("assertion", "present"), ("Severity", "mild"))
    document = Document("a", "No rash.", (Entity("T1", "ADE", ((3, 7),), attributes=said),))
    (found,) = ContextRules()([document])
    assert found.entities[0].attributes == (("Severity", "mild"), ("assertion", "absent"))


def test_text_in_a_language_without_rules_gets_no_assertion() -> None:
    text = (
        "Il paziente non ha la febbre e non ha dolore al torace, ma ha la tosse da una settimana."
    )
    said = (("assertion", "absent"),)
    document = Document("a", text, (Entity("T1", "problem", ((22, 28),), attributes=said),))
    with pytest.warns(Note, match="language 'it'"):
        assert values_of(document) == [""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ContextRules()([Document("b", text)]) == [Document("b", text)]


def test_every_phrase_of_the_table_is_found_as_itself() -> None:
    """None is hidden by another, and none has a list that is not there."""
    for language, table in _table().items():
        lists = {name: words.split()[0] for name, words in table["lists"].items()}
        for value in VALUES:
            for way, phrases in table[value].items():
                for phrase in phrases:
                    plain = re.sub(r"\{(\w+)\}", lambda one: lists[one[1]], phrase)  # noqa: B023
                    plain = re.sub(r"\(([^|)]*)[^)]*\)", r"\1", plain).strip("$").replace("#", "7")
                    plain = f"did{plain}" if plain.startswith("n't") else plain
                    plain += "" if phrase.endswith("$") else " x"
                    (cue,) = _cues(_rules(language), plain, (0, len(plain)))
                    assert value in cue.says[way], (phrase, way, cue)


def test_hostile_text_takes_no_longer_than_it_is() -> None:
    mention = tuple(Entity(f"T{n}", "x", ((7 * n, 7 * n + 1),)) for n in range(2_000))
    for text in ("x no , " * 2_000, "x" + " " * 14_000, "no" + " " * 14_000 + "of", "n ' " * 3_500):
        before = time.process_time()
        values_of(Document("a", text, mention, sentences=(Sentence(0, len(text), ()),)))
        assert time.process_time() - before < 2
