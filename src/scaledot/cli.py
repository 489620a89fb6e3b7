"""The commands of the shell: `scaledot run`, `explain`, `scaling`, `lesson`, `warm` and `info`."""

import io
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scaledot
from scaledot import checks, cli_scale, files, flags, printing, slices
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
        context = getattr(error, "ctx", None)
        asked = "scaledot" if context is None else context.command_path
        return _complain(f"{error.format_message().rstrip('.')}; see `{asked} --help`")
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

KeyLengths = Annotated[
    int | None, typer.Option(metavar="N", help="How many keys are real; the rest is padding.")
]
QueryLengths = Annotated[
    int | None, typer.Option(metavar="N", help="How many queries are real; the rest is padding.")
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
    inputs: flags.Inputs,
    causal: flags.Causal = False,
    query_offset: flags.QueryOffset = None,
    window: flags.Window = None,
    key_lengths: KeyLengths = None,
    query_lengths: QueryLengths = None,
    scale: flags.Scale = None,
    softcap: flags.Softcap = None,
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
    given = flags.given(
        causal=causal or None,
        query_offset=query_offset,
        window=flags.window(window),
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        scale=scale,
        softcap=softcap,
        engine=engine,
        threads=threads,
    )
    console = printing.plain_console()
    names = _statistics(statistics, top_k)
    problem = flags.problem(inputs, given)
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


# ------------------------------------------------------------ scaledot explain, scaledot scaling

app.command()(cli_scale.explain)
app.command()(cli_scale.scaling)


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
