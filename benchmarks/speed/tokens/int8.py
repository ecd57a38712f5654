"""MiniLM that tags words in float32 and int8: confide, and its export in onnxruntime.

    python benchmarks/speed/tokens/int8.py RUN [--files FILE...] [--sentences N] [--no-export]
        [--threads 1] [--repeats 3] [--json FILE]

RUN is a run of `model.kind = "encoder"`. All sides read the same batches of the files, by default
NCBI-disease's development and test text, and decode in the same way; shown are sentences a second,
strict F1, and how many entities only one of a side and confide's float32 finds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from confide.api import export, release
from confide.runs.loading import load_release
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training.batches import examples_from
from confide.training.devices import in_int8

FILES = [f"$CONFIDE_DATA/ncbi_disease_ner/{name}" for name in ("devel.tsv", "test.tsv")]


class Exported(nn.Module):
    """An exported model in the place of confide's own."""

    def __init__(self, file: Path, threads: int) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(file), options)

    def forward(self, batch: object) -> Tensor:
        mask_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
        given = {"input_ids": batch.ids_BP, "attention_mask": mask_BP, "firsts": batch.firsts_BL}
        (found,) = self.session.run(None, {name: one.numpy() for name, one in given.items()})
        return torch.from_numpy(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--files", nargs="+", default=FILES, help="CoNLL files")
    parser.add_argument("--sentences", type=int, help="the first N; all by default")
    parser.add_argument("--no-export", action="store_true", help="confide's own sides alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was measured")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        copy = release(given.run, out=Path(place, "copy"))
        extractor = load_release(copy)
        trainer, sides = extractor.trainer, {"confide, float32": extractor.model}
        sides["confide, int8"] = in_int8(extractor.model)
        exports = {"onnxruntime, float32": False, "onnxruntime, int8": True}
        for name, int8 in () if given.no_export else exports.items():
            folder = export(copy, to="onnx", out=Path(place, name), int8=int8)
            sides[name] = Exported(folder / "model.onnx", given.threads)
        read_in = (read(locate(name), format="conll") for name in given.files)
        examples, _ = examples_from([one for text in read_in for one in text.documents])
        examples = examples[: given.sentences]
        text = trainer.prepared(examples)
        found, times = {}, {name: [] for name in sides}
        for turn in range(given.repeats + 1):
            for name, model in sides.items():
                started = time.process_time()
                found[name] = trainer.find(model, text)
                if turn:
                    times[name].append(time.process_time() - started)
    gold = [set(one.spans) for one in examples]
    measured = {}
    spans = {
        name: [{tuple(span[:3]) for span in one} for one in rows] for name, rows in found.items()
    }
    for name, taken in times.items():
        said = spans[name]
        pairs = zip(said, spans["confide, float32"], strict=True)
        differ = sum(len(one ^ other) for one, other in pairs)
        right = sum(len(one & other) for one, other in zip(gold, said, strict=True))
        f1 = 200 * right / (sum(map(len, gold)) + sum(map(len, said)))
        speed = len(examples) / statistics.median(taken)
        ratio = statistics.median(
            a / b for a, b in zip(times["confide, float32"], taken, strict=True)
        )
        measured[name] = {
            "sentences_per_second": speed,
            "faster": ratio,
            "f1": f1,
            "differ": differ,
        }
        print(
            f"{name:22} {speed:7.0f} sentences/s  {ratio:4.2f} x  strict F1 {f1:5.2f}"
            f"  of {sum(map(len, said))} entities {differ} differ"
        )
    if given.json:
        about = {name: version(name) for name in ("torch", "onnxruntime")}
        about |= {"threads": given.threads, "repeats": given.repeats, "date": str(date.today())}
        given.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
