"""Small samples of formats, written by us after their published definitions."""

from __future__ import annotations

import base64
import json

WORDS = ["Rash", "after", "aspirin", "was", "seen", "."]
HF_JSON = json.dumps(
    {"id": "7", "tokens": WORDS, "ner_tags": ["B-ADE", "O", "B-Drug", "O", "O", "O"]}
)
HF_CSV = (
    "id,tokens,ner_tags\n"
    '1,"[\'EU\' \'rejects\'\n \'German\' \'call\']",[3 0 7 0]\n'
    '2,"[""Peter"", ""Blackburn""]","[1, 2]"\n'
)  # fmt: skip
HF_CARD = """---
dataset_info:
  features:
  - name: tokens
    sequence: string
  - name: ner_tags
    sequence:
      class_label:
        names:
          '0': O
          '1': B-PER
          '2': I-PER
          '3': B-ORG
          '4': I-ORG
          '5': B-LOC
          '6': I-LOC
          '7': B-MISC
          '8': I-MISC
---
# A dataset
"""
GLINER = json.dumps(
    [{"tokenized_text": WORDS, "ner": [[0, 0, "ADE"], [2, 2, "Drug"], [0, 2, "Event"]]}]
)
SPERT = json.dumps(
    [
        {
            "tokens": WORDS,
            "entities": [
                {"type": "ADE", "start": 0, "end": 1},
                {"type": "Drug", "start": 2, "end": 3},
            ],
            "relations": [{"type": "causes", "head": 1, "tail": 0}],
            "orig_id": "s1",
        }
    ]
)
DYGIE = json.dumps(
    {
        "doc_key": "d1",
        "dataset": "notes",
        "sentences": [WORDS, ["No", "fever", "."]],
        "ner": [[[0, 0, "ADE"], [2, 2, "Drug"]], [[7, 7, "ADE"]]],
        "relations": [[[2, 2, 0, 0, "causes"]], []],
        "clusters": [[[0, 0], [7, 7]]],
    }
)
TACRED = json.dumps(
    [
        {
            "id": "e1",
            "docid": "n1",
            "relation": "per:title",
            "token": ["Dr.", "Ada", "Lovelace", ",", "chief", "of", "staff", "."],
            "subj_start": 1,
            "subj_end": 2,
            "obj_start": 4,
            "obj_end": 6,
            "subj_type": "PERSON",
            "obj_type": "TITLE",
            "stanford_pos": ["NNP"] * 8,
            "stanford_ner": ["O"] * 8,
            "stanford_head": ["0"] * 8,
            "stanford_deprel": ["x"] * 8,
        },
        {
            "id": "e2",
            "docid": "n1",
            "relation": "no_relation",
            "token": ["Ada", "met", "Bob"],
            "subj_start": 0,
            "subj_end": 0,
            "obj_start": 2,
            "obj_end": 2,
            "subj_type": "PERSON",
            "obj_type": "PERSON",
        },
    ]
)
FEWREL = json.dumps(
    {
        "P106": [
            {
                "tokens": ["Ada", "Lovelace", "was", "a", "writer", "; Ada", "wrote"],
                "h": ["ada lovelace", "Q7259", [[0, 1], [5]]],
                "t": ["writer", "Q36180", [[4]]],
            }
        ],
        "P19": [
            {
                "tokens": ["She", "was", "born", "in", "London"],
                "h": ["she", "Q7259", [[0]]],
                "t": ["london", "Q84", [[4]]],
            }
        ],
    }
)
DOCRED = json.dumps(
    [
        {
            "title": "Ada",
            "sents": [["Ada", "Lovelace", "lived", "."], ["She", "left", "London", "."]],
            "vertexSet": [
                [
                    {"name": "Ada Lovelace", "sent_id": 0, "pos": [0, 2], "type": "PER"},
                    {"name": "She", "sent_id": 1, "pos": [0, 1], "type": "PER"},
                ],
                [{"name": "London", "sent_id": 1, "pos": [2, 3], "type": "LOC"}],
            ],
            "labels": [{"h": 0, "t": 1, "r": "P551", "evidence": [0, 1]}],
        }
    ]
)
KBP37 = (
    '0\t" <e1> Thom Yorke </e1> of <e2> Radiohead </e2> has a guitar . "\n'
    "per:employee_of(e1,e2)\n\n"
    '1\t" The <e1> firm </e1> hired <e2> staff </e2> . "\nno_relation\n\n'
)
PUBANNOTATION = json.dumps(
    {
        "target": "http://pubannotation.org/docs/sourcedb/PubMed/sourceid/25314077",
        "sourcedb": "PubMed",
        "sourceid": "25314077",
        "text": "IRF-4 expression in CML may be induced by IFN-α therapy",
        "denotations": [
            {"id": "T1", "span": {"begin": 0, "end": 5}, "obj": "Protein"},
            {"id": "T2", "span": {"begin": 42, "end": 47}, "obj": "Protein"},
            {"id": "T3", "span": [{"begin": 20, "end": 23}, {"begin": 48, "end": 55}], "obj": "X"},
        ],
        "relations": [{"id": "R1", "subj": "T2", "pred": "regulates", "obj": "T1"}],
        "attributes": [{"id": "A1", "subj": "T1", "pred": "certain", "obj": "yes"}],
    }
)
PRODIGY = "".join(
    json.dumps(row) + "\n"
    for row in (
        {
            "text": "Rash after aspirin.",
            "meta": {"source": "note 1"},
            "_input_hash": 1,
            "_task_hash": 11,
            "tokens": [
                {"text": "Rash", "start": 0, "end": 4, "id": 0, "ws": True},
                {"text": "after", "start": 5, "end": 10, "id": 1, "ws": True},
                {"text": "aspirin", "start": 11, "end": 18, "id": 2, "ws": False},
                {"text": ".", "start": 18, "end": 19, "id": 3, "ws": False},
            ],
            "spans": [
                {"start": 0, "end": 4, "token_start": 0, "token_end": 0, "label": "ADE"},
                {"start": 11, "end": 18, "token_start": 2, "token_end": 2, "label": "Drug"},
            ],
            "relations": [
                {
                    "head": 2,
                    "child": 0,
                    "label": "causes",
                    "head_span": {"start": 11, "end": 18, "label": "Drug"},
                    "child_span": {"start": 0, "end": 4, "label": "ADE"},
                }
            ],
            "answer": "accept",
            "_session_id": "notes-ann",
        },
        {"text": "No fever.", "spans": [], "answer": "reject", "_input_hash": 2},
        {"text": "Unclear.", "answer": "ignore", "_input_hash": 3},
    )
)
LABEL_STUDIO_MIN = json.dumps(
    [
        {
            "id": 1,
            "note": "Rash after aspirin.",
            "ward": "b",
            "ner": [
                {"start": 0, "end": 4, "text": "Rash", "labels": ["ADE"]},
                {"start": 11, "end": 18, "text": "aspirin", "labels": ["Drug"]},
            ],
            "annotator": who,
            "annotation_id": number,
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "lead_time": 3.5,
        }
        for number, who in enumerate((1, 2))
    ]
)
WEBANNO = """#FORMAT=WebAnno TSV 3.3
#T_SP=de.tudarmstadt.ukp.dkpro.core.api.lexmorph.type.pos.POS|PosValue
#T_SP=de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity|identifier|value
#T_SP=webanno.custom.Event|kind|ROLE_webanno.custom.Event:who_webanno.custom.EventWhoLink|de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity
#T_RL=webanno.custom.Knows|label|BT_de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity


#Text=😀 Ada Lovelace met Bob_1.
1-1	0-2	😀	NN	_	_	_	_	_	_	_
1-2	3-6	Ada	NE	Q7259[1]	PER[1]	_	_	_	_	_
1-3	7-15	Lovelace	NE	Q7259[1]	PER[1]	_	_	_	_	_
1-4	16-19	met	VB	_	_	meeting	who	1-2[1]	_	_
1-5	20-25	Bob_1	NE	*	PER	_	_	_	knows	1-2[1_0]
1-6	25-26	.	$.	_	_	_	_	_	_	_

#Text=In Londonderry.
2-1	27-29	In	IN	_	_	_	_	_	_	_
2-2	30-41	Londonderry	NE	*	LOC|ORG\\_X[4]	_	_	_	_	_
2-2.1	30-36	London	_	*	LOC	_	_	_	_	_
2-3	41-42	.	$.	_	_	_	_	_	_	_
"""
XMI = """<?xml version="1.0" encoding="UTF-8"?>
<xmi:XMI xmlns:pos="http:///de/tudarmstadt/ukp/dkpro/core/api/lexmorph/type/pos.ecore"
 xmlns:tcas="http:///uima/tcas.ecore" xmlns:xmi="http://www.omg.org/XMI"
 xmlns:cas="http:///uima/cas.ecore" xmlns:custom="http:///webanno/custom.ecore"
 xmlns:type="http:///de/tudarmstadt/ukp/dkpro/core/api/metadata/type.ecore"
 xmlns:seg="http:///de/tudarmstadt/ukp/dkpro/core/api/segmentation/type.ecore"
 xmlns:ner="http:///de/tudarmstadt/ukp/dkpro/core/api/ner/type.ecore" xmi:version="2.0">
<cas:NULL xmi:id="0"/>
<type:DocumentMetaData xmi:id="1" sofa="12" begin="0" end="26" documentTitle="note.txt"
 documentId="admin"/>
<seg:Sentence xmi:id="2" sofa="12" begin="0" end="26"/>
<seg:Token xmi:id="3" sofa="12" begin="0" end="2"/>
<seg:Token xmi:id="4" sofa="12" begin="3" end="7"/>
<seg:Token xmi:id="5" sofa="12" begin="8" end="13"/>
<seg:Token xmi:id="6" sofa="12" begin="14" end="21"/>
<seg:Token xmi:id="7" sofa="12" begin="21" end="22"/>
<seg:Token xmi:id="8" sofa="12" begin="23" end="26"/>
<pos:POS xmi:id="9" sofa="12" begin="3" end="7" PosValue="NN"/>
<ner:NamedEntity xmi:id="20" sofa="12" begin="3" end="7" value="ADE" identifier="C0015230"/>
<ner:NamedEntity xmi:id="21" sofa="12" begin="14" end="21" value="Drug"/>
<custom:Dose xmi:id="22" sofa="12" begin="23" end="26" amount="3" unit="mg" of="21"/>
<custom:Causes xmi:id="23" sofa="12" begin="3" end="7" Dependent="20" Governor="21" label="causes"/>
<custom:Event xmi:id="24" sofa="12" begin="8" end="13" label="after" roles="25"/>
<custom:EventLink xmi:id="25" role="what" target="20"/>
<cas:Sofa xmi:id="12" sofaNum="1" sofaID="_InitialView" mimeType="text"
 sofaString="&#128512; Rash after aspirin. Yes"/>
<cas:View sofa="12" members="1 2 3 4 5 6 7 8 9 20 21 22 23 24"/>
</xmi:XMI>
"""
NOTE_2009 = (
    "DISCHARGE MEDICATIONS :\nHe took aspirin 81 mg po daily for chest pain .\nNo other drug .\n"
)
ENTRIES_2009 = (
    'm="aspirin" 2:2 2:2||do="81 mg" 2:3 2:4||mo="po" 2:5 2:5||f="daily" 2:6 2:6||du="nm"'
    '||r="chest pain" 2:8 2:9||ln="narrative"\n'
    'm="other drug" 3:1 3:2||do="nm"||mo="nm"||f="nm"||du="nm"||r="nm"||ln="list"\n'
)
XML_2012 = """<?xml version="1.0" encoding="UTF-8" ?>
<ClinicalNarrativeTemporalAnnotation>
<TEXT><![CDATA[
Admission Date :
2026-06-13
He took aspirin & slept .
]]></TEXT>
<TAGS>
<EVENT id="E0" start="1" end="10" text="Admission" modality="FACTUAL" polarity="POS"
 type="OCCURRENCE" />
<EVENT id="E1" start="37" end="44" text="aspirin" modality="FACTUAL" polarity="POS"
 type="TREATMENT" />
<TIMEX3 id="T0" start="18" end="28" text="2026-06-13" type="DATE" val="2026-06-13" mod="NA" />
<TLINK id="TL0" fromID="E1" fromText="aspirin" toID="T0" toText="2026-06-13" type="OVERLAP" />
<SECTIME id="S0" start="18" end="28" text="2026-06-13" type="ADMISSION" dvalue="2026-06-13" />
</TAGS>
</ClinicalNarrativeTemporalAnnotation>
"""
XML_2014 = """<?xml version="1.0" encoding="UTF-8" ?>
<deIdi2b2>
<TEXT><![CDATA[Record date: 2067-05-03

Dr. Oda saw Mr. Zed in Bern.
]]></TEXT>
<TAGS>
<DATE id="P0" start="13" end="23" text="2067-05-03" TYPE="DATE" comment="" />
<NAME id="P1" start="29" end="32" text="Oda" TYPE="DOCTOR" comment="" />
<NAME id="P2" start="41" end="44" text="Zed" TYPE="PATIENT" comment="" />
<LOCATION id="P3" start="48" end="52" text="Bern" TYPE="CITY" comment="sure" />
</TAGS>
</deIdi2b2>
"""
CONLLU = """# newdoc id = d1
# sent_id = 1
# text = Vámonos al Río Tajo.
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\tNER=B-LOC
5\tRío\trío\tPROPN\t_\t_\t1\tobl\t_\tNER=I-LOC
5.1\tnada\t_\t_\t_\t_\t_\t_\t_\tNER=B-PER
6\tTajo\tTajo\tPROPN\t_\t_\t5\tflat\t_\tNER=I-LOC|SpaceAfter=No
7\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_

# newdoc id = d2
1\tAda\tAda\tPROPN\t_\t_\t0\troot\t_\tNER=B-PER

"""
GUM = """# newdoc id = GUM_1
# global.Entity = GRP-etype-infstat-centering-minspan-link-identity
1\tAda\tAda\tPROPN\t_\t_\t2\tdet\t_\tEntity=(1-person-new-cf1-1-coref-Ada_Lovelace
2\tLovelace\t_\tPROPN\t_\t_\t0\troot\t_\tEntity=1)
3\tof\tof\tADP\t_\t_\t4\tcase\t_\tEntity=(2-place-new-cf2-2-sgl
4\tLondon\tLondon\tPROPN\t_\t_\t2\tnmod\t_\tEntity=(3-place-new-cf3-1-sgl)2)|SpaceAfter=No

"""
NOTES_CSV = (
    'ROW_ID,CATEGORY,TEXT\n1,Nursing,"He said ""no"",\nthen slept."\n2,Nursing,\n3,Other,Well.\n'
)
DOCUMENT_REFERENCE = {
    "resourceType": "DocumentReference",
    "id": "r1",
    "status": "current",
    "type": {"coding": [{"system": "http://loinc.org", "code": "34133-9", "display": "Summary"}]},
    "subject": {"reference": "Patient/p1"},
    "content": [
        {
            "attachment": {
                "contentType": "text/plain; charset=utf-8",
                "data": base64.b64encode("Naïve patient, no rash.".encode()).decode(),
            }
        },
        {"attachment": {"contentType": "application/pdf", "data": "JVBERi0="}},
        {"attachment": {"contentType": "text/plain", "url": "Binary/b1"}},
    ],
}
BUNDLE = json.dumps(
    {
        "resourceType": "Bundle",
        "type": "searchset",
        "entry": [
            {"resource": DOCUMENT_REFERENCE},
            {"resource": {"resourceType": "Patient", "id": "p1"}},
        ],
    }
)
