"""Annotation tools: Label Studio's ML backend and INCEpTION's external recommender."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from confide.serve.app import ServedPages
from confide.serve.gate import CallerLimits, Doors
from confide.serve.models import Served
from confide.text.document import Document, Entity, Relation
from confide.text.formats.inception import NAMED_ENTITY, PREDICTED
from serve.served import QUICK, annotate, browser, models

TOKEN = "x" * 43
KEY = Doors(TOKEN, lasts=1).tool_key
BASIC = {"authorization": "Basic " + b64encode(f"anyone:{KEY}".encode()).decode()}
STUDIO, INCEPTION = "/v1/labelstudio/ours", "/v1/inception/ours"
RECORDED = json.loads(Path(__file__).with_name("label_studio_1.23.2.json").read_text())
"""What a Label Studio and our server said to each other (`test_label_studio.py`)."""
SETUP, SENT = RECORDED[1]["body"], RECORDED[2]["body"]
CONFIG = SETUP["schema"]


def asked(*texts: object, config: str = CONFIG) -> dict[str, Any]:
    """The recorded body of POST predict, with other texts."""
    tasks = [{**SENT["tasks"][0], "id": n, "data": {"report": text}}
             for n, text in enumerate(texts)]  # fmt: skip
    return {**SENT, "tasks": tasks, "label_config": config}


# --- Label Studio -------------------------------------------------------------------------


def test_a_recorded_label_studio_connects_and_gets_predictions_in_its_own_names() -> None:
    there = browser(token=TOKEN)
    for one in RECORDED:
        method, path = one["ask"].split()
        headers = {"authorization": one["authorization"]}
        found = there.request(method, path, json=one["body"], headers=headers)
        assert found.json() == one["answer"], one["ask"]
    emoji = RECORDED[2]["answer"]["results"][2]["result"]
    assert emoji[0] == {
        "id": "T1", "from_name": "ner", "to_name": "note", "type": "labels", "score": 0.9,
        "value": {"start": 2, "end": 7, "text": "drug9", "labels": ["Drug"]},
    }, "characters are counted, as Label Studio does"  # fmt: skip
    assert browser().get(f"{STUDIO}/versions").json() == {"versions": ["ours"]}


def test_tasks_keep_their_places_and_are_ordered_by_their_least_sure_entity() -> None:
    """Label Studio takes the lowest score first."""
    sent = asked("drug7", None, "nothing", "drug3 drug9", 5)
    found = browser().post(f"{STUDIO}/predict", json=sent).json()["results"]
    assert [one["score"] for one in found] == [0.7, None, 1.0, 0.3, None]
    assert [len(one["result"]) for one in found] == [1, 0, 0, 2, 0]


def test_all_tasks_that_are_chosen_are_answered_in_one_ask() -> None:
    sent = asked(*(f"drug{n % 10}" for n in range(1000)))
    found = browser().post(f"{STUDIO}/predict", json=sent).json()["results"]
    assert [one["result"][0]["value"]["text"] for one in found] == [
        f"drug{n % 10}" for n in range(1000)
    ]
    small = {**sent, "tasks": [{"data": {}}] * 10_001}
    assert browser().post(f"{STUDIO}/predict", json=small).status_code == 422


def everything(documents: list[Document]) -> list[Document]:
    """Finds all that a document can hold."""
    marks = (
        Entity("a", "DRUG", ((0, 5),), 0.5), Entity("b", "ADE", ((6, 10),), 0.6),
        Entity("c", "DRUG", ((0, 2), (3, 5)), 0.1), Entity("d", "OTHER", ((6, 10),), 0.2),
    )  # fmt: skip
    links = (
        Relation("r", "causes", "a", "b"), Relation("s", "treats", "a", "b"),
        Relation("t", "causes", "a", "d"), Relation("u", "causes", "C1", "C2", level="concept"),
    )  # fmt: skip
    return [replace(one, entities=marks, relations=links) for one in documents]


def test_what_a_project_has_no_label_for_is_left_out() -> None:
    own = {"ours": Served("ours", "entities", ("DRUG", "ADE", "OTHER"), everything, QUICK)}
    there = browser(ServedPages(own, QUICK))
    (found,) = there.post(f"{STUDIO}/predict", json=asked("drug1 rash")).json()["results"]
    *regions, link = found["result"]
    assert [(one["id"], one["value"]["labels"]) for one in regions] == [
        ("a", ["Drug"]), ("b", ["ADE"]),
    ]  # fmt: skip
    assert link == {
        "type": "relation", "from_id": "a", "to_id": "b", "direction": "right",
        "labels": ["Causes"],
    }  # fmt: skip
    assert found["score"] == 0.5


def test_a_configuration_that_does_not_fit_is_refused() -> None:
    drug = '<Labels name="n" toName="t"><Label value="Drug"/></Labels>'
    text = '<Text name="t" value="$x"/>'
    twice = drug.replace("</", '<Label value="drug"/></')
    many = "".join(f'<Relation value="{n}"/>' for n in range(1001))
    for config, error in (
        ("<View/>", "labels"),
        (f"<View>{text}</View>", "labels"),
        (f'<View>{drug}<Image name="t" value="$x"/></View>', "labels"),
        (f"<View>{drug.replace('Drug', 'Pain')}{text}</View>", "labels"),
        (f'<View>{drug}<Text name="t" value="http://10.0.0.1/"/></View>', "text"),
        (f'<View>{drug}<Text name="t" value="$x" valueType="url"/></View>', "text"),
        ("no xml", "not-xml"),
        (f'<!DOCTYPE v SYSTEM "file:///etc/passwd"><v>{drug}{text}</v>', "not-xml"),
        ('<!DOCTYPE v [<!ENTITY a "aaaa">]><v>&a;</v>', "not-xml"),
        ("<a>" * 5000, "not-xml"),
        (f"<View>{twice}{text}</View>", "labels"),
        (f"<View>{drug}{text}{many}</View>", "labels"),
        (f"<View>{drug * 21}{text}</View>", "labels"),
        ("x" * 200_001, "wrong-body"),
    ):
        for what, body in (
            ("setup", {"schema": config}), ("predict", asked("drug1", config=config)),
        ):  # fmt: skip
            found = browser().post(f"{STUDIO}/{what}", json=body)
            assert (found.status_code, found.json()["error"]) == (422, error), config[:80]
            assert "Pain" not in found.text and "passwd" not in found.text
    assert "DRUG, ADE" in browser().post(f"{STUDIO}/setup", json={"schema": "<View/>"}).text


# --- INCEpTION ----------------------------------------------------------------------------

TEXT = "😀 drug9 helped.\nNo drug2 & <rash>."
SEGMENTS = "de/tudarmstadt/ukp/dkpro/core/api/segmentation/type"


def xmi(body: str = "", text: str = TEXT) -> str:
    """A CAS as INCEpTION 30 writes it; offsets count UTF-16 units."""
    said = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "&#10;")
    return (
        '<?xml version="1.0" encoding="UTF-8"?><xmi:XMI xmlns:xmi="http://www.omg.org/XMI"'
        f' xmlns:cas="http:///uima/cas.ecore" xmlns:type5="http:///{SEGMENTS}.ecore"'
        ' xmlns:custom="http:///webanno/custom.ecore" xmi:version="2.0"><cas:NULL xmi:id="0"/>'
        f'<type5:Token xmi:id="19" sofa="1" begin="3" end="8" order="0"/>{body}'
        '<cas:Sofa xmi:id="1" sofaNum="1" sofaID="_InitialView" mimeType="text"'
        f' sofaString="{said}"/>'
        '<cas:View sofa="1" members="19"/></xmi:XMI>'
    )


def to_recommend(sent: str, layer: str = NAMED_ENTITY, feature: str = "value") -> dict[str, Any]:
    """The body of POST predict, as INCEpTION 30 sends it."""
    about = {"layer": layer, "feature": feature, "projectId": 1, "anchoringMode": "tokens",
             "crossSentence": False, "range": {"begin": 0, "end": len(TEXT)}}  # fmt: skip
    document = {"xmi": sent, "documentId": 42, "userId": "ann"}
    return {"metadata": about, "document": document, "typeSystem": "<typeSystemDescription/>"}


def test_inception_gets_its_cas_back_with_suggestions() -> None:
    """As cassis reads it, the library of INCEpTION's own recommenders in Python."""
    cassis = pytest.importorskip("cassis")
    types = cassis.TypeSystem()
    for name, features in (
        (NAMED_ENTITY, {"value": "String", "value_score": "Double", PREDICTED: "Boolean"}),
        (f"{SEGMENTS.replace('/', '.')}.Token", {"order": "Integer"}),
        ("webanno.custom.Note", {"words": "StringArray"}),
    ):
        made = types.create_type(name)
        for feature, kind in features.items():
            types.create_feature(made, feature, f"uima.cas.{kind}")
    kept = '<custom:Note xmi:id="77" sofa="1" begin="0" end="2"><words>a</words></custom:Note>'
    found = browser().post(f"{INCEPTION}/predict", json=to_recommend(xmi(kept)))
    sent = found.json()["document"]
    cas = cassis.load_cas_from_xmi(sent, typesystem=types)
    assert cas.sofa_string == TEXT
    suggested = [
        (one.get_covered_text(), one.value, one.value_score, one[PREDICTED])
        for one in cas.select(NAMED_ENTITY)
    ]
    assert suggested == [("drug9", "DRUG", 0.9, True), ("drug2", "DRUG", 0.2, True)]
    assert [one.begin for one in cas.select(f"{SEGMENTS.replace('/', '.')}.Token")] == [2]
    assert 'xmi:id="79"' in sent and 'members="19 78 79"' in sent
    assert "<words>a</words>" in sent
    assert sent.rindex(":NamedEntity ") < sent.index(":View "), (
        "or UIMA's Java finds none in the view"
    )


