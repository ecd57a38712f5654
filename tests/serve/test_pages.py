"""The door's own page, and what all pages have in common."""

from __future__ import annotations

import re

from confide.serve.app import STATIC
from confide.serve.gate import COOKIE
from serve.served import ORIGIN, browser

TOKEN = "t" * 43
OWN = {"origin": ORIGIN}
HTML = {"accept": "text/html"}


def test_a_browser_without_a_token_is_led_to_the_door() -> None:
    found = browser(token=TOKEN).get("/read", headers=HTML)
    assert found.status_code == 303 and found.headers["location"] == "/enter"


def test_the_token_is_exchanged_for_a_cookie() -> None:
    there = browser(token=TOKEN)
    assert there.get("/enter").status_code == 200
    wrong = there.post("/enter", data={"token": "no"}, headers=OWN)
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    found = there.post("/enter", data={"token": TOKEN}, headers=OWN)
    assert found.status_code == 303
    cookie = found.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=") and TOKEN not in cookie
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "Path=/" in cookie
    assert there.get("/read").status_code == 200


def test_a_page_elsewhere_cannot_exchange_a_token() -> None:
    there = browser(token=TOKEN)
    for headers in ({}, {"origin": "http://evil.example"}):
        assert there.post("/enter", data={"token": TOKEN}, headers=headers).status_code == 403


def test_without_a_token_there_is_no_door() -> None:
    assert browser().get("/enter").status_code == 404


def test_first_page() -> None:
    assert browser().get("/").headers["location"] == "/read"


def test_pages_load_only_their_own_files() -> None:
    for path in ("/read", "/api", "/enter"):
        page = browser(token=TOKEN if path == "/enter" else None).get(path).text
        assert not re.search(r"""(src|href|action)=["'](?:https?:|//)""", page), path
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", page), path
        for script in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL):
            assert script == ""


def test_scripts_make_no_html_of_words() -> None:
    for file in STATIC.glob("*.js"):
        words = file.read_text(encoding="utf-8")
        assert not re.search(r"(inner|outer|Adjacent)HTML|eval\(|document\.write", words)
        assert not re.search(r"https?://", words)


def test_static_files_end_at_their_folder() -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"):
        assert browser().get(path).status_code in (401, 404, 405)
