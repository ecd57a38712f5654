"""Entities of several sites are hidden, those of one are not, and no offset moves."""

from __future__ import annotations

from confide.corpora.dealing import common_entities, masked
from confide.text.document import Document, Entity


def note(text: str, *spans: tuple[int, int]) -> Document:
    entities = tuple(Entity(f"T{n}", "X", ((start, end),)) for n, (start, end) in enumerate(spans))
    return Document(text[:4], text, entities=entities)


SITES = {
    "a": [note("Aspirin and codeine, no aspirin.", (0, 7), (12, 19))],
    "b": [note("aspirin then rash", (0, 7), (13, 17)), note("Codeine-2", (0, 9))],
    "c": [note("a rash and CODEINE", (11, 18))],
}


def test_what_two_sites_annotate_is_common() -> None:
    assert common_entities(SITES) == ["aspirin", "codeine"]


def test_all_or_none_are_hidden() -> None:
    assert masked(SITES, 0.0, seed=1) == SITES
    hidden = masked(SITES, 1.0, seed=1)
    assert hidden["a"][0].text == "xxxxxxx and xxxxxxx, no aspirin."
    assert [one.text for one in hidden["b"]] == ["xxxxxxx then rash", "Codeine-2"]
    assert hidden["c"][0].text == "a rash and xxxxxxx"
    assert hidden["a"][0].entities == SITES["a"][0].entities


def test_more_hides_what_less_hides() -> None:
    many = {
        site: [note(f"word{n} stands here", (0, len(f"word{n}"))) for n in range(40)]
        for site in ("a", "b")
    }
    half, most = masked(many, 0.5, seed=3), masked(many, 0.75, seed=3)
    gone = [{d.text for d in found["a"] if d.text[0] == "x"} for found in (half, most)]
    places = [[n for n, d in enumerate(f["b"]) if d.text[0] == "x"] for f in (half, most)]
    assert [len(found) for found in places] == [20, 30]
    assert set(places[0]) <= set(places[1])
    assert gone[0] <= gone[1]
