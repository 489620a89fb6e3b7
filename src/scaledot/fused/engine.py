"""The fused engine: windows and tables for the kernels, work for the threads, results."""

import threading
from typing import Any

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import decode, forward, target, threads
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
    xp, sizes = problem.xp, problem.layout.sizes
    sums = np.dtype(memory.sum_type(problem.kind))
    rows = np.empty((len(RESIDUALS), *sizes, len(problem.rows)), sums)
    place, is_result = None, False
    if request.output:
        place = memory.as_numpy(results.view("output"))
        is_result = place.flags.writeable and is_whole(place)
        if not is_result:
            place = np.empty(place.shape, place.dtype)
    if rows.size:
        attend(problem, blocks, place, rows.reshape(-1))
    everywhere = (WHOLE,) * (len(sizes) + 1)
    device = memory.device_of(xp, problem.query)
    if request.output and not is_result:
        results.put("output", (*everywhere, WHOLE), xp.asarray(place, device=device))
    if request.residuals or request.statistics:
        row_max, shift, total = (xp.asarray(x, device=device) for x in rows)
        results.finish(everywhere, row_max=row_max, shift=shift, total=total)


def attend(problem: Problem, blocks: Blocks, place: np.ndarray | None, rows: np.ndarray) -> None:
    """Write the output of all rows to its place, and their maxima and sums to `rows`, flat."""
    sums, sizes = rows.dtype, problem.layout.sizes
    nothing = np.zeros((1,) * (len(sizes) + 2), sums)
    keys = _input(problem, problem.key)
    values = keys[..., :1] if problem.value is None else _input(problem, problem.value)
    bias = nothing if problem.bias is None else _bias(problem, problem.bias, sums)
    mask = nothing.view(np.uint8)[..., :1] if problem.mask is None else problem.mask
    windows = {
        "query": window(_input(problem, problem.query)),
        "key": window(keys),
        "value": window(values),
        "bias": window(bias),
        "mask": window(whole(memory.as_numpy(mask))),
        "out": window(nothing.copy() if place is None else place, writable=True),
    }
    flats, lies = {n: w[0] for n, w in windows.items()}, {n: w[1] for n, w in windows.items()}
    its = Signature(
        sizes=sizes,
        n_batch=problem.key.ndim - 2,
        sums=sums.name,
        is_half=keys.dtype.itemsize == 2,
        n_queries=len(problem.rows),
        n_keys=problem.key.shape[-2],
        head_size=problem.query.shape[-1],
        value_size=0 if place is None else place.shape[-1],
        has_output=place is not None,
        has_bias=problem.bias is not None,
        has_mask=problem.mask is not None,
        has_sinks=problem.sinks is not None,
        **lies,
        query_offset=_ints(problem.query_offset, sizes),
        key_lengths=_ints(problem.n_keys, sizes),
        query_lengths=_ints(problem.n_queries, sizes),
        left=problem.left,
        right=problem.right,
        scale=problem.scale,
        softcap=problem.softcap,
        block_keys=blocks.keys,
    )
    sinks = np.zeros(1, sums)
    if problem.sinks is not None:
        spread = np.broadcast_to(memory.as_numpy(problem.sinks)[..., 0], sizes)
        sinks = np.array(spread, order="C").reshape(-1)
    known = tables(its)
    few = _is_decoding(its, known) and bias.dtype == sums  # its bias is read number by number
    if few and _decode(its, known, flats, sinks, rows, blocks.threads):
        return
    _share(known, flats, sinks, rows, blocks.threads)


def _is_decoding(its: Signature, known: Tables) -> bool:
    """Tell whether there are few queries over many keys, in rows of whole vectors."""
    lanes = known.full // forward.FULL_TILE
    lies = (its.query, its.key, its.value, its.out) if its.has_output else (its.query, its.key)
    return (
        known.n_rows <= decode.MOST_ROWS
        and its.n_keys >= decode.BLOCK
        and its.head_size > 0
        and its.head_size % lanes == its.value_size % lanes == 0
        and all(one.column == 1 for one in lies)
    )


def _decode(
    its: Signature,
    known: Tables,
    flats: dict[str, np.ndarray],
    sinks: np.ndarray,
    rows: np.ndarray,
    limit: int,
) -> bool:
    """Attend with few queries; tell whether all that was met is finite."""
    lanes = known.full // forward.FULL_TILE
    n_items = known.n_sets * known.n_parts
    parts = np.empty(n_items * known.n_rows * (2 + its.value_size), rows.dtype)
    trouble = np.zeros(1, np.int64)
    given = (*(flats[name] for name in ("query", "key", "value", "bias", "mask")), parts, trouble)
    n_floats = 2 * lanes + known.n_rows * (its.head_size + decode.BLOCK + lanes) + its.value_size

    def kernel(counter: np.ndarray, budget: int) -> None:
        x = memory.empty(np, (n_floats,), rows.dtype, None)
        decode.run(counter, budget, known.call, known.heads, known.keyed, *given, x)

    flops = known.flops // known.full * known.n_rows // known.n_parts + 1
    alone = flops * n_items < ALONE_FLOPS / DECODING
    n_threads = 1 if alone else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS / DECODING) // flops)
    threads.run(kernel, n_items, budget, min(n_threads, n_items))
    if trouble[0]:
        return False
    x = memory.empty(np, (n_floats,), rows.dtype, None)
    decode.join(known.call, known.heads, parts, sinks, flats["out"], rows, x)
    return True


def _share(
    its: Tables,
    flats: dict[str, np.ndarray],
    sinks: np.ndarray,
    rows: np.ndarray,
    limit: int,
) -> None:
    """Share the tiles out among threads."""
    names = ("query", "key", "value", "bias", "mask")
    given = (*(flats[name] for name in names), sinks, flats["out"], rows)
    few = tuple(flats[name].dtype for name in ("query", "bias", "mask", "out"))

    def kernel(counter: np.ndarray, budget: int) -> None:
        own = _scratch(its.n_floats, its.full, rows.dtype, few)
        forward.run(counter, budget, its.call, its.heads, its.keyed, *given, *own)

    alone = its.flops * its.n_items < ALONE_FLOPS
    n_threads = 1 if alone else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS) // its.flops)
    threads.run(kernel, its.n_items, budget, min(n_threads, its.n_items))


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


def _ints(x: np.ndarray | int, sizes: tuple[int, ...]) -> Ints:
    """Return an int for all heads, or one for each."""
    if isinstance(x, int):
        return x
    return tuple(np.broadcast_to(x[..., 0], sizes).reshape(-1).tolist())


def _input(problem: Problem, x: Any) -> np.ndarray:
    """Return query, key or value in the type of the result, itself where it is of that type."""
    if memory.type_name(x) != problem.kind:
        like = (problem.query, problem.key, problem.value)
        given = [y for y in like if y is not None]
        x = memory.convert(problem.xp, x, memory.dtype_of(problem.xp, problem.kind, given))
    return whole(memory.as_numpy(x))


def _bias(problem: Problem, bias: Any, sums: np.dtype) -> np.ndarray:
    """Return the bias in the type of the sums, or in place where it is of 16 bits."""
    halves = sums == np.float32 and memory.type_name(bias) in ("float16", "bfloat16")
    if not halves:
        bias = memory.clamp(problem.xp, bias, problem.dtype)
    return whole(memory.as_numpy(bias))
