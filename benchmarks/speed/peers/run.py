"""Ours beside other programs on the same work, in one run: speed, and F1 at equal processor time.

    python benchmarks/speed/peers/run.py [--only tagger budget encoder flower fedner] \
        [--sides ours careful] [--envs FOLDER]
    python benchmarks/speed/peers/run.py --table

Makes the environments of `environments.toml` that it needs and lacks; a peer that cannot be
installed is named and left out. Every side of a part is a process of its own on the same core, with
one thread, called in turn (`flower`: whole programs on all cores). measured.json keeps the parts
that are not measured again, and `--table` prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

from turns import ratio  # noqa: E402

Found = dict[str, Any]


# --- environments ---------------------------------------------------------------------------


def python_of(name: str, envs: Path) -> str | None:
    """The Python of an environment, which is made if need be; None if it cannot be installed."""
    if not name:
        return sys.executable
    packages = tomllib.loads((HERE / "environments.toml").read_text("utf-8"))[name]
    folder, python = envs / name, envs / name / "bin" / "python"
    made = folder / "packages.json"  # written when all of them are there
    if made.exists() and json.loads(made.read_text("utf-8")) == packages:
        return str(python)
    print(f"{name}: installing {' '.join(packages)}", flush=True)
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *packages],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: LEFT OUT, it cannot be installed:\n{done.stderr[-2000:]}", flush=True)
            return None
    made.write_text(json.dumps(packages), encoding="utf-8")
    return str(python)


def one_thread() -> dict[str, str]:
    """The environment variables of a side."""
    source = os.environ.get("PYTHONPATH", str(ROOT / "src"))
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, "PYTHONPATH": source, **own}


# --- sides in turn --------------------------------------------------------------------------


class Side:
    """A process that makes calls when it is told to."""

    def __init__(self, python: str, module: str, part: str, work: Path) -> None:
        command = [python, str(HERE / "worker.py"), module, part, str(work)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=one_thread()
        )
        self.name = module
        self.calls: list[str] = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def call(self, name: str) -> tuple[float, Any]:
        """Seconds of processor time that it took, and what it gave."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        seconds, found = self._answer()
        return seconds, found

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended: what it said is above")
        return json.loads(line)


def in_turn(
    part: str, work: Mapping[str, Any], given: argparse.Namespace, *, repeats: int
) -> Found:
    """Seconds of every call of every side, `repeats` times after one that is not counted."""
    found: Found = {"seconds": {}, "gave": {}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "work.json"
        file.write_text(json.dumps({**work, **common(given)}), encoding="utf-8")
        sides = [
            stack.enter_context(Side(python, module, part, file))
            for module, python in there(part, given).items()
        ]
        for turn in range(repeats + 1):
            for what in dict.fromkeys(name for side in sides for name in side.calls):
                for side in sides:
                    if what in side.calls:
                        seconds, gave = side.call(what)
                        name = f"{side.name}: {what}"
                        if turn:
                            found["seconds"].setdefault(name, []).append(round(seconds, 4))
                        found["gave"][name] = gave
    return found


def there(part: str, given: argparse.Namespace) -> dict[str, str]:
    """The Python of each side of a part that is wanted and can be had."""
    wanted = {
        module: env for module, env in PARTS[part][1].items() if module in (given.sides or [module])
    }
    found = {module: python_of(env, given.envs) for module, env in wanted.items()}
    return {module: python for module, python in found.items() if python}


def common(given: argparse.Namespace) -> Found:
    """What all sides know."""
    return {"core": max(os.sched_getaffinity(0)), "seed": given.seed}


def about(given: argparse.Namespace) -> Found:
    """When and where it was measured, and how."""
    model = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in one]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "date": str(date.today()),
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} x {model[0].split(': ')[1] if model else platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "options": {name: one for name, one in vars(given).items() if not isinstance(one, Path)},
    }


def merged(old: Found, new: Found) -> Found:
    """A part with what was measured of it at the same commit, of other corpora or recipes."""
    if old.get("about", {}).get("commit") != new["about"]["commit"]:
        return new
    held = {name: {**old[name], **new[name]} for name in ("seconds", "gave", "f1") if name in new}
    return {**new, **held}


# --- the table ------------------------------------------------------------------------------

NAMES = {
    "careful": "careful loop",
    "crf_peer": "CRF",
    "flair_peer": "flair",
    "flower_peer": "Flower's simulation",
    "spacy_peer": "spaCy",
}


def table(kept: Found) -> Iterator[str]:
    """A line for each peer and what it was measured in."""
    yield "| work | ours | beside | theirs | ours is |"
    yield "|---|--:|---|--:|--:|"
    for part, found in kept.items():
        yield from compared(part, found.get("seconds", {}))
        for corpus, points in found.get("f1", {}).items():
            yield from at_equal_time(corpus, points, found["about"]["options"])


