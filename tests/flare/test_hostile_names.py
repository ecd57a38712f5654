"""No name, path, link or size from another place reaches a file system call unchecked.

Every way in from outside is a line of `DOORS`: it is given each hostile name, and afterwards the
folder around the consortium must be as it was, but for what the door may write of its own.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from cases import each
from confide import __version__
from confide.errors import EngineError, GuardError, SettingsError
from confide.federation.failures import Failure
from confide.federation.messages import decode, encode
from confide.files import LONGEST_NAME, path_inside, plain_name
from confide.flare import joining
from confide.flare.joining import (
    JOIN,
    Join,
    check_suited,
    read_event,
    read_events,
    read_outcome,
    wire_digest,
    wire_of,
)
from confide.flare.kit import MOST_SITES, Kit, Submission
from confide.flare.nvidia import processes
from confide.flare.nvidia.components import COLLECTED, ConfideController
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.nvidia.lead import _names, coordinate_run
from confide.flare.server import Conductor
from confide.flare.site import SiteHome
from confide.settings import Settings, dump, parse
from contract.corpus import tiny
from flare.homes import HomesEngine, as_toml, of_a_consortium, write_site_files

SECRET = "of-nobody-else"
HOSTILE = [
    "..",
    ".",
    "",
    "../outside",
    "../../outside",
    "a/../../outside",
    "/etc/passwd",
    "~",
    "~/outside",
    "$HOME",
    "a/b",
    "a\\b",
    "outside\0",
    "outside\n",
    " outside",
    "-rf",
    ".hidden",
    "\x1b[31mred",
    "\u202etxt.exe",
    "пример",
    "例",
    "ｏｕｔｓｉｄｅ",
    "a" * (LONGEST_NAME + 1),
    "a" * 10_000,
]
NOT_TEXT: list[Any] = [None, 7, 1.5, True, ["x"], {"x": "y"}, b"x"]


@each("name", [*HOSTILE, *NOT_TEXT])
def test_one_function_refuses_every_hostile_name(tmp_path: Path, name: Any) -> None:
    with pytest.raises(GuardError) as raised:
        plain_name(name, "a run")
    assert not isinstance(name, str) or len(name) < 3 or name not in str(raised.value)
    with pytest.raises(GuardError):
        path_inside(tmp_path, "fine", name)


@each("name", ["run-1", "a", "A_b.c-9", "refused.jsonl", "a" * LONGEST_NAME])
def test_it_takes_plain_names(tmp_path: Path, name: str) -> None:
    assert path_inside(tmp_path, name) == tmp_path / name


def test_no_part_of_a_path_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert path_inside(tmp_path, "real", "x")
    for name in ("link", "gone"):
        with pytest.raises(GuardError, match="link"):
            path_inside(tmp_path, name, "x")


# --- every door -----------------------------------------------------------------------------


class Place:
    """A server's kit and a site's home, beside a folder that nobody may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "outcome.json").write_text(SECRET)
        (self.outside / "result.json").write_text(SECRET)
        self.server = folder / "server"
        self.job = self.server / "job"
        self.job.mkdir(parents=True)
        self.settings = tiny(folder / "data")
        self.site = write_site_files(folder / "homes", self.settings)["site-1"]

    def engine(self) -> Any:
        """What FLARE gives a controller."""
        workspace = SimpleNamespace(
            get_root_dir=lambda: str(self.server), get_run_dir=lambda job: str(self.job)
        )
        sites = [SimpleNamespace(name=site.name) for site in self.settings.site]
        return SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: sites)


def conducted(place: Place, **order: Any) -> dict[str, Any]:
    """What the lead downloads of a submission with these arguments."""
    arguments = {
        "run": "run-1",
        "settings": as_toml(place.settings),
        "sites": ["site-1", "site-2", "site-3"],
        "version": __version__,
        "lead": "",
    } | order
    controller = ConfideController(**arguments)
    context = SimpleNamespace(get_engine=place.engine, get_job_id=lambda: "job")
    controller.control_flow(Signal(), context)
    found = place.job / COLLECTED / "outcome.json"
    return dict(json.loads(found.read_text())) if found.exists() else {}


def _run_of_a_job(place: Place, name: Any) -> None:
    said = conducted(place, run=name)
    assert said["state"] == "failed", said
    assert "does not take this submission" in said["why"]


def _sites_of_a_job(place: Place, name: Any) -> None:
    assert conducted(place, sites=[name])["state"] == "failed"
    assert conducted(place, sites=name)["state"] == "failed"


