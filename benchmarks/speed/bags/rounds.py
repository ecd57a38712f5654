"""One round of Lazy MIL with 100 sites on text of NYT10's size: seconds and peak memory.

    python benchmarks/speed/bags/rounds.py --out runs/rounds [--sentences 466876] [--words 100000]

The text is generated (`corpus.py`): its sentences, bags and lengths are those of NYT10, its words
are numbers in letters, as digits are all one to a vocabulary. A tenth of the sites take part. What
is measured is a whole `confide run` in a process of its own: reading the file, agreeing on the
vocabulary, bidding, training, one scoring. `dense_mb` is what all weights of the model would take,
`sent_mb` what a site sent of them.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from corpus import RELATIONS, SENTENCES, generated

SETTINGS = """
task = "bags"
method = "lazy-mil"
key = "simulated"
rounds = 1

[data]
format = "opennre"
dev_share = 0.01
test_share = 0.01

[split]
sites = {sites}
holdout_from = "corpus"
train = "{file}"

[federation]
fraction = {fraction}

[vocabulary]
min_count = 2

[options]
factor = 1.0
warmup_rounds = 0
"""


def spelled(number: int) -> str:
    """The number to the base of 26."""
    return (spelled(number // 26) if number > 25 else "") + chr(ord("a") + number % 26)


def written(path: Path, *, sentences: int, words: int) -> None:
    """The file of sentences, one a line; the same for the same numbers."""
    encoded, groups = generated(sentences, words=words)
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        for bag, group in enumerate(groups):
            for row in group.tolist():
                start, end = encoded.from_S1[row : row + 2].tolist()
                tokens = [spelled(number) for number in encoded.words_N[start:end].tolist()]
                places = []
                for spans_S2 in (encoded.heads_S2, encoded.tails_S2):
                    first, last = spans_S2[row].tolist()
                    begin = len(" ".join(tokens[:first])) + bool(first)
                    places.append([begin, begin + len(" ".join(tokens[first:last]))])
                label = int(encoded.relations_S[row])
                text = " ".join(tokens)
                ends = [
                    {"id": f"{name}{bag}", "name": text[a:b], "pos": [a, b]}
                    for name, (a, b) in zip("ht", places, strict=True)
                ]
                relation = f"R{label}" if 0 < label < RELATIONS else "NA"
                line = {"text": text, "relation": relation, "h": ends[0], "t": ends[1]}
                file.write(json.dumps(line) + "\n")
    new.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--json", type=Path, help="add what was measured to this file, a line")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"{given.sentences}-{given.words}"
    file = given.out.absolute() / f"{name}.jsonl"
    if not file.exists():
        written(file, sentences=given.sentences, words=given.words)
    settings = given.out / f"{name}-{given.sites}.toml"
    settings.write_text(
        SETTINGS.format(sites=given.sites, file=file, fraction=given.fraction), encoding="utf-8"
    )
    out = given.out / f"run-{name}-{given.sites}-{time.time_ns()}"
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "confide", "run", str(settings), "--out", str(out), "--quiet"],
        check=True,
    )
    seconds = time.perf_counter() - started
    result = json.loads((out / "result.json").read_text())
    (only,) = result["history"]
    found = {
        "sentences": given.sentences,
        "words": given.words,
        "sites": given.sites,
        "fraction": given.fraction,
        "seconds": round(seconds, 1),
        "round_seconds": round(only["train_seconds"], 1),
        "peak_rss_mb": round(result["peak_rss_mb"]),
        "text_mb": file.stat().st_size // 2**20,
        "dense_mb": round(4 * result["parameters"] / 1e6, 2),
        "sent_mb": round(sent(out) / 1e6, 2),
    }
    print(json.dumps(found))
    if given.json:
        with given.json.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(found) + "\n")


def sent(run: Path) -> float:
    """Bytes that a site's weights took on their way up, in the mean over those that trained."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").open()]
    mine = [
        line["bytes"]
        for line in lines
        if (line["step"], line["direction"], line["field"]) == ("train_on_winners", "up", "weights")
    ]
    return sum(mine) / len(mine)


if __name__ == "__main__":
    main()
