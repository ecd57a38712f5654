"""Nothing is lost in silence: each kind of fault, tried on every reader that can meet it."""

from __future__ import annotations

import json

import pytest

from confide.errors import DataError, FormatError
from confide.text.formats import FORMATS, Options, read
from confide.text.places import BYTES, CHARACTERS, UTF16, StatedMention, best_fit
from text.formats.samples import links, mentions
from text.generated import kinds, put


def laid(folder, files):
    """Files in a folder of their own, and what is read: the one file, or the folder."""
    folder.mkdir(exist_ok=True, parents=True)
    paths = [put(folder, name, content) for name, content in files.items()]
    return paths[0] if len(paths) == 1 else folder


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- a broken document among good ones ----------------------------------------------------

GOOD = {"text": "Rash", "label": [[0, 4, "A"]]}
XML = "<r><TEXT>Rash</TEXT><TAGS>{}</TAGS></r>"
CAS = (
    '<xmi:XMI xmlns:xmi="http://www.omg.org/XMI" xmlns:cas="http:///uima/cas.ecore"'
    ' xmlns:c="http:///webanno/custom.ecore"><cas:Sofa xmi:id="1" sofaString="Rash"/>'
    '<c:Drug xmi:id="2" sofa="1" begin="{}" end="4"/></xmi:XMI>'
)
TSV = (
    "#FORMAT=WebAnno TSV 3\n#T_SP=webanno.custom.Drug|value\n\n\n#Text=Rash\n1-1\t0-4\tRash\tA\t\n"
)
DDI = '<document id="d"><sentence id="s" text="Rash"><entity id="{}" charOffset="0-3" type="A" text="Rash"/></sentence></document>'  # noqa: E501
BIOC = {"id": "a", "passages": [{"offset": 0, "text": "Rash"}]}
HUB = {"tokens": ["a"], "ner_tags": ["B-X"]}
TACRED = {"token": ["a", "b"], "subj_start": 0, "subj_end": 0, "obj_start": 1, "obj_end": 1,
          "subj_type": "A", "obj_type": "B", "relation": "r"}  # fmt: skip
