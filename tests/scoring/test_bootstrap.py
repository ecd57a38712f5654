import numpy as np
import pytest
from hypothesis import given

from confide.errors import DataError
from confide.scoring import (
    bootstrap_interval,
    count_entities,
    intervals,
    paired_bootstrap,
    scores,
    sentence_counts,
)
from confide.scoring.intervals import _resampled, exchange_test
from scoring.cases import corpora, document, sentences


def table(*rows, times=1):
    return np.array(rows * times, dtype=np.int64)


@given(corpora())
def test_the_table_adds_up_to_the_counts(sides):
    found = scores(count_entities(*sides))
    for matching in ("strict", "relaxed"):
        true, predicted, gold = sentence_counts(*sides, matching=matching).sum(axis=0)
        rate = found[matching]
        assert (true, predicted, gold) == (rate["true"], rate["predicted"], rate["support"])


def test_one_row_per_sentence():
    whole = document(("Drug", 2, 4), ("Test", 13, 14), sentences=sentences(0, 12, 16, 24))
    assert sentence_counts([whole], [whole]).tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def test_the_interval_holds_the_point_and_narrows_with_more_sentences():
    few = bootstrap_interval(table((1, 1, 1), (0, 1, 1), times=10))
    many = bootstrap_interval(table((1, 1, 1), (0, 1, 1), times=1000))
    assert few.point == many.point == 0.5
    assert few.low < many.low < 0.5 < many.high < few.high
    # binomial: 1.96 standard deviations of a mean of 2000
    assert many.high - many.low == pytest.approx(2 * 1.96 * 0.5 / 2000**0.5, rel=0.15)


def test_nothing_varies_where_every_sentence_is_right():
    sure = bootstrap_interval(table((1, 1, 1), times=9))
    assert (sure.low, sure.point, sure.high) == (1, 1, 1)


def test_the_same_seed_gives_the_same_interval():
    rows = table((1, 2, 1), (0, 1, 1), (3, 3, 4), times=30)
    assert bootstrap_interval(rows, seed=4) == bootstrap_interval(rows, seed=4)
    assert bootstrap_interval(rows, seed=4) != bootstrap_interval(rows, seed=5)


def test_every_sample_is_drawn_where_they_do_not_fit_in_memory_at_once(monkeypatch):
    monkeypatch.setattr("confide.scoring.intervals.MOST_DRAWN", 70)
    rows = np.arange(30).reshape(10, 3)  # ten kinds of sentences
    drawn = [len(sums) for (sums,) in _resampled([rows], 100, 0)]
    assert sum(drawn) == 100
    assert max(drawn) == 7


def test_a_resample_has_as_many_sentences_as_there_are():
    """The last column counts sentences; the others are drawn with them, from each kind."""
    rows = np.array([(1, 0, 1), (0, 1, 1), (0, 1, 1), (5, 0, 1)])
    (sums,) = next(_resampled([rows], 4000, 0))
    assert (sums[:, 2] == 4).all()
    assert sums[:, 1].mean() == pytest.approx(2.0, abs=0.1)  # half of them, two of four
    assert sums[:, 1].var() == pytest.approx(1.0, abs=0.1)  # binomial: 4 x 1/2 x 1/2


def test_no_sentence_has_no_interval():
    with pytest.raises(DataError, match="no sentence to draw from"):
        bootstrap_interval(np.zeros((0, 3), dtype=np.int64))


class TestPaired:
    def test_a_system_does_not_differ_from_itself(self):
        rows = table((1, 1, 1), (0, 1, 1), times=50)
        found = paired_bootstrap(rows, rows)
        assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)

    def test_a_clear_difference(self):
        worse, better = table((0, 1, 1), (1, 1, 1), times=80), table((1, 1, 1), times=160)
        found = paired_bootstrap(worse, better)
        assert found.difference == 0.5
        assert 0.4 < found.low < 0.5 < found.high < 0.6
        assert found.p < 0.01
        assert paired_bootstrap(better, worse).difference == -0.5

    def test_a_difference_within_chance(self):
        first = table((1, 1, 1), (0, 1, 1), (1, 1, 1), (0, 1, 1), times=5)
        second = table((1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1), times=5)
        assert paired_bootstrap(first, second).p > 0.5

    def test_the_chance_is_two_sided_and_never_nothing(self, monkeypatch):
        """Of nine draws one goes the other way: twice (1 + 1) of (9 + 1)."""
        one = np.array([[1, 2, 2]] * 9)
        other = np.array([[2, 2, 2]] * 8 + [[0, 2, 2]])
        monkeypatch.setattr(intervals, "_resampled", lambda *_: iter([[one, other]]))
        rows = table((1, 1, 1))
        assert paired_bootstrap(rows, rows, samples=9).p == pytest.approx(2 * 2 / 10)

    def test_other_sentences_are_refused(self):
        with pytest.raises(DataError, match="not scored on the same sentences"):
            paired_bootstrap(table((1, 1, 1)), table((1, 1, 2)))


def test_exchanges_are_counted_exactly_where_there_are_few_units():
    """By hand, of 8: only the sides as they are give 3; with equal units, both sides of each do."""
    assert exchange_test([0, 0, 0], [1, 1, 1], sum) == 1 / 8
    assert exchange_test([0, 0, 5], [1, 1, 5], sum) == 2 / 8
    assert exchange_test([0, 0, 2], [1, 1, 1], sum) == 4 / 8
    assert exchange_test([], [], sum) == exchange_test([1, 2], [1, 2], sum) == 1
    assert exchange_test([1, 1, 1], [0, 0, 0], sum) == 1


def test_drawn_exchanges_agree_with_all_of_them_and_with_the_seed():
    draw = np.random.default_rng(3)
    first = draw.normal(0, 1, 11).tolist()
    second = (np.array(first) + draw.normal(0.4, 1, 11)).tolist()
    exact = exchange_test(first, second, sum, samples=4096)
    few = exchange_test(first, second, sum, samples=2000)
    assert 0.01 < exact < 0.99 and few == pytest.approx(exact, abs=4 * 0.5 / 2000**0.5)
    assert few == exchange_test(first, second, sum, samples=2000)


def test_where_nothing_differs_the_test_is_as_often_wrong_as_its_level():
    draw, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        wrong += exchange_test(*draw.normal(0, 1, (2, 8)).tolist(), sum) <= 0.1
    assert 300 * 0.1 * 0.5 < wrong < 300 * 0.1 * 1.5


def test_systems_on_other_units_are_refused():
    with pytest.raises(DataError, match="same units"):
        exchange_test([1, 2], [1], sum)
