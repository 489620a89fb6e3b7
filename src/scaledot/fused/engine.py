"""The fused engine: windows and tables for the kernels, work for the threads, results."""

import math
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import contain, decode, forward, target, threads
from scaledot.fused.tables import Ints, Signature, Tables, tables
from scaledot.fused.windows import is_whole, whole, window
from scaledot.fused.work import N_PLACES
from scaledot.problem import WHOLE, Problem
from scaledot.request import RESIDUALS, Blocks, Request, Results

SLICE_FLOPS = 2e9
"""Operations of one call of a kernel: some hundredths of a second, for which Ctrl-C waits."""
ALONE_FLOPS = 1.5e7
"""Up to so many operations, about 0.15 ms, handing work to another thread does not pay."""
DECODING = 16
"""How many times longer an operation takes in decoding, which waits for memory."""
KEPT_FLOATS = 2**20
"""Scratch of more numbers is not kept from call to call."""

_local = threading.local()


def run(problem: Problem, request: Request, results: Results, blocks: Blocks) -> None:
    """Fill output, log-sum-exp and residuals."""
    place, is_result = None, False
    if request.output:
        place = memory.as_numpy(results.view("output"))
        is_result = place.flags.writeable and is_whole(place)
        if not is_result:
            place = np.empty(place.shape, place.dtype)
    sizes, sums = problem.layout.sizes, np.dtype(memory.sum_type(problem.frame.kind))
    shape = (len(RESIDUALS), *sizes, len(problem.rows))
    wants_rows = bool(request.residuals or request.statistics)
    rows = np.empty(shape if wants_rows else 0, sums)
    if 0 not in shape and not attend(problem, blocks, place, rows.reshape(-1)):
        # Values that are not finite take a second pass, which needs the normalisers.
        attend(problem, blocks, place, np.empty(math.prod(shape), sums))
    everywhere = (WHOLE,) * (len(sizes) + 1)
    device = memory.device_of(problem.xp, problem.query)
    if request.output and not is_result:
        results.put("output", (*everywhere, WHOLE), problem.xp.asarray(place, device=device))
    if wants_rows:
        row_max, shift, total = (problem.xp.asarray(x, device=device) for x in rows)
        results.finish(everywhere, row_max=row_max, shift=shift, total=total)


def attend(problem: Problem, blocks: Blocks, place: np.ndarray | None, rows: np.ndarray) -> bool:
    """Write the output of all rows to its place; tell whether that could be done.

    The maxima and sums of the rows go to `rows`, flat; where that is empty they are not written,
    and an output that is not finite cannot be contained.
    """
    sums, sizes = rows.dtype, problem.layout.sizes
    query, key = _input(problem, problem.query), _input(problem, problem.key)
    given = {
        "query": query,
        "key": key,
        "value": None if problem.value is None else _input(problem, problem.value),
        "bias": None if problem.bias is None else _bias(problem, problem.bias, sums),
        "mask": None if problem.mask is None else whole(memory.as_numpy(problem.mask)),
        "out": place,
    }
    lies = {n: None if x is None else (x.shape, x.strides, x.itemsize) for n, x in given.items()}
    known = tables(
        Signature(
            problem.frame,
            **lies,  # type: ignore[arg-type]  # query and key are there
            has_sinks=problem.sinks is not None,
            has_rows=rows.size > 0,
            query_offset=_ints(problem.query_offset, sizes),
            key_lengths=_ints(problem.n_keys, sizes),
            query_lengths=_ints(problem.n_queries, sizes),
            block_keys=blocks.keys,
        )
    )
    nothing = _nothing(query.dtype, sums)
    flats = {
        name: getattr(nothing, name) if x is None else window(x, writable=name == "out")
        for name, x in given.items()
    }
    sinks = np.zeros(1, sums)
    if problem.sinks is not None:
        spread = np.broadcast_to(memory.as_numpy(problem.sinks)[..., 0], sizes)
        sinks = np.array(spread, order="C").reshape(-1)
    if known.is_decoding and _decode(known, flats, sinks, rows, blocks.threads):
        return True
    return _share(known, flats, sinks, rows, blocks.threads)


