"""The runs behind Lazy MIL's tables (Sui et al. 2021, Tables 2 to 4, and the claim behind them).

    python benchmarks/papers/lazymil/run.py --out runs/lazymil [--only pgr] \
        [--seeds 1 2 3 4 5] [--set ...]

Every run is a `confide run RECIPE --set …`. Finished runs are kept, unfinished ones are resumed, so
the command can be stopped and given again; several may work on different experiments of one folder.
`corpora.py` makes the corpora of `scattered` and `cdr`, unless they are there; `table.py` turns the
folder into tables. In a round of `scattered` and `cdr-all` all sites take part, of the others half
of them, but for `fraction` and `few`, where two of ten do. `denoisers` has a chain of sites and all
text in one place with every way to denoise, beside the rows of `half-50`. `lazy-mil` is the
paper's, with one winner of a bag and no warm rounds; `lazy-mil-warm` has one winner after six;
`lazy-mil-adaptive` is the default: several winners, after four.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

from corpora import corpora_in

HERE = Path(__file__).parent
DENOISERS = ("none", "one", "att", "ave", "att-ra")
ONE_WINNER = ("options.factor=1.0", "options.warmup_rounds=0")
FEDERATED = {
    "lazy-mil": ONE_WINNER,
    "lazy-mil-warm": ("options.factor=1.0", "options.warmup_rounds=6"),
    "lazy-mil-adaptive": ("options.factor=adaptive", "options.warmup_rounds=4"),
} | {f"fedavg-{one}": ("method=fedavg", f"bags.denoise={one}") for one in DENOISERS}
OTHERS = {
    f"{method}-{one}": (f"method={method}", *base, f"bags.denoise={one}")
    for method, base in {"chain": (), "pooled": ("base=fedavg",)}.items()
    for one in DENOISERS
}
SHARES = ("0", "25", "50", "75")
ALL, HALF = "federation.fraction=1.0", "federation.fraction=0.5"
TAKING_PART = {"scattered": ALL, "half": HALF}
"""Of the sites of `scattered-W` and `half-W` in a round."""
SWEPT = {"fraction": ("federation.fraction", ("0.2",)), "sites": ("split.sites", ("5", "40"))}
"""Settings of `half-50` that are changed; all sites of a round are `scattered-50`."""
FEW = {"few-25": "25", "few-75": "75"}
"""As `fraction`, with other shares of wrong sentences."""
LOCAL = [(epochs, batch) for batch in (16, 32) for epochs in (1, 3, 5)]
"""Local epochs and sentences of a batch of each row of `local`; 50 % wrong, C = 0.5."""
READER = (
    "bags.reader=encoder", "encoder.tune=top", "encoder.layers=2", "rounds=8",
    "training.optimiser=adamw", "training.learning_rate=2e-4", "training.local_epochs=1",
    "training.decay=1.0",
)  # fmt: skip
"""MiniLM in the place of the PCNN, its two last layers tuned, with 50 % wrong and C = 0.5."""
MODELS = {"reader": READER, "vectors": ("pcnn.vectors=glove-50",)}
"""Of `reader` and `vectors`; of all others a PCNN without vectors."""
Row = tuple[str, str, str, tuple[str, ...]]
"""(label, recipe, name of the method, overrides) of each run, but for its seed."""


def rows(only: str, out: Path) -> Iterator[Row]:
    """The runs of an experiment in the folder `out`, where its corpora are or are made."""
    if only in ("pgr", "gids"):
        for name, own in (FEDERATED | OTHERS).items():
            yield only, f"lazymil-{only}", name, own
    elif only in ("cdr", "cdr-all"):
        corpora = corpora_in(out)
        files = (f"split.train={corpora / 'cdr.jsonl'}", f"split.test={corpora / 'cdr-test.jsonl'}")
        for name, own in (FEDERATED | OTHERS).items():
            taking_part = ALL if only == "cdr-all" else HALF
            yield only, str(HERE / "cdr.toml"), name, (*files, taking_part, *own)
    elif only in TAKING_PART:
        for share in SHARES:
            for name, own in FEDERATED.items():
                yield scattered(only, out, share, name, own)
            if share != "0":
                right = f"right-{share}"
                yield scattered(only, out, right, "fedavg-none", FEDERATED["fedavg-none"])
    elif only == "denoisers":
        for name, own in OTHERS.items():
            yield scattered("half", out, "50", name, own)
    elif only in ("local", *MODELS):
        cells = {f"{only}-50": MODELS[only]} if only in MODELS else {
            f"local-e{epochs}-b{batch}": (
                f"training.local_epochs={epochs}", f"training.batch_size={batch}"
            )
            for epochs, batch in LOCAL
        }  # fmt: skip
        for label, more in cells.items():
            for name, own in FEDERATED.items():
                _, recipe, _, overrides = scattered("half", out, "50", name, own)
                yield label, recipe, name, (*overrides, *more)
    elif only in FEW:
        for name, own in FEDERATED.items():
            _, recipe, _, overrides = scattered("half", out, FEW[only], name, own)
            yield only, recipe, name, (*overrides, "federation.fraction=0.2")
    else:
        setting, values = SWEPT[only]
        for value in values:
            for name, own in FEDERATED.items():
                _, recipe, _, overrides = scattered("half", out, "50", name, own)
                yield f"{only}-{value}", recipe, name, (*overrides, f"{setting}={value}")


def scattered(only: str, out: Path, share: str, name: str, own: tuple[str, ...]) -> Row:
    """A run of sentences scattered into bags."""
    corpora = corpora_in(out)
    train, test = corpora / f"scattered-{share}.jsonl", corpora / "scattered-test.jsonl"
    files = (f"split.train={train}", f"split.test={test}", TAKING_PART[only])
    return f"{only}-{share}", str(HERE / "scattered.toml"), name, (*files, *own)


EXPERIMENTS = (
    "pgr", "gids", "cdr", "cdr-all", *TAKING_PART, *SWEPT, *FEW, "denoisers", "local", *MODELS
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lazymil"))
    parser.add_argument("--only", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--labels", nargs="*", help="only these rows")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="for every run")
    given = parser.parse_args()
    given.out = given.out.absolute()
    for only in given.only:
        for seed in given.seeds:
            for label, recipe, name, own in rows(only, given.out):
                if given.labels and label not in given.labels:
                    continue
                if not given.methods or name in given.methods:
                    out = given.out / "runs" / label / f"{name}-{seed}"
                    finished(recipe, [*own, f"seed={seed}", *given.overrides], out)


if __name__ == "__main__":
    main()
