"""deployment.md, site-file.md and codes.md say what the code says: messages, keys, codes.

PYTHONPATH=src:tests python tests/flare/test_deployment_page.py    # writes docs/codes.md anew
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import confide
from cases import each
from confide.federation.failures import CODES
from confide.settings import ConsentTable, SiteFile, SiteGuards
from confide.settings.sitefile import Agreement
from confide.settings.tables import GuardsTable

SOURCE = Path(confide.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"
TEXT = PAGE.read_text(encoding="utf-8")
TROUBLE = TEXT.partition("\n## Trouble")[2]
SITE_FILE = PAGE.with_name("site-file.md").read_text(encoding="utf-8")
KEYS, _, AGREEMENT = SITE_FILE.partition("\n## The agreement")
CODES_PAGE = PAGE.with_name("codes.md")
CODES_HEAD = """# Error codes: why a site did not answer

A site that refuses or fails sends one of these codes, and never a word of its text. The terminal
and `history[].faults` of `result.json` also say what to do. The server has four of its own:
`refused` (a reply is too large, not finite, misshapen or impossible), `too-far` (an update many
times as large as the others'), `differs` (key, vectors or encoder unlike most sites') and
`other-common` (under masks: what the site was given is).

"""


def strings() -> list[str]:
    """Every text in the code that confide raises or shows; the fixed parts of formatted ones."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def messages() -> list[str]:
    """What the table of messages quotes."""
    rows = [line for line in TROUBLE.splitlines() if line.startswith("| ")][1:]
    return [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_page_quotes_messages_that_the_code_has() -> None:
    known = strings()
    assert len(messages()) > 5
    for message in messages():
        for part in filter(None, (part.strip() for part in message.split("…"))):
            assert any(part in text for text in known), f"no message says {part!r}"


def codes_page() -> str:
    """Each code with its cause; what to do about it, after the semicolon, is in the message."""
    causes = {code: why.partition(";")[0] for code, why in sorted(CODES.items())}
    return CODES_HEAD + "".join(f"- `{code}`: {why}\n" for code, why in causes.items())


def test_every_code_is_on_its_page() -> None:
    assert CODES_PAGE.read_text(encoding="utf-8") == codes_page()


def test_every_line_of_an_agreement_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`.*?) \|", AGREEMENT, re.M)
    shown = {name for row in rows for name in row.split("`")}
    assert set(Agreement.model_fields) <= shown


def test_the_page_says_the_defaults() -> None:
    keys = {field.alias or name: field.default for name, field in SiteFile.model_fields.items()}
    plain = {name: keys[name] for name in ("memory", "canaries", "compared", "schema")}
    for name, value in (plain | SiteGuards().model_dump()).items():
        said = re.search(rf"^\| `{name}` \| `?(.*?)`? \|", KEYS, re.M)
        shown = list(value) if isinstance(value, tuple) else value
        text = f"{shown:g}" if isinstance(shown, float) else str(shown)
        text = f'"{shown}"' if isinstance(shown, str) else text
        assert said and said[1].lower() == text.lower()


@each("table", [SiteFile, GuardsTable, ConsentTable])
def test_every_key_of_a_sites_file_is_on_the_page(table: type) -> None:
    shown = set(re.findall(r"`\[?([a-z_]+)[\].A-Z]*`", KEYS))
    keys = {field.alias or name for name, field in table.model_fields.items()}
    assert not keys - shown


if __name__ == "__main__":
    CODES_PAGE.write_text(codes_page(), encoding="utf-8")