def _decode(
    its: Tables,
    flats: dict[str, np.ndarray],
    sinks: np.ndarray,
    rows: np.ndarray,
    limit: int,
) -> bool:
    """Attend with few queries; tell whether all that was met is finite."""
    parts = np.empty(its.n_parts * its.part_size, rows.dtype)
    trouble = np.zeros(1, np.int64)
    given = (*(flats[name] for name in ("query", "key", "value", "bias", "mask")), parts, trouble)

    def kernel(counter: np.ndarray, budget: int) -> None:
        x = memory.empty(np, (its.part_floats,), rows.dtype, None)
        decode.run(counter, budget, its.call, its.heads, its.keyed, *given, x)

    alone = its.part_flops * its.n_parts < ALONE_FLOPS / DECODING
    n_threads = 1 if alone else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS / DECODING) // its.part_flops)
    threads.run(kernel, its.n_parts, budget, min(n_threads, its.n_parts))
    if trouble[0]:
        return False
    x = memory.empty(np, (its.part_floats,), rows.dtype, None)
    decode.join(its.call, its.heads, parts, sinks, flats["out"], rows, x)
    return True


def _share(
    its: Tables,
    flats: dict[str, np.ndarray],
    sinks: np.ndarray,
    rows: np.ndarray,
    limit: int,
) -> bool:
    """Share the tiles out among threads; tell whether the output is what it should be."""
    names = ("query", "key", "value", "bias", "mask")
    tainted = np.zeros(its.n_items + 1, np.uint8)  # and whether any is
    given = (*[flats[name] for name in names], sinks, flats["out"], rows, tainted)
    few = tuple([flats[name].dtype for name in ("query", "bias", "mask", "out")])
    alone = its.flops * its.n_items < ALONE_FLOPS
    n_threads = 1 if alone else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS) // its.flops)

    def share(entry: Any) -> None:
        def kernel(counter: np.ndarray, budget: int) -> None:
            own = _scratch(its.n_floats, its.full, rows.dtype, few)
            entry(counter, budget, its.call, its.heads, its.keyed, *given, *own)

        threads.run(kernel, its.n_items, budget, min(n_threads, its.n_items))

    share(forward.run)
    if not tainted[-1]:
        return True
    if rows.size:
        share(contain.run)
    return bool(rows.size)


def _scratch(
    n_floats: int, full: int, sums: np.dtype, few: tuple[np.dtype, ...]
) -> tuple[np.ndarray, ...]:
    """Return the memory of this thread, kept from call to call where it is small."""
    key = (n_floats, full, sums, few)
    if getattr(_local, "key", None) == key:
        found: tuple[np.ndarray, ...] = _local.scratch
        return found
    made = (
        memory.empty(np, (n_floats,), sums, None),
        np.empty(N_PLACES * full, np.int64),
        np.empty(2 * full, np.int64 if sums == np.float64 else np.int32),
        *(np.empty(full, dtype) for dtype in few),
    )
    if n_floats <= KEPT_FLOATS:
        _local.key, _local.scratch = key, made
    return made


class Nothing(NamedTuple):
    """What kernels are given in place of arrays that are not there."""

    value: np.ndarray
    bias: np.ndarray
    mask: np.ndarray
    out: np.ndarray


@cache
def _nothing(dtype: np.dtype, sums: np.dtype) -> Nothing:
    """Return arrays of one element that nobody reads, of types that kernels exist for anyway."""
    value, bias, mask = np.zeros(1, dtype), np.zeros(1, sums), np.zeros(1, bool)
    return Nothing(window(value), window(bias), window(mask), window(value.copy(), writable=True))


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
