"""Documents and problems onto the screen or into files."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confide.console.screen import console
from confide.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from confide.text.document import Document, Problem


def put_documents(documents: Sequence[Document], path: Path | None, *, format: str) -> None:
    """Write documents to a path, or to stdout; say on stderr what the format could not hold.

    Raises SettingsError where the format is a folder and there is no path.
    """
    from confide import api

    if path is not None:
        say_problems(api.write(documents, path, format))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "documents"
        problems = [
            replace(problem, where="stdout") for problem in api.write(documents, file, format)
        ]
        if file.is_dir():
            raise SettingsError(f"{format} is a folder of files", fix="name the folder with --out")
        sys.stdout.write(file.read_text(encoding="utf-8"))
    say_problems(problems)


def say_problems(problems: Sequence[Problem]) -> None:
    """Problems on stderr: how many of each kind, and the first few."""
    screen = console(sys.stderr)
    for line in problem_lines(problems):
        screen.print(line, soft_wrap=True)


def problem_lines(problems: Sequence[Problem], *, most: int | None = 3) -> list[Text]:
    """How many problems there are of each kind, and the first `most` of each; None: all."""
    from rich.text import Text

    lines = []
    for kind, number in Counter(problem.kind for problem in problems).most_common():
        of_kind = [problem for problem in problems if problem.kind == kind]
        if number == 1:
            (only,) = of_kind
            lines.append(Text.assemble((kind, "bold yellow"), f": {only.where}: {only.what}"))
            continue
        lost = sum(problem.lost for problem in of_kind)
        heading = f"{kind}: {number}" + (f", {lost} lost" if lost else "")
        lines.append(Text(heading, style="bold yellow"))
        lines += [Text(f"  {problem.where}: {problem.what}") for problem in of_kind[:most]]
        if most is not None and number > most:
            lines.append(Text(f"  … and {number - most} more", style="dim"))
    return lines
