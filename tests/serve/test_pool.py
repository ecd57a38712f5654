"""The order in which sentences are corrected."""

from __future__ import annotations

from confide.serve.correcting import EVERY, Pool, sentence_items
from confide.text.document import Document, Entity, Relation
from serve.served import annotate, other


def _pool(*texts: str, models=(annotate,)) -> Pool:
    pool = Pool(1000)
    documents = [Document(f"d{n}", text) for n, text in enumerate(texts)]
    pool.add([model(documents) for model in models])
    return pool


def _order(pool: Pool) -> list[str]:
    done: list[str] = []
    while (item := pool.next(done)) is not None:
        done.append(item.document.id)
    return [pool.sentences[id].document.text for id in done]


def test_the_least_sure_comes_first() -> None:
    assert _order(_pool("drug9.", "drug1.", "drug9 drug5.")) == ["drug1.", "drug9 drug5.", "drug9."]


def test_what_models_disagree_on_comes_before() -> None:
    def same(documents):
        return [one if "drug9" in one.text else annotate([one])[0] for one in documents]

    assert _order(_pool("drug1.", "drug9.", models=(annotate, same))) == ["drug9.", "drug1."]


def test_every_fifth_sentence_is_one_without_an_entity() -> None:
    texts = [f"drug{n}." for n in range(10)] + [f"no{n}." for n in range(6)]
    order = _order(_pool(*texts))
    assert [n for n, text in enumerate(order) if text.startswith("no")][:2] == [EVERY - 1, 9]
    assert sorted(order) == sorted(texts)


def test_sentences_have_stable_ids_and_neighbours() -> None:
    text = "drug1 helped.\n\nNo rash.\n\ndrug2 stopped."
    (first, second, third) = sentence_items(annotate([Document("d", text)]))
    assert [one.document.id for one in (first, second, third)] == ["d.s1", "d.s2", "d.s3"]
    assert second.document.text == "No rash." and "drug1 helped." in second.before
    assert "drug2 stopped." in second.after and first.before == ""
    assert third.document.entities[0].fragments == ((0, 5),)


def test_an_entity_over_the_end_of_a_sentence_joins_two() -> None:
    document = Document("d", "He took A. B daily.", (Entity("T1", "DRUG", ((8, 12),), 0.5),))
    (only,) = sentence_items([document])
    assert only.document.text == document.text


def test_relations_within_a_sentence_stay() -> None:
    places = {"a": (0, 1), "b": (2, 3), "c": (7, 8)}
    marks = tuple(Entity(id, "X", (span,)) for id, span in places.items())
    related = (Relation("R1", "r", "a", "b"), Relation("R2", "r", "a", "c"))
    first, _ = sentence_items([Document("d", "A B. \n\nC.", marks, related)])
    assert [one.id for one in first.document.relations] == ["R1"]


def test_what_only_another_model_finds_is_offered() -> None:
    texts = [Document("d", "drug1 and drug2.")]
    (item,) = sentence_items([other(texts)[0], annotate(texts)[0]])
    assert item.differ and [one.fragments for one in item.others] == [((0, 5),), ((10, 15),)]
    (item,) = sentence_items([annotate(texts)[0], annotate(texts)[0]])
    assert not item.differ and not item.others


def test_a_pool_has_an_end() -> None:
    pool = Pool(3)
    assert pool.add([[Document(str(n), "A.") for n in range(5)]]) == 3
    assert pool.add([[Document("0", "A.")]]) == 0


def test_whole_texts_have_an_order_of_their_own() -> None:
    pool = _pool("drug9 came. drug1 went.", "Nothing.", "drug5.")
    order: list[str] = []
    while (item := pool.next(order, whole=True)) is not None:
        order.append(item.document.id)
    assert order == ["d0", "d2", "d1"], "the least sure entity first"
    whole = pool.get("d0")
    assert whole is not None and (whole.of, whole.before, whole.after) == ("", "", "")
    assert [one.start for one in whole.document.entities] == [0, 12] and whole.sure == 0.1


def test_a_whole_text_keeps_relations_from_sentence_to_sentence() -> None:
    marks = (Entity("a", "A", ((0, 4),)), Entity("b", "B", ((6, 10),)))
    between = (Relation("r", "causes", "a", "b"), Relation("c", "is", "C1", "C2", level="concept"))
    pool = Pool(10)
    pool.add([[Document("d", "Rash. Drug.", marks, between)]])
    assert [one.document.relations for one in pool.sentences.values()] == [(), ()]
    assert pool.texts["d"].document.relations == between[:1], "ends are entities"


def test_a_sentence_knows_its_place_and_is_done_with_its_text() -> None:
    pool = _pool("drug9 came. The drug1 went.", "Nothing.")
    second = pool.sentences["d0.s2"]
    assert (second.of, second.at) == ("d0", 12)
    assert _order(pool)[0] == "The drug1 went."
    found = pool.next({"d0"})
    assert found is not None and found.document.id == "d1.s1"
    assert pool.done({"d0"}, whole=False) == 2 and pool.done({"d0"}, whole=True) == 1
    assert pool.done({"d0.s1"}, whole=False) == 1 and pool.done({"d0.s1"}, whole=True) == 0


def test_a_text_that_does_not_fit_is_left_out_as_a_whole() -> None:
    pool = Pool(2)
    pool.add([[Document("d", "One. Two. Three."), Document("e", "Four.")]])
    assert list(pool.sentences) == ["d.s1", "d.s2"] and not pool.texts