def test_the_sentences_and_tokens_of_a_cas_are_read() -> None:
    """So that what is found ends where its tokens do."""
    given: list[Document] = []

    def keeps(documents: list[Document]) -> list[Document]:
        given.extend(documents)
        return annotate(documents)

    own = {"ours": Served("ours", "entities", ("DRUG",), keeps, QUICK)}
    sentence = '<type5:Sentence xmi:id="20" sofa="1" begin="0" end="16"/>'
    there = browser(ServedPages(own, QUICK))
    layer = to_recommend(xmi(sentence), layer="Plain", feature="kind")
    sent = there.post(f"{INCEPTION}/predict", json=layer).json()["document"]
    assert [list(one.tokens) for one in given[-1].sentences] == [[(2, 7)]]
    assert "http:///uima/noNamespace.ecore" in sent and 'kind="DRUG"' in sent
    assert 'kind_score="0.9000"' in sent


def test_a_wrong_or_hostile_cas_is_refused() -> None:
    good = to_recommend(xmi())
    about, document = good["metadata"], good["document"]
    no_text = xmi().replace("sofaString", "string")
    bomb = '<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><xmi:XMI>&c;</xmi:XMI>'
    odd = [{**about, "layer": name} for name in ("", "a b", 'a"b', "a..b", "a/b", "x" * 301)]
    odd += [{**about, "feature": name} for name in ("", "a b", "a:b", "a=", "x" * 101)]
    bodies = [{**good, "metadata": one} for one in odd]
    bodies += [
        {**good, "document": {**document, "xmi": one}}
        for one in ("", "{}", "<a/>", no_text, bomb, "<!DOCTYPE a>" + xmi(), "<a>" * 5000,
                    xmi('<type5:Token xmi:id="5" sofa="1" begin="x" end="9"/>'), 7)
    ]  # fmt: skip
    bodies += [{"metadata": about}, {"document": document}, {}]
    for body in bodies:
        found = browser().post(f"{INCEPTION}/predict", json=body)
        assert found.status_code == 422, json.dumps(body)[:300]
    many = xmi(f"<x>{'<a>bbbbbbb</a>' * 290_000}</x>")
    begun = process_time()
    assert browser().post(f"{INCEPTION}/predict", json=to_recommend(many)).status_code == 200
    assert process_time() - begun < 5, "of 4 MB"
    small = CallerLimits(pad=0, characters=10)
    there = browser(ServedPages(models(small), limits=small))
    assert there.post(f"{INCEPTION}/predict", json=good).status_code == 413
    lost = xmi('<type5:Token xmi:id="9999999999" sofa="1" begin="0" end="999"/>')
    lost = lost.replace('<cas:View sofa="1" members="19"/>', "")
    sent = browser().post(f"{INCEPTION}/predict", json=to_recommend(lost)).json()["document"]
    assert 'members="20 21"' in sent, "a view is made if there is none"


