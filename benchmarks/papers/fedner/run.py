"""The runs behind FedNER's table and figures (Ge et al. 2020, Table 2 and Figs. 3 to 6).

    python benchmarks/papers/fedner/run.py --out runs/fedner [--only table] [--seeds 1 2 3] \
        [KEY=VALUE]...

Every run is a `confide run RECIPE --set …`. Finished runs are kept, unfinished ones are resumed, so
the command can be stopped and given again; several may work on different experiments of one folder.
`table.py` turns the folder into tables.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

TAGGERS = (
    "fedner-cnn-crf",
    "fedner-lstm-crf",
    "fedner-gram-cnn",
    "fedner-cnn-lstm-crf",
    "fedner-s-lstm-crf",
    "fedner-cnn-clstm-crf",
)
ELMONER = "fedner-medical"
BOTH = ("alone", "fedner")
PARTS = ["word", "character", "cnn", "bilstm", "crf"]
SPLITS = {"none": PARTS, "embeddings": PARTS[2:], "cnn": PARTS[3:], "bilstm": PARTS[4:], "all": []}

ROUNDS = {"0.1": 800, "0.5": 2000, "1.0": 3600}
"""By share of the training text: 30, 15 and 13 passes over it (the recipe: 18 over a quarter)."""


def at(share: str) -> tuple[str, ...]:
    """Overrides for another share of the training text than the recipe's quarter."""
    rounds = ROUNDS[share]
    return (f"data.train_share={share}", f"rounds={rounds}", f"select.every={rounds // 8}")


Experiment = list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]
"""(label, recipe, methods, overrides) of each row."""

EXPERIMENTS: dict[str, Experiment] = {
    "table": [*((name, name, ("alone",), ()) for name in TAGGERS), (ELMONER, ELMONER, BOTH, ())],
    "size": [  # a quarter is the table's
        (f"size-{share}", ELMONER, BOTH, at(share)) for share in ("0.1", "0.5", "1.0")
    ],
    "split": [
        (
            f"split-{name}",
            ELMONER,
            ("fedner",),
            (f"options.private={json.dumps(private)}", 'options.types="common"', *at("0.1")),
        )
        for name, private in SPLITS.items()
    ],
    "mask": [  # nothing masked is size-0.1
        (f"mask-{share}", ELMONER, BOTH, (f"data.mask_common={share}", *at("0.1")))
        for share in ("0.25", "0.5", "0.75", "1.0")
    ],
    "taggers": [(name, name, ("fedner",), ()) for name in TAGGERS],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, default=[])
    parser.add_argument("--row", action="append", default=[], help="label of one row")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    for seed in given.seeds:
        for name in given.only or EXPERIMENTS:
            for label, recipe, methods, special in EXPERIMENTS[name]:
                if given.row and label not in given.row:
                    continue
                for method in methods:
                    folder = given.out / label / f"{method}-{seed}"
                    overrides = [f"method={method}", f"seed={seed}", *special, *given.overrides]
                    sites = finished(recipe, overrides, folder).scores.sites
                    f1 = {site: f"{100 * one['strict']['f1']:.2f}" for site, one in sites.items()}
                    print(folder, *(f"{site} {one}" for site, one in f1.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
