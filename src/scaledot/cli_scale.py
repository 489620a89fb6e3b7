"""The commands that look at the scale: `scaledot explain` and `scaledot scaling`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import scaledot.scaling
from scaledot import checks, diagnosis, files, flags, printing, slices, views
from scaledot.diagnosis import Diagnosis
from scaledot.files import Refusal
from scaledot.results import Observation

PICTURES = (".png", ".svg", ".pdf")

Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of words.")]


def _check_picture(
    option: str, path: Path, suffixes: str | tuple[str, ...], inputs: Sequence[Path]
) -> None:
    """Refuse a picture of the wrong kind, and any where nothing can draw."""
    files.check_target(option, path, suffixes, inputs)
    if find_spec("matplotlib") is None:
        raise Refusal(f'{option} needs matplotlib: pip install "scaledot[plots]"')


# ------------------------------------------------------------------------------- scaledot explain

Layers = Annotated[
    bool, typer.Option("--layers", help="The first axis counts the layers of a model.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw scores, entropy, largest weight, received weight, and the weights of the first "
        "head that a finding names, or else of head 0, to a .png, .svg or .pdf file.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html", help="Write findings, table and pictures to one page of its own."
    ),
]


def explain(
    inputs: flags.Inputs,
    causal: flags.Causal = False,
    query_offset: flags.QueryOffset = None,
    window: flags.Window = None,
    scale: flags.Scale = None,
    softcap: flags.Softcap = None,
    layers: Layers = False,
    as_json: Json = False,
    plot: Plot = None,
    html: Html = None,
) -> None:
    """Say what the scores of the arrays in files look like, and what to do about it.

    INPUTS as for `scaledot run`. --scale is the one that your own code uses.
    """
    if plot is not None:
        _check_picture("--plot", plot, PICTURES, inputs)
    if html is not None:
        _check_picture("--html", html, ".html", inputs)
    given = flags.given(
        causal=causal or None,
        query_offset=query_offset,
        window=flags.window(window),
        scale=scale,
        softcap=softcap,
    )
    problem = flags.problem(inputs, given)._replace(value=None, statistics=("received",))
    plan = slices.plan(problem)
    if layers:
        with slices.refusals():
            checks.layers(problem.query.shape, problem.key.shape)
    pinned = problem._replace(how=problem.how | {"engine": plan.engine})  # as `run` does
    with ExitStack() as stack:
        drafts = {path: stack.enter_context(files.replacing(path)) for path in (plot, html) if path}
        found, look = _look(pinned, layers=layers, with_pictures=bool(drafts))
        if look is not None:
            asked = problem._replace(how=problem.how | {"scale": plan.scale})
            _draw(look, found, printing.described(inputs, asked), drafts)
    console = printing.plain_console()
    console.print(json.dumps(found.to_dict()) if as_json else str(found))


def _look(
    problem: slices.Problem, *, layers: bool, with_pictures: bool
) -> tuple[Diagnosis, views.Overview | None]:
    """Return what there is to say, and what there is to draw where it is asked for."""
    n_queries, how = problem.query.shape[-2], problem.how
    room = slices.rooms(problem)
    n_rows = n_queries * (2 if with_pictures else 1)  # those of the shown head come again
    with printing.progress(n_rows, slices.rows_a_slice(problem, room)) as advance:
        slices.fill(problem, room, None, advance)
        seen = Observation(**room)  # type: ignore[arg-type]  # no `top_k` among them
        with slices.refusals():
            found = diagnosis.judge(seen, problem.query.shape, layers=layers, **how)
            if not with_pictures:
                return found, None
            return found, views.overview(
                problem.query, problem.key, head=found.striking, seen=seen, advance=advance, **how
            )


def _draw(
    look: views.Overview,
    found: Diagnosis,
    facts: Sequence[tuple[str, str]],
    drafts: Mapping[Path, Path],
) -> None:
    """Draw a picture or write a page, as the name of each file says, into its draft."""
    from scaledot import plots, report

    for path, draft in drafts.items():
        if path.suffix.lower() in PICTURES:
            plots.save(plots.overview(look)[0], draft, path.suffix)
        else:
            draft.write_text(report.page(facts, found, look), encoding="utf-8")


# ------------------------------------------------------------------------------- scaledot scaling

Sizes = Annotated[list[int] | None, typer.Argument(metavar="D", hidden=True)]
Dims = Annotated[
    bool, typer.Option("--dims", help="The sizes D that follow. Default: 4 16 64 256 1024.")
]
Pairs = Annotated[int, typer.Option(metavar="N", help="Pairs of random vectors at each size.")]
Keys = Annotated[int, typer.Option(metavar="N", help="Keys that each query weighs.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the random numbers.")]
Train = Annotated[
    bool, typer.Option("--train", help="Also train a small model with and without the scale.")
]
StudyPlot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the study, or with --train the losses, to a .png, .svg or .pdf file.",
    ),
]


def scaling(
    sizes: Sizes = None,
    dims: Dims = False,
    pairs: Pairs = 10_000,
    keys: Keys = 128,
    seed: Seed = 0,
    train: Train = False,
    plot: StudyPlot = None,
    as_json: Json = False,
) -> None:
    """Show what the scale 1/sqrt(d) does to scores, softmax and gradient.

    Dot products of random vectors spread like sqrt(d); unscaled, they pile the softmax on one key,
    and the gradient vanishes. For example: scaledot scaling --dims 4 64 1024
    """
    if dims and not sizes:
        raise Refusal("--dims needs at least one size, such as --dims 4 64 1024")
    if plot is not None:
        _check_picture("--plot", plot, PICTURES, [])
    with slices.refusals():
        study = scaledot.scaling.study(
            sizes or (4, 16, 64, 256, 1024), pairs, keys, rng=np.random.default_rng(seed)
        )
        training = scaledot.scaling.train(rng=seed) if train else None
    console = printing.plain_console()
    if as_json:
        found = {"study": study.to_dict(), "training": training and training.to_dict()}
        console.print(json.dumps(found))
    else:
        console.print(str(study))
        if training is not None:
            console.print(f"\ntraining, d = {training.d}\n{training}")
    if plot is not None:
        from scaledot import plots

        with files.replacing(plot) as draft:
            drawn = plots.study(study)[0] if training is None else plots.training(training)
            plots.save(drawn, draft, plot.suffix)