def _version_of_a_job(place: Place, name: Any) -> None:
    assert conducted(place, version=name)["state"] == "failed"


def _public_file_of_a_job(place: Place, name: Any) -> None:
    if name == "a/b":
        return  # a path below the server's own folder
    settings = of_a_consortium(tiny(place.folder / "relations", "method=feded-relations"))
    public = settings.public.model_copy(update={"files": (name,)})
    odd = settings.model_copy(update={"public": public})
    with pytest.raises(SettingsError, match=r"public\.files"):
        check_suited(odd)
    with pytest.raises(SettingsError, match=r"public\.files|control character"):
        Conductor(
            "run-1",
            dump(odd),
            version=__version__,
            engine=HomesEngine({}),
            folder=place.server / "runs/run-1",
            public=place.outside,
        ).conduct(lambda event: None)


def _encoder_of_a_job(place: Place, name: Any) -> None:
    for key in ("model.context", "classifier.encoder", "lightner.bart"):
        table, field = key.split(".")
        if name == "a/b" or (key == "lightner.bart" and name == ""):
            continue  # as a hub calls its models; and none is named
        with pytest.raises(SettingsError):
            check_suited(parse({table: {field: name}}))


def _join(place: Place, name: Any) -> None:
    wire = wire_digest(wire_of("fedavg-tagger"))
    sites = ["site-1", "site-2", "site-3"]
    home = SiteHome(place.site)
    ask = Join(__version__, str(name), as_toml(place.settings), sites, wire, "", "")
    reply = home.answer("join", 0, encode(ask))
    assert decode(Failure, reply).code == "bad-ask"
    memory = place.site.parent / "memory"
    assert {path.name for path in memory.iterdir()} == {"refused.jsonl", "site.log"}


def _step(place: Place, name: Any) -> None:
    home = SiteHome(place.site)
    for round in (0, -1, 10**30):
        reply = home.answer(str(name), round, b"ask")
        assert decode(Failure, reply).code == "not-joined"
    log = (place.site.parent / "site.log").read_text()
    assert "\x1b" not in log and "\u202e" not in log
    assert all(not line.startswith("outside") for line in log.splitlines())


def _submission_that_the_server_holds(place: Place, name: Any) -> None:
    kit = SimpleNamespace(path=place.server)
    folder = place.server / "store/runs" / str(uuid.uuid4())
    folder.mkdir(parents=True)
    (folder / "meta").write_text(json.dumps({"name": str(name), "status": "FINISHED:X"}))
    [held] = processes.stored_runs(kit)  # type: ignore[arg-type]
    assert held.folders == (folder,)
    assert held.run.isprintable()


def _name_in_what_the_server_lists(place: Place, name: Any) -> None:
    assert _names([{"job_id": name}, name], "job_id") == []


def test_an_event_without_a_number_too_large_for_a_float_is_still_an_event() -> None:
    large = 10**400
    event = read_event({"kind": "failed", "loss": large, "seconds": -large, "round": 3})
    assert event is not None
    assert (event.loss, event.seconds, event.round) == (None, None, 3)
    scores = read_event({"kind": "scores", "dev": {"strict": large, "relaxed": 0.5}})
    assert scores is not None and scores.dev == {"relaxed": 0.5}
    assert read_event({"kind": "round", "round": 1, "rounds": 2, "seconds": large}) is None


def _event(place: Place, name: Any) -> None:
    for field in ("site", "step", "message", "score"):
        event = read_event({"kind": "failed", field: name})
        assert event is not None
        said = getattr(event, field)
        assert said is None or (said.isprintable() and len(said) <= 503)
    scores = read_event({"kind": "scores", "dev": {str(name): 0.5, "a": name}})
    assert scores is not None and scores.dev is not None
    assert all(kind.isprintable() and len(kind) <= 100 for kind in scores.dev)
    assert scores.dev.get("a") in (None, 0.5) or type(name) in (int, float)
    flat = read_event({"kind": "scores", "dev": name})
    assert flat is not None and (flat.dev is None or isinstance(flat.dev, dict))
    assert read_event({"kind": name}) is None
    assert read_event({"kind": "round", "round": name, "rounds": 2, "seconds": 1.0}) is None
    assert read_event(name) is None
    assert read_events({"events": [], "last": name}, 0) is None
    assert read_events(name, 0) is None
    outcome = read_outcome(json.dumps({"state": "failed", "why": str(name)}).encode())
    assert outcome["why"].isprintable() and len(outcome["why"]) <= 2003
    assert read_outcome(str(name).encode()).keys() <= {"state"}


