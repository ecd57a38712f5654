"""Every example in a docstring is run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

from cases import each

SRC = Path(__file__).resolve().parent.parent / "src"
NAMES = [
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@each("name", NAMES)
def test_docstring_examples(name: str) -> None:
    done = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert done.attempted and not done.failed
