"""The table `[privacy]`: how much training may tell of one unit of text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from confide.settings.base import Table

Unit = Literal["document", "sentence", "patient"]


class PrivacyTable(Table):
    """What noise must hide: one `unit` of text, up to ε = `epsilon` at δ = `delta`.

    In each of `rounds` every unit is drawn with the probability `rate`, its gradient is clipped to
    the norm `clip`, and noise of `noise` clips (σ) is added to the sum. One of `epsilon`, `noise`,
    `rate` and `rounds` may be left out, and is worked out from the others.

    `units` says how many units all sites have together, about: the sum is divided by `rate` times
    that, so that nothing has to be counted. `patients`: a document's name up to the first of these
    characters is its patient; a document whose name has none is a patient of its own. What is said
    of `held_out` text is not covered: with "closed", no score of it leaves a site. `steps` is how
    often a site draws and steps by itself in a round, where the method lets it (dp-feded).
    """

    unit: Unit
    epsilon: Annotated[float, Field(gt=0, le=100)] | None = None
    delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    clip: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(gt=0.05, le=1024)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    units: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    patients: Annotated[str, Field(max_length=10)] = ""
    steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    held_out: Literal["closed", "open"] = "closed"
