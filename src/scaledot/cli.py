"""The commands of the shell: `scaledot run`, `explain`, `scaling`, `lesson`, `warm` and `info`."""

import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scaledot
import scaledot.scaling
from scaledot import checks, files, printing, slices
from scaledot.files import Array, Refusal
from scaledot.lesson import shell as lesson
from scaledot.planning import TEXTBOOK_SCORES, missing_numba
from scaledot.statistics import DEFAULT, NAMES

WEIGHTS_LIMIT = 2**30
"""Bytes of weights that are written without a flag that says so."""

INTERRUPTED = 130
"""The exit code of shells for a program that Ctrl-C ended: 128 + SIGINT."""

ENGINES = {
    "textbook": f"needs only NumPy; chosen up to {TEXTBOOK_SCORES:,} scores",
    "blockwise": "needs only NumPy; other devices, gradients",
    "fused": "needs Numba; output, weights and statistics",
}
LIBRARIES = ("numpy", "array-api-compat", "numba", "ml_dtypes", "torch", "jax", "cupy", "onnx")

app = typer.Typer(name="scaledot", add_completion=False, rich_markup_mode=None)
app.add_typer(lesson.app)


def shell(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe may know no more than ASCII
    try:
        command = typer.main.get_command(app)
        status = command.main(list(arguments), prog_name="scaledot", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # the latter is what click makes of the former
        status = INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Refusal as error:
        return _complain(str(error))
    except MemoryError as error:
        return _complain(f"not enough memory: {error or 'the inputs or results are too large'}")
    except Exception as error:
        if not hasattr(error, "format_message"):  # what click, or typer's own copy of it, raises
            raise
        return _complain(f"{error.format_message().rstrip('.')}; see `scaledot --help`")
    if status == INTERRUPTED:  # what newer versions of typer return for Ctrl-C
        _complain("interrupted, nothing was written")
    return int(status or 0)


def _complain(message: str) -> int:
    """Write one line to stderr and return the exit code of an error."""
    sys.stderr.write(f"scaledot: {' '.join(message.split())}\n")
    return 2


# -------------------------------------------------------------------------------------- scaledot


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scaledot {scaledot.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Exact scaled dot-product attention, softmax(QK^T / sqrt(D)) V, with its weights."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ---------------------------------------------------------------------------------- scaledot run

Inputs = Annotated[list[Path], typer.Argument(metavar="INPUTS", hidden=True)]
Causal = Annotated[
    bool,
    typer.Option(
        "--causal",
        help="Query i sees keys j <= i + offset. The offset is --query-offset; by default the last "
        "query sees the last key.",
    ),
]
QueryOffset = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Position of query 0 among the keys. Default S - T: the last query is at the last "
        "key. 0: the first query is at the first key.",
    ),
]
Window = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="LEFT RIGHT",
        help="How many keys beside its own position a query sees on each side, its own key not "
        "counted; `none` means all on that side.",
    ),
]
KeyLengths = Annotated[
    int | None, typer.Option(metavar="N", help="How many keys are real; the rest is padding.")
]
QueryLengths = Annotated[
    int | None, typer.Option(metavar="N", help="How many queries are real; the rest is padding.")
]
Scale = Annotated[
    float | None, typer.Option(metavar="X", help="Factor of query . key. Default 1/sqrt(D).")
]
Softcap = Annotated[
    float | None,
    typer.Option(metavar="X", help="Cap scaled scores by X * tanh(score / X), before bias, masks."),
]
Engine = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"Force an engine: {' or '.join(ENGINES)}.")
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Use at most N threads of this library.")
]
Statistics = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Which statistics to show, and to write beside the output: names with commas between "
        "them, or `all`. Default: those of a row that cost next to nothing.",
    ),
]
K = Annotated[
    int | None,
    typer.Option("--top-k", metavar="K", help="The K largest weights of each row as well."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Write output, log_sum_exp, weights and what --statistics names to this file.",
    ),
]
NoWeights = Annotated[
    bool, typer.Option("--no-weights", help="Leave the weights out of the output file.")
]
WeightsTo = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npy",
        help="Write the weights here, slice by slice, and not to the output file.",
    ),
]