def _downloaded_file(place: Place, name: Any) -> None:
    source, home = place.folder / "download", place.folder / "home"
    (source / "checkpoints").mkdir(parents=True, exist_ok=True)
    usable = isinstance(name, str) and "\0" not in name and 0 < len(name) < 200
    if usable and "/" not in name and name.strip("."):
        (source / name).write_text(SECRET)
        (source / "checkpoints" / name).write_text(SECRET)
        (source / "alone" / name).mkdir(parents=True, exist_ok=True)
        (source / "alone" / name / "result.json").write_text(SECRET)
    joining.bring_home(source, home)
    assert not home.exists() or not list(home.rglob("*"))


DOORS: dict[str, Callable[[Place, Any], None]] = {
    "run of a job": _run_of_a_job,
    "sites of a job": _sites_of_a_job,
    "version of a job": _version_of_a_job,
    "public file of a job": _public_file_of_a_job,
    "encoder of a job": _encoder_of_a_job,
    "run of a join": _join,
    "step": _step,
    "submission that the server holds": _submission_that_the_server_holds,
    "name that the server lists": _name_in_what_the_server_lists,
    "event": _event,
    "downloaded file": _downloaded_file,
}


def seen(place: Place) -> dict[str, str]:
    """Everything that no door may touch."""
    folders = [place.outside, Path.cwd()]
    files = [path for folder in folders for path in folder.rglob("*")]
    there = {str(path): path.read_text() if path.is_file() else "" for path in files}
    return there


@each("door", DOORS)
def test_no_door_takes_a_hostile_name(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for number, name in enumerate(HOSTILE):
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        before = seen(place)
        DOORS[door](place, name)
        assert seen(place) == before, name


# --- what is not a name -----------------------------------------------------------------------


@each("odd", NOT_TEXT)
def test_an_order_of_other_types_is_refused(odd: Any) -> None:
    good: dict[str, Any] = {
        "run": "run-1",
        "settings": "rounds = 2",
        "sites": ["site-1"],
        "version": __version__,
        "lead": "00",
    }
    Submission.read(good)
    for part in good:
        if (part, odd) == ("sites", ["x"]):
            continue
        with pytest.raises(EngineError, match="does not take this submission"):
            Submission.read({**good, part: odd})


def test_an_order_has_an_end() -> None:
    rest: dict[str, Any] = {"run": "run-1", "settings": "", "version": __version__, "lead": ""}
    with pytest.raises(EngineError, match="settings"):
        Submission.read(rest | {"settings": "x" * 1_000_000, "sites": ["site-1"]})
    with pytest.raises(EngineError, match="sites"):
        Submission.read(rest | {"sites": [f"s{n}" for n in range(MOST_SITES + 1)]})
    with pytest.raises(EngineError, match="twice"):
        Submission.read(rest | {"sites": ["site-1", "site-1"]})


def test_the_lead_downloads_a_fixed_list_of_files(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = place.server / "runs" / "run-1"
    settings = tiny(tmp_path / "data")
    engine = HomesEngine(write_site_files(tmp_path / "homes", settings))
    Conductor(
        "run-1", as_toml(settings), version=__version__, engine=engine, folder=folder
    ).conduct(lambda event: None)
    (folder / "server.key").write_text(SECRET)
    (folder / "checkpoints" / "more.txt").write_text(SECRET)
    (folder / "outcome.json").symlink_to(place.outside / "outcome.json")
    (folder / "alone").symlink_to(place.outside)
    os.mkfifo(folder / "environment.pipe")
    joining.collect(folder, tmp_path / "collected")
    files = {
        str(p.relative_to(tmp_path / "collected")) for p in (tmp_path / "collected").rglob("*")
    }
    assert files == {
        "environment.json",
        "ledger.jsonl",
        "result.json",
        "checkpoints",
        "checkpoints/round-000001.ckpt",
        "checkpoints/round-000002.ckpt",
    }
    assert SECRET not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "collected").rglob("*.*")
    )


