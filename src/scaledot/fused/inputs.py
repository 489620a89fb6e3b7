"""The arrays of a problem as kernels take them: flat windows, and the tables that go with them."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays as memory
from scaledot.fused.tables import Ints, Lies, Signature, Tables, Wanted, tables
from scaledot.fused.windows import whole, window
from scaledot.problem import Problem


class Inputs(NamedTuple):
    """What kernels read, as they take it."""

    its: Tables
    numbers: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray
    mask: np.ndarray
    sinks: np.ndarray


def inputs(
    problem: Problem,
    out: np.ndarray | None,
    *,
    has_rows: bool,
    block_keys: int,
    wanted: Wanted | None = None,
) -> Inputs:
    """Return what kernels read of a call."""
    sums, sizes = sum_type(problem), problem.sizes
    query, key = _input(problem, problem.query), _input(problem, problem.key)
    given = {
        "query": query,
        "key": key,
        "value": None if problem.value is None else _input(problem, problem.value),
        "bias": None if problem.bias is None else _bias(problem, problem.bias, sums),
        "mask": None if problem.mask is None else whole(memory.as_numpy(problem.mask)),
    }
    found = {name: None if x is None else lies(x) for name, x in given.items()}
    its = tables(
        Signature(
            problem.frame,
            sizes,
            **found,  # type: ignore[arg-type]  # query and key are there
            out=None if out is None else lies(out),
            has_sinks=problem.sinks is not None,
            has_rows=has_rows,
            wanted=wanted,
            query_offset=_ints(problem.query_offset, sizes),
            key_lengths=_ints(problem.n_keys, sizes),
            query_lengths=_ints(problem.n_queries, sizes),
            block_keys=block_keys,
        )
    )
    nothing = _nothing(query.dtype, sums)
    flats = {n: getattr(nothing, n) if x is None else window(x) for n, x in given.items()}
    sinks = nothing.sinks
    if problem.sinks is not None:
        spread = np.broadcast_to(memory.as_numpy(problem.sinks)[..., 0], sizes)
        sinks = np.array(spread, order="C").reshape(-1)
    return Inputs(its, window(problem.rows), **flats, sinks=sinks)


def exchange(given: Inputs, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Inputs:
    """Return inputs with other arrays, which lie in memory as those did."""
    return Inputs(
        given.its, given.numbers, window(query), window(key), window(value), given.bias, given.mask,
        given.sinks,
    )  # fmt: skip


def lies(x: np.ndarray) -> Lies:
    """Return how an array lies in memory."""
    return x.shape, x.strides, x.itemsize


def sum_type(problem: Problem) -> np.dtype:
    """Return NumPy's type of the sums."""
    return DOUBLE if problem.frame.kind == "float64" else SINGLE


SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
NO_NUMBERS = {kind: np.empty(0, kind) for kind in (SINGLE, DOUBLE)}
"""Where nothing is wanted of the rows, by the type of the sums."""
NO_INTEGERS = np.empty(0, np.int64)


class Nothing(NamedTuple):
    """What kernels are given in place of arrays that are not there."""

    value: np.ndarray
    bias: np.ndarray
    mask: np.ndarray
    sinks: np.ndarray


@cache
def _nothing(dtype: np.dtype, sums: np.dtype) -> Nothing:
    """Return arrays of one element that nobody reads, of types that kernels exist for anyway."""
    value, bias, mask = np.zeros(1, dtype), np.zeros(1, sums), np.zeros(1, bool)
    return Nothing(window(value), window(bias), window(mask), np.zeros(1, sums))


def _ints(x: np.ndarray | int, sizes: tuple[int, ...]) -> Ints:
    """Return an int for all heads, or one for each."""
    if isinstance(x, int):
        return x
    return tuple(np.broadcast_to(x[..., 0], sizes).reshape(-1).tolist())


def _input(problem: Problem, x: Any) -> np.ndarray:
    """Return query, key or value in the type of the result, itself where it is of that type."""
    kind = problem.frame.kind
    if memory.type_name(x) != kind:
        given = [y for y in (problem.query, problem.key, problem.value) if y is not None]
        x = memory.convert(problem.xp, x, memory.dtype_of(problem.xp, kind, given))
    return whole(memory.as_numpy(x))


def _bias(problem: Problem, bias: Any, sums: np.dtype) -> np.ndarray:
    """Return the bias in the type of the sums, or in place where it is of 16 bits."""
    halves = sums == np.float32 and memory.type_name(bias) in ("float16", "bfloat16")
    if not halves:
        bias = memory.clamp(problem.xp, bias, problem.dtype)
    return whole(memory.as_numpy(bias))