FEWREL = {"tokens": ["a", "b"], "h": ["a", "Q1", [[0]]], "t": ["b", "Q2", [[1]]]}
DOCRED = {"title": "t", "sents": [["a", "b"]], "vertexSet": []}
OPENNRE = {
    "text": "a b",
    "h": {"name": "a", "pos": [0, 1]},
    "t": {"name": "b", "pos": [2, 3]},
    "relation": "r",
}
FHIR = {"resourceType": "Binary", "id": "a", "contentType": "text/plain", "data": "UmFzaA=="}
STUDIO = {"data": {"text": "Rash"}, "annotations": [{"result": []}]}
PGR = [
    "FILE_ID SENTENCE GENE PHENOTYPE GENE_ID PHENOTYPE_ID GENE_START_POSITION GENE_END_POSITION "
    "PHENOTYPE_START_POSITION PHENOTYPE_END_POSITION RELATION",
    "1 a~b a b 1 2 0 1 2 3 True",
    "1 a~b a b 1 2 0 one 2 3 True",
    "1 a~b a b 1 2 0 1 2 3 False",
]
BROKEN = {  # files of three documents, the second of which is broken
    "conll": {"a.conll": "Rash\tB-A\n\nno\tO\nmore\n\nPain\tB-A\n"},
    "conllu": {
        "a.conllu": "".join(f"1\tRash{cells}\n\n" for cells in ("\t_" * 8, "\t_", "\t_" * 8))
    },
    "brat": {"a.txt": "Rash", "b.txt": "Rash", "b.ann": "T1\tA 0 x\tRash\n", "c.txt": "Rash"},
    "jsonl": {"a.jsonl": lines(GOOD, {"text": 5}, GOOD)},
    "doccano": {"a.jsonl": lines(GOOD, {"text": "Rash", "label": [[0, 0.5, "A"]]}, GOOD)},
    "prodigy": {
        "a.jsonl": lines(*({"text": "a", "answer": "accept", "spans": s} for s in ([], 5, [])))
    },
    "labelstudio": {"a.json": json.dumps([STUDIO, {**STUDIO, "annotations": 5}, STUDIO])},
    "labelstudio-min": {
        "a.json": json.dumps(
            [{"text": "a", "annotation_id": 1, "label": [{"labels": one}]} for one in ([], 5, [])]
        )
    },
    "pubannotation": {
        "a.json": json.dumps([{"text": "a", "denotations": one} for one in ([], 5, [])])
    },
    "medcattrainer": {
        "a.json": json.dumps({"projects": [{"documents": [
            {"id": n, "text": "Rash", "last_modified": "", "annotations": one}
            for n, one in enumerate(([], 5, []))
        ]}]})
    },
    "spacy": {"a.json": json.dumps([["Rash", {"entities": one}] for one in ([], 5, [])])},
    "ner-annotator": {
        "a.json": json.dumps({
            "classes": ["A"], "annotations": [["Rash", {"entities": e}] for e in ([], 5, [])],
        })
    },
    "datasets": {"a.jsonl": lines(HUB, {**HUB, "ner_tags": [{}]}, HUB)},
    "gliner": {
        "a.json": json.dumps([{"tokenized_text": one, "ner": []} for one in (["a"], [5], ["a"])])
    },
    "spert": {
        "a.json": json.dumps(
            [{"tokens": one, "entities": [], "relations": []} for one in (["a"], [5], ["a"])]
        )
    },
    "dygie": {
        "a.jsonl": lines(*({"doc_key": "d", "sentences": one, "ner": [[]]}
                           for one in ([["a"]], [5], [["a"]])))
    },
    "tacred": {"a.json": json.dumps([TACRED, {**TACRED, "subj_end": "x"}, TACRED])},
    "fewrel": {"a.json": json.dumps({"r": [FEWREL, {**FEWREL, "tokens": 5}, FEWREL]})},
    "docred": {"a.json": json.dumps([DOCRED, {**DOCRED, "sents": 5}, DOCRED])},
    "xmi": {f"{n}.xmi": CAS.format(one) for n, one in enumerate(("0", "x", "0"))},
    "webanno": {f"{n}.tsv": TSV.replace("0-4", one) for n, one in enumerate(("0-4", "x", "0-4"))},
    "pubtator": {"a.txt": "1|t|Rash\n1\t0\t4\tRash\tA\t1\n\n2|t|Rash\n2\tx\n\n3|t|Rash\n"},
    "bioc": {
        "a.json": json.dumps({"documents": [BIOC, {**BIOC, "passages": [{"text": 5}]}, BIOC]})
    },
    "biobert": {"a.tsv": "@GENE$ x @DIS$\t1\nbroken\n@GENE$ x @DIS$\t0\n"},
    "chemprot": {
        "a.jsonl": lines(*({"text": one, "label": "R"} for one in
                           ("<< a >> x [[ b ]].", "nothing", "<< a >> x [[ b ]].")))
    },
    "ddi": {f"{n}.xml": DDI.format(one) for n, one in enumerate(("e", "", "e"))},
    "i2b2": {
        f"{n}{ending}": content
        for n, con in enumerate(('c="rash" 1:0 1:0||t="a"\n', "broken\n", ""))
        for ending, content in ((".txt", "Rash\n"), (".con", con))
    },
    "i2b2-2009": {
        **{f"{n}.txt": "Rash\n" for n in range(3)},
        "0.i2b2": 'm="rash" 1:0 1:0||do="nm"\n',
        "1.i2b2": 'm="rash" 1:0 1:0||do="nm"\nbroken\n',
        "2.i2b2": 'm="rash" 1:0 1:0||do="nm"\n',
    },
    "i2b2-xml": {
        f"{n}.xml": XML.format(f'<A id="1" start="{one}" end="4" text="Rash"/>')
        for n, one in enumerate(("0", "x", "0"))
    },
    "semeval": {
        "a.txt": '1\t"<e1>a</e1> <e2>b</e2>"\nOther\n\n2\t"no <e1>mark</e1>"\nOther\n\n'
        '3\t"<e1>a</e1> <e2>b</e2>"\nOther\n'
    },
    "nyt10": {
        "a.txt": "m1\tm2\ta\tb\tNA\ta and b ###END###\nm1\tm2\ta\nm1\tm2\ta\tb\tNA\ta b ###END###\n"
    },
    "opennre": {"a.jsonl": lines(OPENNRE, {**OPENNRE, "text": 5}, OPENNRE)},
    "pgr": {"a.tsv": "".join(line.replace(" ", "\t").replace("~", " ") + "\n" for line in PGR)},
    "ade": {"DRUG-AE.rel": "1|Rash by a.|Rash|0|4|a|8|9\nbroken\n2|Rash by a.|Rash|0|4|a|8|9\n"},
    "ade-positive": {
        "DRUG-AE.rel": "1|Rash by a.|Rash|0|4|a|8|9\nbroken\n2|Rash by a.|Rash|0|4|a|8|9\n"
    },
    "notes": {"a.csv": "id,text\n1,Rash\n2,Rash,more,cells\n3,Rash\n"},
    "fhir": {"a.ndjson": lines(FHIR, {**FHIR, "data": "?"}, FHIR)},
    "text": {"a.txt": "Rash", "b.txt": b"\xff\xff\xfe", "c.txt": "Rash"},
}  # fmt: skip


