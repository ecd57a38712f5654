"""Confidences of a run: calibrated on development counts; alike from run, release and home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import RunError
from confide.federation.messages import decode_file, encode
from confide.jobs.predict import evaluate, predict
from confide.report.page import report
from confide.runs.folder import KeptAtHome, RunFolder
from confide.runs.loading import CALIBRATION, release
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
        '{"temperature": 1, "offset": 0, "finds": -7}',
        '{"temperature": 1, "offset": 0, "finds": 1e400}',
    ):
        (copy / CALIBRATION).write_text(wrong)
        with pytest.raises(RunError, match="calibration of this release cannot be read"):
            predict(copy, [text])
    with_calibrator(folder, temperature=1.0, offset=0.0, finds=-2)
    with pytest.raises(RunError, match="finds"):
        predict(folder, [text])
    with_calibrator(folder, temperature=100.0, offset=0.0)
    with pytest.raises(RunError, match="temperature"):
        predict(folder, [text])
    with_calibrator(folder, temperature=1.0, offset=0.0)


def test_few_finds_in_development_text_are_said_wherever_confidences_are(
    folder: Path, tmp_path: Path
) -> None:
    text = folder.parent / "data" / "site-1" / "test.conll"
    with_calibrator(folder, temperature=2.0, offset=-0.3, finds=17)
    said = "calibrated on 17 finds in development text, fewer than 300"
    few = release(folder, out=tmp_path / "few", site="site-1")
    for model in (folder, few):
        assert said in evaluate(model, [text])["confidences"]
    assert said in (few / "README.md").read_text() and said in report([folder]).read_text()
    done = CliRunner().invoke(app, ["evaluate", str(folder), str(text)])
    assert said in " ".join(done.output.split())
    with_calibrator(folder, temperature=2.0, offset=-0.3, finds=300)
    many = release(folder, out=tmp_path / "many", site="site-1")
    assert "confidences" not in {**evaluate(folder, [text]), **evaluate(many, [text])}
    assert "fewer than" not in (many / "README.md").read_text() + report([folder]).read_text()
    with_calibrator(folder, temperature=2.0, offset=-0.3)
    assert "confidences" not in evaluate(folder, [text]), "an older run does not say"
    (many / CALIBRATION).write_text('{"temperature": 2.0, "offset": -0.3}')
    assert confidences(many, text) == pytest.approx(confidences(few, text))


def test_a_kept_model_of_before_does_not_say_how_many_finds_calibrate_it() -> None:
    """Files of the version before have no `finds`."""
    data = encode(KeptAtHome("alone", 1, {}, 2.0, -0.3, 120))
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    told = json.loads(header["__metadata__"]["confide"])
    assert told[2].pop("finds") == 120
    header["__metadata__"]["confide"] = json.dumps(told)
    old = json.dumps(header).encode()
    old += b" " * (-len(old) % 8)
    kept = decode_file(KeptAtHome, len(old).to_bytes(8, "little") + old + data[8 + size :])
    assert kept.calibrator == Calibrator(2.0, -0.3) and not kept.calibrator.doubt


def test_calibrating_can_be_left_out(tmp_path: Path) -> None:
    folder = learned(tmp_path, "select.calibrate=false")
    assert RunFolder(folder).calibrator(None) == AS_IS
    found = RunFolder(folder).result().calibration
    assert found is not None and found.before == found.after
    assert sum(one.found for one in found.after.bins) > 0
