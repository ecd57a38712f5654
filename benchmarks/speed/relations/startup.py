"""(c) Seconds from the start of Python to the end of a first step of fine-tuning MiniLM.

Two processes of their own: one imports confide, loads the encoder, makes a classifier and trains it
on one batch of four sentences; the other is `confide run feded-euadr`, which also reads the corpus,
deals it to 50 sites, lets them agree and gives the public set out, up to the first step of the
first site. Wall time, and processor time, of the whole process.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

from common import keep, parser_of

PROGRAM = """
import torch
torch.set_num_threads({threads})
from confide.kinds.relations.batches import RelationExample
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
text = "the patient took aspirin and had a headache the whole of the next day"
one = RelationExample(id="1", text=text, head=((17, 24),), tail=((35, 43),), head_type="Drug",
                      tail_type="Effect", relation="causes")
trainer = RelationTrainer(load_encoder("minilm"), RelationSpec(("none", "causes")))
settings = Optimiser("adamw", learning_rate=2.5e-5)
pairs = trainer.annotated(trainer.prepared([one] * 4))
report = trainer.fit(trainer.initial({seed}), pairs, epochs=1, batch_size=4, optimiser=settings,
                      seed={seed})
assert report.steps == 1
"""
RUN = """
import sys, tempfile
from pathlib import Path
from confide.training.optimisers import Descent
real = Descent.step_down
def first(*given):
    real(*given)
    sys.exit(0)
Descent.step_down = first
from confide import api
with tempfile.TemporaryDirectory() as folder:
    api.run("feded-euadr", overrides=["seed={seed}", "threads={threads}"], out=Path(folder) / "run")
sys.exit("no step was taken")
"""


def main() -> None:
    options = parser_of(__doc__, repeats=5).parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    measured = {}
    for name, program in {"classifier": PROGRAM, "confide run": RUN}.items():
        filled = program.format(threads=options.threads, seed=options.seed)
        wall, processor = timed(filled, environment, repeats=options.repeats)
        measured |= {
            f"{name}: wall, median": statistics.median(wall),
            f"{name}: wall, least": min(wall),
            f"{name}: processor time, median": statistics.median(processor),
        }
    keep("startup", measured, options)


def timed(
    program: str, environment: dict[str, str], *, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds on the wall and of the processor, of each process."""
    wall, processor = [], []
    for turn in range(repeats + 1):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
        if turn:  # the first one reads the files from the disk
            wall.append(seconds)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            processor.append(used)
    return wall, processor


if __name__ == "__main__":
    main()
