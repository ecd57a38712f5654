"""Confidences of a run: calibrated on development counts; alike from run, release and home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from confide.errors import RunError
from confide.jobs.predict import predict
from confide.runs.folder import RunFolder
from confide.runs.release import CALIBRATION, release
from confide.scoring.calibration import AS_IS, Calibrator
from contract.learned import learned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("sure"))


def confidences(run: Path, text: Path) -> list[float]:
    return [e.confidence or 0 for one in predict(run, [text]) for e in one.entities]


def with_calibrator(folder: Path, **numbers: float) -> None:
    file = folder / "result.json"
    tree = json.loads(file.read_text())
    tree["calibration"]["calibrators"][""] = numbers
    file.write_text(json.dumps(tree))


def test_what_the_result_says_is_applied_wherever_the_model_is_used(
    folder: Path, tmp_path: Path
) -> None:
    text = folder.parent / "data" / "site-1" / "test.conll"
    with_calibrator(folder, temperature=1.0, offset=0.0)
    plain = confidences(folder, text)
    with_calibrator(folder, temperature=3.0, offset=-0.5)
    calibrated = Calibrator(3.0, -0.5)
    assert confidences(folder, text) == pytest.approx([calibrated.of(one) for one in plain])
    assert plain != confidences(folder, text)
    copy = release(folder, out=tmp_path / "copy", site="site-1")
    assert confidences(copy, text) == pytest.approx(confidences(folder, text))


def test_a_calibration_out_of_range_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = release(folder, out=tmp_path / "copy", site="site-1")
    text = folder.parent / "data" / "site-1" / "test.conll"
    for wrong in (
        '{"temperature": 0, "offset": 0}',
        "{}",
        "[]",
        '{"temperature": 1, "offset": NaN}',
    ):
        (copy / CALIBRATION).write_text(wrong)
        with pytest.raises(RunError, match="calibration of this release cannot be read"):
            predict(copy, [text])
    with_calibrator(folder, temperature=100.0, offset=0.0)
    with pytest.raises(RunError, match="temperature"):
        predict(folder, [text])
    with_calibrator(folder, temperature=1.0, offset=0.0)


def test_few_finds_are_not_calibrated_and_calibrating_can_be_left_out(tmp_path: Path) -> None:
    folder = learned(tmp_path, "select.calibrate=false")
    assert RunFolder(folder).calibrator(None) == AS_IS
    found = RunFolder(folder).result().calibration
    assert found is not None and found.before == found.after
    assert sum(one.found for one in found.after.bins) > 0
