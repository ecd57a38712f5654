"""The runs behind the tables of pseudo-complete annotation (Wang et al. 2023, Table 2, Fig. 3).

    python benchmarks/papers/tags/run.py --out runs/tags [--corpora crossner] [--kinds encoder] \
        [--draws 1 2 3] [--set ...]

Sites with corpora of their own annotate a part of the types each, as drawn by the paper's App. D
among the types that a corpus has: each site has one type to itself, every other type is annotated
at one or two sites. Test text keeps all types of its corpus. Every run is the recipe `tags-medical`
or `tags-crossner` with these `annotates`. Finished runs are kept, unfinished ones are resumed.
`table.py` turns the folder into tables.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confide.recipes import recipe_path
from confide.settings import parse, read_tree

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

CORPORA = ("medical", "crossner")
KINDS: dict[str, tuple[str, ...]] = {
    "tagger": ("model.kind=tagger",),
    "tagger-minilm": ("model.kind=tagger", "model.context=minilm"),
    "encoder": ("model.kind=encoder",),
    "lightner": ("model.kind=lightner",),
}
OFF = "options.instance_weights=false"
PLAIN = ("options.distil=false", OFF)
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": PLAIN,  # without distillation and weighting
    "distil": (OFF,),  # without weighting
    "whole": (),
}
OPEN = "training.unannotated_types=1"
SURE = (OPEN, OFF, "options.confidence=0.95", "options.warmup_rounds=6")
OPENED: dict[str, tuple[str, ...]] = {
    "open": (OPEN, *PLAIN),  # other types are possible outside the own
    **{f"prior-{w}": (f"training.unannotated_types={w}", *PLAIN) for w in (0.1, 0.3, 0.9)},
    "open-seen": (OPEN, *PLAIN, "options.rows=seen"),
    "open-weights": (OPEN, "options.distil=false"),  # and sentences are weighed
    "open-often": (
        OPEN, *PLAIN, "training.optimiser_state=keep", "training.local_epochs=1",
        "training.local_steps=12",
        "select.average=12",
    ),  # the same, in shorter rounds
    "open-distil": SURE,  # and what the model is sure of is taken
}  # fmt: skip
RIVALS = {name: (f"options.adversary={name}", OFF) for name in ("dann", "fada", "fade")}
SWEEPS: dict[str, tuple[str, ...]] = {
    **{f"hidden-{h}": (f"lightner.hidden={h}",) for h in (50, 200, 400, 800)},
    "centred": ("options.centred=true",),
    **{f"local-{e}": (f"training.local_epochs={e}",) for e in (1, 2, 4)},
}

COMPLETE = "complete"
"""FedAvg of sites that annotate all types that their corpora have."""


def annotated(tree: Mapping[str, Any]) -> dict[str, list[str]]:
    """The types of each site's corpus, under their common names."""
    return {
        site["name"]: sorted({*site["annotates"], *site["test_annotates"]}) for site in tree["site"]
    }


def drawn(has: Mapping[str, Sequence[str]], seed: int) -> dict[str, list[str]]:
    """What each site annotates: one type that nobody else does, the others at one or two sites."""
    random_ = random.Random(seed)
    while True:
        unique = {site: random_.choice(types) for site, types in has.items()}
        if len(set(unique.values())) == len(unique):
            break
    knows = {site: [own] for site, own in unique.items()}
    for kind in sorted({kind for types in has.values() for kind in types} - set(unique.values())):
        having = [site for site, types in has.items() if kind in types]
        for site in random_.sample(having, min(random_.choice((1, 2)), len(having))):
            knows[site].append(kind)
    return {site: sorted(types) for site, types in knows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tags"))
    parser.add_argument("--corpora", choices=CORPORA, default="medical")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--variants", nargs="*", help="only these; also complete, of OPENED, SWEEPS"
    )
    parser.add_argument("--draws", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--small-dev", action="store_true", help="a share of training text")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="for every run")
    given = parser.parse_args()
    recipe = recipe_path(f"tags-{given.corpora}")
    has = annotated(read_tree(recipe))
    for draw in given.draws:
        knows = drawn(has, draw)
        print(f"draw {draw}: {knows}", file=sys.stderr)
        for kind in given.kinds:
            variants = VARIANTS | (RIVALS if kind == "lightner" else {})
            everything = variants | OPENED | SWEEPS | {COMPLETE: PLAIN}
            for name in given.variants or variants:
                overrides = [*KINDS[kind], f"seed={draw}", *everything[name]]
                tree = read_tree(recipe)
                for site in tree["site"]:
                    site["test_annotates"] = has[site["name"]]
                    if given.small_dev:
                        site.pop("dev", None)
                    site["annotates"] = (has if name == COMPLETE else knows)[site["name"]]
                out = given.out / given.corpora / kind / f"{name}-{draw}"
                finished(parse(tree, [*overrides, *given.overrides]), (), out)


if __name__ == "__main__":
    main()