def test_a_broken_document_is_named_and_left_out_in_every_format(tmp_path):
    """Of DocBin, the workbook, databases and tables only written see their own tests."""
    apart = {"docbin", "psytar", "omop", "note-nlp", "table"}
    assert set(BROKEN) == FORMATS.keys() - apart
    for format, files in BROKEN.items():
        path = laid(tmp_path / format, files)
        with pytest.raises((DataError, FormatError)) as caught:
            read(path, format)
        assert caught.value.where, format
        reading = read(path, format, options=Options(skip_broken=True))
        assert len(reading.documents) == 2, (format, reading.problems)
        (left,) = [one for one in reading.problems if one.kind == "broken-document"]
        assert left.lost and str(path) in left.where, format


def test_a_broken_sentence_breaks_its_document(tmp_path):
    """A document that is cut by marks is left out as a whole, not without a sentence in it."""
    conll = "-DOCSTART- O\n\na O\n\nb O\nc\n\n-DOCSTART- O\n\nd B-X\n"
    rows = "\t_" * 8
    for name, text in (
        ("a.conll", conll),
        ("b.conll", conll.replace("c\n", "c b-per\n").replace("d B", "e O\nf O\nd B")),
        ("a.conllu", f"# newdoc\n1\ta{rows}\n\n1\tb\n\n# newdoc\n1\td{rows}\n"),
    ):
        path = put(tmp_path, name, text)
        reading = read(path, path.suffix[1:], options=Options(skip_broken=True))
        assert [one.text[-1:] for one in reading.documents] == ["d"], name
        assert kinds(reading.problems)[:1] == ["broken-document"], name


# --- offsets in each unit -----------------------------------------------------------------

WORDS = ("Übelkeit", "Aspirin", "Rash")
TEXT = "😀 Übelkeit nach\n😀 Aspirin\nund Rash heute"
WIDTHS = {
    CHARACTERS: len,
    UTF16: lambda text: len(text.encode("utf-16-le")) // 2,
    BYTES: lambda text: len(text.encode()),
}


def counted(text, unit, ends=""):
    """The start and end of each of the words, as a tool counts them."""
    if ends == "one":
        text = text.replace("\r\n", "\n")
    elif ends == "two":
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    width = WIDTHS[unit]
    starts = [width(text[: text.index(word)]) for word in WORDS]
    return [(word, start, start + width(word)) for word, start in zip(WORDS, starts, strict=True)]


def brat(text, found):
    rows = (f"T{n}\tA {a} {b}\t{word}\n" for n, (word, a, b) in enumerate(found, 1))
    return {"a.txt": text, "a.ann": "".join(rows)}


def bioc(text, found):
    marks = [{"id": word, "infons": {"type": "A"}, "text": word,
              "locations": [{"offset": a, "length": b - a if is_whole(a) else b}]}
             for word, a, b in found]  # fmt: skip
    row = {"id": "a", "passages": [{"offset": 0, "text": text, "annotations": marks}]}
    return {"a.json": json.dumps({"documents": [row]})}


