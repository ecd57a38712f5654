"""Reading what a caller sent: the one place where a body from outside becomes typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from confide.errors import GuardError
from confide.federation.files import plain_name
from confide.serve.gate import Refused
from confide.serve.limits import Limits
from confide.settings.wording import expected, own_words
from confide.text.document import Document, Entity
from confide.text.segment import CODES, Splitting, into_sentences
from confide.userfiles import json_of

T = TypeVar("T", bound=BaseModel)

Id = Annotated[str, Field(min_length=1, max_length=200)]
Type = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
Place = Annotated[int, Field(ge=0)]
Language = Annotated[str | None, Field(pattern=r"^[a-z]{2}$")]
"""The language that the caller's texts are in; None: as the model learnt, or as they tell."""


Label = Annotated[str, Field(min_length=1, max_length=200)]
Types = Annotated[list[Label] | None, Field(min_length=1, max_length=1000)]
"""The labels among which the model decides; None: all, or what its site wants."""


class Given(BaseModel):
    """A body of JSON: unknown keys and loose types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class GivenEntity(Given):
    """An entity that the caller marked in its text."""

    type: Type
    start: Place
    end: Place
    id: Id | None = None


class GivenText(Given):
    """A text, with an id that comes back in the answer, and marked entities if there are any."""

    text: str
    id: Id | None = None
    entities: Annotated[list[GivenEntity], Field(max_length=10_000)] = []


class Predict(Given):
    """The body of POST /v1/predict."""

    texts: list[str | GivenText]
    model: Id | None = None
    threshold: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    language: Language = None
    types: Types = None


async def body_of(ask: Request, form: type[T]) -> T:
    """The JSON body as a checked value. Raises Refused, with none of the caller's words."""
    kind = ask.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "not-json", "the body is JSON, and says so: application/json")
    raw = await ask.body()
    try:
        tree = json_of(raw.decode("utf-8"), parse_constant=_no_constant)
    except ValueError:
        raise Refused(400, "not-json", "the body is not JSON") from None
    try:
        return form.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"] if _known(part, form))
        wanted = own_words(first) or expected(first, table="an object")
        what = "the body is not what was asked for: expected " + wanted
        raise Refused(422, "wrong-body", what + (f" at {place}" if place else "")) from None


def _known(part: int | str, form: type[BaseModel]) -> bool:
    """Whether a part of a place is a number or one of our own names, not a caller's key."""
    return isinstance(part, int) or part in form.model_fields or part in GivenText.model_fields


def _no_constant(name: str) -> None:
    raise ValueError(name)


def texts_of(asked: Predict, limits: Limits) -> list[Document]:
    """The texts as documents. Raises Refused: too many, too long, marks outside the text."""
    if not asked.texts:
        raise Refused(422, "no-text", "there is no text")
    if len(asked.texts) > limits.texts:
        raise Refused(413, "too-many", f"at most {limits.texts} texts go into one ask")
    documents = [document_of(given, n, limits) for n, given in enumerate(asked.texts, 1)]
    return cut(documents, asked.language)


def document_of(given: str | GivenText, number: int, limits: Limits) -> Document:
    """One text as a document; without an id it gets its number. Raises Refused."""
    if isinstance(given, str):
        given = GivenText(text=given)
    text = given.text
    if len(text) > limits.characters:
        raise Refused(413, "too-long", f"a text has at most {limits.characters} characters")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise Refused(422, "not-text", "a text has half of a surrogate pair")
    marked = [
        Entity(one.id or f"T{n}", one.type, ((one.start, one.end),))
        for n, one in enumerate(given.entities, 1)
    ]
    if any(not one.start < one.end <= len(text) for one in marked):
        raise Refused(422, "outside", "an entity is empty, or ends after its text")
    if len({one.id for one in marked}) < len(marked):
        raise Refused(422, "same-id", "two entities have the same id")
    return Document(given.id or str(number), text, tuple(marked))


def cut(documents: Sequence[Document], language: str | None) -> list[Document]:
    """The texts, cut into sentences by the rules of a language if one is stated. Raises Refused."""
    if language is None:
        return list(documents)
    if language not in CODES:
        raise Refused(422, "language", "a language is two letters of ISO 639-1, such as es or fr")
    return into_sentences(documents, Splitting(language))


async def form_of(ask: Request) -> Mapping[str, str]:
    """The fields of a posted form, the last of each name. Raises Refused."""
    kind = ask.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "not-a-form", "the body is a form")
    try:
        words = (await ask.body()).decode("utf-8")
        fields = parse_qs(words, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise Refused(400, "not-a-form", "the body is not a form") from None
    return {name: values[-1] for name, values in fields.items()}


def plain(name: Any, what: str) -> str:
    """A name that may become a file's. Raises Refused."""
    try:
        return plain_name(name, what)
    except GuardError:
        raise Refused(
            422, "name", f"this is not the name of {what}: letters, digits, '.', '_' and '-'"
        ) from None