@app.command()
def run(
    inputs: Inputs,
    causal: Causal = False,
    query_offset: QueryOffset = None,
    window: Window = None,
    key_lengths: KeyLengths = None,
    query_lengths: QueryLengths = None,
    scale: Scale = None,
    softcap: Softcap = None,
    engine: Engine = None,
    threads: Threads = None,
    statistics: Statistics = None,
    top_k: K = None,
    output: Output = None,
    no_weights: NoWeights = False,
    weights_to: WeightsTo = None,
) -> None:
    """Attend to the arrays in files, and show the weights' statistics.

    INPUTS is one .npz or .safetensors with the arrays query, key, value (or q, k, v) and, where
    wanted, mask, bias, sinks, key_lengths, query_lengths, query_offset; or three .npy files: query
    key value.

    Shapes: query (..., H, T, D), key (..., G, S, D), value (..., G, S, E), or two axes only.
    """
    wanted = _wanted(inputs, output, weights_to, without_weights=no_weights)
    flags = _given(
        causal=causal or None,
        query_offset=query_offset,
        window=_window(window),
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        scale=scale,
        softcap=softcap,
        engine=engine,
        threads=threads,
    )
    console = printing.plain_console()
    names = _statistics(statistics, top_k)
    problem = _problem(inputs, flags)
    problem = problem._replace(statistics=names, k=8 if top_k is None else top_k)
    printing.print_problem(console, inputs, problem)
    plan = slices.plan(problem)
    printing.print_plan(console, plan)
    # a slice is smaller than the whole: left to itself, it might choose another engine
    pinned = problem._replace(how=problem.how | {"engine": plan.engine})
    found = _attend(pinned, wanted)
    printing.print_statistics(console, found, names)
    printing.print_written(console, wanted, found["output"].dtype, _stored(problem))


def _statistics(names: str | None, k: int | None) -> tuple[str, ...]:
    """Return the statistics that the options name, or refuse them."""
    if k is not None and k < 1:
        raise Refusal(f"--top-k must be at least 1, got {k}")
    known = tuple(name for name in NAMES if name != "weights_of")  # --output has the weights
    wanted: tuple[str, ...] = DEFAULT
    if names == "all":
        wanted = known
    elif names is not None:
        with slices.refusals():
            wanted = checks.choices("statistic", names.replace(",", " ").split(), known)
        if not wanted:
            raise Refusal("--statistics must name at least one; valid are: " + ", ".join(known))
    return tuple(name for name in known if name in wanted or (name == "top_k" and k is not None))


def _stored(problem: slices.Problem) -> list[str]:
    """Return the names of what goes to the output file beside the weights."""
    names = ["output", "log_sum_exp"]
    if problem.statistics == DEFAULT:
        return names
    more = [name for name in problem.statistics if name not in (*names, "top_k")]
    if "top_k" in problem.statistics:
        more += ["top_k_values", "top_k_indices"]
    return names + more


