"""Contextual features at a site: the states that a frozen encoder, which all sites have, gives.

What leaves a site: a keyed check value of its encoder's files, and the width of its states. What
never leaves: a state. Features are computed once, where the text is, and stay in the site's own
cache (`confide.learning.context`), since they reveal the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from confide.data.batches.encoding import Encoded, with_context
from confide.data.batches.examples import Example
from confide.data.corpus.corpora import locate
from confide.errors import ConfideError, FederationError, GuardError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.vocabulary import file_check
from confide.learning.context import cache_folder, contextual
from confide.learning.encoder import FrozenEncoder, load_encoder

T = TypeVar("T")
NONE = "none"
WIDEST = 16_384


@dataclass(frozen=True)
class DescribeEncoder:
    """Find the frozen encoder."""

    encoder: str = carries("the encoder's name in the settings of the run")


@dataclass(frozen=True)
class EncoderDescribed:
    """Equal at sites that have the same encoder."""

    check: str = carries("keyed check value of the encoder's files", rule="open")
    dim: int = carries("width of its state of a word", rule="open")


def describe_encoder(
    site: Site, memory: object, ask: DescribeEncoder, turn: Turn
) -> tuple[EncoderDescribed, object]:
    """Find the site's own copy of the encoder."""
    encoder = encoder_of(site, ask.encoder)
    return EncoderDescribed(file_check(site.key(), encoder.digest), encoder.dim), memory


def check_described(ask: object, reply: EncoderDescribed) -> None:
    """Raise GuardError if the width is out of range or the check value is malformed."""
    if not 1 <= reply.dim <= WIDEST:
        raise GuardError("dim is out of range")
    check_mark("check", reply.check)


DESCRIBE_ENCODER = Step.of(describe_encoder, check=check_described)


def agree_on_encoder(federation: Federation, name: str) -> int:
    """The width of the states of the common encoder; 0 if the settings name none.

    A site whose encoder is not that of most sites is left out. Raises FederationError if too few
    have the same.
    """
    if name == NONE:
        return 0
    replies = federation.ask(DESCRIBE_ENCODER, DescribeEncoder(name), round=0)
    same = alike(
        federation,
        {site: (reply.check, reply.dim) for site, reply in replies.items()},
        step=DESCRIBE_ENCODER,
        why="its encoder differs from that of the other sites",
        error=_other_encoders,
    )
    return int(replies[same[0]].dim)


def _other_encoders(parted: Parted) -> FederationError:
    who = parted.who("{} has a different one", "these groups have different ones")
    return FederationError(
        f"the sites do not have the same encoder: {who}",
        fix="give every site the same files, and name them with `context` in its table",
    )


def find_encoder(place: str) -> FrozenEncoder:
    """The encoder of this name or folder, which may begin with `$CONFIDE_DATA`.

    An encoder that this process already uses, with the same files, is not read again. Raises what
    `load_encoder` raises.
    """
    found = load_encoder(str(locate(place)) if place.startswith("$") else place)
    return _IN_USE.setdefault((found.name, found.folder, found.digest), found)


_IN_USE: WeakValueDictionary[tuple[str, Path, str], FrozenEncoder] = WeakValueDictionary()


def encoder_of(site: Site, name: str) -> FrozenEncoder:
    """The site's encoder. Raises Refusal if it is unusable."""
    found = found_at(site, name, shelf="encoders", find=find_encoder)
    site.files[f"encoder {name}"] = found.digest
    return found


def found_at(site: Site, name: str, *, shelf: str, find: Callable[[str], T]) -> T:
    """The site's public files of this name, looked up once per process.

    Files of one sort share a `shelf`. Raises Refusal if `find` cannot use them.
    """
    place = site.model_place(name)
    try:
        return site.once(shelf, place, make=lambda: find(place))
    except ConfideError as error:
        raise Refusal("encoder-missing") from error


def with_features(
    encoded: Encoded, examples: Sequence[Example], *, site: Site, name: str
) -> Encoded:
    """The text with the encoder's states of every token, from the site's cache."""
    if name == NONE or not examples:
        return encoded
    encoder = encoder_of(site, name)
    try:
        return with_cached(encoded, examples, encoder)
    except ConfideError as error:
        raise Refusal("features") from error


def with_cached(
    encoded: Encoded, examples: Sequence[Example], encoder: FrozenEncoder, *, keep: bool = True
) -> Encoded:
    """The text with states from the cache; with `keep` off, for text that is read only once."""
    sentences = [example.tokens for example in examples]
    found = contextual(sentences, encoder, folder=cache_folder() if keep else None)
    return with_context(encoded, found.states_NX, found.from_S1)


def with_encoder(
    federation: Federation,
    step: Step,
    digests: Mapping[str, str],
    *,
    ours: str,
    name: str = "encoder",
) -> list[str]:
    """The sites that have the server's encoder, whose digest is `ours`.

    The others are left out. Raises FederationError if too few have it.
    """

    def error(parted: Parted) -> FederationError:
        return FederationError(
            f"the sites do not have the server's {name}: {', '.join(parted.odd)} differs",
            fix="give every site the same files, and name them with `context` in its table",
        )

    why = f"its {name} is not the server's"
    return alike(federation, digests, step=step, why=why, error=error, ours=ours)