def is_whole(value):
    return type(value) is int


def i2b2_xml(text, found):
    tags = "".join(f'<A id="{word}" start="{a}" end="{b}" text="{word}"/>' for word, a, b in found)
    held = text.replace("\r", "&#13;")
    return {"a.xml": f"<r><TEXT>{held}</TEXT><TAGS>{tags}</TAGS></r>"}


def pubtator(text, found):
    title, _, abstract = text.partition("\n")
    rows = "".join(f"1\t{a}\t{b}\t{word}\tA\t-\n" for word, a, b in found)
    return {"a.txt": f"1|t|{title}\n1|a|{abstract}\n{rows}"}


def ddi(text, found):
    marks = "".join(
        f'<entity id="{word}" charOffset="{a}-{b - 1}" type="A" text="{word}"/>'
        for word, a, b in found
    )
    return {
        "a.xml": f'<document id="d"><sentence id="s" text="{text}">{marks}</sentence></document>'
    }


def jsonl(text, found):
    spans = [{"start": a, "end": b, "type": "A", "text": word} for word, a, b in found]
    return {"a.jsonl": lines({"text": text, "entities": spans})}


def label_studio(text, found):
    values = [{"start": a, "end": b, "text": word, "labels": ["A"]} for word, a, b in found]
    results = [{"type": "labels", "value": one} for one in values]
    return {"a.json": json.dumps([{"data": {"text": text}, "annotations": [{"result": results}]}])}


def label_studio_min(text, found):
    values = [{"start": a, "end": b, "text": word, "labels": ["A"]} for word, a, b in found]
    return {"a.json": json.dumps([{"text": text, "annotation_id": 1, "label": values}])}


def cells(text, found):
    values = [{"start": a, "end": b, "text": word, "labels": ["A"]} for word, a, b in found]
    quoted = json.dumps(values, ensure_ascii=False).replace('"', '""')
    return {"a.csv": f'text,id,label,annotator\n"{text}",1,"{quoted}",1\n'}


def medcat(text, found):
    marks = [{"start": a, "end": b, "value": word, "cui": "1"} for word, a, b in found]
    row = {"id": 1, "text": text, "annotations": marks}
    return {"a.json": json.dumps({"projects": [{"name": "p", "documents": [row]}]})}


SAYING = (brat, bioc, i2b2_xml, pubtator, ddi, jsonl, label_studio, label_studio_min, cells, medcat)
"""Formats that give the text of each mention, by a function that writes a file of them."""


def test_offsets_in_each_unit_are_found_out_by_the_mentions_texts(tmp_path):
    for form in SAYING:
        plain = form in (pubtator, ddi)  # their texts hold no line ends of two characters
        for text in (TEXT,) if plain else (TEXT, TEXT.replace("\n", "\r\n")):
            if plain:
                first, *rest = text.split("\n")
                text = f"{first}{' ' if form is ddi else chr(10)}{' '.join(rest)}"
            for unit in WIDTHS:
                for ends in ("",) if plain else ("", "one", "two"):
                    found = counted(text, unit, ends)
                    named = f"{form.__name__} {unit} {ends} {text!r}"
                    folder = tmp_path / str(abs(hash(named)))
                    reading = read(laid(folder, form(text, found)))
                    (document,) = reading.documents
                    assert [words for _, words in mentions(document)] == list(WORDS), named
                    same = found == counted(text, CHARACTERS)
                    assert kinds(reading.problems) == ([] if same else ["offsets-counted"]), named
                    assert same or unit in reading.problems[0].what, named


def test_a_passage_that_begins_later_counts_from_there_in_its_unit(tmp_path):
    """As exports do that count bytes: the passage's own offset is one of bytes too."""
    first, second = "Étude of α.", "TNF-α rose; IL-1β fell."
    for width in WIDTHS.values():
        begin = width(first) + 1
        marks = [{"id": word, "infons": {"type": "Gene"}, "text": word, "locations": [
                  {"offset": begin + width(second[: second.index(word)]), "length": width(word)}]}
                 for word in ("TNF-α", "IL-1β")]  # fmt: skip
        passages = [{"offset": 0, "text": first},
                    {"offset": begin, "text": second, "annotations": marks}]  # fmt: skip
        path = put(tmp_path, "a.json", json.dumps({"documents": [{"passages": passages}]}))
        (document,) = read(path).documents
        assert [words for _, words in mentions(document)] == ["TNF-α", "IL-1β"]