def at_equal_time(
    corpus: str, points: Mapping[str, list[tuple[float, float]]], options: Found
) -> Iterator[str]:
    """F1 of each peer's last point within a budget, a twentieth more allowed."""
    for most in options["budgets"]:
        last = {
            side: max((one for one in own if one[0] <= 1.05 * most), default=None)
            for side, own in points.items()
        }
        shown = {side: f"{one[1]:.1f} ({one[0]:.0f} s)" for side, one in last.items() if one}
        for side, one in last.items():
            if side != "ours" and one and (ours := last.get("ours")):
                yield (
                    f"| F1 after {most:.0f} s, {corpus}, {options['train']} sentences |"
                    f" {shown['ours']} | {NAMES[side]} | {shown[side]} |"
                    f" {ours[1] - one[1]:+.1f} points |"
                )


def compared(part: str, seconds: Mapping[str, list[float]]) -> Iterator[str]:
    """Medians of seconds, and of the ratios of turns. `what (who)` is a call of `what`."""
    for name, theirs in seconds.items():
        side, _, what = name.partition(": ")
        what, _, who = what.rstrip(")").partition(" (")
        own = seconds.get(f"ours: {what}")
        if side == "ours" or not own:
            continue
        medians = [f"{statistics.median(one):.2f} s" for one in (own, theirs)]
        faster = f"{ratio(theirs, own):.2f} ×"
        yield (
            f"| {part}: {what} | {medians[0]} | {who or NAMES.get(side, side)} |"
            f" {medians[1]} | {faster} |"
        )


# --- the parts ------------------------------------------------------------------------------


def tagger(given: argparse.Namespace) -> Found:
    """A tagger from scratch: an epoch over NCBI-disease, and labelling as many sentences."""
    sys.path.append(str(HERE.parent / "tagger"))
    from corpus import sentences

    source, train = sentences("train", limit=given.sentences, seed=given.seed)
    _, test = sentences("test", limit=given.sentences, seed=given.seed)
    work = {"train": train, "test": test, "words": 9000, "batch_size": 16, "rate": 0.001}
    return {
        "source": source,
        "sentences": len(train),
        **in_turn("tagger", work, given, repeats=given.repeats),
    }


