"""Every method, and every kind, in every form that sends other things, over real processes.

Made from the dict of methods and from what settings allow, so that none can be left out. Processes
carry bytes, whatever the pair: what is in the messages of every pair is looked at in one process
(test_canary.py). What is trained under noise is not the same twice: test_real_noise.py has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import get_args

from confide.federation.secure.steps import EXCHANGES
from confide.methods import METHODS
from confide.settings.tables import BagsTable
from contract.entries import DEALT, ENTRIES, OPEN, OPTIONAL

READERS: tuple[str, ...] = get_args(BagsTable.model_fields["reader"].annotation)
CONTEXT = "tiny-bert"
"""The name of a frozen encoder in settings; a site says where it lies."""


MASKED = "federation.sums=masked"


@dataclass(frozen=True)
class Form:
    """A method as it is run: `method` is its full name, `asks` the steps that it asks of sites.

    `homes` names the sites' files: of the same ones there is one set. `context`: words have the
    states of a frozen encoder.
    """

    method: str
    homes: str
    overrides: tuple[str, ...]
    asks: frozenset[str]
    context: bool = False


def _form(name: str, *overrides: str, context: bool = False, homes: str = "") -> Form:
    entry, kind = ENTRIES[name], METHODS[name]
    others = {step for step, asked in entry.asked.items() if not set(asked) <= set(overrides)}
    others |= OPTIONAL if not context else OPTIONAL - {"describe_encoder"}
    exchanged = frozenset(EXCHANGES) if MASKED in overrides else frozenset()
    if exchanged:
        others -= {"count_examples", "count_buckets", "count_bag_buckets"}
        others.add("count_vocabulary")  # words are counted in buckets
    lacking = kind.apart  # some sites do not annotate all types
    return Form(
        name,
        homes or (f"lacking-{kind.task}" if lacking else kind.task),
        overrides,
        (frozenset(step.name for step in kind.steps) - others) | exchanged,
        context,
    )


def _forms() -> dict[str, Form]:
    found = {}
    readers = cycle(READERS)
    for name in DEALT:
        reader = next(readers) if OPEN[name].task == "bags" else ""
        more = (f"bags.reader={reader}",) if reader else ()
        found["-".join(filter(None, (name, reader)))] = _form(name, *more)
        for step, asked in ENTRIES[name].asked.items():
            found[f"{name}-{step}"] = _form(name, *asked)
    found["fedavg-tagger-context"] = _form(
        "fedavg-tagger", f"model.context={CONTEXT}", context=True, homes="context"
    )
    found["fedavg-tagger-masked"] = _form("fedavg-tagger", MASKED)
    found["fedavg-relations-assertion"] = _form(
        "fedavg-relations", MASKED, "pairs.attribute=assertion", homes="assertion"
    )
    order = list(dict.fromkeys(form.homes for form in found.values()))
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].homes)))


FORMS = _forms()
"""By name, those with the same sites side by side."""
