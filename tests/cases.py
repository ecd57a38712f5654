"""Tests of many small cases that are one item: a failure names its case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import wraps
from reprlib import repr as short
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def each(names: str | Iterable[str], values: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test with each of the values in one item, as `pytest.mark.parametrize` does in many.

    Every case has a `tmp_path` and a `monkeypatch` of its own; other fixtures are shared. All cases
    run; the first that failed is raised, with a note on each that did. The test is skipped if all
    its cases are.
    """
    values = list(values)
    assert not any(isinstance(value, ParameterSet) for value in values), "marks are for items"
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]
    assert cases, "there is no case"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @wraps(test)
        def run(*args: Any, **given: Any) -> None:
            failed: list[BaseException] = []
            skipped: list[BaseException] = []
            notes = []
            for number, case in enumerate(cases):
                with ExitStack() as stack:
                    own = dict(given)
                    if "tmp_path" in own:
                        own["tmp_path"] = given["tmp_path"] / f"case-{number}"
                        own["tmp_path"].mkdir()
                    if "monkeypatch" in own:
                        own["monkeypatch"] = stack.enter_context(given["monkeypatch"].context())
                    try:
                        test(*args, **own, **case)
                    except pytest.skip.Exception as error:
                        skipped.append(error)
                    except (Exception, pytest.fail.Exception) as error:
                        failed.append(error)
                        notes.append(f"case {number}, {short(case)}: {type(error).__name__}")
            if failed:
                for note in notes:
                    failed[0].add_note(note)
                raise failed[0]
            if len(skipped) == len(cases):
                raise skipped[0]

        del run.__wrapped__  # type: ignore[attr-defined]
        rest = [one for name, one in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
