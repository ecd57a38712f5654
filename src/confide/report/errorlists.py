"""sites/NAME/errors.json: a site's own list of its errors, which holds its text.

A run writes it only where the site's text lay in the same process. docs/result.md describes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from confide.errors import RunError, printable
from confide.runs.result import first_wrong
from confide.userfiles import MOST_JSON, json_of, text_of

Place = Annotated[int, Field(ge=0, lt=1 << 63)]
Fragment = tuple[Place, Place]
Span = tuple[Place, Place, str] | tuple[Place, Place, str, float | None]
"""Start, end and type; of what a model found also how sure it is."""
Confusion = dict[str, dict[str, Place]]
"""By gold name and predicted name. Of entities "" is none; of relations a pair not looked at."""


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class SentenceCase(_List):
    """A sentence with errors."""

    text: str
    gold: list[Span]
    predicted: list[Span]
    where: str = ""


class PairText(_List):
    """A text with the fragments of head and tail; `score`: how far it speaks for a relation."""

    text: str
    head: list[Fragment]
    tail: list[Fragment]
    head_type: str | None = None
    tail_type: str | None = None
    where: str = ""
    score: float | None = None


class PairCase(PairText):
    """A pair with a wrong relation, or whose relation was not found."""

    gold: str
    predicted: str
    confidence: float | None = None


class BagCase(_List):
    """A bag whose likeliest label is wrong; `relation` is what the sentences' scores are of."""

    head: str
    tail: str
    names: tuple[str, str]
    gold: list[str]
    predicted: str
    confidence: float
    relation: str
    sentences: list[PairText]
    more: Place


class EntityErrors(_List):
    """Errors of a site that finds entities."""

    site: str
    confusion: Confusion = {}
    worst: list[SentenceCase] = []


class RelationErrors(_List):
    """Errors of a site that finds relations."""

    site: str
    confusion: Confusion = {}
    worst: list[PairCase] = []


class BagErrors(_List):
    """Errors of a site that finds facts of bags."""

    site: str
    confusion: Confusion = {}
    worst: list[BagCase] = []


def _task(tree: Any) -> str:
    task = tree.get("task") if isinstance(tree, dict) else None
    return task if task in ("re", "bags") else "ner"


Errors = EntityErrors | RelationErrors | BagErrors
_ERRORS: TypeAdapter[Errors] = TypeAdapter(
    Annotated[
        Annotated[EntityErrors, Tag("ner")]
        | Annotated[RelationErrors, Tag("re")]
        | Annotated[BagErrors, Tag("bags")],
        Discriminator(_task),
    ]
)


def read_errors(file: Path) -> Errors:
    """One site's errors. Raises RunError that names the first wrong value."""
    try:
        return errors_of(json_of(text_of(file, MOST_JSON)), site=file.parent.name)
    except ValidationError as error:
        raise first_wrong(error, _WHAT, file, fix=_FIX) from error
    except (OSError, ValueError) as error:
        raise RunError(_WHAT, where=str(file), got=printable(error), fix=_FIX) from error


def errors_of(tree: object, *, site: str = "") -> Errors:
    """What one errors.json holds; `site` is whose it is where it does not say.

    Raises ValidationError.
    """
    return _ERRORS.validate_python({"site": site, **tree} if isinstance(tree, dict) else tree)


_WHAT = "an errors.json of a site is damaged"
_FIX = "leave the sites' text out of the page, or make the run again"
