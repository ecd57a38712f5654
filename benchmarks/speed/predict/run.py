"""Prediction from raw text: a cold start, a model in memory, and an encoder beside its peers.

    python benchmarks/speed/predict/run.py cold RUN [--other SRC] [--turns 5]
    python benchmarks/speed/predict/run.py warm RUN --text FILE [--other SRC] [--turns 5]
    python benchmarks/speed/predict/run.py encoder RUN --text FILE [--turns 3] [--json FILE]

`cold` takes `confide predict RUN` of one sentence beside `python -c "import torch"`; `warm` asks
`nlp.pipe` for all texts, and then for each by itself. SRC is another commit's src/, measured in
turns with this one. `encoder` labels the texts with a run of `model.kind = "encoder"`: in confide,
in float32 and int8, in transformers' pipeline, and in a loop of onnxruntime on the export in int8;
peers are given the texts by length.
FILE has a text a line. Times are of the processor, with one thread; ratios are medians over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SRC = HERE.parents[3] / "src"
sys.path.insert(0, str(HERE.parents[1]))

from turns import in_turn  # noqa: E402

Times = dict[str, list[float]]


def spent(command: list[str], src: Path) -> float:
    """Seconds of processor time that a program takes, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: compiled once
    subprocess.run([sys.executable, *command], check=True, env=env, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cold(run: Path, sources: dict[str, Path], turns: int) -> Times:
    """Programs from their start to their end."""
    with tempfile.TemporaryDirectory() as made:
        note = Path(made) / "note.txt"
        note.write_text("Rash after aspirin 20 mg.", encoding="utf-8")
        predict = ["-m", "confide", "predict", str(run.resolve()), str(note)]
        commands = {"import torch": (["-c", "import torch"], SRC)}
        commands |= {f"predict, {name}": (predict, src) for name, src in sources.items()}
        times: Times = {name: [] for name in commands}
        for turn in range(turns + 1):
            for name, (command, src) in commands.items():
                seconds = spent(command, src)
                if turn:  # the first compiles
                    times[name].append(seconds)
    return times


def labelled(run: Path, texts: list[str]) -> dict[str, float]:
    """Seconds of one process that labels all texts together, and then each by itself."""
    import confide

    nlp = confide.load(run)
    list(nlp.pipe(texts[:64]))
    found = {}
    ways = {"pipe": lambda: list(nlp.pipe(texts)), "one by one": lambda: [nlp(t) for t in texts]}
    for name, call in ways.items():
        took = []
        for _ in range(3):
            started = time.process_time()
            call()
            took.append(time.process_time() - started)
        found[name] = min(took)
    return found


def warm(run: Path, text: Path, sources: dict[str, Path], turns: int) -> Times:
    """Models in memory, a process for each side and turn."""
    times: Times = {}
    command = [sys.executable, str(HERE), "label", str(run), "--text", str(text)]
    for _ in range(turns):
        for name, src in sources.items():
            env = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
            said = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
            for way, seconds in json.loads(said.stdout).items():
                times.setdefault(f"{way}, {name}", []).append(seconds)
    return times


def encoder(run: Path, texts: list[str], turns: int) -> Times:
    """An encoder and its peers, in one process."""
    import onnxruntime
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    import confide
    from confide.api import export, release

    torch.set_num_threads(1)
    by_length = sorted(texts, key=len)
    with tempfile.TemporaryDirectory() as made:
        copy = release(run, out=Path(made, "copy"))
        hf = export(copy, to="hf", out=Path(made, "hf"))
        onnx = export(copy, to="onnx", out=Path(made, "onnx"), int8=True) / "model.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(onnx), options)
        tokenizer = AutoTokenizer.from_pretrained(hf)
        model = AutoModelForTokenClassification.from_pretrained(hf)
        sides: dict[str, Callable[[], object]] = {}
        for name, int8 in (("confide, float32", False), ("confide, int8", True)):
            nlp = confide.load(run, int8=int8)
            sides[name] = lambda nlp=nlp: list(nlp.pipe(texts))
        how: Any = {"aggregation_strategy": "simple", "device": -1}
        peer = pipeline("token-classification", model=model, tokenizer=tokenizer, **how)
        sides["transformers' pipeline, float32"] = lambda: peer(texts)
        sides["transformers' pipeline, batches of 32"] = lambda: peer(by_length, batch_size=32)

        def loop() -> None:
            for start in range(0, len(texts), 32):
                given = tokenizer(by_length[start : start + 32], padding=True, return_tensors="np")
                ids_BP = given["input_ids"]
                firsts = torch.arange(ids_BP.shape[1]).expand(ids_BP.shape).numpy()
                inputs = {"input_ids": ids_BP, "firsts": firsts}
                inputs["attention_mask"] = given["attention_mask"]
                session.run(None, inputs)[0].argmax(2)

        sides["onnxruntime's loop, int8"] = loop
        return in_turn(sides, turns)


def main() -> None:
    """Measure, and print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("cold", "warm", "encoder", "label"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--other", type=Path, help="another commit's src/")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the seconds of each side and turn")
    given = parser.parse_args()
    texts = given.text.read_text(encoding="utf-8").splitlines() if given.text else []
    if given.what == "label":
        print(json.dumps(labelled(given.run, texts)))
        return
    sources = {"here": SRC} | ({"other": given.other.resolve()} if given.other else {})
    if given.what == "cold":
        times = cold(given.run, sources, given.turns)
    elif given.what == "warm":
        times = warm(given.run, given.text, sources, given.turns)
    else:
        times = encoder(given.run, texts, given.turns)
    if given.json:
        given.json.write_text(json.dumps(times, indent=1), encoding="utf-8")
    first = next(iter(times.values()))
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, first, strict=True))
        print(f"{name:40} {statistics.median(taken):8.3f} s {ratio:6.2f} x the first")


if __name__ == "__main__":
    main()