def encoder(given: argparse.Namespace) -> Found:
    """MiniLM that tags words: an epoch with all of it tuned, and raw text to entities."""
    sys.path.append(str(HERE.parent / "tagger"))
    from corpus import sentences

    from confide.training.encoder import load_encoder

    _, train = sentences("train", limit=given.sentences, seed=given.seed)
    source, test = sentences("test", limit=given.sentences, seed=given.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for part, some in (("train", train), ("test", test[:20])):
            blocks = ("\n".join(map("\t".join, zip(*one, strict=True))) for one in some)
            (folder / f"{part}.tsv").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        (folder / "peers.toml").write_text(TUNED, encoding="utf-8")
        cli("run", folder / "peers.toml", "--out", folder / "run")
        cli("release", folder / "run", "--out", folder / "copy")
        exports = {"hf": ("hf",), "onnx": ("onnx",), "int8": ("onnx", "--int8")}
        if "transformers_peer" not in there("encoder", given):
            exports = {"hf": ("hf",)}
        for name, how in exports.items():
            cli("export", folder / "copy", "--out", folder / name, "--to", *how)
        work = {
            "train": train, "texts": [" ".join(tokens) for tokens, _ in test], "batch_size": 8,
            "rate": 5e-5, "run": str(folder / "run"), "encoder": str(load_encoder("minilm").folder),
            **{name: str(folder / name) for name in exports},
        }  # fmt: skip
        return {
            "source": source,
            "sentences": len(train),
            **in_turn("encoder", work, given, repeats=given.repeats),
        }


TUNED = """
schema = 2
name = "peers"
method = "pooled"
rounds = 2
key = "simulated"

[model]
kind = "encoder"

[encoder]
tune = "all"

[training]
optimiser = "adamw"
learning_rate = 1e-4
batch_size = 8

[data]
format = "conll"
scheme = "iob2"
train_on = "file tokens"

[split]
sites = 2
train = "train.tsv"
dev = "test.tsv"
test = "test.tsv"
"""


def cli(*words: object, **more: str) -> float:
    """A command of ours, which must succeed; its seconds of processor time."""
    command = [sys.executable, "-m", "confide", *map(str, words)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command],
        capture_output=True, text=True, env={**one_thread(), **more}, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def budget(given: argparse.Namespace) -> Found:
    """F1 on test text after equal seconds of one core, of each program's own defaults."""
    sys.path.append(str(HERE.parents[1] / "defaults" / "init"))
    import cells

    found: Found = {"f1": {}}
    for corpus in given.corpora:
        with tempfile.TemporaryDirectory() as made:
            folder = cells.written(corpus, given.train, Path(made))
            blocks = cells.drawn(corpus, given.train)
            work = {
                part: [list(zip(*one, strict=True)) for block in blocks[part] for one in block]
                for part in ("train", "test")
            }
            sides = in_turn("budget", {**work, "budgets": given.budgets}, given, repeats=0)["gave"]
            points = {name.partition(":")[0]: gave for name, gave in sides.items()}
            if "ours" in (given.sides or ["ours"]):
                points["ours"] = initiated(folder, given)
        found["f1"][corpus] = points
    return found


def initiated(folder: Path, given: argparse.Namespace) -> list[tuple[float, float]]:
    """Seconds and F1 of what `confide init` writes for three sites, in rounds that fit the budgets.

    The runs have ten sentences of test text, as `evaluate` scores all of it afterwards.
    """
    test = sorted(folder.glob("site*/test.conll"))
    whole = [one.rename(one.with_name("all.conll")) for one in test]
    for one, all_of_it in zip(test, whole, strict=True):
        sentences = all_of_it.read_text("utf-8").split("\n\n")[:10]
        one.write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    parts = (sorted(folder.glob(f"site*/{part}.conll")) for part in ("train", "dev", "test"))
    settings = folder / "init.toml"
    cli("init", *(one for part in parts for one in part), "--out", settings)
    most = tomllib.loads(settings.read_text("utf-8"))["rounds"]

    def run(rounds: int) -> float:
        with tempfile.TemporaryDirectory() as cache:
            return cli(
                "run", settings, "--out", folder / f"run{rounds}", "--set", f"rounds={rounds}",
                "--set", f"seed={given.seed}", "--set", "key=simulated", CONFIDE_CACHE=cache,
            )  # fmt: skip

    from confide import api

    few = {rounds: run(rounds) for rounds in (1, min(3, most))}
    each = (few[max(few)] - few[1]) / max(1, max(few) - 1)
    points = []
    for seconds in given.budgets:
        rounds = max(1, min(most, 1 + int((seconds - few[1]) / max(each, 0.1))))
        if rounds not in few:
            few[rounds] = run(rounds)
        with tempfile.TemporaryDirectory() as cache:
            os.environ["CONFIDE_CACHE"] = cache
            scores = api.evaluate(folder / f"run{rounds}", whole)
        points.append((round(few[rounds], 1), round(100 * scores["strict"]["f1"], 1)))
    return points


def flower(given: argparse.Namespace) -> Found:
    """Whole runs of two recipes, beside the same training in Flower's simulation, on all cores."""
    sys.path.append(str(HERE / "flower"))
    import whole

    seconds: dict[str, list[float]] = {}
    found: Found = {"seconds": seconds, "gave": {}}
    peer = there("flower", given).get("flower_peer")
    for recipe, rounds in zip(given.recipes, given.rounds, strict=True):
        what = f"{recipe}, {rounds} round{'s' * (rounds > 1)}"
        sides = {"ours": whole.ours(recipe, rounds, seed=given.seed)}
        if peer:
            sides["flower_peer"] = whole.theirs(recipe, rounds, seed=given.seed, python=peer)
        for side, one in sides.items():
            seconds[f"{side}: {what}"] = [one["seconds"]]
            seconds[f"{side}: {what}, of the processor"] = [one["processor_seconds"]]
            found["gave"][f"{side}: {what}"] = one["f1"]
    return found


def fedner(given: argparse.Namespace) -> Found:
    """A round of FedNER beside the bare gradients and optimiser steps that it is made of."""
    program = HERE.parent / "federation" / "iteration.py"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        core = str(max(os.sched_getaffinity(0)))
        command = ["taskset", "-c", core, sys.executable, str(program), "--json", str(file)]
        subprocess.run(command, check=True, env=one_thread())
        rows = json.loads(file.read_text("utf-8"))["iteration"]["rows"]
    names = {"ours": "run_cpu", "bare gradients": "bare_cpu"}
    what = "a round of three sites"
    return {"seconds": {f"{who}: {what}": [row[key] for row in rows] for who, key in names.items()}}


PARTS: dict[str, tuple[Any, dict[str, str]]] = {
    "tagger": (tagger, {"ours": "", "careful": "", "spacy_peer": "spacy", "flair_peer": "flair"}),
    "budget": (budget, {"spacy_peer": "spacy", "crf_peer": "crf"}),
    "encoder": (encoder, {"ours": "", "careful": "", "transformers_peer": "transformers"}),
    "flower": (flower, {"flower_peer": "flower"}),
    "fedner": (fedner, {}),
}
"""How each part is measured; its sides, and the environment of each: "" is this one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sides", nargs="+", help="default: all of a part")
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--corpora", nargs="+", default=["ncbi-disease", "bc5cdr"])
    parser.add_argument("--train", type=int, default=700, help="sentences of `budget`")
    parser.add_argument("--budgets", nargs="+", type=float, default=[20, 40, 80])
    parser.add_argument("--recipes", nargs="+", default=["ncbi-iid10", "feded-gad"])
    parser.add_argument("--rounds", nargs="+", type=int, default=[10, 1], help="of each recipe")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=HERE / "measured.json")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    kept: Found = json.loads(given.keep.read_text("utf-8")) if given.keep.exists() else {}
    for name in [] if given.table else given.only:
        kept[name] = merged(kept.get(name, {}), {"about": about(given), **PARTS[name][0](given)})
        given.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for line in table(kept):
        print(line)


if __name__ == "__main__":
    main()