def test_texts_that_were_rewritten_leave_it_to_the_tokens(tmp_path):
    """Both names are given in plain letters, so that neither unit makes them agree."""
    text = "Levels of TNF-α rose; IL-1β fell."
    files = bioc(text, [("TNF-a", 10, 16), ("IL-1b", 23, 29)])
    reading = read(laid(tmp_path / "a", files))
    assert [words for _, words in mentions(reading.documents[0])] == ["TNF-α", "IL-1β"]
    assert kinds(reading.problems) == ["offsets-counted", "text-mismatch", "text-mismatch"]


def test_offsets_without_texts_are_found_out_by_tokens(tmp_path):
    """doccano counts UTF-16 units, or characters: what begins and ends with tokens is right."""
    text = "😀" * 9 + " took lithium and aspirin daily"
    for start, kind in ((24, ["offsets-counted"]), (15, [])):
        path = put(tmp_path, "a.jsonl", lines({"text": text, "label": [[start, start + 7, "D"]]}))
        reading = read(path)
        assert mentions(reading.documents[0]) == [("D", "lithium")]
        assert kinds(reading.problems) == kind


def test_a_doubt_about_offsets_is_named(tmp_path):
    """Of offsets that are borders of tokens in both units, and of offsets that are in neither."""
    for text, label in (("😀😀 a b c d", [5, 6]), ("😀 abcd", [3, 5])):
        path = put(tmp_path, "a.jsonl", lines({"text": text, "label": [[*label, "D"]]}))
        reading = read(path)
        assert mentions(reading.documents[0]) == [("D", text[slice(*label)])]
        (problem,) = reading.problems
        assert (problem.kind, problem.lost) == ("offsets-doubtful", True)


def test_tools_in_python_count_characters_and_browsers_units(tmp_path):
    text = "😀😀 a b c d"
    row = {"text": text, "answer": "accept", "spans": [{"start": 5, "end": 6, "label": "X"}]}
    pair = [text, {"entities": [[5, 6, "X"]]}]
    for name, content, words in (
        ("a.jsonl", lines(row), "b"),
        ("b.json", json.dumps([pair]), "b"),
        ("c.json", json.dumps({"classes": ["X"], "annotations": [pair]}), "a"),
        ("d.jsonl", lines({"text": text, "entities": [{"type": "X", "fragments": [[5, 6]]}]}), "b"),
    ):
        reading = read(put(tmp_path, name, content))
        assert mentions(reading.documents[0]) == [("X", words)], name
        doubt = [] if name != "c.json" else ["offsets-doubtful"]
        assert kinds(reading.problems) == doubt, name


def test_many_mentions_take_no_longer_than_their_text():
    """Ways are tried on a part of the mentions, and a long stretch is not compared."""
    text = "\r\n😀" * 50_000
    given = [StatedMention([(0, len(text))], "x")] * 20_000
    ruler, _ = best_fit(text, given, (CHARACTERS,))
    assert ruler.way.unit == CHARACTERS


# --- numbers ------------------------------------------------------------------------------


def doccano(text, found):
    return {"a.jsonl": lines({"text": text, "label": [[a, b, "A"] for _, a, b in found]})}


def pubannotation(text, found):
    marks = [{"id": word, "span": {"begin": a, "end": b}, "obj": "A"} for word, a, b in found]
    return {"a.json": json.dumps({"text": text, "denotations": marks})}


def prodigy(text, found):
    spans = [{"start": a, "end": b, "label": "A"} for _, a, b in found]
    return {"a.jsonl": lines({"text": text, "answer": "accept", "spans": spans})}


def spacy(text, found):
    return {"a.json": json.dumps([[text, {"entities": [[a, b, "A"] for _, a, b in found]}]])}


