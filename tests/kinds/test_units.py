"""Units: which rows are whose, gradients of one unit at a time, and what one unit can change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cases import each
from confide.federation.site import Site
from confide.kinds.entities import clipped_sum, units_of
from confide.methods import METHODS
from confide.privacy.noise import UnitGradients, square_of
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.runs.sites import gather
from confide.text.document import Document
from confide.training import examples
from confide.training.examples import alone
from contract.corpus import tiny
from privacy.clipped import whole

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
def site_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The site model of a site, and weights of its form."""
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


def units(site_model: Any, kind: str = "document") -> list[NDArray[np.int64]]:
    return units_of(site_model.places, site_model.site.train, unit=kind)


def test_every_row_is_in_one_unit(site_model: Any) -> None:
    rows = np.concatenate(units(site_model[0]))
    assert sorted(rows.tolist()) == list(range(len(site_model[0].places)))
    assert len(rows) > 4


def by_unit(site_model: Any, weights: Any, units: Any) -> list[dict[str, NDArray[np.float32]]]:
    """Every unit's gradient, in the order of the units."""
    found: dict[int, dict[str, NDArray[np.float32]]] = {}
    for some in site_model.unit_gradients(weights, units):
        found |= dict(zip(some.numbers_U.tolist(), some.each(weights), strict=True))
    assert sorted(found) == list(range(len(units)))
    return [found[number] for number in range(len(units))]


def by_autograd(site_model: Any, weights: Any, rows: NDArray[np.int64]) -> dict[str, Any]:
    """One unit's gradient by the reference: the whole model, and nothing but this unit."""
    calls: list[Any] = []

    def caught(model: Any, losses: Any, units: Any, *, lengths_S: Any) -> Any:
        calls.append(alone(model, losses, rows, lengths_S=lengths_S))
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("confide.training.trainer.unit_gradients", caught)
        assert not list(site_model.unit_gradients(weights, [rows]))
    found: dict[str, Any] = calls[0]
    return found


SOME = [np.arange(3), np.arange(3, 4), np.zeros(0, np.int64), np.arange(4, 9)]
TUNINGS = {
    "encoder": ("frozen", "all", "top", "lora", "bias"),
    "relations": ("frozen", "lora", "all"),
    "spans": ("all",),
}


@each(
    ("kind", "extra"),
    [
        ("tagger", "model.bilstm_layers=2 model.cnn_filters=6 model.cnn_widths=[1,3]"),
        ("encoder", 'encoder.tune="lora" encoder.factors="b"'),
        *((kind, f'encoder.tune="{how}"') for kind, all_of in TUNINGS.items() for how in all_of),
    ],
)
def test_gradients_of_units_together_are_those_that_autograd_gives(
    kind: str, extra: str, tmp_path: Path
) -> None:
    """To 1e-5 of each layer's, of several units at once, and in one pass."""
    own, weights = desk_of(tmp_path, kind, *extra.split())
    # the updates of low rank begin at zero, where half of the gradients are
    draw = np.random.default_rng(3)
    weights = {
        name: array + draw.normal(0, 0.05, array.shape).astype(np.float32)
        for name, array in weights.items()
    }
    found = by_unit(own, weights, SOME)
    assert examples._KNOWN[own.model(weights)]
    for rows, mine in zip(SOME, found, strict=True):
        right = by_autograd(own, weights, rows)
        assert mine.keys() == right.keys() == weights.keys()
        most = max(float(np.linalg.norm(array)) for array in right.values())
        for name, array in right.items():
            assert mine[name].shape == array.shape and mine[name].dtype == np.float32
            off = float(np.linalg.norm(mine[name] - array))
            assert off <= 1e-5 * float(np.linalg.norm(array)) + 1e-7 * most, name
        assert bool(most) == bool(len(rows))


def test_gradients_are_those_of_each_unit_by_itself(site_model: Any) -> None:
    """Of several units at once, and of one."""
    own, weights = site_model
    together = by_unit(own, weights, SOME)
    for rows, found in zip(SOME, together, strict=True):
        (alone,) = by_unit(own, weights, [rows])
        for name in weights:  # of its numbers the small ones hold what large ones leave over
            most = 1e-6 * max(1.0, float(np.abs(alone[name]).max(initial=0.0)))
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-4, atol=most)
    assert any(array.any() for array in together[0].values())
    (summed,) = by_unit(own, weights, [np.arange(4)])
    for name, array in summed.items():
        np.testing.assert_allclose(
            array, together[0][name] + together[1][name], rtol=1e-3, atol=1e-5
        )


def _slopes(count: int, *, but: int = -1) -> Iterator[UnitGradients]:
    yield from (UnitGradients.of(one) for n, one in enumerate(_gradients(count)) if n != but)


def _gradients(count: int) -> Iterator[dict[str, NDArray[np.float32]]]:
    draw = np.random.default_rng(7)
    for number in range(count):
        size = 10.0 ** (number % 4 - 2)
        yield {"a": draw.normal(0, size, (3, 2)), "b": draw.normal(0, size, 4)}  # type: ignore[misc]


def test_one_unit_changes_the_sum_by_no_more_than_the_grid() -> None:
    like = next(_gradients(1))
    for grid in (1, 7, 1000):
        full = clipped_sum(_slopes(9), like=like, clip=0.5, grid=grid)
        for left_out in range(9):
            less = clipped_sum(_slopes(9, but=left_out), like=like, clip=0.5, grid=grid)
            change = {name: full[name] - less[name] for name in full}
            assert square_of(change) <= grid**2
            assert change.keys() == like.keys()


def test_the_sum_is_that_of_the_clipped_units_and_empty_without_any() -> None:
    like = next(_gradients(1))
    full = clipped_sum(_slopes(5), like=like, clip=2.0, grid=1000)
    by_hand = {name: np.zeros(array.shape, np.int64) for name, array in like.items()}
    for one in _gradients(5):
        for name, array in whole(one, clip=2.0, grid=1000).items():
            by_hand[name] += array
    for name in like:
        assert (full[name] == by_hand[name]).all()
    nothing = clipped_sum(iter(()), like=like, clip=2.0, grid=1000)
    assert {name: array.shape for name, array in nothing.items()} == {"a": (3, 2), "b": (4,)}
    assert not any(array.any() for array in nothing.values())
