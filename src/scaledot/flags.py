"""What several commands take: their input files and flags, and how these are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from scaledot import files, slices
from scaledot.files import Refusal

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
Scale = Annotated[
    float | None, typer.Option(metavar="X", help="Factor of query . key. Default 1/sqrt(D).")
]
Softcap = Annotated[
    float | None,
    typer.Option(metavar="X", help="Cap scaled scores by X * tanh(score / X), before bias, masks."),
]


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given."""
    return {name: x for name, x in flags.items() if x is not None}


def window(sides: tuple[str, str] | None) -> tuple[int | None, int | None] | None:
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


def problem(inputs: Sequence[Path], flags: dict[str, Any]) -> slices.Problem:
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
