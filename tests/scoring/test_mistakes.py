from dataclasses import replace

from hypothesis import given

from confide.scoring import count_confusions, count_entities, right_sentences, worst_errors
from confide.scoring.counts import by_sentence
from scoring.cases import corpora, document, flat_document, flat_spans, sentences


class TestConfusion:
    def test_by_hand(self):
        gold = document(("Drug", 0, 4), ("Drug", 6, 9), ("Effect", 10, 14), ("Test", 20, 22))
        seen = document(("Drug", 0, 4), ("Effect", 6, 9), ("Effect", 10, 12), ("Drug", 16, 18))
        found = count_confusions([gold], [seen])
        assert list(found.items()) == [
            ("Drug", {"Drug": 1, "Effect": 1}),
            ("Effect", {"Effect": 1}),
            ("Test", {"": 1}),
            ("", {"Drug": 1}),
        ]

    def test_the_right_type_is_preferred_to_the_larger_overlap(self):
        gold = document(("Drug", 0, 9))
        seen = document(("Effect", 0, 8), ("Drug", 8, 9))
        assert count_confusions([gold], [seen]) == {"Drug": {"Drug": 1}, "": {"Effect": 1}}

    def test_otherwise_the_larger_overlap(self):
        gold = document(("Drug", 0, 9))
        seen = document(("Effect", 0, 2), ("Test", 2, 9))
        assert count_confusions([gold], [seen])["Drug"] == {"Test": 1}

    @given(corpora())
    def test_every_entity_is_counted_once(self, sides):
        gold, predicted = sides
        found, counts = count_confusions(gold, predicted), count_entities(gold, predicted).strict
        for type_, count in counts.items():
            assert sum(found.get(type_, {}).values()) == count.gold
            assert sum(row.get(type_, 0) for row in found.values()) == count.predicted

    @given(flat_spans(), flat_spans())
    def test_the_diagonal_is_the_relaxed_count_of_flat_annotation(self, gold, predicted):
        sides = [flat_document(gold)], [flat_document(predicted)]
        found = count_confusions(*sides)
        for type_, count in count_entities(*sides).relaxed.items():
            assert found.get(type_, {}).get(type_, 0) == count.true


class TestWorstErrors:
    def test_kinds_and_order(self):
        cut = sentences(0, 12, 24)
        gold = document(
            ("Drug", 0, 4), ("Drug", 6, 9), ("Test", 12, 14), ("Test", 20, 22), sentences=cut
        )
        seen = document(
            ("Drug", 0, 3), ("Drug", 6, 9), ("Effect", 12, 14, 0.5), ("Test", 16, 18, 0.9)
        )
        worst = worst_errors([gold], [seen], 5)
        assert [case.gold.id for case in worst] == ["d#2", "d#1"]
        second, first = worst
        assert second.mistakes == {"missed": 1, "spurious": 1, "types": 1}
        assert first.mistakes == {"borders": 1}
        assert second.gold.text == "mnopqrstuvwx"
        assert [second.gold.surface(one) for one in second.gold.entities] == ["mn", "uv"]
        assert [one.confidence for one in second.predicted.entities] == [0.5, 0.9]

    def test_the_surest_mistake_first_among_equals(self):
        gold = [document(id="a"), document(id="b")]
        seen = [document(("Drug", 0, 2, 0.2), id="a"), document(("Drug", 0, 2, 0.9), id="b")]
        assert [case.gold.id for case in worst_errors(gold, seen, 1)] == ["b"]

    def test_right_sentences_are_left_out(self):
        gold = document(("Drug", 0, 4))
        assert worst_errors([gold], [gold], 3) == []


class TestRightSentences:
    def test_only_those_that_are_wholly_right_those_with_most_entities_first(self):
        one, two = (
            document(("Drug", 0, 4), id="one"),
            document(("Drug", 0, 4), ("Test", 6, 9), id="two"),
        )
        wrong = document(("Drug", 0, 4), ("Test", 6, 9), id="wrong")
        more = document(("Drug", 0, 4), ("Test", 6, 9), ("Test", 10, 12), id="wrong")
        empty = document(id="empty")
        gold, seen = [one, wrong, empty, two], [one, more, empty, two]
        assert [case.gold.id for case in right_sentences(gold, seen, 5)] == ["two", "one"]
        assert [case.gold.id for case in right_sentences(gold, seen, 1)] == ["two"]


class TestBySentence:
    def test_an_entity_belongs_to_the_sentence_in_which_it_starts(self):
        whole = document(("Drug", 10, 14), ("Test", 12, 14), sentences=sentences(0, 12, 24))
        (first, second), _ = by_sentence([whole], [whole])
        assert [entity.fragments for entity in first.entities] == [((10, 14),)]
        assert [entity.fragments for entity in second.entities] == [((0, 2),)]
        assert first.text + second.text == whole.text
        assert [(one.start, one.end) for one in (*first.sentences, *second.sentences)] == [
            (0, 12), (0, 12),
        ]  # fmt: skip

    def test_words_go_with_their_sentence(self):
        bare = document(sentences=sentences(0, 12, 24))
        worded = replace(bare.sentences[1], tokens=((12, 15), (16, 24)))
        whole = replace(bare, sentences=(bare.sentences[0], worded))
        (_, second), _ = by_sentence([whole], [whole])
        assert second.sentences[0].tokens == ((0, 3), (4, 12))

    def test_the_prediction_is_cut_as_gold_is(self):
        whole = document(("Drug", 13, 14), sentences=sentences(0, 12, 24))
        _, predicted = by_sentence([whole], [document(("Drug", 13, 14))])
        assert [len(one.entities) for one in predicted] == [0, 1]

    @given(flat_spans(), flat_spans())
    def test_strict_counts_do_not_change(self, gold, predicted):
        one = flat_document(gold)
        one = document(*((t, a, b) for a, b, t in gold), sentences=sentences(0, 7, 15, 24))
        other = flat_document(predicted)
        cut = count_entities(*by_sentence([one], [other]))
        assert cut.strict == count_entities([one], [other]).strict
        assert cut.sentences == 3