def ner_annotator(text, found):
    pair = [text, {"entities": [[a, b, "A"] for _, a, b in found]}]
    return {"a.json": json.dumps({"classes": [], "annotations": [None, pair]})}


def xmi(text, found):
    marks = "".join(
        f'<c:A xmi:id="{n}" sofa="1" begin="{a}" end="{b}"/>'
        for n, (_, a, b) in enumerate(found, 2)
    )
    head, _, _ = CAS.partition("<cas:Sofa")
    return {"a.xmi": f'{head}<cas:Sofa xmi:id="1" sofaString="{text}"/>{marks}</xmi:XMI>'}


def tokens(text, found):
    """GLiNER's spans are of tokens, the last included."""
    ner = [[a, b, "A"] for _, a, b in found]
    return {"a.json": json.dumps([{"tokenized_text": list(text), "ner": ner}])}


def test_a_whole_number_may_have_a_point_or_quotation_marks(tmp_path):
    """As tables and pandas write them; what is no whole number is an error with its place."""
    text, found = "Rash by a b", [("Rash", 0, 4), ("a", 8, 9)]
    forms = (*SAYING, doccano, pubannotation, prodigy, spacy, ner_annotator, xmi, tokens)
    for form in (one for one in forms if one is not ddi):  # whose offsets are one string, 0-3
        folder = tmp_path / form.__name__
        expected = read(laid(folder, form(text, found))).documents
        assert len(expected[0].entities) == 2, form.__name__
        for change in (float, str, lambda n: f"{n}.0"):
            if form is bioc:
                given = [(word, change(a), change(b - a)) for word, a, b in found]
            else:
                given = [(word, change(a), change(b)) for word, a, b in found]
            assert read(laid(folder, form(text, given))).documents == expected, form.__name__
        given = [(word, a + 0.5, b + 0.5) for word, a, b in found]
        with pytest.raises(FormatError) as caught:
            read(laid(folder, form(text, given)))
        assert caught.value.where, form.__name__


def test_tags_and_places_of_tokens_may_be_such_numbers(tmp_path):
    expected = read(put(tmp_path, "a.json", json.dumps([TACRED]))).documents
    row = {key: float(one) if type(one) is int else one for key, one in TACRED.items()}
    assert read(put(tmp_path, "a.json", json.dumps([row]))).documents == expected
    put(tmp_path / "b", "label2id.json", '{"O": 0, "B-X": 1}')
    path = put(tmp_path / "b", "a.csv", "id,tokens,ner_tags\n1,\"['a' 'b']\",[0. 1.]\n")
    assert mentions(read(path).documents[0]) == [("X", "b")]
    path = put(tmp_path / "b", "a.jsonl", lines({"tokens": ["a", "b"], "ner_tags": [0.0, "1"]}))
    assert mentions(read(path).documents[0]) == [("X", "b")]


# --- roles --------------------------------------------------------------------------------


def test_a_relations_head_is_named_not_first(tmp_path):
    text, found = "Aspirin caused gout", [("Aspirin", 0, 7), ("gout", 15, 19)]
    right = [("CAUSES", "Aspirin", "gout")]
    for roles in (("Arg1", "Arg2"), ("subject", "object"), ("Head", "Tail"), ("source", "target")):
        ends = list(zip(roles, ("T1", "T2"), strict=True))
        for number, order in enumerate((ends, ends[::-1])):
            files = brat(text, found)
            files["a.ann"] += f"R1\tCAUSES {' '.join(map(':'.join, order))}\n"
            (document,) = read(laid(tmp_path / f"{roles[0]}{number}", files)).documents
            assert links(document) == right, roles
            nodes = [{"refid": {"T1": "Aspirin", "T2": "gout"}[end], "role": role}
                     for role, end in order]  # fmt: skip
            row = json.loads(bioc(text, found)["a.json"])
            row["documents"][0]["relations"] = [{"infons": {"type": "CAUSES"}, "nodes": nodes}]
            (document,) = read(put(tmp_path, "a.json", json.dumps(row))).documents
            assert links(document) == right, roles


