"""TOML within bounds: from a user or a peer to plain values; whatever is wrong is a SettingsError.

The standard library's parser recurses with every bracket, takes time quadratic in the parts of a
dotted key, and passes on numbers of any length and control characters.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from confide.errors import MissingDataError, SettingsError, printable
from confide.files import NotAFileError, TooLargeError, Tree, file_bytes, size_in_words

MOST_BYTES = 1 << 19
"""The largest file of settings, in bytes."""
DEEPEST = 32
"""The deepest nesting of tables and lists."""
LONGEST_KEY = 200
"""The most characters in one part of a key."""
LONGEST_NUMBER = 1 << 63
"""Whole numbers are below this, as TOML demands."""
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{2 * DEEPEST}}}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def read_toml(path: Path) -> Tree:
    """The plain values of a TOML file.

    Raises:
        MissingDataError: there is no such file.
        SettingsError: it is not a regular file, larger than `MOST_BYTES`, not UTF-8, or not TOML
            within the bounds of `parse_toml`. The error names the file, and the line if known.
    """
    try:
        text = file_bytes(path, MOST_BYTES).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such file", where=printable(path, 1000), fix="check the path"
        ) from error
    except NotAFileError as error:
        raise _refused(path, f"this is {error.strerror}", "name a TOML file") from error
    except TooLargeError as error:
        raise _refused(path, f"the file is {error.strerror}", "shorten it") from error
    except UnicodeDecodeError as error:
        what = f"this is not TOML: byte {error.start} is not UTF-8"
        raise _refused(path, what, "save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refused(path, f"the file cannot be read ({reason})", "check the path") from error
    try:
        return parse_toml(text)
    except SettingsError as error:
        raise _refused(path, error.what, error.fix) from error


def _refused(path: Path, what: str, fix: str | None) -> SettingsError:
    return SettingsError(printable(what), where=printable(path, 1000), fix=fix)


def parse_toml(text: str) -> Tree:
    """The plain values of a TOML text.

    Raises SettingsError if the text is longer than `MOST_BYTES`, not TOML, nested deeper than
    `DEEPEST`, or has part of a key longer than `LONGEST_KEY`, a whole number of more than 64 bits,
    or a control character.
    """
    if len(text) > MOST_BYTES:
        raise SettingsError(
            f"the TOML is longer than {size_in_words(MOST_BYTES)}", fix="shorten it"
        )
    if _LONG.search(text):
        raise _too_deep()
    try:
        tree = tomllib.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # TOMLDecodeError, and numbers that are too long for Python
        what = f"this is not TOML: {printable(error)}"
        raise SettingsError(what, fix="correct that place") from error
    _check(tree)
    return tree


def _check(tree: Tree) -> None:
    """Raise SettingsError for what no setting can be; walks level by level, without recursion."""
    level: list[object] = [tree]
    for _ in range(DEEPEST):
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                for key in value:
                    _check_text(key)
                    if len(key) > LONGEST_KEY:
                        raise SettingsError(
                            f"a key has {len(key):,} characters",
                            fix=f"use keys of at most {LONGEST_KEY}",
                        )
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int) and not -LONGEST_NUMBER <= value < LONGEST_NUMBER:
                raise SettingsError("a whole number has more than 64 bits", fix="correct it")
        if not inner:
            return
        level = inner
    raise _too_deep()


def _check_text(text: str) -> None:
    found = _CONTROL.search(text)
    if found:
        raise SettingsError(
            f"a key or a value holds the control character U+{ord(found[0]):04X}",
            fix="remove it; line breaks and tabs are allowed",
        )


def _too_deep() -> SettingsError:
    return SettingsError(
        f"tables or lists are nested more than {DEEPEST} deep", fix="remove brackets or dots"
    )