def _given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given."""
    return {name: x for name, x in flags.items() if x is not None}


def _window(sides: tuple[str, str] | None) -> tuple[int | None, int | None] | None:
    """Return the window that --window names."""
    return None if sides is None else (_bound(sides[0]), _bound(sides[1]))


def _bound(text: str) -> int | None:
    """Return one side of the window."""
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise Refusal(
            f"--window takes two of a number of keys or `none`, such as 4 0 or none 0; got {text!r}"
        ) from None


def _wanted(
    inputs: Sequence[Path], output: Path | None, weights_to: Path | None, *, without_weights: bool
) -> files.Wanted:
    """Return the files to write, or refuse their names."""
    if without_weights and weights_to is not None:
        raise Refusal("--no-weights and --weights-to exclude each other; give one of them")
    if output is not None:
        files.check_target("--output", output, ".npz", inputs)
    if weights_to is not None:
        files.check_target("--weights-to", weights_to, ".npy", inputs)
    inside = output is not None and weights_to is None and not without_weights
    return files.Wanted(output, weights_to, inside)


def _problem(inputs: Sequence[Path], flags: dict[str, Any]) -> slices.Problem:
    """Return what the files and the flags ask for together."""
    arrays = files.read_inputs(inputs)
    query, key, value = (arrays.pop(name) for name in files.REQUIRED)
    how: dict[str, Any] = dict(arrays)
    for name in ("key_lengths", "query_lengths", "query_offset"):
        if name in how and name in flags:
            option = f"--{name.replace('_', '-')}"
            raise Refusal(f"`{name}` is in the file and {option} is given; leave one of them out")
        if name in how and how[name].dtype.kind in "iu":
            how[name] = how[name].astype(np.int64) if how[name].ndim else int(how[name])
    return slices.Problem(query, key, value, how | flags)


def _attend(problem: slices.Problem, wanted: files.Wanted) -> dict[str, Array]:
    """Compute, write what is wanted, and return the output and the statistics."""
    found = slices.rooms(problem)
    shape = (*found["log_sum_exp"].shape, problem.key.shape[-2])
    dtype = files.storable(found["output"].dtype)
    with ExitStack() as stack:
        draft, weights = None, None
        if wanted.output is not None:
            draft = stack.enter_context(files.replacing(wanted.output))
        if wanted.weights_to is not None:
            weights_draft = stack.enter_context(files.replacing(wanted.weights_to))
            weights = files.mapped_npy(weights_draft, shape, dtype)
        elif wanted.weights_inside:
            _refuse_large_weights(math.prod(shape) * dtype.itemsize)
            weights = np.empty(shape, dtype)
        with printing.progress(
            problem.query.shape[-2], slices.rows_a_slice(problem, found)
        ) as advance:
            slices.fill(problem, found, weights, advance)
        if draft is not None:
            stored = {name: found[name] for name in _stored(problem)}
            if wanted.weights_inside and weights is not None:
                stored["weights"] = weights
            files.write_npz(draft, stored)
        del weights  # Windows does not rename a file that is mapped
    return found


def _refuse_large_weights(size: int) -> None:
    """Refuse weights that nobody may have meant to keep, before they are computed."""
    if size > WEIGHTS_LIMIT:
        raise Refusal(
            f"the weights need {files.readable(size)}, more than {files.readable(WEIGHTS_LIMIT)}: "
            "leave them out with --no-weights, or write them piece by piece with --weights-to "
            "FILE.npy"
        )


# --------------------------------------------------------------------------------- scaledot warm


@app.command()
def warm() -> None:
    """Compile all kernels now, so that no later call has to wait for them."""
    obstacle = missing_numba()
    if obstacle:
        raise Refusal(f"there are no kernels to compile: {obstacle}")
    console = printing.plain_console()
    types = [np.dtype(name) for name in ("float32", "float64", "float16")]
    with suppress(ModuleNotFoundError):
        import ml_dtypes

        types.append(np.dtype(ml_dtypes.bfloat16))
    for dtype in types:
        for name, calls in _warming(dtype).items():
            start = time.perf_counter()
            for call in calls:
                call()
            console.print(f"{dtype.name:<10}{name:<12}{time.perf_counter() - start:6.1f} s")


def _warming(dtype: np.dtype[Any]) -> dict[str, list[Callable[[], object]]]:
    """Return calls that, together, need every kernel of a type."""
    rows, row = np.ones((1, 60, 8), dtype), np.ones((1, 1, 64), dtype)
    keys = np.ones((1, 64, 64), dtype)
    nan = np.full((1, 60, 8), np.nan, dtype)
    # a bias of 16 bits is read as it lies, and a kernel of its own
    biases: list[dict[str, Any]] = [{}]
    if dtype.itemsize == 2:
        biases.append({"bias": np.zeros(1, dtype)})

    attend = partial(scaledot.attend, engine="fused")
    attention = partial(scaledot.attention, engine="fused")
    observe = partial(scaledot.observe, statistics=("entropy", "weights_of"), rows=[0])
    return {
        "rows": [partial(attend, rows, rows, rows, **how) for how in biases],
        "statistics": [partial(observe, rows, rows, engine="fused", **how) for how in biases],
        "weights": [partial(attention, rows, rows, rows, **how) for how in biases],
        "NaN": [partial(attend, rows, rows, nan, **how) for how in biases],
        "decoding": [partial(attend, row, keys, keys)],
    }


# ------------------------------------------------------------------------------- scaledot explain

Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of words.")]
Layers = Annotated[
    bool, typer.Option("--layers", help="The first axis counts the layers of a model.")
]


@app.command()
def explain(
    inputs: Inputs,
    causal: Causal = False,
    query_offset: QueryOffset = None,
    window: Window = None,
    scale: Scale = None,
    softcap: Softcap = None,
    layers: Layers = False,
    as_json: Json = False,
) -> None:
    """Say what the scores of the arrays in files look like, and what to do about it.

    INPUTS as for `scaledot run`. --scale is the one that your own code uses.
    """
    flags = _given(
        causal=causal or None,
        query_offset=query_offset,
        window=_window(window),
        scale=scale,
        softcap=softcap,
    )
    problem = _problem(inputs, flags)
    with slices.refusals():
        found = scaledot.scaling.diagnose(problem.query, problem.key, layers=layers, **problem.how)
    console = printing.plain_console()
    console.print(json.dumps(found.to_dict()) if as_json else str(found))


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
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the study, or with --train the losses, to a .png, .svg or .pdf file.",
    ),
]


@app.command()
def scaling(
    sizes: Sizes = None,
    dims: Dims = False,
    pairs: Pairs = 10_000,
    keys: Keys = 128,
    seed: Seed = 0,
    train: Train = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Show what the scale 1/sqrt(d) does to scores, softmax and gradient.

    Dot products of random vectors spread like sqrt(d); unscaled, they pile the softmax on one key,
    and the gradient vanishes. For example: scaledot scaling --dims 4 64 1024
    """
    if dims and not sizes:
        raise Refusal("--dims needs at least one size, such as --dims 4 64 1024")
    if plot is not None:
        files.check_target("--plot", plot, (".png", ".svg", ".pdf"), [])
        _need_matplotlib()
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


