"""TOML that a user or a peer wrote -> plain values: bounded, and only SettingsError if it is wrong.

The parser of the standard library goes deeper with every bracket, takes time with the square of a
dotted key's parts, and leaves numbers of any length and control characters to its caller.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from confide.errors import MissingDataError, SettingsError, printable
from confide.userfiles import NotAFileError, TooLargeError, bytes_of, size_in_words

MOST_BYTES = 1 << 19
"""How large a file of settings may be."""
DEEPEST = 32
"""How deep tables and lists may be nested."""
LONGEST_KEY = 200
"""Characters of one part of a key."""
LONGEST_NUMBER = 1 << 63
"""Whole numbers are smaller than this, as TOML asks."""
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{2 * DEEPEST}}}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def read_toml(path: Path) -> dict[str, Any]:
    """The plain values of a TOML file.

    Raises:
        MissingDataError: there is no such file.
        SettingsError: it is no regular file, larger than `MOST_BYTES`, not UTF-8, or not TOML
            within the bounds of `parse_toml`. It names the file, and the line where that is known.
    """
    try:
        text = bytes_of(path, MOST_BYTES).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such file", where=printable(path, 1000), fix="check the path"
        ) from error
    except NotAFileError as error:
        raise _refused(path, f"{error.strerror}", "name a TOML file") from error
    except TooLargeError as error:
        raise _refused(path, f"the file is {error.strerror}", "say it in fewer lines") from error
    except UnicodeDecodeError as error:
        what = f"this is not TOML: byte {error.start} is not UTF-8"
        raise _refused(path, what, "write the file in UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refused(path, f"the file cannot be read ({reason})", "check the path") from error
    try:
        return parse_toml(text)
    except SettingsError as error:
        raise _refused(path, error.what, error.fix) from error


def _refused(path: Path, what: str, fix: str | None) -> SettingsError:
    return SettingsError(printable(what), where=printable(path, 1000), fix=fix)


def parse_toml(text: str) -> dict[str, Any]:
    """The plain values of a TOML text.

    Raises SettingsError: it is longer than `MOST_BYTES`, not TOML, nested deeper than `DEEPEST`,
    has a part of a key of more than `LONGEST_KEY` characters, a whole number of more than 64 bits,
    or a control character.
    """
    if len(text) > MOST_BYTES:
        raise SettingsError(
            f"TOML of more than {size_in_words(MOST_BYTES)}", fix="say it in fewer lines"
        )
    if _LONG.search(text):
        raise _too_deep()
    try:
        tree = tomllib.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # TOMLDecodeError, and numbers that are too long for Python
        what = f"this is not TOML: {printable(error)}"
        raise SettingsError(what, fix="correct it there") from error
    _check(tree)
    return tree


def _check(tree: dict[str, Any]) -> None:
    """Raise SettingsError for what no setting can be; level by level, not into the depth."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                for key in value:
                    _check_text(key)
                    if len(key) > LONGEST_KEY:
                        raise SettingsError(
                            f"a key of {len(key):,} characters",
                            fix=f"use keys of at most {LONGEST_KEY}",
                        )
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int) and not -LONGEST_NUMBER <= value < LONGEST_NUMBER:
                raise SettingsError("a whole number of more than 64 bits", fix="correct it")
        if not inner:
            return
        level = inner
    raise _too_deep()


def _check_text(text: str) -> None:
    found = _CONTROL.search(text)
    if found:
        raise SettingsError(
            f"the control character U+{ord(found[0]):04X} in a key or a value",
            fix="take it out; a line break and a tab are allowed",
        )


def _too_deep() -> SettingsError:
    return SettingsError(
        f"tables or lists are nested deeper than {DEEPEST}", fix="take brackets or dots out"
    )
