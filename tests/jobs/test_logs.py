"""Logs of a run: what they say, what they never say, and what happens when they break."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from confide import api
from confide.errors import SettingsError
from confide.federation.events import Event, Watcher, to_all
from confide.jobs.logs import LOGS, Logs, json_line, numbers
from confide.runs.folder import RunFolder, shareable

EVENTS = [
    Event("ask", 1, site="north", step="train"),
    Event("reply", 1, site="north", step="train", loss=2.5),
    Event("failed", 1, site="south", step="train", message="south, round 1: no-key"),
    Event(
        "round", 1, rounds=2, loss=2.5, dev_f1=0.5, bytes_up=10, bytes_down=20, seconds=1.5,
        seconds_left=1.5, score="F1", dev={"strict": 0.5, "relaxed": 0.6},
        dev_sites={"north": 0.5, "south": None},
    ),
    Event("round", 2, rounds=2, loss=1.5, dev={"strict": 0.75}, bytes_up=20, bytes_down=40),
    Event("end", message="/srv/secret/run", test={"strict": 0.7}, test_sites={"north": 0.7}),
]  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text(
        'schema = 2\nname = "ours"\nmethod = "fedavg"\nrounds = 2\nkey = "/srv/secret/key"\n'
        '[training]\nlearning_rate = 0.25\n[model]\ncontext = "/srv/secret/bert"\n'
        '[[site]]\nname = "north"\ntrain = "/srv/secret/train.conll"\n'
    )
    return folder


def told(folder: Path, *wanted: str, events: list[Event] = EVENTS) -> list[str]:
    said: list[str] = []
    with Logs(wanted, say=said.append) as logs:
        for event in [
            Event("start", rounds=2, message="ours: fedavg", folder=str(folder)),
            *events,
        ]:
            logs(event)
    return said


def test_every_event_is_a_line_with_documented_keys_only(run_folder: Path, root: Path) -> None:
    assert told(run_folder, "jsonl") == []
    lines = [json.loads(one) for one in (run_folder / "events.jsonl").read_text().splitlines()]
    assert [one["event"] for one in lines] == ["start", *(event.kind for event in EVENTS)]
    assert lines[4]["dev"] == {"strict": 0.5, "relaxed": 0.6}
    assert lines[4]["dev_sites"] == {"north": 0.5, "south": None}
    assert lines[-1]["test_sites"] == {"north": 0.7}
    said = [one["message"] for one in lines if "message" in one]
    assert said == ["south, round 1: no-key"]
    page = (root / "docs" / "logging.md").read_text()
    section = page.partition("## Lines of")[2].partition("## Curves")[0]
    assert not [key for one in lines for key in one if f"`{key}`" not in section]
    documented = set(re.findall(r"`(\w+)`", section.partition("| `event` |")[2].split("|")[0]))
    assert {one["event"] for one in lines} < documented


def test_no_path_is_in_a_line(run_folder: Path) -> None:
    told(run_folder, "jsonl")
    text = (run_folder / "events.jsonl").read_text()
    assert "secret" not in text and str(run_folder) not in text


def test_lines_are_added_to_those_of_an_interrupted_run(run_folder: Path) -> None:
    told(run_folder, "jsonl=" + str(run_folder / "here" / "all.jsonl"))
    told(run_folder, "jsonl=" + str(run_folder / "here" / "all.jsonl"))
    assert len((run_folder / "here" / "all.jsonl").read_text().splitlines()) == 14


def test_the_time_is_utc() -> None:
    assert json.loads(json_line(Event("end"), 0.0))["time"] == "1970-01-01T00:00:00.000+00:00"


def test_the_numbers_of_a_round_and_of_the_end() -> None:
    assert numbers(EVENTS[3]) == {
        "loss": 2.5, "bytes/up": 10, "bytes/down": 20, "seconds": 1.5, "dev/strict": 0.5,
        "dev/relaxed": 0.6, "dev_site/north": 0.5,
    }  # fmt: skip
    assert numbers(EVENTS[-1]) == {"test/strict": 0.7, "test_site/north": 0.7}
    assert numbers(EVENTS[0]) == numbers(EVENTS[2]) == {}
    assert set(numbers(Event("round", 1, site="north", loss=1.0))) == {"north/loss"}


def test_settings_are_logged_without_paths_and_sites(run_folder: Path) -> None:
    found = shareable(RunFolder(run_folder).settings(as_written=True))
    assert found["method"] == "fedavg" and found["training.learning_rate"] == "0.25"
    assert found["rounds"] == "2" and found["seed"] == "1"
    assert "secret" not in str(found) and "north" not in str(found)


# --- TensorBoard --------------------------------------------------------------------------


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    (file,) = folder.iterdir()
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            number = value.tensor.float_val[0]
            found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_tensorboard_reads_the_curves(run_folder: Path) -> None:
    pytest.importorskip("tensorboard")
    assert told(run_folder, "tensorboard") == []
    found = curves(run_folder / "tensorboard")
    assert found["dev/strict"] == [(1, 0.5), (2, 0.75)]
    assert found["loss"] == [(1, 2.5), (2, 1.5)]
    assert found["test/strict"] == [(2, pytest.approx(0.7))]


def test_the_name_of_this_machine_is_not_in_the_log(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("socket.gethostname", lambda: "ward-7-pc")
    told(run_folder, "tensorboard")
    (file,) = (run_folder / "tensorboard").iterdir()
    assert "ward-7" not in file.name and b"ward-7" not in file.read_bytes()


# --- MLflow -------------------------------------------------------------------------------


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A tracking store in a folder, and MLflow as it was before."""
    pytest.importorskip("mlflow")
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_TRACKING_URI",
                 "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "store").as_uri()


