"""Everything that a command lacks, said at once, with a line to paste.

Typer stops at the first argument or option that is missing.
"""

from __future__ import annotations

import shlex
from typing import Any

from typer import BadParameter

from confide.errors import SettingsError


def all_missing(error: BadParameter) -> SettingsError | None:
    """What the command lacks; None if the error is about something else."""
    context: Any = error.ctx
    if type(error).__name__ != "MissingParameter" or context is None:
        return None
    words, missing = context.command_path.split()[1:], []
    for one in context.command.params:
        flag = one.opts[0] if one.param_type_name == "option" else ""
        value = context.params.get(one.name)
        shown = [word.rstrip(".").upper() for word in (one.metavar or one.name).split()]
        if one.required and one.name not in context.params:
            missing.append(flag or " ".join(shown))
            words += [flag] * bool(flag) + shown
        elif str(context.get_parameter_source(one.name)).endswith("COMMANDLINE"):
            values = value if isinstance(value, (list, tuple)) else [value]
            given = [[flag, str(each)] if flag else [str(each)] for each in values]
            words += [flag] if value is True else [word for pair in given for word in pair]
    listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return SettingsError(
        f"{listed} {'is' if len(missing) == 1 else 'are'} missing",
        expected=shlex.join(["confide", *words]),
        fix="fill in the words in capitals;"
        f" `confide {context.command_path.partition(' ')[2]} --help` explains them",
    )
