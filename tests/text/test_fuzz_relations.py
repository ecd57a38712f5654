"""The readers of relation corpora against files that are nearly right: only our errors come out."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from confide.text.published.bags import _COLUMNS
from text.generated import put
from text.test_fuzz import VALUES, WORDS, survives

BLANKS = ["\t", " ", "\n", "\r\n", "\ufeff", "\u2028"]
TABLE = ["index\tsentence\tlabel\n", "@GENE$", "@DISEASE$", "a @X$ b @Y$\t1\n", "0", "1"]
SEMEVAL = ['1\t"', "<e1>", "</e1>", "<e2>", "</e2>", '"\n', "Other\n", "A-B(e1,e2)\n", "Comment:"]
MARKED = ["<< ", " >>", "[[ ", " ]]", "<< a >> [[ b ]]"]
I2B2 = ['c="', '"', " 1:0 1:1", "||t=", "||r=", '||a="', "\n", 'c="ab" 1:0 1:0||t="x"\n',
        'c="ab" 1:0 1:0||r="y"||c="ab" 1:0 1:0\n', "9:9"]  # fmt: skip
XML = ["<document>", "</document>", '<document id="a">', '<sentence text="ab c" id="s">', "<", ">",
       "</sentence>", '<entity id="e" charOffset="0-1" type="X" text="ab"/>', "&amp;", "&#0;",
       '<pair e1="e" e2="e" ddi="true" type="y"/>', "<collection>", "</collection>", "<passage>",
       "</passage>", "<offset>0</offset>", "<text>ab</text>", '<annotation id="1">', "</relation>",
       "</annotation>", '<location offset="0" length="2"/>', '<infon key="type">T</infon>',
       '<relation id="r">', '<node refid="1" role="x"/>', "<!--", "-->", "]]>"]  # fmt: skip
NAMES = """id text passages documents annotations relations infons type identifier locations
offset length nodes refid role sentences label metadata entity1 entity2"""
KEYS = st.sampled_from(NAMES.split())
NYT10 = ["1\t2\ta_b\tc\tr\ta_b of c ###END###\n", "###END###", "a_b", "c", "_", "NA"]
PGR = ["\t".join(_COLUMNS) + "\n", "CONFIRMATION", "&lt;", "&", ";", "True", "C", "0", "2",
       "7\tab cd\tab\tcd\t1\t2\t0\t2\t3\t5\tTrue\n"]  # fmt: skip
PIECES = ["{", "}", "'text':", '"h":', "'t':", "'pos': [0, 2]", ",", "'ab cd'", "'token': ['a']",
          "{'text': 'ab', 'h': {'name': 'a'}, 't': {'pos': [1, 2]}, 'relation': 'r'}\n",
          "__import__('os')", "None", "(", "b'x'"]  # fmt: skip
ENDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("name", "id", "pos", "type", "kg"), VALUES)
)
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


def scraps(pieces):
    return st.lists(st.sampled_from(pieces + WORDS + BLANKS), max_size=25).map("".join)


def folder(factory):
    return factory.mktemp("fuzz")


@given(scraps(TABLE), st.sampled_from(["biobert", None]))
def test_tables(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.txt", text), format)


@given(scraps(NYT10), st.sampled_from(["nyt10", None]))
def test_nyt10(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.txt", text), format)


@given(scraps(PGR), st.sampled_from(["pgr", None]))
def test_pgr(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.txt", text), format)


@given(scraps(PIECES), st.sampled_from(["opennre", None]))
def test_opennre_lines(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.txt", text), format)


@given(VALUES, VALUES, ENDS | VALUES, ENDS, st.sampled_from([json.dumps, repr]))
def test_opennre_objects(tmp_path_factory, text, tokens, head, tail, dumps):
    row = {"text": text, "token": tokens, "h": head, "t": tail, "relation": "r"}
    for key in ("text", "token"):
        rest = {name: value for name, value in row.items() if name != key}
        survives(put(folder(tmp_path_factory), "a.txt", dumps(rest)), "opennre")


@given(scraps(SEMEVAL), st.sampled_from(["semeval", None]))
def test_semeval(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.txt", text), format)


@given(st.lists(scraps(MARKED), min_size=1, max_size=3), st.sampled_from(["chemprot", None]))
def test_chemprot(tmp_path_factory, texts, format):
    rows = "".join(json.dumps({"text": text, "label": "X"}) + "\n" for text in texts)
    survives(put(folder(tmp_path_factory), "a.txt", rows), format)


@given(scraps(WORDS), scraps(I2B2), scraps(I2B2), scraps(I2B2))
def test_i2b2(tmp_path_factory, text, con, rel, ast):
    place = folder(tmp_path_factory)
    for name, part in (("con", con), ("rel", rel), ("ast", ast)):
        put(place, f"n.{name}", part)
    survives(put(place, "n.txt", text), "i2b2")


@given(scraps(XML), st.sampled_from(["ddi", "bioc", None]))
def test_xml(tmp_path_factory, text, format):
    survives(put(folder(tmp_path_factory), "a.xml", text), format)


@given(scraps(XML), st.sampled_from(["ddi", "bioc"]))
def test_xml_inside_its_root(tmp_path_factory, text, format):
    root = {"ddi": "document", "bioc": "collection"}[format]
    survives(put(folder(tmp_path_factory), "a.xml", f"<{root}>{text}</{root}>"), format)


@given(st.dictionaries(KEYS, NESTED, max_size=6))
def test_bioc_json(tmp_path_factory, row):
    row = {"id": "x", "passages": [{"offset": 0, "text": "ab cd", **row}], **row}
    survives(put(folder(tmp_path_factory), "a.json", json.dumps(row)), "bioc")


OFFSETS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map("{0[0]}-{0[1]}".format),
    min_size=1,
    max_size=3,
).map(";".join)
IDS = st.sampled_from(["e0", "e1", "e 2", ""])
ENTITY = st.tuples(IDS, OFFSETS, st.sampled_from(["drug", "brand"])).map(
    '<entity id="{0[0]}" charOffset="{0[1]}" type="{0[2]}" text="x"/>'.format
)
LINK = st.tuples(IDS, IDS, st.sampled_from(["true", "false"]), st.sampled_from(["", "int"])).map(
    '<pair e1="{0[0]}" e2="{0[1]}" ddi="{0[2]}" type="{0[3]}"/>'.format
)
SENTENCE = st.tuples(
    st.sampled_from(["", "ab cd", "\u00e9 &#10; x. Y z"]), st.lists(ENTITY | LINK)
).map(lambda parts: f'<sentence text="{parts[0]}">{"".join(parts[1])}</sentence>')


@given(st.lists(SENTENCE, max_size=4).map("".join))
def test_ddi_whose_parts_do_not_fit(tmp_path_factory, sentences):
    survives(put(folder(tmp_path_factory), "a.xml", f"<document>{sentences}</document>"), "ddi")


PLACES = st.integers(0, 12)
MENTION = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["1", "2", 3]),
        "infons": st.dictionaries(KEYS, st.sampled_from(["X", "D1,D2", "-", ""]), max_size=2),
        "locations": st.lists(st.fixed_dictionaries({"offset": PLACES, "length": PLACES})),
    }
)
BOND = st.fixed_dictionaries(
    {
        "infons": st.dictionaries(KEYS, st.sampled_from(["X", "D1", ""]), max_size=4),
        "nodes": st.lists(st.fixed_dictionaries({"refid": st.sampled_from(["1", "2", "9"])})),
    }
)
PASSAGE = st.fixed_dictionaries(
    {
        "offset": PLACES,
        "text": st.sampled_from(["ab cd", "", "a", "\ud800 x"]),
        "annotations": st.lists(MENTION, max_size=3),
        "relations": st.lists(BOND, max_size=3),
    }
)


@given(st.lists(PASSAGE, max_size=3), st.booleans())
def test_bioc_whose_parts_do_not_fit(tmp_path_factory, passages, cut):
    inside = [{"offset": 0, "sentences": passages}] if cut else passages
    row = json.dumps({"documents": [{"passages": inside}]})
    survives(put(folder(tmp_path_factory), "a.json", row), "bioc")
