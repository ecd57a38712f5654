"""Documents by the pair of entities that they state, to keep bags whole and text apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from confide.data.batches.bags import Same, identity
from confide.errors import DataError
from confide.text.document import PAIR, Document, stated_pairs


def pairs_of(documents: Sequence[Document], same: Same = "concept") -> list[Hashable]:
    """Each document's one stated pair, as the identities of head and tail.

    `same` is what makes two mentions one entity. A document that states several pairs, or none,
    equals no other.
    """
    found: list[Hashable] = []
    for number, document in enumerate(documents):
        stated = stated_pairs(document) or []
        if len(stated) == 1:
            head, tail = stated[0]
            found.append((identity(document, head, same), identity(document, tail, same)))
        else:
            found.append(number)
    return found


def grouped(documents: Sequence[Document], same: Same = "concept") -> list[list[Document]]:
    """The documents of each pair together, pairs in the order in which they first come."""
    groups: dict[Hashable, list[Document]] = {}
    for document, pair in zip(documents, pairs_of(documents, same), strict=True):
        groups.setdefault(pair, []).append(document)
    return list(groups.values())


def apart(
    parts: Sequence[Mapping[str, list[Document]]],
    by: str,
    *,
    same: Same = "concept",
    held: Sequence[str] = ("dev", "test"),
) -> tuple[list[dict[str, list[Document]]], int]:
    """The parts without training documents that share what `by` names with a held-out document.

    `parts` are those of one corpus or of several sites: what any of them has in the parts `held`
    counts for all.
    `by` is the name of an attribute of documents ("" leaves all as it is), or "pair": the pair of
    entities that a document states. A document without the attribute shares nothing.

    Gives the parts, and how many documents were left out. Raises DataError if no document has
    the attribute.
    """
    if not by:
        return [dict(one) for one in parts], 0
    keys_held = {key for one in parts for part in held for key in _keys(one[part], by, same)}
    kept, left_out, found = [], 0, set(keys_held)
    keys_held.discard(None)
    for one in parts:
        keys = _keys(one["train"], by, same)
        found.update(keys)
        train = [d for d, key in zip(one["train"], keys, strict=True) if key not in keys_held]
        left_out += len(keys) - len(train)
        kept.append({**one, "train": train})
    if not found - {None}:
        raise DataError(
            f"no document has an attribute {by!r}, so nothing can be kept apart by it",
            expected=f'an attribute that the format reads, or "{PAIR}"',
            fix="see what documents have with `confide data convert FILE --out FILE.jsonl`",
        )
    return kept, left_out


def _keys(documents: Iterable[Document], by: str, same: Same) -> list[Hashable | None]:
    if by == PAIR:
        pairs = pairs_of(list(documents), same)
        return [pair if isinstance(pair, tuple) else None for pair in pairs]
    return [dict(document.attributes).get(by) for document in documents]
