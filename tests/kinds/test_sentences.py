"""Public sentences: what travels, how they are named, what a site refuses, and whose tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import each
from confide.errors import DataError, MessageError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import decode, decode_file, encode, forms_of
from confide.federation.seals import is_digest
from confide.kinds import public as sentences
from confide.kinds.encoder import EncoderSpec
from confide.kinds.public import MOST_TOKENS, PublicSentences
from confide.text.document import Document, Entity
from confide.training.batches import TagSet, examples_from

TAGS = TagSet(("Drug", "Effect"))
DOCUMENTS = [
    Document(
        "a",
        "The aspirin gave her joint pain . Then she slept .",
        (Entity("T1", "Drug", ((4, 11),)), Entity("T2", "Effect", ((21, 31),))),
    ),
    Document("b", "Codeine !", (Entity("T1", "Drug", ((0, 7),)),)),
    Document("c", ""),
]


def form_of(tags: TagSet = TAGS) -> EncoderSpec:
    """A form with these tags."""
    return EncoderSpec(list(tags.types), tags.scheme, "minilm", "0" * 64, 0.1, 128, "all")


def public_of(*documents: Document, tags: TagSet = TAGS) -> PublicSentences:
    return form_of(tags).public(documents)[0]


def made(each: list[list[str]]) -> PublicSentences:
    """A public set of these tokens."""
    return PublicSentences(each)


def test_a_row_is_a_token_and_its_label_a_tag() -> None:
    public, labels = form_of().public(DOCUMENTS)
    public.check()
    tokens = [token for sentence in public.sentences for token in sentence]
    assert public.rows == len(tokens) == len(labels)
    at = dict(zip(tokens, labels, strict=True))
    assert (at["aspirin"], at["joint"], at["pain"]) == ("S-Drug", "B-Effect", "E-Effect")
    assert (at["The"], at["slept"], at["Codeine"]) == ("O", "O", "S-Drug")
    assert decode(PublicSentences, encode(public)) == public


@each("scheme", ["iobes", "iob2"])
def test_labels_are_the_spans_of_the_documents(scheme: Any) -> None:
    tags = TagSet(("Drug", "Effect"), scheme)
    public, labels = form_of(tags).public(DOCUMENTS)
    examples, _ = examples_from(DOCUMENTS)
    assert form_of(tags).labelled_spans(public, labels) == [list(one.spans) for one in examples]
    assert [one.tokens for one in public.examples()] == [one.tokens for one in examples]
    assert form_of(tags).labelled_spans(public, ()) == [[] for _ in examples]
    assert not any(one.spans for one in public.examples())


def test_what_travels_has_no_annotation() -> None:
    bare = [replace(one, entities=()) for one in DOCUMENTS]
    assert public_of(*DOCUMENTS) == public_of(*bare)
    assert set(forms_of(PublicSentences)) == {"sentences"}


def test_the_digest_tells_sets_apart() -> None:
    first = public_of(*DOCUMENTS).digest
    assert is_digest(first)
    others = [
        DOCUMENTS[:1],
        DOCUMENTS[::-1],
        [replace(DOCUMENTS[0], text=DOCUMENTS[0].text.replace("her", "him"))],
    ]
    assert len({public_of(*each).digest for each in others} | {first}) == 4
    assert made([["a", "b"]]).digest != made([["a"], ["b"]]).digest


def test_sets_that_32_bits_do_not_tell_apart_differ() -> None:
    """Their SHA-256 begin alike; a search finds such a pair in a second."""
    one, other = (made([["patient", f"w{n}", "took", "aspirin"]]) for n in (47741, 79242))
    assert one.digest != other.digest


def test_a_file_that_names_its_set_by_32_bits_is_read() -> None:
    public = made([["a", "b"]])
    data = encode(public)
    size = int.from_bytes(data[:8], "little")
    old = data[8 : 8 + size].rstrip().replace(rb"{\"sentences", rb"{\"name\":7,\"sentences")
    assert decode_file(PublicSentences, len(old).to_bytes(8, "little") + old) == public
    with pytest.raises(MessageError, match="unknown field 'name'"):
        decode(PublicSentences, len(old).to_bytes(8, "little") + old)


def test_a_type_without_a_tag_is_named() -> None:
    with pytest.raises(DataError, match="outside the declared set"):
        public_of(*DOCUMENTS, tags=TagSet(("Drug",)))


@each("documents", [(), DOCUMENTS[2:]])
def test_there_has_to_be_a_sentence(documents: list[Document]) -> None:
    with pytest.raises(SettingsError, match="needs a public set"):
        public_of(*documents)


# --- what a server might send instead -------------------------------------------------------------


@each(
    "each",
    [[], [[]], [["a"], []], [["a", ""]], [["a"] * (MOST_TOKENS + 1)], [["a"] * 10] * 100_000],
)
def test_a_site_refuses_what_is_no_public_set(each: list[list[str]]) -> None:
    with pytest.raises(Refusal) as caught:
        made(each).check()
    assert caught.value.code == "bad-ask"


def test_the_most_is_taken() -> None:
    made([["a"] * 10] * (MOST_TOKENS // 10)).check()


@each("odd", ["text", [["a", 1]], [[["a"]]], {"a": ["b"]}, [[None]]])
def test_other_things_than_lists_of_tokens_are_not_read(odd: Any) -> None:
    data = encode(PublicSentences([["qqq"]]))
    broken = data.replace(b"sentences", b"sentencez")
    with pytest.raises(MessageError):
        decode(PublicSentences, broken)
    with pytest.raises(MessageError):
        decode(PublicSentences, encode(PublicSentences(odd)))


def test_a_server_does_not_send_a_set_that_sites_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentences, "MOST_TOKENS", 12)
    with pytest.raises(SettingsError, match=r"too large.*at most 12 tokens"):
        public_of(*DOCUMENTS)
