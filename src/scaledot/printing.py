"""What the shell prints: readable at 80 columns, plain in a pipe."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from scaledot import files
from scaledot.files import Array
from scaledot.slices import Problem
from scaledot.statistics import DEFAULT


def plain_console() -> Console:
    """Return a console that prints texts as they are: names may hold brackets and colons."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def progress(n_rows: int, n_rows_a_slice: int) -> Iterator[Callable[[int], None]]:
    """Give what moves the progress bar on: shown on a terminal, for more than one slice."""
    console = Console(stderr=True)
    if not console.is_terminal or n_rows <= n_rows_a_slice:
        yield lambda done: None
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        rows = bar.add_task("rows", total=n_rows)
        yield lambda done: bar.advance(rows, done)


def print_problem(console: Console, inputs: Sequence[Path], problem: Problem) -> None:
    """Print what goes in."""
    console.print("inputs", style="bold")
    for name, text in described(inputs, problem):
        console.print(f"  {name:<15}{text}")


def described(inputs: Sequence[Path], problem: Problem) -> list[tuple[str, str]]:
    """Return what goes in, each with its name."""
    arrays = {name: getattr(problem, name) for name in files.REQUIRED}
    lines = [("from", " ".join(map(str, inputs)))]
    for name, x in (arrays | problem.how).items():
        if x is not None:
            text = f"{x.dtype.name:<8} {x.shape}" if isinstance(x, np.ndarray) else _option(x)
            lines.append((name, text))
    return lines


def _option(x: object) -> str:
    """Return an option as its flag takes it."""
    if isinstance(x, tuple):
        return " ".join("none" if side is None else str(side) for side in x)
    return "yes" if x is True else str(x)


def print_plan(console: Console, plan: object) -> None:
    """Print what will be done, and why."""
    console.print("\nplan", style="bold")
    for line in str(plan).splitlines():
        folded = textwrap.fill(line, 78, initial_indent="  ", subsequent_indent=" " * 15)
        console.print(folded)


def print_statistics(
    console: Console, found: Mapping[str, Array], names: Sequence[str] = DEFAULT
) -> None:
    """Print the range and the mean of each statistic over the rows that it is defined for."""
    bad = np.isnan(found["log_sum_exp"])
    empty = (found["argmax"] < 0) & ~bad
    seeing = ~(bad | empty)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"  over {seeing.sum():,} rows")
    for heading in ("min", "mean", "max"):
        table.add_column(heading, justify="right", min_width=11)
    for name in names:
        if name == "received":
            label, values = "received, by key", found[name].reshape(-1)
        elif name == "top_k":
            label = f"sum of top {found['top_k_values'].shape[-1]}"
            values = found["top_k_values"][seeing].sum(axis=-1)
        else:
            label, values = name, found[name][seeing]
        table.add_row(f"  {label}", *_range(values[np.isfinite(values)]))
    console.print("\nstatistics of the weights", style="bold")
    console.print(table)
    for count, what in ((empty.sum(), "see no key"), (bad.sum(), "see a NaN or infinity")):
        if count:
            console.print(f"  {count:,} of {bad.size:,} rows {what} and are left out")


def _range(values: Array) -> tuple[str, str, str]:
    """Return the smallest, the mean and the largest value in words."""
    if not values.size:
        return "-", "-", "-"
    with np.errstate(over="ignore"):
        low, mean, high = values.min(), values.mean(dtype=np.float64), values.max()
    if values.dtype.kind == "i":
        return f"{low:,}", _number(mean), f"{high:,}"
    return _number(low), _number(mean), _number(high)


def _number(x: np.floating[Any]) -> str:
    """Return four digits of a number; a negative zero is zero."""
    return f"{x + 0.0:.4g}"


def print_written(
    console: Console, wanted: files.Wanted, dtype: np.dtype[Any], stored: Sequence[str]
) -> None:
    """Print which file holds what."""
    names = ", ".join([*stored, *(["weights"] if wanted.weights_inside else [])])
    written = [(wanted.output, names), (wanted.weights_to, "weights")]
    there = [(path, held) for path, held in written if path is not None]
    if not there:
        return
    console.print("\nwrote", style="bold")
    for path, held in there:
        console.print(f"  {path}  {held}  ({files.readable(path.stat().st_size)})")
    if files.storable(dtype) != dtype:
        console.print(f"  {dtype.name} is stored as float32, which holds it exactly")