def test_roles_whose_names_do_not_tell_are_as_the_file_first_has_them(tmp_path):
    lines_ = "R1\tX Cause:T1 Effect:T2\nR2\tX Effect:T2 Cause:T1\n"
    files = brat("Aspirin caused gout", [("Aspirin", 0, 7), ("gout", 15, 19)])
    files["a.ann"] += lines_
    files |= {f"b{name[1:]}": content for name, content in files.items()}
    files["b.ann"] = files["b.ann"].replace("R1\tX Cause:T1 Effect:T2", "R1\tX Effect:T2 Cause:T1")
    reading = read(laid(tmp_path / "a", files))
    assert [one for document in reading.documents for one in links(document)] == [
        ("X", "Aspirin", "gout")
    ] * 4


def test_infons_and_arrows_name_the_ends(tmp_path):
    concepts = []
    for infons in ({"Chemical": "C", "Disease": "D"}, {"Disease": "D", "Chemical": "C"}):
        concepts.append({"infons": {"relation": "CID", **infons}})
    path = put(tmp_path, "a.json", json.dumps({"documents": [{**BIOC, "relations": concepts}]}))
    (document,) = read(path).documents
    assert {(one.head, one.tail) for one in document.relations} == {("C", "D")}
    values = [{"start": 0, "end": 7, "labels": ["A"]}, {"start": 15, "end": 19, "labels": ["B"]}]
    results = [{"id": str(n), "type": "labels", "value": one} for n, one in enumerate(values)]
    arrows = [("0", "1", "right"), ("1", "0", "left")]
    results += [{"type": "relation", "from_id": a, "to_id": b, "direction": way, "labels": ["C"]}
                for a, b, way in arrows]  # fmt: skip
    task = {"data": {"text": "Aspirin caused gout"}, "annotations": [{"result": results}]}
    (document,) = read(put(tmp_path, "b.json", json.dumps([task]))).documents
    assert links(document) == [("C", "Aspirin", "gout")] * 2


# --- columns, and annotation in the cells of a table --------------------------------------


def test_columns_that_do_not_exist_are_an_error_with_their_number(tmp_path):
    rows = lines({"tokens": ["a"], "ner_tags": ["B-X"]})
    for name, text, format in (
        ("a.conll", "a\tO\nb\tB-X\n", "conll"),
        ("a.csv", "id,text\n1,Rash\n", "notes"),
        ("a.jsonl", rows, "datasets"),
    ):
        path = put(tmp_path, name, text)
        for columns in ((0, 7), (7, 1), (0, -3), (0, "no"), ("no", 1), (0, 2)):
            with pytest.raises(FormatError) as caught:
                read(path, format, columns=columns)
            assert str(path) in caught.value.where
            numbered = all(isinstance(one, int) for one in columns)
            if format != "datasets" and numbered:
                assert "2 columns" in f"{caught.value.expected} {caught.value.got}", columns
        assert caught.value.where != str(path), "the line is named too"
        assert len(read(path, format, columns=(-2, -1)).documents) >= 1


def test_annotation_in_the_cells_of_a_table_is_read(tmp_path):
    spans = {
        "label": '[{"start": 6, "end": 15, "text": "metformin", "labels": ["DRUG"]}]',
        "entities": '[[6, 15, "DRUG"]]',
        "spans": '[{"start": 6.0, "end": "15", "label": "DRUG"}]',
        "ner": "[(6, 15, 'DRUG')]",
        "annotation": '{"entities": [[6, 15, "DRUG"]]}',
        "python": "[{'start': 6, 'end': 15, 'label': 'DRUG'}]",
    }
    for key, cell in spans.items():
        quoted = cell.replace('"', '""')
        for name, content in (
            ("a.csv", f'id,text,{key},ward\n1,"Pt on metformin.","{quoted}",b\n2,None.,,b\n'),
            (
                "a.tsv",
                f'id\ttext\t{key}\tward\n1\tPt on metformin.\t"{quoted}"\tb\n2\tNone.\t\tb\n',
            ),
        ):
            reading = read(put(tmp_path, name, content))
            assert (reading.format, reading.details["annotation"]) == ("notes", key)
            first, second = reading.documents
            assert mentions(first) == [("DRUG", "metformin")], cell
            assert (first.id, first.attributes) == ("1", (("ward", "b"),))
            assert (second.entities, reading.problems) == ((), [])


