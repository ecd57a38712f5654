"""Bytes that anybody may have written, given to the codec: only MessageError may come of them.

Honest messages of every class are changed byte by byte, cut, joined and given other headers; others
are made up from nothing: sizes that are not there, nesting, shapes and offsets of no array. Each is
decoded as its class with the limits of that class. A failure is another exception, a decoding of
more than `SLOW` seconds of the processor, or a process that grows by more than `GROWTH` bytes.

    python benchmarks/security/fuzz/run.py messages --count 100000 --seed 1
"""

from __future__ import annotations

import json
import random
import resource
import time
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from tally import Tally

from confide.errors import MessageError
from confide.federation.failures import Failure
from confide.federation.memory import Checkpoint
from confide.federation.messages import (
    DTYPES,
    Form,
    class_of,
    decode,
    encode,
    forms_of,
    limits_of,
    made_of,
    peek,
)
from confide.federation.secure.steps import EXCHANGES, OFFER
from confide.flare.joining import CLOSE, JOIN, LEAVE
from confide.methods import METHODS
from confide.runs.folder import KeptAtHome

SLOW = 2.0
GROWTH = 512 * 2**20
_ODD = ("", "\x00", "\x1b[2J", "\ud800", "\u202e", "é" * 99, "a/b", "?", "__metadata__", "x" * 5000)
_NUMBERS = (0, -1, 2**63 - 1, 2**63, -(2**63), 2**200, 1e308, 0.5, True, None, float("nan"))


def classes() -> list[Any]:
    """Every class of messages, those of states and memories included."""
    found: set[Any] = {Checkpoint, Failure, KeptAtHome}
    summed = (OFFER, *EXCHANGES.values())
    own = (step for kind in METHODS.values() for step in kind.steps)
    for step in (JOIN, LEAVE, CLOSE, *summed, *own):
        found |= {step.ask, step.reply}
    for kind in METHODS.values():
        found |= {kind.State, kind.Memory}
    return sorted(found, key=str)


def attack(count: int, seed: int) -> Tally:
    """So many inputs, over all classes in turn; the same for the same seed."""
    draw = random.Random(seed)
    kinds, failures = classes(), []
    refused = accepted = 0
    slowest = 0.0
    before = _peak()
    for number in range(count):
        kind = kinds[number % len(kinds)]
        data = bytes(draw.choice(_WAYS)(kind, draw))
        start = time.process_time()
        try:
            peek(data, limits=limits_of(kind))
            decode(kind, data, limits=limits_of(kind))
            accepted += 1
        except MessageError:
            refused += 1
        except Exception as error:
            failures.append(
                f"input {number}, {class_of(kind).__name__}: {type(error).__name__}: {error}"
            )
        seconds = time.process_time() - start
        slowest = max(slowest, seconds)
        if seconds > SLOW:
            failures.append(f"input {number}, {class_of(kind).__name__}: {seconds:.1f} s")
    if _peak() - before > GROWTH:
        failures.append(f"the process grew by {(_peak() - before) / 2**20:.0f} MiB")
    return Tally(count, refused, accepted, slowest, tuple(failures[:50]))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- honest messages ----------------------------------------------------------------------------


def honest(kind: Any, draw: random.Random) -> Any:
    """A message of this class, of small arrays and short words."""
    lengths = {letter: draw.randint(0, 4) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    values = {}
    for name, form in forms_of(kind).items():
        if form.kind == "array":
            values[name] = _array(form, lengths, draw)
        elif form.kind == "arrays":
            keys = draw.sample(
                ["a", "word.weight", "crf.linear.weight", "Größe"], draw.randint(0, 3)
            )
            values[name] = {key: _array(form, None, draw) for key in keys}
        else:
            values[name] = _plain(form.hint, draw)
    return made_of(kind, values)


def _array(form: Form, lengths: dict[str, int] | None, draw: random.Random) -> np.ndarray:
    kind = draw.choice(sorted(form.dtypes or DTYPES))
    axes = form.axes if form.axes is not None else ("A", "B")[: draw.randint(0, 2)]
    known = lengths or {letter: draw.randint(0, 4) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    shape = tuple(axis if isinstance(axis, int) else known[axis] for axis in axes)
    return np.full(shape, draw.randint(0, 1), kind)


def _plain(hint: Any, draw: random.Random) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (int, float, bool, str):
        return hint(draw.randint(0, 9))
    if origin is list:
        return [_plain(arguments[0], draw) for _ in range(draw.randint(0, 3))]
    if origin is tuple:
        return tuple(_plain(one, draw) for one in arguments)
    if origin is dict:
        return {str(n): _plain(arguments[1], draw) for n in range(draw.randint(0, 3))}
    return _plain(next(one for one in arguments if one is not type(None)), draw)


# --- what becomes of them -----------------------------------------------------------------------


def _flipped(kind: type, draw: random.Random) -> bytes:
    data = bytearray(encode(honest(kind, draw)))
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _cut(kind: type, draw: random.Random) -> bytes:
    data = encode(honest(kind, draw))
    start, end = sorted(draw.randint(0, len(data)) for _ in range(2))
    return draw.choice([data[:end], data[start:], data[:start] + data[end:], data + data[:end]])


def _sized(kind: type, draw: random.Random) -> bytes:
    """A header that says of itself that it is longer or shorter than it is."""
    data = encode(honest(kind, draw))
    size = draw.choice([0, 1, 7, 2**20, 2**40, 2**63, 2**64 - 1, len(data) - 8, len(data) - 7])
    return size.to_bytes(8, "little") + data[8:]


def _rewritten(kind: type, draw: random.Random) -> bytes:
    """Other entries in the header: of arrays, of fields, of the message itself."""
    data = encode(honest(kind, draw))
    size = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + size])
    inner = json.loads(outer["__metadata__"]["confide"])
    for _ in range(draw.randint(1, 3)):
        draw.choice([_spoil_fields, _spoil_arrays, _spoil_head])(outer, inner, draw)
    if draw.random() < 0.9 and isinstance(outer.get("__metadata__"), dict):
        outer["__metadata__"]["confide"] = json.dumps(inner)
    header = json.dumps(outer).encode("utf-8", "surrogatepass")
    if draw.random() < 0.05:
        header = header.decode("utf-8", "replace").encode(draw.choice(["utf-16", "utf-32"]))
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _spoil_fields(outer: Any, inner: Any, draw: random.Random) -> None:
    if not isinstance(inner, list) or len(inner) != 3 or not isinstance(inner[2], dict):
        return
    fields = inner[2]
    name = draw.choice([*fields, draw.choice(_ODD)])
    if draw.random() < 0.2:
        fields.pop(name, None)
    else:
        fields[name] = _anything(draw, 3)


