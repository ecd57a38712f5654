"""Run every case of the golden record, and keep it or compare with it, bit for bit.

    python benchmarks/house/golden/run.py record      # golden.jsonl; cases that are there are kept
    python benchmarks/house/golden/run.py check       # all of them again: what differs is printed
    python benchmarks/house/golden/run.py check --only fedner

Numbers of another machine or another PyTorch differ in their last bits: record there, at the commit
to compare with, before you check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))  # its made-up corpora

from recording import recorded
from shrinking import shrink

from cases import Case, cases
from confide.federation.keys import new_key
from confide.methods import METHODS, wire
from confide.recipes import recipe_path
from confide.runs.run import run
from confide.settings import Settings, load_settings, parse
from contract import corpus

GOLDEN = Path(__file__).resolve().with_name("golden.jsonl")


def machine() -> str:
    """What the last bits of a number depend on."""
    import torch

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return f"{model}, Python {platform.python_version()}, torch {torch.__version__}"


def settings_of(case: Case, folder: Path, data: Path | None) -> Settings | str:
    """The settings of a case, whose corpora are written into `folder`; or why it cannot be run."""
    if case.recipe:
        settings = load_settings(recipe_path(case.recipe), case.overrides)
        if data is None:
            return "CONFIDE_DATA is not set"
        missing = shrink(settings, data, folder / "data")
        os.environ["CONFIDE_DATA"] = str(folder / "data")
        return f"no {missing[0]}" if missing else settings
    if case.pair:
        return corpus.tiny(folder, f"method={case.pair}", *case.overrides)
    tables = corpus.WRITE[case.task](folder / "made up", 3)
    if case.knows:
        tables = [{**corpus.lacking(case.task, n), **table} for n, table in enumerate(tables)]
    reader = (f"bags.reader={case.kind}",) if case.task == "bags" else ()
    tree: dict[str, Any] = {"task": case.task, **corpus._usual(folder, case.task, reader)}
    if case.knows:
        tree |= corpus.tiny_kind(case.kind) if case.task == "ner" else {}
        tree["options"] = {"warmup_rounds": 0}
    key = folder / "shared.key"
    new_key(key, corpus.KEY)
    return parse({"key": str(key), **tree, "site": tables}, case.overrides)


def made(case: Case, data: Path | None) -> dict[str, Any]:
    """The record of one case."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            settings = settings_of(case, folder, data)
            if isinstance(settings, str):
                return {"skipped": settings}
            return recorded(run(settings, out=folder / "run").folder)
        except Exception as error:
            traceback.print_exc()
            return {"failed": f"{type(error).__name__}: {error}".replace(place, "...")}


def chosen(only: str) -> Iterator[Case]:
    seen = set()
    for case in cases():
        if case.name in seen:
            raise SystemExit(f"two cases are called {case.name!r}")
        seen.add(case.name)
        if only in case.name:
            yield case


def record(only: str, data: Path | None) -> None:
    known = {one["case"]: one for one in _lines()}
    for case in chosen(only):
        if "overall" in known.get(case.name, {}):
            continue
        start = time.perf_counter()
        found = made(case, data)
        if "failed" in found or "skipped" in found:
            print(f"not kept: {case.name}: {found}", flush=True)
            continue
        line = {"case": case.name, "machine": machine(), **found}
        with open(GOLDEN, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{time.perf_counter() - start:6.1f} s  {case.name}", flush=True)
    for method in METHODS:
        if f"wire {method}" not in known:
            rows = sorted(" | ".join(map(str, astuple(row))) for row in wire(method))
            with open(GOLDEN, "a", encoding="utf-8") as file:
                file.write(json.dumps({"case": f"wire {method}", "rows": rows}) + "\n")


def check(only: str, data: Path | None, *, but: Sequence[str]) -> int:
    """How many cases differ, in what else than `but`."""
    known = {one["case"]: one for one in _lines()}
    here, odd = machine(), 0
    for case in chosen(only):
        golden = known.get(case.name)
        if golden is None or "overall" not in golden:
            continue
        if golden["machine"] != here:
            raise SystemExit(f"recorded on {golden['machine']}, this is {here}: record here first")
        found = made(case, data)
        told = _told(golden, found, headers="headers" not in but)
        same = ("case", "machine", *but, *told)
        differ = [key for key in golden if key not in same]
        odd += bool(differ)
        print(
            f"{'DIFFERS ' if differ else 'same    '} {case.name}  {', '.join(differ)}", flush=True
        )
        for key in differ:
            print(f"          {key}: {golden[key]} -> {found.get(key, found.get('failed'))}")
    return odd


def _told(golden: dict[str, Any], found: dict[str, Any], *, headers: bool) -> list[str]:
    """The keys that are the same; without `headers`, of what crossed the arrays alone count."""
    same = [key for key, value in golden.items() if found.get(key) == value]
    if headers or "crossed" not in found:
        return same
    arrays = [
        {way: size for way, size in one["crossed"].items() if way.endswith(" arrays")}
        for one in (golden, found)
    ]
    return [*same, "crossed"] if arrays[0] == arrays[1] else same


def _lines() -> list[dict[str, Any]]:
    if not GOLDEN.exists():
        return []
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--but",
        action="append",
        default=[],
        help="a key that may differ, or headers: the bytes of all but arrays",
    )
    chosen = parser.parse_args()
    named = os.environ.get("CONFIDE_DATA")
    data = Path(named) if named else None
    if chosen.what == "record":
        record(chosen.only, data)
    elif check(chosen.only, data, but=chosen.but):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