# --- both ---------------------------------------------------------------------------------


def test_the_key_of_tools_opens_predictions_and_nothing_else() -> None:
    there, own = browser(token=TOKEN), f"{INCEPTION}/{KEY}"
    inception, studio = to_recommend(xmi()), asked("drug1")
    assert there.post(f"{own}/predict", json=inception).status_code == 200
    assert there.get(f"{STUDIO}/health", headers=BASIC).status_code == 200
    assert there.post(f"{STUDIO}/predict", json=studio, headers=BASIC).status_code == 200
    for path in (
        "/v1/models",
        "/api",
        "/correct",
        "/openapi.json",
        f"/{KEY}",
        f"/v1/{KEY}/{KEY}/{KEY}",
    ):
        assert there.get(path, headers=BASIC).status_code == 401, path
    assert there.post("/v1/predict", json={"texts": ["a"]}, headers=BASIC).status_code == 401
    assert there.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 401
    for wrong in ("", "x", KEY[:-1], KEY + "x", TOKEN):
        for inner in (f":{wrong}", wrong, f"{KEY}:{wrong}"):
            headers = {"authorization": "Basic " + b64encode(inner.encode()).decode()}
            assert there.get(f"{STUDIO}/health", headers=headers).status_code == 401
        path = f"{INCEPTION}/{wrong}/predict"
        assert there.post(path, json=inception).status_code == 401
    for broken in ("Basic", "Basic é", "Basic ====", f"Basic {KEY}", f"Bearer {KEY}"):
        headers = {"authorization": broken.encode()}
        assert there.get(f"{STUDIO}/health", headers=headers).status_code == 401
    assert Doors("y" * 43, lasts=1).tool_key != KEY and TOKEN not in KEY
    assert urlsafe_b64decode(KEY + "=") != sha256(TOKEN.encode()).digest(), "nor its digest"
    page = there.get("/api", headers={"authorization": f"Bearer {TOKEN}"}).text
    assert STUDIO in page and own in page and TOKEN not in page
    assert KEY not in browser().get("/api").text, "without a token there is no key"


