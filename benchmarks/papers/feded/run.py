"""The runs behind FedED's tables and curves (Sui et al. 2020, Tables 4, 6 to 8 and Fig. 2).

    python benchmarks/papers/feded/run.py --out runs/feded [--only gad] [--seeds 1 2 3] \
        [--set K=V ...]

Every run is a `confide run RECIPE --set …`. Finished runs are kept, unfinished ones are resumed, so
the command can be stopped and given again; several may work on different experiments of one folder.
`table.py` turns the folder into tables.
"""

import argparse
import sys
from pathlib import Path

from cut import cut

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

FEDERATED = ("feded", "fedatt", "fedavg")
ALL = (*FEDERATED, "public-only", "pooled")

Experiment = list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]
"""(label, recipe, methods, overrides) of each row."""

SMALL = str(Path(__file__).parent / "small.toml")
"""Less text, fewer sites and half an encoder, where many settings are compared."""


PAPER = ("options.temper_student=false",)
"""FedED as published: what all experiments but `remedies` run."""

MORE = ("public.share=0.15", "data.train_share=0.28")
"""Three times the public text, and as much text at a site as without it."""
REMEDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "labelled": {
        "both": (),
        "both-past": ("options.past_weight=0.5",),
        "held-out": ("options.holdout_share=0.1", "options.distil_epochs=3"),
    },
    "unlabelled": {
        "both": (),
        "both-e3-past": ("options.distil_epochs=3", "options.past_weight=0.5"),
        "more": (*MORE, 'options.wire_dtype="int8"'),
    },
}
"""Distillation that does not shrink the model, or forget, or learn by heart."""

GENTLE = ("options.distil_batch_size=16", "options.distil_learning_rate=2e-5")
CORPORA: dict[str, tuple[str, ...]] = {
    "both": (),
    "gentle": GENTLE,
}  # fmt: skip
"""On GAD and ChemProt."""


def skewed(alpha: str) -> tuple[str, ...]:
    """Overrides for sites whose relations differ; inf: they do not."""
    if alpha == "inf":
        return ()
    return ('split.by="dirichlet"', f"split.alpha={alpha}")


EXPERIMENTS: dict[str, Experiment] = {
    "euadr": [("euadr", "feded-euadr", ALL, ())],
    "gad": [("gad", "feded-gad", ALL, ())],
    "chemprot": [("chemprot", "feded-chemprot", ALL, ())],
    "wire": [
        (f"wire-{name}", SMALL, ("feded",), overrides)
        for name, overrides in {
            "float16": (),
            "float32": ('options.wire_dtype="float32"',),
            "int8": ('options.wire_dtype="int8"',),
            "probabilities": ('options.upload="probabilities"',),
            "unlabelled": ("public.labelled=false",),
        }.items()
    ],
    "alpha": [
        (f"alpha-{alpha}", SMALL, FEDERATED if alpha != "inf" else ALL, skewed(alpha))
        for alpha in ("inf", "1", "0.3", "0.1")
    ],
    "fraction": [
        (f"fraction-{share}", SMALL, FEDERATED, (f"federation.fraction={share}",))
        for share in ("0.1", "0.2", "0.5", "1.0")
    ],
    "local": [
        (
            f"local-b{batch}-e{epochs}",
            SMALL,
            FEDERATED,
            (
                f"training.batch_size={batch}",
                f"training.local_epochs={epochs}",
                "options.distil_batch_size=4",
            ),
        )
        for batch in (4, 8)
        for epochs in (1, 2, 4)
    ],
    "remedies": [
        *(
            (f"{kind}-{name}", SMALL, ("feded",), (*own, *overrides))
            for kind, own in {"labelled": (), "unlabelled": ("public.labelled=false",)}.items()
            for name, overrides in REMEDIES[kind].items()
        ),
        ("more", SMALL, ("fedavg",), MORE),
        ("feddf", SMALL, ("feddf",), ("public.labelled=false",)),
    ],
    "corpora": [
        (f"labelled-{corpus}-{name}", f"feded-{corpus}", ("feded",), overrides)
        for corpus in ("gad", "chemprot")
        for name, overrides in CORPORA.items()
    ],
    "steady": [
        (f"steady-{name}", "feded-gad", ("feded",), overrides)
        for name, overrides in {
            "b16": ("options.distil_batch_size=16",),
            "b16-slow": ("options.distil_batch_size=16", "options.distil_learning_rate=2e-5"),
            "unlabelled": ("public.labelled=false",),
        }.items()
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/feded"))
    parser.add_argument("--only", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--labels", nargs="*", help="only these rows")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="for every run")
    given = parser.parse_args()
    for name in given.only:
        for seed in given.seeds:
            for label, recipe, methods, overrides in EXPERIMENTS[name]:
                if given.labels and label not in given.labels:
                    continue
                for method in methods:
                    if not given.methods or method in given.methods:
                        one(given, label, recipe, method, seed, overrides)


def one(
    given: argparse.Namespace,
    label: str,
    recipe: str,
    method: str,
    seed: int,
    overrides: tuple[str, ...],
) -> None:
    """One run of a row."""
    out = given.out / label / f"{method}-{seed}"
    if method == "feded" and not any(label.startswith(kind) for kind in REMEDIES):
        overrides = (*PAPER, *overrides)
    own = [text for text in overrides if method == "feded" or not text.startswith("options.")]
    if recipe == SMALL:
        encoder = given.out.absolute() / "minilm-3"
        cut(encoder, layers=3)
        own.append(f"classifier.encoder={encoder}")
    finished(recipe, [f"method={method}", f"seed={seed}", *own, *given.overrides], out)


if __name__ == "__main__":
    main()
