"""Built-in settings for published experiments: `confide run ncbi-iid10`.

A recipe is a settings file of at most 30 lines, shipped with the package. Its first line is a
comment, its title. Its data are under `$CONFIDE_DATA`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confide.errors import SettingsError
from confide.settings import load_settings, nearest

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe's name, title, method, number of sites and rounds, and its corpora."""

    name: str
    title: str
    method: str
    sites: int
    rounds: int
    corpora: str


def recipes() -> list[RecipeInfo]:
    """The built-in recipes, by name."""
    return [_info(path) for path in _known().values()]


def recipe_path(name: str) -> Path:
    """The settings file of a recipe.

    Raises SettingsError, which names the nearest recipe, if there is none of that name.
    """
    known = _known()
    if name not in known:
        raise SettingsError(
            f"there is no settings file and no recipe {name!r}",
            expected="a .toml file, or the name of a recipe",
            fix=nearest(name, list(known)),
        )
    return known[name]


def settings_file(settings: str | Path) -> Path:
    """The file that a name stands for: a settings file or, if there is no such file, a recipe.

    Raises SettingsError as `recipe_path` does.
    """
    path = Path(settings)
    return path if path.suffix or path.exists() else recipe_path(str(settings))


def _known() -> dict[str, Path]:
    return dict(sorted((path.stem, path) for path in FOLDER.glob("*.toml")))


def _info(path: Path) -> RecipeInfo:
    settings = load_settings(path)
    split = settings.split
    files = [file for table in ((split,) if split else settings.site) for file in table.train]
    return RecipeInfo(
        name=path.stem,
        title=path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip(),
        method=settings.method,
        sites=split.sites if split else len(settings.site),
        rounds=settings.rounds,
        corpora=", ".join(sorted({file.split("/")[1] for file in files})),  # $CONFIDE_DATA/CORPUS/…
    )