def stored(tracking: str) -> Any:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=tracking)
    experiment = client.get_experiment_by_name("confide")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_mlflow_has_the_metrics_and_the_settings(run_folder: Path, tracking: str) -> None:
    assert told(run_folder, f"mlflow={tracking}") == []
    client, run = stored(tracking)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.metrics["dev/strict"] == 0.75 and run.data.metrics["test/strict"] == 0.7
    history = client.get_metric_history(run.info.run_id, "dev/strict")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 0.75)]
    assert run.data.params["training.learning_rate"] == "0.25"
    everything = "".join(
        file.read_text() for file in (run_folder.parent / "store").rglob("*") if file.is_file()
    )
    assert "/srv/secret" not in everything


def test_a_run_that_broke_off_has_failed(run_folder: Path, tracking: str) -> None:
    told(run_folder, f"mlflow={tracking}", events=EVENTS[:3])
    assert stored(tracking)[1].info.status == "FAILED"


def test_mlflow_does_not_report_to_its_makers(run_folder: Path, tracking: str) -> None:
    told(run_folder, f"mlflow={tracking}")
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()
    # MLflow is silent in tests anyway; elsewhere, what it is told is what counts
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == os.environ["DO_NOT_TRACK"] == "true"


def test_mlflow_needs_a_server(run_folder: Path, tracking: str) -> None:
    with pytest.raises(SettingsError, match="needs a tracking server"):
        told(run_folder, "mlflow")


# --- Weights & Biases ---------------------------------------------------------------------