def test_training_is_refused_unread_and_a_model_must_find_entities() -> None:
    pairs = Served("pairs", "relations", (), annotate, QUICK)
    there = browser(ServedPages({**models(), "pairs": pairs}, QUICK))
    for path in (f"{STUDIO}/train", f"{STUDIO}/webhook", f"{INCEPTION}/train",
                 f"{INCEPTION}/{KEY}/train"):  # fmt: skip
        found = there.post(path, content=b"\xff not read")
        assert (found.status_code, found.json()["error"]) == (501, "not-supported")
    assert browser(token=TOKEN).post(f"{STUDIO}/webhook", json={}).status_code == 401
    for name, status in (("nope", 404), ("pairs", 422)):
        assert there.get(f"/v1/labelstudio/{name}/health").status_code == status
        found = there.post(f"/v1/inception/{name}/predict", json=to_recommend(xmi()))
        assert found.status_code == status
    elsewhere = {"origin": "http://evil.example"}
    assert there.post(f"{STUDIO}/predict", json=asked("a"), headers=elsewhere).status_code == 403


def test_tools_are_told_no_text_in_errors() -> None:
    told: list[str] = []
    there = browser(told=told)
    broken = (
        there.post("/v1/labelstudio/broken/predict", json=asked("CANARY")),
        there.post("/v1/inception/broken/predict", json=to_recommend(xmi(text="CANARY"))),
        there.post(f"{STUDIO}/predict", json={**asked("a"), "tasks": [{"CANARY": "CANARY"}]}),
        there.post(f"{INCEPTION}/predict", json=to_recommend("<CANARY>&CANARY;</CANARY>")),
    )
    assert [one.status_code for one in broken] == [500, 500, 422, 422]
    assert "CANARY" not in "".join([*told, *(one.text for one in broken)])