def _need_matplotlib() -> None:
    """Refuse to draw where nothing can."""
    if find_spec("matplotlib") is None:
        raise Refusal('--plot needs matplotlib: pip install "scaledot[plots]"')


# --------------------------------------------------------------------------------- scaledot info


@app.command()
def info() -> None:
    """Print versions, the machine, and which engines can run."""
    console = printing.plain_console()
    lines = {"scaledot": scaledot.__version__, "Python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            lines[name] = metadata.version(name)
    lines["platform"] = platform.platform()
    lines["CPUs"] = _cpus()
    for name, text in lines.items():
        console.print(f"{name:<18}{text}")
    console.print("\nengines", style="bold")
    for name, text in ENGINES.items():
        console.print(f"  {name:<13}{_engine_state(name)}; {text}")


def _cpus() -> str:
    """Return how many CPUs there are, and how many of them this process may use."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return f"{len(os.sched_getaffinity(0))} of {count} usable"
    return f"{count}"


def _engine_state(name: str) -> str:
    """Return whether an engine can run here, in the words of the plan that would refuse it."""
    tiny = np.zeros((1, 1))
    try:
        scaledot.plan(tiny, tiny, tiny, engine=name)
    except ValueError as error:
        return f"cannot run here: {error}"
    return "runs here"
