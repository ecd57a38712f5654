"""The table `[federation]`: who takes part, and what the server sees of it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from confide.settings.base import Limit, Table

OF_SITES, OF_GROUPS = 5.0, 2.0
"""`most_norm` where the settings leave it open: of single updates, and of the means of groups."""


class FederationTable(Table):
    """Who takes part: each round draws a `fraction` of the sites, and `at_least` must answer.

    `at_least = 0` means every site that was asked. `timeout` is how many seconds a site may take
    for one answer before it is left out (inf: no limit). `combine` is how the sites' updates become
    one; `trimmed` drops the share `trim` at each end. An update is refused if its norm is more than
    `most_norm` times the round's median (inf: never). The run ends before a round that would take
    what a site has uploaded beyond `megabytes` (0: no bound).

    `up` and `down`: how what sites learn travels, and how the common weights do: changed rows, and
    weights whole in every ask; "once": no site is given the same weights twice; or changes in codes
    (`confide.federation.coding`). `top` is the share of numbers that "top" sends.

    `sums`: whether the server promises not to look at what it sums ("plain"), or gets whole numbers
    under masks that only the sum is without ("masked"). Without it, real sites mask if there are
    three of them. `colluding` is how many sites may be in league with the server, unless a third of
    them, rounded up, less one. Masks leave no room to look at single replies: then there is no
    `fraction`, and no `most_norm` and no `combine` but the mean, unless both are of the sums of
    fixed groups of `groups` sites (0: no groups). A round after which the development score falls
    by more than `roll_back` (0: never) is undone.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    megabytes: Annotated[float, Field(ge=0)] = 0.0
    at_least: Annotated[int, Field(ge=0)] = 0
    timeout: Limit = 7200.0
    combine: Literal["mean", "trimmed", "median", "clipped"] = "mean"
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    most_norm: Annotated[float, Field(gt=1, allow_inf_nan=True)] | None = None
    up: Literal["rows", "float16", "int8", "int4", "int2", "top"] = "rows"
    down: Literal["whole", "once", "float16", "int8", "int4", "int2", "top"] = "whole"
    top: Annotated[float, Field(gt=0, le=1)] = 0.01
    sums: Literal["plain", "masked"] | None = None
    colluding: Annotated[int, Field(ge=1)] | None = None
    groups: Annotated[int, Field(ge=0)] = 0
    roll_back: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def limit(self) -> float:
        """`most_norm`, or what it is where the settings leave it open."""
        if self.most_norm is not None:
            return self.most_norm
        if self.sums == "masked":
            return OF_GROUPS if self.groups else math.inf
        return OF_SITES

    @model_validator(mode="after")
    def _looks_at_no_single_reply(self) -> Self:
        if self.groups and (self.combine == "mean" or self.sums != "masked"):
            raise ValueError(
                "federation.groups are for sums that nobody can open, whose groups are combined:"
                ' set federation.sums to "masked", and federation.combine to "median", "trimmed" or'
                ' "clipped"'
            )
        if self.sums == "masked":
            if self.up not in ("rows", "float16", "int8"):
                raise ValueError(
                    f'federation.up = "{self.up}" has a scale for every row of every site, and'
                    f' federation.sums = "{self.sums}" adds up whole numbers of one scale: set'
                    ' federation.up to "float16" or "int8", or leave it out'
                )
            for name, fits in {
                "combine": self.combine == "mean" or self.groups > 0,
                "most_norm": self.limit == math.inf or self.groups > 0,
                "fraction": self.fraction == 1.0,
            }.items():
                if not fits:
                    raise ValueError(
                        f"federation.{name} = {getattr(self, name)!r} must look at single replies,"
                        f' or at changing sets of sites, and federation.sums = "{self.sums}" shows'
                        ' none: leave it out, or set federation.sums = "plain"'
                    )
        return self
