"""What the docs site needs beyond Markdown: pages that lie outside docs/, links to them, notebooks.

The same files are read on code hosts, so links stay relative to the repository there. Here, a link
that leaves docs/ leads to the page that was brought in, or, if it leads to code, becomes its name.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
OUTER = {"README.md": "start.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""Pages outside docs/ by their path in the repository, and what they are called on the site."""
MOVED = {
    "architecture.md": "extend/architecture.md",
    "writing-a-format.md": "extend/writing-a-format.md",
    "writing-a-kind.md": "extend/writing-a-kind.md",
    "writing-a-method.md": "extend/writing-a-method.md",
    "methods/ditto.md": "methods/non-iid.md",
    "methods/fedbn.md": "methods/non-iid.md",
    "methods/feddyn.md": "methods/non-iid.md",
    "methods/fedprox.md": "methods/non-iid.md",
    "methods/scaffold.md": "methods/non-iid.md",
    "formats/ade.md": "formats/published.md",
    "formats/bags.md": "formats/published.md",
    "formats/bioc.md": "formats/pubtator.md",
    "formats/ddi.md": "formats/published.md",
    "formats/i2b2.md": "formats/published.md",
    "formats/inception.md": "formats/tools.md",
    "formats/pairs.md": "formats/published.md",
    "formats/psytar.md": "formats/published.md",
    "context.md": "encoders.md",
    "audit.md": "privacy-audit.md",
    "nested.md": "nested-entities.md",
    "noise.md": "differential-privacy.md",
    "robust.md": "robust-aggregation.md",
    "secure-sums.md": "secure-aggregation.md",
    "privacy.md": "security.md",
    "security-office.md": "security.md",
    "threats.md": "security.md",
}
"""Earlier pages, and where their subject is now: the site leads old links there."""
LINK = re.compile(r"(\[`[^`]+`)?\]\(([^)\s]+)\)")
"""The end of a link, or a whole one if its text is code."""
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^<!-- *(test|table):.*-->\n", re.MULTILINE)


def outer() -> dict[str, str]:
    """Pages and pictures of the repository that the site shows: their path there, and here."""
    benchmarks = sorted(
        path
        for path in (ROOT / "benchmarks").rglob("*")
        if path.suffix in {".md", ".svg", ".png"} and path.is_file()
    )
    return OUTER | {
        name: name.replace("README.md", "index.md")
        for name in (path.relative_to(ROOT).as_posix() for path in benchmarks)
    }


def on_files(files: Files, config: Any) -> Files:
    """Bring in the pages outside docs/, and turn notebooks into pages."""
    for name, here in outer().items():
        if not name.endswith(".md"):
            files.append(File.generated(config, here, abs_src_path=str(ROOT / name)))
            continue
        files.append(File.generated(config, here, content=(ROOT / name).read_text("utf-8")))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        if (old := files.get_file_from_path(name)) is not None:
            files.remove(old)
        page = notebook(json.loads(path.read_text("utf-8")), path.name)
        files.append(File.generated(config, name.replace(".ipynb", ".md"), content=page))
    for file in files.documentation_pages():
        if file.src_uri.startswith("benchmarks/"):
            file.inclusion = type(file.inclusion).NOT_IN_NAV
    return files


def on_config(config: Any) -> Any:
    """The navigation names notebooks as the files they are; the site has pages of them."""
    config["nav"] = json.loads(json.dumps(config["nav"]).replace(".ipynb", ".md"))
    return config


def notebook(cells: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its text, its code, and where the notebook is."""
    parts = []
    for cell in cells["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    parts.insert(
        1, f"*This page is the notebook `docs/notebooks/{name}`: open it in Jupyter to run it.*"
    )
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Take out the marks of tests, and point links at the site's own pages."""
    known = outer()
    back = {here: name for name, here in known.items()}
    uri = page.file.src_uri
    source = back.get(uri, DOCS + uri)

    def pointed(match: re.Match[str]) -> str:
        text = match[1] or ""
        target, _, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / there).is_dir() and f"{there}/README.md" in known:
            there = f"{there}/README.md"
        here = known.get(there) or (there.removeprefix(DOCS) if there.startswith(DOCS) else "")
        here = here.replace(".ipynb", ".md")
        if not here:
            return text[1:] or "]"  # code: its name stays, without a link
        link = posixpath.relpath(here, posixpath.dirname(uri) or ".")
        return f"{text}]({link}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(MARK.sub("", markdown))
    return "".join(part if part.startswith("```") else LINK.sub(pointed, part) for part in parts)


def on_post_build(config: Any) -> None:
    """Leave a page at each earlier address that leads on."""
    for old, new in MOVED.items():
        there = Path(config["site_dir"], old).with_suffix(".html")
        target = posixpath.relpath(new, posixpath.dirname(old) or ".").replace(".md", ".html")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(
            f'<!doctype html><meta charset="utf-8"><title>Moved</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Moved</a>\n',
            encoding="utf-8",
        )
