"""What a relation model calls the entity types of another model or file.

An entity recogniser and a relation extractor are trained separately, and may have two names for one
type: "Chemical" here, "CHEMICAL" there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from confide.data.batches.relations import Types
from confide.errors import DataError, SettingsError


def as_known(
    found: Iterable[str],
    known: Collection[str],
    *,
    pairs: Set[Types] | None = None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """The relation model's name for each found type; "" if it knows no such type.

    `given` decides, otherwise the same name, or the only name that differs in case alone.

    Args:
        found: the types in the text, or those that a recogniser finds.
        known: the types that the relation model knows.
        pairs: the (head type, tail type) that it looks at; None: any of the known.
        given: the model's names for some of the found types; "" leaves a type out.

    Raises:
        SettingsError: `given` names a type that is not found, or uses a name that is not known.
        DataError: no relation is possible between any of these types.

    >>> as_known(["Chemical", "Protein", "Age"], ["CHEMICAL", "GENE"], given={"Protein": "GENE"})
    {'Age': '', 'Chemical': 'CHEMICAL', 'Protein': 'GENE'}
    """
    found = sorted(set(found))
    check_names(given, found, known)
    names = {name: given.get(name, alike(name, known)) for name in found}
    used = set(names.values()) - {""}
    fitting = used if pairs is None else [pair for pair in pairs if used.issuperset(pair)]
    if not fitting:
        shown = sorted(known) if pairs is None else sorted(" and ".join(pair) for pair in pairs)
        unnamed = [name for name in found if not names[name]]
        raise DataError(
            "the relation model knows no pair of these entity types",
            expected=", ".join(shown) or "any",
            got=", ".join(found) or "no type",
            fix=f"say what it calls each of them: --as {[*unnamed, 'FOUND'][0]}=NAME,"
            f" where NAME is {' or '.join(sorted(known)) or 'KNOWN'}",
        )
    return names


def check_names(given: Mapping[str, str], found: Collection[str], known: Collection[str]) -> None:
    """Raise SettingsError if `given` renames a type that is not found, or to one not known."""
    for name, other in given.items():
        if name not in found:
            raise SettingsError(
                f"no entity has the type {name!r}, so it cannot be renamed to {other!r}",
                expected=", ".join(found),
                fix="--as takes FOUND=KNOWN: the type that is found, then the model's",
            )
        if other and other not in known:
            raise SettingsError(
                f"the model does not know the type {other!r}",
                expected=", ".join(sorted(known)),
                got=f"{name}={other}",
                fix="--as takes FOUND=KNOWN: the type that is found, then the model's",
            )


def alike(name: str, known: Collection[str]) -> str:
    """The known type of that name, or of a name that differs in case alone; "" if there is none."""
    if name in known:
        return name
    same = [other for other in known if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else ""
