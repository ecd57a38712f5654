"""Mentions without offsets: the five ways, and which of several places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.text.places import WAYS, place_mentions

WRITTEN, ALIKE, INSIDE, PIECES, MISSPELT = WAYS


def placed(text, *mentions):
    """For each mention its way and its text, None for one without a place."""
    return [
        place and (place.way, " … ".join(text[start:end] for start, end in place.fragments))
        for place in place_mentions(text, mentions)
    ]


@each(
    ("text", "mention", "way", "found"),
    [
        ("No pain today.", "pain", WRITTEN, "pain"),
        ("Painful pain.", "pain", WRITTEN, "pain"),
        ('A "rage" (bad)!', '"rage" (bad)', WRITTEN, '"rage" (bad)'),
        ("NO PAIN", "no pain", ALIKE, "NO PAIN"),
        ("short term: dizziness", "Short term, dizziness", ALIKE, "short term: dizziness"),
        ("I cant sleep", "can't sleep", ALIKE, "cant sleep"),
        ("some weightloss", "weight loss", ALIKE, "weightloss"),
        ("bad headaches", "headache", INSIDE, "headache"),
        ("etcdiarrhea", "diarrhea", INSIDE, "diarrhea"),
        ("muscle and joint pain", "muscle pain", PIECES, "muscle … pain"),
        ("lost my sense of smell", "lost sense of smell", PIECES, "lost … sense of smell"),
        ("dry x dry y eyes", "dry eyes", PIECES, "dry … eyes"),
        ("no a, no b c d", "no c", PIECES, "no … c"),
        ("an aniexty attack", "anxiety attack", MISSPELT, "aniexty attack"),
        ("dizzyness", "Dizziness", MISSPELT, "dizzyness"),
        ("lose of appetite", "loss of appetite", MISSPELT, "lose of appetite"),
    ],
)
def test_the_five_ways(text, mention, way, found):
    assert placed(text, mention) == [(way, found)]


@each(
    ("text", "mention"),
    [
        ("The average dose", "rage"),  # a short one inside a word
        ("a pseudoanxietylike state", "anxiety"),  # inside at both ends
        ("a gain", "pain"),  # another first letter
        ("an arm", "air"),  # too short
        ("I used to worry", "worrying"),  # three edits
        ("pain in muscle", "muscle pain"),  # another order
        ("head and heat", "heal"),  # two places fit as well
        ("", "pain"),
        ("some pain", ""),
        ("some pain", "..."),
    ],
)
def test_what_is_not_found(text, mention):
    assert placed(text, mention) == [None]


def test_each_gets_its_own_place():
    assert placed("back pain and pain", "pain", "back pain") == [
        (WRITTEN, "pain"),
        (WRITTEN, "back pain"),
    ]
    one, other = place_mentions("Pain, then pain", ["pain", "pain"])
    assert [one.fragments, other.fragments] == [((11, 15),), ((0, 4),)]
    (free,) = place_mentions("Anxiety and social anxiety", ["social anxiety", "anxiety"])[1:]
    assert (free.fragments, free.way) == (((0, 7),), ALIKE)
    nested = place_mentions("social anxiety", ["social anxiety", "anxiety"])
    assert [place.fragments for place in nested] == [((0, 14),), ((7, 14),)]


def test_how_many_places_there_were():
    assert [place.places for place in place_mentions("pain, pain, pain", ["pain"])] == [3]
    assert [place.places for place in place_mentions("pain, pain", ["pain", "pain"])] == [1, 1]
    assert [place.places for place in place_mentions("a pain, b pain", ["a pain", "pain"])] == [
        1,
        1,
    ]


@given(st.text("aAbB'’ .éİ\n", max_size=20), st.lists(st.text("aAbB' .é", max_size=6), max_size=4))
def test_places_lie_in_the_text(text, mentions):
    found = place_mentions(text, mentions)
    assert len(found) == len(mentions)
    for mention, place in zip(mentions, found, strict=True):
        if place is not None:
            borders = [border for fragment in place.fragments for border in fragment]
            assert borders == sorted(set(borders)) and 0 <= borders[0] < borders[-1] <= len(text)
            if place.way == WRITTEN:
                assert text[borders[0] : borders[1]] == mention


@given(st.data(), st.text("ab .", min_size=1, max_size=30))
def test_what_is_there_is_found(data, text):
    start = data.draw(st.integers(0, len(text) - 1))
    mention = text[start : data.draw(st.integers(start + 1, len(text)))]
    (place,) = place_mentions(text, [mention])
    ends = [start, start + len(mention)]
    whole = not any(
        0 < end < len(text) and text[end - 1].isalnum() and text[end].isalnum() for end in ends
    )
    if whole:
        assert place is not None and place.way == WRITTEN
