"""Benchmarks go with this confide: their imports are there, and they run at a small size."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases import each

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = sorted(BENCHMARKS.rglob("*.py"))
TABLES = {
    "defaults/calibration/run.py": "--table",
    "defaults/init/run.py": "--table",
    "defaults/tuning/table.py": "",
    "papers/feded/entities.py": "--table",
    "papers/feded/table.py": "HERE/measured.jsonl",
    "papers/home/run.py": "--table",
    "papers/later/run.py": "--table",
    "papers/lazymil/levels.py": "--table",
    "papers/lazymil/table.py": "HERE/measured.jsonl",
    "papers/lowrank/run.py": "--table",
    "papers/npj/run.py": "--table",
    "papers/skew/run.py": "--table",
    "papers/steps/run.py": "--table",
    "papers/tags/genres.py": "HERE/genres.jsonl",
    "papers/tags/pairs.py": "--table",
    "papers/tags/table.py": "HERE/measured.jsonl",
    "security/attacks/bytes.py": "--table",
    "security/attacks/table.py": "HERE/measured.jsonl",
    "security/audit/run.py": "--table",
    "security/privacy/run.py": "--table",
    "speed/bytes/run.py": "--table",
    "speed/peers/run.py": "--table",
}
"""Programs that print the table of what was measured, and how."""
SIZES = {
    "defaults/segmentation/run.py": "",
    "house/golden/run.py": "check --only none",
    "house/size/run.py": "--still",
    "papers/home/simulated.py": "--sites 5",
    "security/fuzz/run.py": "messages --count 20",
    "security/secure/degrees.py": "",
    "speed/bags/rounds.py": "--out OUT --sentences 600 --words 2000 --sites 4 --fraction 0.5",
    "speed/bags/speed.py": "--sentences 200 --repeats 1 --words 20000",
    "speed/context/run.py": "--sentences 20 --repeats 1",
    "speed/crf/run.py": "--repeats 2",
    "speed/federation/growth.py": "--only sites --sizes 2 4",
    "speed/federation/iteration.py": "--synthetic --share 0.05 --rounds 3 --blocks 1",
    "speed/federation/overhead.py": "--synthetic --share 0.02 --sites 2 --rounds 1 --repeat 1",
    "speed/federation/workers.py": "--synthetic --share 0.02 --sites 2 --rounds 1 --repeat 1",
    "speed/gpu/speed.py": "--device cpu --precision float32 --sizes tiny --sides ours plain"
    " --steps 2 --batch-sizes 2 4 --length 16 --repeats 1",
    "speed/peers/run.py": "--only tagger --sides ours careful --sentences 20 --repeats 1"
    " --keep OUT/found.json",
    "speed/tagger/run.py": "--sentences 40 --repeats 1",
}
"""The smallest size of each program that needs no corpus and takes seconds."""
ON_CORPORA = {
    "defaults/norms/norms.py": "ncbi-iid10 rounds=1 data.train_share=0.02",
    "house/formats/run.py": "--data $CONFIDE_DATA --only conll",
    "house/matrix/run.py": "--out OUT --only fedavg-tagger",
    "papers/fedavg/run.py": "--out OUT --recipe ncbi-iid10 --method fedavg --seeds 1 --label small"
    " rounds=1 data.train_share=0.02",
    "papers/fedavg/loss.py": "--out OUT/run --keep OUT/loss.json --rounds 1 --epochs 2"
    " --share 0.02 split.sites=2",
    "papers/lazymil/run.py": "--out OUT --only half cdr --seeds 1 --labels half-50 cdr"
    " --methods fedavg-none --set rounds=1 data.train_share=0.1",
    "papers/tags/run.py": "--out OUT --kinds tagger --draws 1 --variants local-1 --small-dev"
    " --set rounds=1 data.train_share=0.02",
    "security/attacks/run.py": "--out OUT --only 1e30/median --rounds 1",
    "speed/flare/signing.py": "--rounds 3 --sites 2 --share 0.02",
    "speed/peers/run.py": "--only encoder --sides ours careful --sentences 10 --repeats 1"
    " --keep OUT/found.json",
    "speed/relations/scoring.py": "--repeats 1 --examples 8",
    "speed/relations/training.py": "--repeats 1 --examples 8 --long 4",
    "speed/tokens/run.py": "--sentences 10 --repeats 1",
}
"""The same of programs that read published corpora."""


def _is_missing(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return False
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return True
    return False


def _run(program: str, arguments: str, out: Path) -> str:
    """What a program prints that must succeed, in the folder `out`."""
    places = {"OUT": out, "HERE": (BENCHMARKS / program).parent}
    for name, place in places.items():
        arguments = arguments.replace(name, str(place))
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program, *map(os.path.expandvars, arguments.split())],
        cwd=out,
        env={**own, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_names_that_benchmarks_import_exist() -> None:
    assert PROGRAMS
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.module}.{one.name}"
        for path in PROGRAMS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "confide"
        for one in node.names
        if node.module and _is_missing(node.module, one.name)
    ]
    assert not missing


def test_the_table_of_benchmarks_has_every_folder() -> None:
    folders = {path.parent for path in BENCHMARKS.glob("*/*/README.md")}
    assert folders == {path for path in BENCHMARKS.glob("*/*") if _is_kept(path)}
    table = (BENCHMARKS / "README.md").read_text("utf-8")
    missing = [one.relative_to(BENCHMARKS) for one in folders if f"({_link(one)})" not in table]
    assert not missing


def _is_kept(path: Path) -> bool:
    return path.is_dir() and path.name != "__pycache__"


def _link(folder: Path) -> str:
    return f"{folder.relative_to(BENCHMARKS).as_posix()}/README.md"


@pytest.mark.slow
@each("path", [one for one in PROGRAMS if "ArgumentParser(" in one.read_text("utf-8")])
def test_help_says_what_a_benchmark_does(path: Path, tmp_path: Path) -> None:
    if path.name == "common.py":
        pytest.skip("its parser is that of the programs beside it")
    assert "usage:" in _run(path.relative_to(BENCHMARKS).as_posix(), "--help", tmp_path)


@pytest.mark.slow
@each("program", TABLES)
def test_a_benchmark_prints_what_was_measured(program: str, tmp_path: Path) -> None:
    assert "|" in _run(program, TABLES[program], tmp_path)


@pytest.mark.slow
@each("program", SIZES)
def test_a_benchmark_runs_at_its_smallest_size(program: str, tmp_path: Path) -> None:
    _run(program, SIZES[program], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("CONFIDE_DATA" not in os.environ, reason="needs the published corpora")
@each("program", ON_CORPORA)
def test_a_benchmark_runs_on_a_little_of_its_corpus(program: str, tmp_path: Path) -> None:
    _run(program, ON_CORPORA[program], tmp_path)