def _anything(draw: random.Random, deep: int) -> Any:
    kind = draw.randrange(5 if deep else 2)
    if kind == 0:
        return draw.choice(_NUMBERS)
    if kind == 1:
        return draw.choice(_ODD)
    if kind == 2:
        return [_anything(draw, deep - 1) for _ in range(draw.choice([0, 1, 2, 50]))]
    if kind == 3:
        return {draw.choice(_ODD): _anything(draw, deep - 1) for _ in range(draw.randint(0, 3))}
    return [draw.choice(_NUMBERS)] * draw.choice([1, 1000])


def _spoil_arrays(outer: Any, inner: Any, draw: random.Random) -> None:
    names = [name for name in outer if name != "__metadata__"]
    name = draw.choice([*names, draw.choice(_ODD)])
    shapes = [[2**63], [2**62, 0], [-1], [0] * 65, [1.5], "x", None, [2**32, 2**32], [3], []]
    ends = [[0, 0], [0, 2**63], [-4, 0], [8, 0], [0, 4], [0, 1e9], None]
    entry = outer.setdefault(name, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})
    if not isinstance(entry, dict):
        return
    spoiled = {
        "shape": lambda: draw.choice(shapes),
        "data_offsets": lambda: draw.choice(ends),
        "dtype": lambda: draw.choice(
            ["F64", "BF16", "F8_E4M3", "I64", "U64", "BOOL", "C64", 7, ""]
        ),
        "more": lambda: _anything(draw, 2),
    }
    part = draw.choice(list(spoiled))
    entry[part] = spoiled[part]()


def _spoil_head(outer: Any, inner: Any, draw: random.Random) -> None:
    if draw.random() < 0.5:
        outer["__metadata__"] = draw.choice([None, {}, [], "confide", {"confide": None}, {"x": 1}])
    elif isinstance(inner, list) and inner:
        inner[draw.randrange(len(inner))] = _anything(draw, 2)


def _nested(kind: type, draw: random.Random) -> bytes:
    """Brackets in brackets, up to what the limits of the class let through."""
    mark = draw.choice(["[", '{"a":', "[[],", '[{"a":['])
    deep = mark * (draw.choice([10, 1000, limits_of(kind).header]) // len(mark))
    text = draw.choice([deep, json.dumps({"__metadata__": {"confide": deep}})])
    header = text.encode()[: limits_of(kind).header + draw.choice([0, 1])]
    return len(header).to_bytes(8, "little") + header


def _crowded(kind: type, draw: random.Random) -> bytes:
    """Many empty arrays, about as many as the header may name."""
    room = limits_of(kind).header + draw.choice([-100, 100])
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    start = '{"__metadata__":{"confide":"[2]"}'
    many = max(0, min(room - len(start) - 2, 200_000) // (len(entry) + 12))
    text = start + "".join(f',"{n:08d}":{entry}' for n in range(many)) + "}"
    return len(text).to_bytes(8, "little") + text.encode()


def _garbage(kind: type, draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([0, 1, 7, 8, 9, 64, 4096]))


def _other(kind: type, draw: random.Random) -> bytes:
    return encode(honest(draw.choice(classes()), draw))


def _untouched(kind: type, draw: random.Random) -> bytes:
    return encode(honest(kind, draw))


_Way = Callable[[type, random.Random], bytes]
_WAYS: tuple[_Way, ...] = (
    *(_flipped,) * 40,
    *(_cut,) * 10,
    *(_sized,) * 10,
    *(_rewritten,) * 60,
    *(_garbage,) * 3,
    *(_other,) * 3,
    *(_untouched,) * 3,
    _nested,
    _crowded,
)
