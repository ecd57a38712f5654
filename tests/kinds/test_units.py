"""Units: which rows are whose, gradients of one unit at a time, and what one unit can change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from confide.federation.site import Site
from confide.kinds.units import clipped_sum, units_of
from confide.learning.weights import named, trained
from confide.methods import METHODS
from confide.privacy.clipping import square_of, whole
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.runs.run import run
from confide.text.document import Document
from contract.corpus import tiny

KINDS = [pair.kind.name for pair in METHODS.values() if pair.private]
PLACES = [(0, 0), (0, 1), (0, 1), (2, 0), (3, 0)]
DOCUMENTS = [Document(name, "") for name in ("17-a", "17-b", "18-a", "17-c")]


def test_rows_belong_to_documents_sentences_or_patients() -> None:
    def found(unit: str, patients: str = "") -> list[list[int]]:
        return [one.tolist() for one in units_of(PLACES, DOCUMENTS, unit=unit, patients=patients)]

    assert found("document") == [[0, 1, 2], [], [3], [4]]
    assert found("sentence") == [[0], [1, 2], [3], [4]]
    assert found("patient", "-") == [[0, 1, 2, 4], [3]]
    assert found("patient") == found("document")


def test_two_documents_of_one_name_are_two_units_but_one_patient() -> None:
    twice = [Document("same", ""), Document("same", "")]
    places = [(0, 0), (1, 0)]
    assert len(units_of(places, twice, unit="document")) == 2
    assert len(units_of(places, twice, unit="patient")) == 1


@pytest.fixture(scope="module", params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The desk of a site, and weights of its form."""
    folder = tmp_path_factory.mktemp(request.param)
    return desk_of(folder, request.param)


def desk_of(folder: Path, kind: str, *overrides: str) -> Any:
    settings = tiny(folder, f"method=dp-fedsgd-{kind}", "rounds=1", *overrides)
    found = run(settings, out=folder / "run")
    state: Any = RunFolder(found.folder).trained(METHODS[settings.trained_by], None)[0]
    key = Path(settings.key) if settings.key else None
    spec = gather(settings, folder / "own", key_file=key).specs[0]
    site = Site(spec.name, spec.train, key_file=key)
    return state.form.at(site), state.weights


def units(desk: Any, kind: str = "document") -> list[NDArray[np.int64]]:
    return units_of(desk.places, desk.site.train, unit=kind)


def test_every_row_is_in_one_unit(desk: Any) -> None:
    rows = np.concatenate(units(desk[0]))
    assert sorted(rows.tolist()) == list(range(len(desk[0].places)))
    assert len(rows) > 4


def test_gradients_are_those_of_each_unit_by_itself(desk: Any) -> None:
    """Of several units at once, and of one, by autograd through the whole model."""
    own, weights = desk
    some = [np.arange(3), np.arange(3, 4), np.zeros(0, np.int64), np.arange(4, 9)]
    together = list(own.unit_gradients(weights, some))
    assert len(together) == len(some)
    for rows, found in zip(some, together, strict=True):
        (alone,) = own.unit_gradients(weights, [rows])
        assert found.keys() == weights.keys()
        for name, array in weights.items():
            assert found[name].shape == array.shape and found[name].dtype == np.float32
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-4, atol=1e-6)
    assert not any(array.any() for array in together[2].values())
    assert any(array.any() for array in together[0].values())
    summed = next(iter(own.unit_gradients(weights, [np.arange(4)])))
    for name, array in summed.items():
        np.testing.assert_allclose(
            array, together[0][name] + together[1][name], rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("kind", ["encoder", "relations"])
def test_the_head_alone_has_the_gradients_that_autograd_gives(kind: str, tmp_path: Path) -> None:
    own, weights = desk_of(tmp_path, kind, 'encoder.tune="frozen"')
    head = "tag" if kind == "encoder" else "relation"
    assert weights.keys() == {f"{head}.weight", f"{head}.bias"}
    rows = [np.arange(2), np.arange(2, 7)]
    fast = list(own.unit_gradients(weights, rows))
    model = own.model(weights)
    other = torch.nn.Parameter(torch.zeros(1))  # so that the head is not all that learns
    model.register_parameter("other", other)
    named.__globals__["_NAMED"].pop(model, None)
    slow = list(own.unit_gradients({**weights, "other": np.zeros(1, np.float32)}, rows))
    for one, two in zip(fast, slow, strict=True):
        for name in weights:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-4, atol=1e-6)
    assert set(trained(model)) == {*weights, "other"}


def _gradients(count: int) -> Iterator[dict[str, NDArray[np.float32]]]:
    draw = np.random.default_rng(7)
    for number in range(count):
        size = 10.0 ** (number % 4 - 2)
        yield {"a": draw.normal(0, size, (3, 2)), "b": draw.normal(0, size, 4)}  # type: ignore[misc]


def test_one_unit_changes_the_sum_by_no_more_than_the_grid() -> None:
    like = next(_gradients(1))
    for grid in (1, 7, 1000):
        full = clipped_sum(_gradients(9), like=like, clip=0.5, grid=grid)
        for left_out in range(9):
            rest = (one for number, one in enumerate(_gradients(9)) if number != left_out)
            less = clipped_sum(rest, like=like, clip=0.5, grid=grid)
            change = {name: full[name] - less[name] for name in full}
            assert square_of(change) <= grid**2
            assert change.keys() == like.keys()


def test_the_sum_is_that_of_the_clipped_units_and_empty_without_any() -> None:
    like = next(_gradients(1))
    full = clipped_sum(_gradients(5), like=like, clip=2.0, grid=1000)
    by_hand = {name: np.zeros(array.shape, np.int64) for name, array in like.items()}
    for one in _gradients(5):
        for name, array in whole(one, clip=2.0, grid=1000).items():
            by_hand[name] += array
    for name in like:
        assert (full[name] == by_hand[name]).all()
    nothing = clipped_sum(iter(()), like=like, clip=2.0, grid=1000)
    assert {name: array.shape for name, array in nothing.items()} == {"a": (3, 2), "b": (4,)}
    assert not any(array.any() for array in nothing.values())
