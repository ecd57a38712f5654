"""Attacks on the door: names, origins, tokens, sizes, and what an error tells."""

from __future__ import annotations

import asyncio
import time

import pytest

from cases import each
from confide.serve.gate import COOKIE, HEADERS, CallerLimits, Doors, Gate, HttpError
from serve.served import HOST, ORIGIN, browser

TOKEN = "x" * 43
TEXTS = {"texts": ["Took drug9."]}


@each("host", ["evil.example", "localhost:1", "localhost", "", f"{HOST}.evil"])
def test_a_name_that_is_not_ours_is_refused(host: str) -> None:
    """DNS rebinding: a page elsewhere makes its own name lead here."""
    for path in ("/healthz", "/v1/models", "/static/app.css"):
        assert browser().get(path, headers={"host": host}).status_code == 421


def test_our_own_name_is_answered_in_any_case() -> None:
    assert browser().get("/healthz", headers={"host": HOST.upper()}).status_code == 200


@each(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://{HOST}"},
        {"origin": "http://localhost"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_a_post_of_another_page_is_refused(headers: dict[str, str]) -> None:
    found = browser().post("/v1/predict", json=TEXTS, headers=headers)
    assert found.status_code == 403 and found.json()["error"] == "origin"


def test_our_own_page_and_programs_may_post() -> None:
    own = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    assert browser().post("/v1/predict", json=TEXTS, headers=own).status_code == 200
    assert browser().post("/v1/predict", json=TEXTS).status_code == 200


def test_a_form_needs_an_origin() -> None:
    assert browser(token=TOKEN).post("/enter", data={"token": TOKEN}).status_code == 403


@each("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_page_elsewhere_could_send_without_asking_is_not_read(kind: str) -> None:
    found = browser().post(
        "/v1/predict", content=b'{"texts": ["a"]}', headers={"content-type": kind}
    )
    assert found.status_code == 415


@each("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    assert browser().request(method, "/v1/predict").status_code == 405


def test_every_answer_has_the_headers() -> None:
    for path in ("/healthz", "/nowhere", "/static/app.css", "/v1/models"):
        found = browser().get(path).headers
        for name, value in HEADERS:
            assert found[name.decode()] == value.decode(), path
    refused = browser().get("/healthz", headers={"host": "evil"}).headers
    assert "default-src 'none'" in refused["content-security-policy"]
    assert "unsafe" not in refused["content-security-policy"]
    assert "access-control-allow-origin" not in refused


def test_without_the_token_nothing_is_answered() -> None:
    there = browser(token=TOKEN)
    for path in ("/", "/v1/models", "/openapi.json", "/watch", "/nowhere", "/enterprise"):
        assert there.get(path).status_code == 401, path
    assert there.post("/v1/predict", json=TEXTS).status_code == 401
    for wrong in ("Bearer ", "Bearer y", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"):
        found = there.get("/v1/models", headers={"authorization": wrong.encode("latin-1")})
        assert found.status_code == 401
    assert there.get("/v1/models", headers={"cookie": f"{COOKIE}={TOKEN}"}).status_code == 401


def test_with_the_token_all_is_answered() -> None:
    own = {"authorization": f"Bearer {TOKEN}"}
    assert browser(token=TOKEN).get("/v1/models", headers=own).status_code == 200


def test_a_cookie_ends() -> None:
    doors = Doors(TOKEN, lasts=0.05)
    headers = {"cookie": f"{COOKIE}={doors.new_session()}"}
    assert doors.admits(headers)
    time.sleep(0.06)
    assert not doors.admits(headers)


def test_a_large_body_is_refused_before_it_is_read() -> None:
    small = CallerLimits(body=100)

    async def reads(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("the body was too large")

    stated = [(b"content-length", b"101")]
    assert _through(reads, stated, [b"x"], small) == 413
    assert _through(reads, [(b"content-length", b"9" * 5000)], [b"x"], small) == 413
    assert _through(reads, [(b"content-length", b"-1")], [b"x"], small) == 413
    assert _through(reads, [], [b"x" * 60, b"x" * 60], small) == 413


def test_a_slow_body_is_given_up() -> None:
    async def reads(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("the body should not have come")

    start = time.monotonic()
    assert _through(reads, [], [b"x"] * 100, CallerLimits(slow=0.2), wait=0.05) == 408
    assert time.monotonic() - start < 2


def test_a_caller_that_takes_nothing_is_given_up() -> None:
    async def answers(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise AssertionError("it was not taken")

    with pytest.raises(TimeoutError):
        _through(answers, [], [b""], CallerLimits(slow=0.05), stuck=True)


def test_an_error_tells_no_text() -> None:
    told: list[str] = []
    texts = {"texts": ["CANARY"], "model": "broken"}
    found = browser(told=told).post("/v1/predict", json=texts)
    assert found.status_code == 500 and found.json()["error"] == "internal"
    assert told and "ValueError at served.py" in told[0]
    assert "CANARY" not in found.text + "".join(told) and "secret" not in "".join(told)


def test_an_error_within_an_answer_tells_no_text() -> None:
    told: list[str] = []

    async def fails(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("CANARY")

    with pytest.raises(TimeoutError) as error:
        _through(fails, [], [b""], CallerLimits(), told=told)
    assert error.value.__suppress_context__ and told and "CANARY" not in told[0]


def test_a_refusal_within_an_answer_just_ends_it() -> None:
    async def fails(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise HttpError(503, "busy", "busy")

    with pytest.raises(TimeoutError):
        _through(fails, [], [b""], CallerLimits())


def _through(inner, headers, parts, limits, *, wait=0.0, stuck=False, told=None) -> int:
    """The status that a hand-made ask gets."""
    given = [(b"host", HOST.encode()), *headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": given}
    statuses = []
    left = list(parts)

    async def receive():
        await asyncio.sleep(wait)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message) -> None:
        if stuck:
            await asyncio.sleep(60)
        if "status" in message:
            statuses.append(message["status"])

    gate = Gate(
        inner,
        hosts=frozenset({HOST}),
        doors=Doors(None, lasts=1),
        limits=limits,
        tell=(told if told is not None else []).append,
    )
    asyncio.run(gate(scope, receive, send))
    return statuses[0]
