"""Runs as their folders show them: finished, in progress, damaged, hostile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time

import pytest

from confide.errors import GuardError
from confide.serve.app import ServedPages
from confide.serve.gate import CallerLimits, HttpError, Pages
from confide.serve.watching import QUIET, Runs, RunWatch, watch_routes
from serve.served import QUICK, browser


@pytest.fixture
def runs(tmp_path, demo_run):
    """A finished run, and the same as it was before its end."""
    folder = tmp_path / "runs"
    demo_run(tmp_path / "demo")
    shutil.copytree(tmp_path / "demo/federated", folder / "done")
    shutil.copytree(tmp_path / "demo/federated", folder / "going")
    (folder / "going/result.json").unlink()
    for path in (folder / "going").rglob("*"):
        os.utime(path)
    return folder


def test_a_finished_run_and_one_in_progress(runs) -> None:
    seen = Runs(runs)
    done, going = seen.view("done"), seen.view("going")
    assert (done.state, going.state) == ("finished", "running")
    assert done.done == going.done == done.rounds == 8
    assert done.method == "fedavg" and done.sites == ["cardiology", "oncology", "practice"]
    assert len(going.curve("dev")) == len(going.curve("loss")) == 8
    assert going.moved == done.moved and going.moved[0] > 0
    assert (going.left, done.left) == ("0.0 s", "")
    assert going.rounds_of("oncology") == 8 and going.refused("oncology") == {}


def test_the_round_in_progress_comes_from_the_ledger(runs) -> None:
    line = {"round": 9, "step": "train"}
    with open(runs / "going/ledger.jsonl", "ab") as file:
        file.write(json.dumps(line).encode() + b'\n{"round": 10, "torn')
    assert Runs(runs).view("going").now == 9


def test_a_run_that_writes_nothing_for_long_is_quiet(runs) -> None:
    old = time.time() - QUIET - 60
    for path in (runs / "going").rglob("*"):
        os.utime(path, (old, old))
    assert Runs(runs).view("going").state == "quiet"


def test_a_run_that_was_stopped_is_quiet_after_the_clock_was_set_back(runs) -> None:
    """It was shown as running for another day."""
    later = time.time() + 86_400
    for path in (runs / "going").rglob("*"):
        os.utime(path, (later, later))
    assert Runs(runs).view("going").state == "quiet"
    os.utime(runs / "going" / "ledger.jsonl")  # another life of the run writes on
    assert Runs(runs).view("going").state == "running"


def test_a_change_is_seen(runs) -> None:
    seen = Runs(runs)
    assert seen.view("going").state == "running"
    shutil.copy(runs / "done/result.json", runs / "going/result.json")
    assert seen.view("going").state == "finished"


def test_a_damaged_run_is_named_and_hides_no_other(runs) -> None:
    (runs / "done/result.json").write_text('{"schema": 1, "history": "CANARY"}')
    (runs / "going/settings.toml").write_text("CANARY")
    seen = {run.name: run.state for run in Runs(runs).all()}
    assert seen == {"done": "unreadable", "going": "unreadable"}
    there = browser(ServedPages({}, QUICK, watched=runs))
    for path in ("/watch", "/watch/run?name=done", "/watch/compare?first=done&second=going"):
        page = there.get(path)
        assert page.status_code == 200 and "CANARY" not in page.text, path


def test_links_and_other_names_are_no_runs(runs, tmp_path) -> None:
    (runs / "link").symlink_to(runs / "done")
    shutil.copytree(runs / "done", runs / "a b")
    shutil.copytree(runs / "done", tmp_path / "outside")
    (runs / "only-settings").mkdir()
    (runs / "only-settings/settings.toml").write_text("")
    assert Runs(runs).names() == ["done", "going"]
    for name in ("../outside", "link", "a b", "", ".", "..", "only-settings", "nowhere"):
        with pytest.raises(GuardError):
            Runs(runs).view(name)
        there = browser(ServedPages({}, QUICK, watched=runs))
        assert there.get("/watch/run", params={"name": name}).status_code == 404


def test_the_pages(runs) -> None:
    there = browser(ServedPages({}, QUICK, watched=runs))
    assert there.get("/").headers["location"] == "/watch"
    overview = there.get("/watch").text
    assert "going" in overview and "running" in overview and "8 of 8" in overview
    one = there.get("/watch/run?name=going").text
    assert one.count("<svg") == 3 and "weights" in one and "oncology" in one
    two = there.get("/watch/compare?first=done&second=going").text
    assert "no clear difference" in two or "No interval" in two


def test_names_within_a_run_are_escaped(runs) -> None:
    tree = json.loads((runs / "done/result.json").read_text())
    evil = "<script>alert(1)</script>"
    tree["history"][0]["failed"] = {evil: evil}
    (runs / "done/result.json").write_text(json.dumps(tree))
    page = browser(ServedPages({}, QUICK, watched=runs)).get("/watch/run?name=done").text
    assert evil not in page and "&lt;script&gt;" in page


def test_a_stream_speaks_when_something_changes(runs) -> None:
    async def main() -> list[str]:
        watch = RunWatch(Runs(runs), CallerLimits(), every=0.02)
        stream = watch.events()
        first = await anext(stream)
        shutil.copy(runs / "done/result.json", runs / "going/result.json")
        second = await asyncio.wait_for(anext(stream), 10)
        await stream.aclose()
        return [first.decode(), second.decode()]

    before, after = asyncio.run(main())
    states = [
        {run["name"]: run["state"] for run in json.loads(said.removeprefix("data: "))}
        for said in (before, after)
    ]
    assert states[0]["going"] == "running" and states[1]["going"] == "finished"


def test_streams_are_limited(runs) -> None:
    there = browser(ServedPages({}, CallerLimits(streams=0), watched=runs))
    assert there.get("/watch/events").status_code == 503


def test_a_burst_of_streams_is_limited(runs) -> None:
    """All ask before the first has said a word; a stream that ends makes room."""
    watch = RunWatch(Runs(runs), CallerLimits(streams=3), every=0.02)
    events = next(one for one in watch_routes(watch, Pages(())) if one.path == "/watch/events")
    ask = {"type": "http", "method": "GET", "path": "/watch/events", "headers": [],
           "query_string": b""}  # fmt: skip

    async def asked(said: list[int], leaves: asyncio.Event) -> None:
        async def receive() -> dict[str, str]:
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, int]) -> None:
            said.extend([message["status"]] if "status" in message else [])

        try:
            await events.handle(ask, receive, send)
        except HttpError as refused:
            said.append(refused.status)

    async def main() -> None:
        for _ in range(2):
            said, leaves = list[int](), asyncio.Event()
            waiting = [asyncio.create_task(asked(said, leaves)) for _ in range(40)]
            while len(said) < 40:
                await asyncio.sleep(0.01)
            assert (said.count(200), said.count(503), watch.streams) == (3, 37, 3)
            leaves.set()
            await asyncio.gather(*waiting)
            assert watch.streams == 0

    asyncio.run(main())
