"""Public sentences: what travels, how they are named, what a site refuses, and whose tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from confide.data.batches.encoding import TagSet
from confide.data.batches.examples import examples_from
from confide.errors import DataError, MessageError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import decode, encode, fields_of
from confide.kinds import sentences
from confide.kinds.public import named
from confide.kinds.sentences import (
    MOST_TOKENS,
    PublicSentences,
    public_sentences,
    spans_of,
)
from confide.text.document import Document, Entity

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


def public_of(*documents: Document, tags: TagSet = TAGS) -> PublicSentences:
    return public_sentences(documents, tags)[0]


def made(each: list[list[str]]) -> PublicSentences:
    """A public set of these tokens, under the name that is theirs."""
    return PublicSentences(each, named({"sentences": each}))


def test_a_row_is_a_token_and_its_label_a_tag() -> None:
    public, labels = public_sentences(DOCUMENTS, TAGS)
    public.check()
    tokens = [token for sentence in public.sentences for token in sentence]
    assert public.rows == len(tokens) == len(labels)
    at = dict(zip(tokens, labels, strict=True))
    assert (at["aspirin"], at["joint"], at["pain"]) == ("S-Drug", "B-Effect", "E-Effect")
    assert (at["The"], at["slept"], at["Codeine"]) == ("O", "O", "S-Drug")
    assert decode(PublicSentences, encode(public)) == public


@pytest.mark.parametrize("scheme", ["iobes", "iob2"])
def test_labels_are_the_spans_of_the_documents(scheme: Any) -> None:
    tags = TagSet(("Drug", "Effect"), scheme)
    public, labels = public_sentences(DOCUMENTS, tags)
    examples, _ = examples_from(DOCUMENTS)
    assert spans_of(public, labels, tags) == [list(one.spans) for one in examples]
    assert [one.tokens for one in public.examples()] == [one.tokens for one in examples]
    assert spans_of(public, (), tags) == [[] for _ in examples]
    assert not any(one.spans for one in public.examples())


def test_what_travels_has_no_annotation() -> None:
    bare = [replace(one, entities=()) for one in DOCUMENTS]
    assert public_of(*DOCUMENTS) == public_of(*bare)
    assert set(fields_of(PublicSentences)) == {"sentences", "name"}


def test_the_name_tells_sets_apart() -> None:
    first = public_of(*DOCUMENTS).name
    assert 0 <= first < 2**32
    others = [
        DOCUMENTS[:1],
        DOCUMENTS[::-1],
        [replace(DOCUMENTS[0], text=DOCUMENTS[0].text.replace("her", "him"))],
    ]
    assert len({public_of(*each).name for each in others} | {first}) == 4
    assert made([["a", "b"]]).name != made([["a"], ["b"]]).name


def test_a_type_without_a_tag_is_named() -> None:
    with pytest.raises(DataError, match="outside the declared set"):
        public_of(*DOCUMENTS, tags=TagSet(("Drug",)))


@pytest.mark.parametrize("documents", [(), DOCUMENTS[2:]])
def test_there_has_to_be_a_sentence(documents: list[Document]) -> None:
    with pytest.raises(SettingsError, match="needs a public set"):
        public_of(*documents)


# --- what a server might send instead -------------------------------------------------------------


@pytest.mark.parametrize(
    "each",
    [[], [[]], [["a"], []], [["a", ""]], [["a"] * (MOST_TOKENS + 1)], [["a"] * 10] * 100_000],
    ids=["nothing", "no token", "an empty sentence", "an empty token", "one long", "a million"],
)
def test_a_site_refuses_what_is_no_public_set(each: list[list[str]]) -> None:
    with pytest.raises(Refusal) as caught:
        made(each).check()
    assert caught.value.code == "bad-ask"


def test_the_most_is_taken() -> None:
    made([["a"] * 10] * (MOST_TOKENS // 10)).check()


def test_a_site_refuses_a_name_that_is_not_the_contents() -> None:
    public = public_of(*DOCUMENTS)
    for odd in (replace(public, name=public.name ^ 1), replace(public, sentences=[["x"]])):
        with pytest.raises(Refusal) as caught:
            odd.check()
        assert caught.value.code == "other-public-set"


@pytest.mark.parametrize("odd", ["text", [["a", 1]], [[["a"]]], {"a": ["b"]}, [[None]]], ids=repr)
def test_other_things_than_lists_of_tokens_are_not_read(odd: Any) -> None:
    data = encode(PublicSentences([["qqq"]], 1))
    broken = data.replace(b"sentences", b"sentencez")
    with pytest.raises(MessageError):
        decode(PublicSentences, broken)
    with pytest.raises(MessageError):
        decode(PublicSentences, encode(PublicSentences(odd, 1)))


def test_a_server_does_not_send_a_set_that_sites_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentences, "MOST_TOKENS", 12)
    with pytest.raises(SettingsError, match=r"too large.*at most 12 tokens"):
        public_of(*DOCUMENTS)
