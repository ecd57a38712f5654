"""The verbs `confide pretrain …`: build a small BART from an encoder, and ship what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from confide.cli import screen

_SET = "confide.set"


class WithText(TyperGroup):
    """Makes `pretrain TEXT...` mean `pretrain run TEXT...`; write ./export for a file so named.

    `--set KEY=VALUE` may stand anywhere; the verb finds it in `ctx.meta`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the settings out of a command's words and put in the verb if it was left out."""
        args, ctx.meta[_SET] = _parted(args)
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _parted(args: list[str]) -> tuple[list[str], list[str]]:
    """Split words into (all others, what follows each `--set`).

    >>> _parted(["a", "--set", "seed=2", "--set=batch=9", "b"])
    (['a', 'b'], ['seed=2', 'batch=9'])
    """
    words: list[str] = []
    overrides: list[str] = []
    rest = iter(args)
    for word in rest:
        if word == "--set":
            overrides.append(next(rest, ""))
        elif word.startswith("--set="):
            overrides.append(word.removeprefix("--set="))
        else:
            words.append(word)
    return words, overrides


pretrain = typer.Typer(
    cls=WithText,
    no_args_is_help=True,
    help="Make a small BART from an encoder and text: confide pretrain TEXT... --out DIR.",
)
From = Annotated[
    str | None,
    typer.Option("--from", metavar="ENCODER", help="minilm, or a BERT encoder's folder."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")]


@pretrain.command("run")
def train(
    ctx: typer.Context,
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Files or folders; training text only.")
    ],
    *,
    out: Out,
    base: From = None,
    decoder_layers: Annotated[int, typer.Option(metavar="N", help="Layers of the decoder.")] = 3,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Number of steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Minutes to train, instead of steps.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Test text; its sentences are kept out of training."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
) -> None:
    """Train a BART, built from an encoder, to restore noised text. `run` may be left out.

    --set KEY=VALUE changes one setting: train (decoder or all), learning_rate, batch, longest,
    seed, masked, sampled, dropout, warm_up, held_out, measures, ...
    """
    from confide import api
    from confide.jobs.pretrain.plan import Budget, planned

    plan = planned(ctx.meta[_SET], base=base or "minilm", decoder_layers=decoder_layers)
    budget = Budget(steps, minutes)
    try:
        done = api.pretrain(
            texts,
            out=out,
            budget=budget,
            plan=plan,
            without=without or (),
            resume=resume,
            say=screen.say,
        )
    except KeyboardInterrupt as stop:
        how = "stopped; --resume with the same command continues from the last checkpoint"
        raise screen.stopped(stop, how) from None
    found = done.measure
    typer.echo(
        f"{done.folder}: {done.steps} steps, {done.pieces} pieces in {screen.clock(done.seconds)}; "
        f"held-out loss {found.loss:.3f}, {100 * found.right:.1f} % of pieces right, "
        f"{100 * found.hidden:.1f} % of the hidden ones"
    )


@pretrain.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="The folder that `confide pretrain` wrote.")],
    *,
    out: Out,
    base: From = None,
) -> None:
    """Write only what training changed, as a small file (float16)."""
    from confide import api

    done = api.export_delta(folder, out=out, base=base)
    typer.echo(f"{done.folder}: {done.weights} weights, {done.bytes / 1e6:.1f} MB")


@pretrain.command("import")
def bring(
    delta: Annotated[Path, typer.Argument(help="The file that `confide pretrain export` wrote.")],
    *,
    out: Out,
    base: From = None,
) -> None:
    """Apply a delta to its encoder and write the BART's folder."""
    from confide import api

    typer.echo(str(api.import_delta(delta, out=out, base=base)))
