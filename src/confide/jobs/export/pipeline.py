"""A trained model as a pipeline of spaCy, with a release inside: it moves with its folder."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from confide.errors import SettingsError
from confide.jobs.export import Copy

_PROBES = ("The patient took aspirin and had a severe headache.", "None.", "")


def write_spacy(copy: Copy) -> dict[str, Any]:
    """Write the pipeline; gives what it is about. Raises SettingsError if spaCy is missing."""
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            "a pipeline needs the library spaCy", fix="pip install 'confide[spacy]'"
        ) from error
    from confide.jobs.loading.spacy_pipe import RELEASED, Released

    pipeline = spacy.blank("xx")
    component: Any = pipeline.add_pipe(RELEASED)
    assert isinstance(component, Released)
    component.take(copy.folder)
    pipeline.to_disk(copy.out)
    again = spacy.load(copy.out)
    for text in _PROBES:
        one, other = (
            [(span.start_char, span.end_char, span.label_) for span in nlp(text).ents]
            for nlp in (pipeline, again)
        )
        if one != other:
            raise SettingsError("spaCy does not find the same again", got=repr(text))
    return {"kind": "spacy", "component": RELEASED, "spacy": version("spacy")}