def test_run_folders_are_closed_to_others(tmp_path: Path) -> None:
    place = Place(tmp_path)
    os.umask(0o022)
    engine = HomesEngine(write_site_files(tmp_path / "homes", place.settings))
    server = tmp_path / "server" / "runs" / "run-1"
    Conductor(
        "run-1", as_toml(place.settings), version=__version__, engine=engine, folder=server
    ).conduct(lambda event: None)
    joining.bring_home(server, tmp_path / "lead")
    folders = [server, tmp_path / "lead", tmp_path / "homes/site-1/memory/runs/run-1"]
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            assert not path.stat().st_mode & 0o077, path


def test_a_run_cannot_take_the_name_of_evidence(tmp_path: Path) -> None:
    """Runs called as files of ours were accepted, and became folders where these should be."""
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    wire = wire_digest(wire_of("fedavg-tagger"))
    for name in ("refused.jsonl", "site.log", "veil.key", "runs", "ledger.jsonl"):
        home = SiteHome(files["site-1"])
        ask = Join(
            __version__, name, as_toml(settings), ["site-1", "site-2", "site-3"], wire, "", ""
        )
        decode(JOIN.reply, home.answer("join", 0, encode(ask)))
        odd = Join(__version__, "other", as_toml(settings), ["site-1"], "0" * 16, "", "")
        decode(Failure, SiteHome(files["site-1"]).answer("join", 0, encode(odd)))
    memory = files["site-1"].parent / "memory"
    assert (memory / "runs" / "refused.jsonl").is_dir()
    assert len((memory / "refused.jsonl").read_text().splitlines()) >= 5
    assert (memory / "site.log").is_file()


def test_a_public_set_is_read_from_the_servers_own_folder(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=feded-relations")
    engine = HomesEngine(write_site_files(tmp_path / "homes", settings))
    arguments: dict[str, Any] = {"version": __version__, "engine": engine}
    text = as_toml(settings)
    assert "set.jsonl" in text and str(tmp_path) not in text
    with pytest.raises(SettingsError, match="no folder of public files"):
        Conductor("run-1", text, folder=tmp_path / "a", **arguments).conduct(lambda event: None)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "set.jsonl").symlink_to(tmp_path / "public" / "set.jsonl")
    with pytest.raises(GuardError, match="link"):
        Conductor(
            "run-1", text, folder=tmp_path / "b", public=tmp_path / "linked", **arguments
        ).conduct(lambda event: None)


def test_a_lead_names_the_servers_public_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit: Kit = create_consortium(
        "trial", sites=["north"], host="localhost", out=tmp_path / "c"
    ).kit("lead")
    text = '[classifier]\nblind = true\n[public]\nfiles = ["{}"]\nformat = "jsonl"\n'
    seen: list[Settings] = []

    def follow(settings: Settings, *rest: Any, **given: Any) -> dict[str, Any]:
        seen.append(settings)
        return {}

    monkeypatch.setattr("confide.flare.nvidia.lead.follow_run", follow)
    for name in ("set.jsonl", "more/set.jsonl"):
        (tmp_path / "s.toml").write_text('task = "re"\nmethod = "feded"\n' + text.format(name))
        coordinate_run(tmp_path / "s.toml", kit=kit.path, out=tmp_path / "out")
        assert seen[-1].public.files == (name,)
    for name in ("/srv/set.jsonl", "../set.jsonl", "$CONFIDE_DATA/set.jsonl"):
        (tmp_path / "s.toml").write_text('task = "re"\nmethod = "feded"\n' + text.format(name))
        with pytest.raises(SettingsError, match="the server's folder"):
            coordinate_run(tmp_path / "s.toml", kit=kit.path, out=tmp_path / "out")


def test_a_server_cannot_make_a_site_open_a_folder(tmp_path: Path) -> None:
    from confide.federation.failures import Refusal
    from confide.federation.site import Site

    for name in ("/etc", "..", "~", "$CONFIDE_DATA/x", "a/b/c", "./minilm"):
        with pytest.raises(Refusal) as raised:
            Site("north", (), remote=True).model_place(name)
        assert raised.value.code == "own-folder"
        assert Site("north", ()).model_place(name) == name
        assert Site("north", (), remote=True, context="/srv/own").model_place(name) == "/srv/own"
    assert Site("north", (), remote=True).model_place("minilm") == "minilm"


def test_a_context_of_flare_is_never_needed_to_refuse() -> None:
    """The order is checked before anything of the engine is asked."""
    with pytest.raises(AttributeError):
        ConfideController("a", "b", sites=["c"], version="d", lead={}).control_flow(
            Signal(), FLContext()
        )
