"""A real Label Studio, with a model of ours as its ML backend.

`CONFIDE_LABEL_STUDIO` names the executable of one: `pip install label-studio` into an environment
of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from confide.serve import app as running
from confide.serve.app import ServedPages, application, hosts_of, listening
from confide.text.document import Document
from confide.text.formats import read, write
from serve.served import QUICK, annotate, models
from serve.test_annotating import CONFIG, KEY, TOKEN

STUDIO = os.environ.get("CONFIDE_LABEL_STUDIO", "")
SECRET = "0123456789abcdef0123456789abcdef01234567"
QUIET = {
    "USE_DEFAULT_BANNED_SUBNETS": "false",
    "COLLECT_ANALYTICS": "false", "LATEST_VERSION_CHECK": "false",
    "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "", "NO_PROXY": "*",
}  # fmt: skip
"""Our server is on this machine, and nothing is sent home."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STUDIO, reason="CONFIDE_LABEL_STUDIO names no Label Studio"),
]


@pytest.fixture(scope="module")
def asks() -> list[tuple[str, str]]:
    """Method and path of what reached our server."""
    return []


@pytest.fixture(scope="module")
def port(asks: list[tuple[str, str]]) -> Iterator[int]:
    """Our server in a thread, with a token; gives its port."""
    taken = listening("127.0.0.1", 0)
    port = taken.getsockname()[1]
    hosts = hosts_of("127.0.0.1", port, ())
    inner = application(ServedPages(models(), QUICK), hosts=hosts, token=TOKEN, tell=print)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asks.append((scope["method"], scope["path"]))
        await inner(scope, receive, send)

    server = running._server(app, QUICK)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[taken])))
    thread.start()
    yield port
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A Label Studio, which takes minutes to start; gives what asks its API."""
    tmp_path = tmp_path_factory.mktemp("studio")
    with closing(listening("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        "start", "--no-browser", "--data-dir", str(tmp_path / "studio"), "--port", str(port),
        "--internal-host", "127.0.0.1", "--username", "ann@example.org", "--password", "annotator",
        "--user-token", SECRET, "--enable-legacy-api-token",
    ]  # fmt: skip
    with open(tmp_path / "studio.log", "wb") as log:
        process = subprocess.Popen(
            [STUDIO, *words], stdout=log, stderr=log, env={**os.environ, **QUIET}, cwd=tmp_path
        )

    def ask(path: str, body: object = None, method: str = "") -> Any:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Token {SECRET}", "content-type": "application/json"}
        url = f"http://127.0.0.1:{port}{path}"
        asked = urllib.request.Request(url, sent, headers, method=method or None)
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                raw = found.read()
        except urllib.error.HTTPError as error:
            return {"status": error.code, "said": error.read().decode()}
        return json.loads(raw) if raw else None

    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "studio.log").read_text()[-3000:]
            try:
                ask("/health")
                break
            except OSError:
                time.sleep(1)
        yield ask
    finally:
        process.terminate()
        process.wait(30)


def test_a_real_label_studio_gets_predictions_and_orders_its_tasks(
    studio: Callable[..., Any], port: int, asks: list[tuple[str, str]], tmp_path: Path
) -> None:
    project = studio(
        "/api/projects",
        {"title": "notes", "label_config": CONFIG, "sampling": "Uncertainty sampling"},
    )
    one = f"/api/projects/{project['id']}"
    texts = ["drug7 helped", "Nothing.", "😀 drug9, drug2", "drug5 today"]
    studio(f"{one}/import", [{"report": text} for text in texts])
    backend = {
        "project": project["id"], "url": f"http://127.0.0.1:{port}/v1/labelstudio/ours",
        "title": "ours", "auth_method": "BASIC_AUTH", "basic_auth_user": "confide",
        "basic_auth_pass": KEY,
    }  # fmt: skip
    refused = studio("/api/ml", {**backend, "basic_auth_pass": "wrong"})
    assert refused["status"] == 400 and "authentication" in refused["said"]
    connected = studio("/api/ml", backend)
    assert (connected["readable_state"], connected["model_version"]) == ("Connected", "ours")

    everything = {"selectedItems": {"all": True, "excluded": []}}
    studio(f"/api/dm/actions?id=retrieve_tasks_predictions&project={project['id']}", everything)
    found = studio(f"/api/predictions?project={project['id']}")
    tasks = {one["id"]: one["data"]["report"] for one in studio(f"{one}/tasks")}
    scores = {tasks[one["task"]]: one["score"] for one in found}
    assert scores == dict(zip(texts, [0.7, 1.0, 0.2, 0.5], strict=True))
    (both,) = [one for one in found if one["score"] == 0.2]
    assert both["model_version"] == "ours"
    assert [one["value"]["text"] for one in both["result"]] == ["drug9", "drug2"]

    order = []
    for _ in texts:  # each is annotated, so the next one comes
        task = studio(f"{one}/next")
        order.append(task["data"]["report"])
        accepted = {"result": studio(f"/api/predictions?task={task['id']}")[0]["result"]}
        made = studio(f"/api/tasks/{task['id']}/annotations/", accepted)
        assert "id" in made
    assert order == [texts[2], texts[3], texts[0], texts[1]], "the least sure one comes first"
    assert ("POST", "/v1/labelstudio/ours/webhook") in asks, "it sends annotations, unasked"

    exported = tmp_path / "export.json"
    exported.write_text(json.dumps(studio(f"{one}/export?exportType=JSON")))
    by_text = {document.text: document for document in read(exported, "labelstudio").documents}
    marks = [by_text[texts[2]].surface(mark) for mark in by_text[texts[2]].entities]
    assert marks == ["drug9", "drug2"]


def test_a_real_label_studio_imports_what_predict_writes(
    studio: Callable[..., Any], tmp_path: Path
) -> None:
    drug = '<Labels name="label" toName="text"><Label value="DRUG"/></Labels>'
    config = f'<View>{drug}<Text name="text" value="$text"/></View>'
    project = studio("/api/projects", {"title": "notes", "label_config": config})
    found = annotate([Document("a", "drug4 and drug8"), Document("b", "Well.")])
    write(found, tmp_path / "tasks.json", "labelstudio", predicted=True)
    made = studio(
        f"/api/projects/{project['id']}/import", json.loads((tmp_path / "tasks.json").read_text())
    )
    assert (made["task_count"], made["prediction_count"], made["annotation_count"]) == (2, 2, 0)
    held = studio(f"/api/predictions?project={project['id']}")
    assert sorted((one["score"], len(one["result"])) for one in held) == [(0.4, 2), (1.0, 0)]