def test_unquoted_cells_of_a_tsv_are_read(tmp_path):
    row = '1\tPt on metformin.\t[{"start":6,"end":15,"text":"metformin","labels":["DRUG"]}]\n'
    reading = read(put(tmp_path, "a.tsv", f"id\ttext\tlabel\n{row}"))
    assert mentions(reading.documents[0]) == [("DRUG", "metformin")]


def test_a_damaged_cell_with_annotation_is_an_error(tmp_path):
    table = (
        'id,text,label\n1,Rash,"[{""start"": 0, ""end"": 4, ""label"": ""A""}]"\n2,Rash,"[{""st"\n'
    )
    path = put(tmp_path, "a.csv", table)
    with pytest.raises(FormatError, match="no JSON") as caught:
        read(path)
    assert caught.value.where == f"{path}:3"
    reading = read(path, options=Options(skip_broken=True))
    assert [one.id for one in reading.documents] == ["1"]


# --- the exports that are one object or one list ------------------------------------------


def test_medcattrainer(tmp_path):
    mark = {"start": 6, "end": 15, "value": "metformin", "cui": "6809", "validated": True,
            "meta_anns": {"Status": {"name": "Status", "value": "Affirmed"}}}  # fmt: skip
    marks = [mark, *({**mark, "start": 20, "end": 28, **more} for more in
                     ({"deleted": True}, {"killed": True}, {"irrelevant": True},
                      {"validated": False}))]  # fmt: skip
    row = {"id": 11, "name": "n1", "text": "Pt on metformin for diabetes.", "annotations": marks}
    reading = read(put(tmp_path, "a.json", json.dumps({"projects": [
        {"name": "p", "documents": [row]}, {"name": "q", "documents": [{**row, "id": 12}]}
    ]})))  # fmt: skip
    first, second = reading.documents
    assert (first.id, second.id, mentions(first)) == ("11", "12", [("entity", "metformin")])
    assert first.entities[0].concepts == ("6809",)
    assert first.entities[0].attributes == (("Status", "Affirmed"),)
    assert first.attributes == (("project", "p"), ("name", "n1"))
    assert reading.details["written by"] == "MedCATtrainer"
    assert {one.kind: one.what.split()[0] for one in reading.problems} == {
        "rejected": "6", "ignored": "2",
    }  # fmt: skip


def test_spacys_training_data_as_json(tmp_path):
    pair = ["Pt on metformin for diabetes.", {"entities": [[6, 15, "DRUG"], [20, 28, "DIS"]]}]
    spans = [pair[0], {"spans": {"sc": [[6, 15, "DRUG"]]}, "cats": {"good": 1.0}}]
    for name, content, count in (
        ("a.json", json.dumps([pair, spans]), 2),
        ("b.json", json.dumps([pair], indent=2), 1),
        ("c.jsonl", lines(pair, spans), 2),
    ):
        reading = read(put(tmp_path, name, content))
        assert len(reading.documents) == count
        assert mentions(reading.documents[0]) == [("DRUG", "metformin"), ("DIS", "diabetes")]
        assert (reading.details["written by"], reading.problems) == ("spaCy", [])
    assert mentions(read(tmp_path / "a.json").documents[1]) == [("DRUG", "metformin")]
    assert read(tmp_path / "a.json").documents[1].attributes == (("good", "1.0"),)


def test_ner_annotator(tmp_path):
    pair = ["Pt on metformin.", {"entities": [[6, 15, "DRUG"]]}]
    page = {"classes": ["DRUG"], "annotations": [pair, None, ["No drug here.\r", {"entities": []}]]}
    reading = read(put(tmp_path, "a.json", json.dumps(page)))
    assert [mentions(one) for one in reading.documents] == [[("DRUG", "metformin")], []]
    assert reading.details["written by"] == "NER Annotator"
    assert [(one.kind, one.lost) for one in reading.problems] == [("cancelled", False)]
