"""What can be done to the bytes of a file of text: changed, cut, repeated, nested, recoded."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

LARGE = 400_000
"""About how large the large inputs become, in bytes."""
ODD = (
    *(b"\0", b"\r", b"\r\n", b"\n\n", b"\t", b"\x0b", b"\x0c", b"\x1b[2J", b"\x7f", b" " * 50),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xc3", b"\xff", b"\xed\xa0\x80", b"\xc2\x85"),
    *(
        "\u2028".encode(),
        "\u202e".encode(),
        "\xa0".encode(),
        "\ufeff".encode(),
        "\U0001f600".encode(),
    ),
    *(b"[", b"]", b"{", b"}", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"&amp;", b"&#0;", b"&x;"),
    *(
        b"<",
        b"</",
        b"/>",
        b"<!--",
        b"]]>",
        b"<![CDATA[",
        b"<?xml",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
    ),
    *(
        b"|",
        b"||",
        b"@",
        b"#",
        b"*",
        b":",
        b";",
        b"=",
        b".",
        b",",
        b"-",
        b"_",
        b"%s",
        b"$HOME",
        b"../",
    ),
    *(b"T1", b"R1", b"E1", b"B-", b"I-X", b"O", b"NaN", b"null", b"true", b"1e999", b"###END###"),
    *(b"<e1>", b"</e2>", b"<< ", b" ]]", b"@GENE$", b" NEG ", b'c="', b"||t=", b"|t|", b"\\N"),
)
NUMBERS = (b"-1", b"0", b"1", b"2", b"999999999", b"9" * 20, b"9" * 5000, b"1.5", b"1e400", b"0x10",
           b"00", "\u0661".encode(), "\xb2".encode(), b"", b"10_0")  # fmt: skip
ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "cp037", "utf-7")
DECLARED = (*ENCODINGS, "punycode", "idna", "hex", "rot13", "unicode_escape", "zlib", "x" * 300, "")
_NUMBER = re.compile(rb"[0-9]+")
_WORD = re.compile(rb"[^\s]+")
_TAG = re.compile(rb"<[A-Za-z][^<>]*>")
Spoil = Callable[[bytes, random.Random], bytes]


def spoiled(raw: bytes, draw: random.Random) -> bytes:
    """The same bytes, but for one to four changes."""
    for _ in range(draw.choice([1, 1, 1, 2, 2, 4])):
        raw = draw.choice(_WAYS)(raw, draw)
    return raw


def enlarged(raw: bytes, draw: random.Random) -> bytes:
    """A file of up to about `LARGE` bytes that is costly where time grows faster than size."""
    return draw.choice(_LARGE)(raw, draw)


def _changed(raw: bytes, draw: random.Random) -> bytes:
    data = bytearray(raw or b"x")
    for _ in range(draw.randint(1, 6)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _cut(raw: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randint(0, len(raw)) for _ in range(2))
    return draw.choice([raw[:end], raw[start:], raw[:start] + raw[end:], raw + raw[start:end]])


def _with_odd(raw: bytes, draw: random.Random) -> bytes:
    place = draw.randint(0, len(raw))
    return raw[:place] + draw.choice(ODD) * draw.choice([1, 1, 1, 2, 40]) + raw[place:]


def _lines(raw: bytes, draw: random.Random) -> bytes:
    lines = raw.splitlines(keepends=True) or [b""]
    number = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        lines[number] *= draw.choice([2, 3, 30])
    elif kind == 1:
        draw.shuffle(lines)
    elif kind == 2:
        del lines[number]
    else:
        lines.insert(number, draw.choice(lines))
    return b"".join(lines)


def _found(pattern: re.Pattern[bytes], raw: bytes, draw: random.Random) -> tuple[int, int] | None:
    matches = list(pattern.finditer(raw[:50_000]))
    return draw.choice(matches).span() if matches else None


def _number(raw: bytes, draw: random.Random) -> bytes:
    place = _found(_NUMBER, raw, draw)
    return raw if place is None else raw[: place[0]] + draw.choice(NUMBERS) + raw[place[1] :]


def _word(raw: bytes, draw: random.Random) -> bytes:
    """One word in the place of another, or a long one."""
    one, other = _found(_WORD, raw, draw), _found(_WORD, raw, draw)
    if one is None or other is None:
        return raw
    new = draw.choice([raw[slice(*other)], raw[slice(*one)] * draw.choice([2, 300]), b""])
    return raw[: one[0]] + new + raw[one[1] :]


def _tag(raw: bytes, draw: random.Random) -> bytes:
    one, other = _found(_TAG, raw, draw), _found(_TAG, raw, draw)
    if one is None or other is None:
        return _word(raw, draw)
    return raw[: one[0]] + draw.choice([raw[slice(*other)], b""]) + raw[one[1] :]


def _nested(raw: bytes, draw: random.Random) -> bytes:
    count = draw.choice([10, 70, 500, 5000])
    opens, closes = draw.choice(
        [(b"[", b"]"), (b'{"a":', b"}"), (b"<a>", b"</a>"), (b"(", b")"), (b"a.", b"")]
    )
    place = draw.randint(0, len(raw))
    return raw[:place] + opens * count + draw.choice([b"1", b""]) + closes * count + raw[place:]


def _recoded(raw: bytes, draw: random.Random) -> bytes:
    text = raw.decode("utf-8", "replace")
    return text.encode(draw.choice(ENCODINGS), "replace")


def _declared(raw: bytes, draw: random.Random) -> bytes:
    line = f'<?xml version="1.0" encoding="{draw.choice(DECLARED)}"?>'.encode()
    return line + (raw[raw.find(b"?>") + 2 :] if raw.startswith(b"<?xml") else raw)


def _garbage(raw: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([0, 1, 8, 64, 2048]))


def _many(raw: bytes, draw: random.Random) -> bytes:
    """One line, or a stretch of the file, again and again."""
    lines = raw.splitlines(keepends=True) or [b"x\n"]
    number = draw.randrange(len(lines))
    start, end = sorted(draw.randint(0, len(raw)) for _ in range(2))
    part = draw.choice([lines[number], raw, raw[start:end], b"\n" + lines[number]]) or b"x"
    many = part * (LARGE // len(part))
    place = draw.choice([0, len(raw), raw.find(lines[number])])
    return raw[:place] + many + raw[place:]


def _long(raw: bytes, draw: random.Random) -> bytes:
    """A word, a piece or an odd character, so often that one line is long."""
    place = _found(_WORD, raw, draw) or (0, len(raw))
    word = raw[slice(*place)]
    part = draw.choice([word, word + b" ", word[:1], draw.choice(ODD), b" ", b"a", b"a a", b"ab "])
    return raw[: place[0]] + (part or b"x") * (LARGE // len(part or b"x")) + raw[place[1] :]


def _deep(raw: bytes, draw: random.Random) -> bytes:
    opens = draw.choice([b"[", b'{"a":', b"<a>", b"(", b"a.", b"[{", b'"', b"\\", b"&lt;", b"<"])
    place = draw.randint(0, len(raw))
    return raw[:place] + opens * (LARGE // len(opens)) + raw[place:]


def _numbered(raw: bytes, draw: random.Random) -> bytes:
    """One line with other numbers each time."""
    line = draw.choice(raw.splitlines(keepends=True) or [b"1\n"])
    count = min(LARGE // max(1, len(line)), 20_000)
    rows = (_NUMBER.sub(str(number).encode(), line) for number in range(count))
    first = _NUMBER.sub(b"1", line) if draw.random() < 0.5 else b""
    return raw + first + b"".join(rows)


_WAYS: tuple[Spoil, ...] = (
    *(_changed,) * 4,
    *(_cut,) * 4,
    *(_with_odd,) * 6,
    *(_lines,) * 5,
    *(_number,) * 4,
    *(_word,) * 4,
    *(_tag,) * 3,
    *(_nested,) * 2,
    _recoded,
    _declared,
    _garbage,
)
_LARGE: tuple[Spoil, ...] = (*(_many,) * 3, *(_long,) * 3, _deep, *(_numbered,) * 2)