class FakeRun:
    """A run of W&B that remembers what it was told."""

    def __init__(self, **how: Any) -> None:
        self.how, self.rows = how, list[dict[str, Any]]()
        self.step = self.code = None

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.step = (name, step_metric)

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def finish(self, *, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """The runs that a stand-in for the module wandb has begun."""
    made: list[FakeRun] = []

    def init(**how: Any) -> FakeRun:
        made.append(FakeRun(**how))
        return made[-1]

    fake = SimpleNamespace(init=init, Settings=lambda **how: how)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_ERROR_REPORTING", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "")
    return made


def test_wandb_sends_nothing_unless_a_project_is_named(
    run_folder: Path, wandb: list[FakeRun]
) -> None:
    assert told(run_folder, "wandb") == []
    told(run_folder, "wandb=ours")
    told(run_folder, "wandb=team/ours")
    said = [(one.how["mode"], one.how["entity"], one.how["project"]) for one in wandb]
    assert said == [("offline", None, "confide"), (None, None, "ours"), (None, "team", "ours")]
    assert wandb[0].how["dir"] == str(run_folder)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_wandb_has_the_numbers_by_round_and_the_settings(
    run_folder: Path, wandb: list[FakeRun]
) -> None:
    told(run_folder, "wandb")
    (run,) = wandb
    assert run.step == ("*", "round") and run.code == 0
    assert [(row["round"], row.get("dev/strict")) for row in run.rows] == [
        (1, 0.5), (2, 0.75), (2, None),
    ]  # fmt: skip
    assert run.rows[2]["test/strict"] == 0.7
    assert run.how["config"]["training.learning_rate"] == "0.25"
    assert "/srv/secret" not in str([run.how["config"], run.rows])
    assert run.how["settings"]["console"] == "off" and run.how["settings"]["x_disable_meta"]


def test_a_run_that_broke_off_has_failed_at_wandb(run_folder: Path, wandb: list[FakeRun]) -> None:
    told(run_folder, "wandb", events=EVENTS[:4])
    assert wandb[0].code == 1


def test_wandb_itself_keeps_numbers_and_no_more(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_ERROR_REPORTING", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "")
    assert told(run_folder, "wandb") == []
    (kept,) = (run_folder / "wandb").glob("offline-run-*/run-*.wandb")
    data = kept.read_bytes()
    assert b"dev/strict" in data and b"training.learning_rate" in data
    own = [one for one in (socket.gethostname(), getpass.getuser()) if len(one) > 5]
    for word in (*own, str(run_folder), "/srv/secret"):
        assert word.encode() not in data


# --- when it breaks -----------------------------------------------------------------------


def test_a_log_that_fails_is_given_up_and_the_others_go_on(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    @contextmanager
    def broken(folder: Path, where: str) -> Iterator[Watcher]:
        """A log whose disk is full after the first line."""

        def write(event: Event) -> None:
            lines.append(event)
            if len(lines) > 1:
                raise OSError(28, "No space left on device")

        yield write
        raise AssertionError("a log that was given up is not closed again")

    monkeypatch.setitem(LOGS, "broken", broken)
    assert told(run_folder, "broken", "jsonl") == [
        "the log broken failed and is given up; the run goes on (OSError)"
    ]
    assert len(lines) == 2
    assert len((run_folder / "events.jsonl").read_text().splitlines()) == len(EVENTS) + 1


def test_a_log_that_cannot_be_opened_stops_the_run(run_folder: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written"):
        told(run_folder, f"jsonl={run_folder / 'settings.toml' / 'x'}")


def test_an_unknown_log_is_refused_before_the_run_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'tensorboard'"):
        Logs(["tensorbord"], say=print)
    assert set(LOGS) == {"jsonl", "tensorboard", "mlflow", "wandb"}


def test_a_missing_library_names_its_extra(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, name in (("mlflow.tracking", "mlflow"), ("wandb", "wandb"),
                          ("tensorboard.summary.writer.record_writer", "tensorboard")):  # fmt: skip
        monkeypatch.setitem(__import__("sys").modules, library, None)
        with pytest.raises(SettingsError, match=rf"confide\[{name}\]"):
            told(run_folder, f"{name}={run_folder / 'x'}")


def test_all_watchers_hear_everything() -> None:
    one: list[Event] = []
    two: list[Event] = []
    to_all(one.append, two.append)(EVENTS[0])
    assert one == two == [EVENTS[0]]


def test_a_real_run_logs_its_rounds_and_no_text(small_demo: Path, tmp_path: Path) -> None:
    """The canary of this page: words of the corpus are in no byte of any log."""
    overrides = ["rounds=2", "workers=1", "model.bilstm_hidden=8", "model.word_dim=8"]
    with Logs(["jsonl", "tensorboard"], say=print) as logs:
        done = api.run(
            small_demo / "corpus/settings.toml", overrides=overrides, out=tmp_path / "run",
            on_event=logs,
        )  # fmt: skip
    lines = [json.loads(one) for one in (done.folder / "events.jsonl").read_text().splitlines()]
    assert [one["event"] for one in lines if one["event"] in ("start", "round", "end")] == [
        "start", "round", "round", "end",
    ]  # fmt: skip
    last = done.result.history[-1]
    assert [one for one in lines if one["event"] == "round"][-1]["dev"] == last.dev
    assert lines[-1]["test"]["strict"] == done.result.scores.overall["strict"]["f1"]
    assert set(lines[-1]["test_sites"]) == {"cardiology", "oncology", "practice"}
    logged = b"".join(
        file.read_bytes()
        for file in [done.folder / "events.jsonl", *(done.folder / "tensorboard").iterdir()]
    )
    read = api.read(small_demo / "corpus" / "cardiology" / "train.conll")
    text = " ".join(document.text for document in read.documents)
    words = set(re.findall(r"[a-z]{7,}", text))
    assert len(words) > 50
    assert not [word for word in words if word.encode() in logged and word not in NAMES]


NAMES = {"cardiology", "oncology", "practice", "relaxed", "version", "seconds"}
"""Words that a log may hold for another reason."""
