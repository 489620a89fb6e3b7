"""The fused engine: flat windows of the callers' arrays, work for the threads, results."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import forward, target, threads
from scaledot.fused.jit import records
from scaledot.fused.simd import F32_LANES, F64_LANES
from scaledot.fused.work import CALL, HEAD, KEYED, N_PLACES
from scaledot.problem import WHOLE, Problem
from scaledot.request import RESIDUALS, Blocks, Request, Results

BITS = {"float16": np.int16, "bfloat16": np.uint16, "bool": np.uint8}
"""How kernels see types that NumPy or LLVM do not compute with."""
SLICE_FLOPS = 2e9
"""Operations of one call of a kernel: some hundredths of a second, for which Ctrl-C waits."""
LEAST_PLAIN_SCALE = 1e-30
"""Below it the exponent's factor could not take the largest float32 to a weight of 0."""
ALONE_FLOPS = 1.5e7
"""Up to so many operations, about 0.15 ms, handing work to another thread does not pay."""


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
    row_max, shift, total = (xp.asarray(x, device=device) for x in rows)
    results.finish(everywhere, row_max=row_max, shift=shift, total=total)


def attend(problem: Problem, blocks: Blocks, place: np.ndarray | None, rows: np.ndarray) -> None:
    """Write the output of all rows to its place, and their maxima and sums to `rows`, flat."""
    sums = rows.dtype
    windows = _windows(problem, place, sums)
    heads, keyed = _heads(problem, windows)
    call = np.zeros(1, CALL)
    its = call[0]
    its["n_batches"], its["n_folded"] = len(keyed), len(heads) // len(keyed)
    its["value_size"] = 0 if place is None else place.shape[-1]
    its["has_output"] = place is not None
    its["block_keys"] = blocks.keys
    for name, window in windows.items():
        its[f"{name}_row"], its[f"{name}_column"] = window.row, window.column
    _describe(its, problem, sums)
    n_floats = _plan_scratch(its, sums, windows["key"].flat.itemsize == 2)
    sinks = np.zeros(1, sums)
    if problem.sinks is not None:
        sinks = np.array(_a_head(memory.as_numpy(problem.sinks), problem.layout.sizes))
    names = ("query", "key", "value", "bias", "mask", "out")
    query, key, value, bias, mask, out = (windows[name].flat for name in names)
    tables = records(call), records(heads), records(keyed)
    inputs = (query, key, value, bias, mask, sinks, out, rows)
    few = (query.dtype, bias.dtype, mask.dtype, out.dtype)

    def kernel() -> threads.Kernel:
        full = int(its["full"])
        own = (
            memory.empty(np, (n_floats,), sums, None),
            np.empty(N_PLACES * full, np.int64),
            np.empty(2 * full, np.int64 if sums == np.float64 else np.int32),
            *(np.empty(full, dtype) for dtype in few),
        )

        def work(counter: np.ndarray, budget: int) -> None:
            forward.run(counter, budget, *tables, *inputs, *own)

        return work

    _share(its, kernel, blocks.threads)


def _windows(problem: Problem, place: np.ndarray | None, sums: np.dtype) -> dict[str, "Window"]:
    """Return the windows of all arrays; of one element where there is none."""
    n_front = len(problem.layout.sizes)
    nothing = np.zeros((1,) * (n_front + 2), sums)
    value = nothing.reshape((1,) * problem.key.ndim)
    return {
        "query": Window(_input(problem, problem.query)),
        "key": Window(_input(problem, problem.key)),
        "value": Window(
            value.astype(_input(problem, problem.key).dtype)
            if problem.value is None
            else _input(problem, problem.value)
        ),
        "bias": Window(nothing if problem.bias is None else _bias(problem, problem.bias, sums)),
        "mask": Window(
            nothing.astype(bool) if problem.mask is None else _whole(memory.as_numpy(problem.mask))
        ),
        "out": Window(nothing.copy() if place is None else place, writable=True),
    }


def _heads(problem: Problem, windows: dict[str, "Window"]) -> tuple[np.ndarray, np.ndarray]:
    """Return where the query heads lie, with their numbers, and the sets of keys."""
    sizes, n_batch = problem.layout.sizes, problem.key.ndim - 2
    heads = np.empty(math.prod(sizes), HEAD)
    for name in ("query", "out", "bias", "mask"):
        heads[name] = windows[name].heads(sizes)
    for name in ("query_offset", "n_keys", "n_queries"):
        heads[name] = _a_head(getattr(problem, name), sizes)
    keyed = np.empty(math.prod(sizes[:n_batch]), KEYED)
    for name in ("key", "value"):
        keyed[name] = windows[name].heads(sizes[:n_batch])
    return heads, keyed


def _describe(its: Any, problem: Problem, sums: np.dtype) -> None:
    """Note the sizes of a call, and what its scores go through."""
    its["n_queries"], its["n_keys"] = len(problem.rows), problem.key.shape[-2]
    its["head_size"] = problem.query.shape[-1]
    its["left"], its["right"] = problem.left, problem.right
    for name in ("bias", "mask", "sinks"):
        its[f"has_{name}"] = getattr(problem, name) is not None
    is_plain = problem.softcap is None and problem.bias is None
    its["is_plain"] = is_plain and problem.scale > LEAST_PLAIN_SCALE
    its["scale"], its["softcap"] = problem.scale, problem.softcap or 0.0
    its["unit"] = problem.scale if its["is_plain"] else 1.0
    its["exponent"] = its["unit"] * math.log2(math.e)
    its["least"] = (-1023 if sums == np.float64 else -127) / its["exponent"]


def _plan_scratch(its: Any, sums: np.dtype, is_half: bool) -> int:
    """Note where everything lies in the scratch of floats, and return how much that is."""
    full = forward.FULL_TILE * (F64_LANES if sums == np.float64 else F32_LANES)
    head, size, block = (int(its[name]) for name in ("head_size", "value_size", "block_keys"))
    rooms = {
        "row_max": full,
        "row_sum": full,
        "shrink": full,
        "factor": full,
        "queries": head * full,
        "scores": block * full,
        "output": size * full,
        "taint": size * full,
        "bias": block * full if its["has_bias"] else 0,
        "forbidden": block * full if its["has_mask"] else 0,
        "keys": block * head + full if is_half else 0,
        "values": block * size + full,
    }
    its["full"], at = full, 0
    for name, n in rooms.items():
        its[f"at_{name}"] = at
        at += -(-n // full) * full
    return at


def _share(its: Any, kernel: Callable[[], threads.Kernel], n_threads: int) -> None:
    """Share the tiles out among threads."""
    n_tiles = -(-int(its["n_folded"] * its["n_queries"]) // int(its["full"]))
    n_items = n_tiles * int(its["n_batches"])
    flops = 2 * int(its["full"] * its["n_keys"] * (its["head_size"] + its["value_size"])) + 1
    n_threads = 1 if flops * n_items < ALONE_FLOPS else n_threads or target.n_threads()
    threads.run(kernel, n_items, max(1, int(SLICE_FLOPS) // flops), min(n_threads, n_items))


# --------------------------------------------------------------------------------------- windows


class Window:
    """A flat window of the memory of an array (*front, rows, columns)."""

    def __init__(self, x: np.ndarray, *, writable: bool = False) -> None:
        x = x.view(BITS.get(memory.type_name(x), x.dtype))
        steps = [stride // x.itemsize for stride in x.strides]
        spans = [step * (size - 1) for step, size in zip(steps, x.shape, strict=True)]
        self.start = -sum(span for span in spans if span < 0) if x.size else 0
        self.row, self.column = (
            0 if size == 1 else step for step, size in zip(steps[-2:], x.shape[-2:], strict=True)
        )
        self._front = tuple(
            0 if size == 1 else step for step, size in zip(steps[:-2], x.shape[:-2], strict=True)
        )
        if x.flags.c_contiguous:
            self.flat = x.reshape(-1)
        else:
            lowest = x[tuple(slice(None, None, -1 if span < 0 else 1) for span in spans)]
            extent = 1 + sum(map(abs, spans)) if x.size else 0
            self.flat = np.lib.stride_tricks.as_strided(lowest, (extent,), (x.itemsize,))
        if not writable:
            self.flat.flags.writeable = False

    def heads(self, sizes: tuple[int, ...]) -> np.ndarray:
        """Return the place of the first element of each head."""
        return places(sizes, self._front, self.start)


@lru_cache(maxsize=1024)
def places(sizes: tuple[int, ...], steps: tuple[int, ...], start: int) -> np.ndarray:
    """Return start + Σ index · step for every index of an array of these sizes, flat."""
    found = np.full(1, start, np.int64)
    for size, step in zip(sizes, steps, strict=True):
        found = (found[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    return found


def _a_head(x: np.ndarray | int, sizes: tuple[int, ...]) -> np.ndarray:
    """Return a number for each head, of an int or of (*batch, *folded, 1)."""
    if isinstance(x, int):
        return places(sizes, (0,) * len(sizes), x)
    return np.ascontiguousarray(np.broadcast_to(x[..., 0], sizes)).reshape(-1)


def is_whole(x: np.ndarray) -> bool:
    """Tell whether an array is native, aligned, and has strides of whole elements."""
    return (
        x.dtype.isnative
        and x.flags.aligned
        and not any(stride % x.itemsize for stride in x.strides)
    )


def _whole(x: np.ndarray) -> np.ndarray:
    """Return an array that kernels can read, itself where it is one."""
    return x if is_whole(x) else x.astype(x.dtype.newbyteorder("="), order="C")


def _input(problem: Problem, x: Any) -> np.ndarray:
    """Return query, key or value in the type of the result, itself where it is of that type."""
    if memory.type_name(x) != problem.kind:
        like = (problem.query, problem.key, problem.value)
        given = [y for y in like if y is not None]
        x = memory.convert(problem.xp, x, memory.dtype_of(problem.xp, problem.kind, given))
    return _whole(memory.as_numpy(x))


def _bias(problem: Problem, bias: Any, sums: np.dtype) -> np.ndarray:
    """Return the bias in the type of the sums, or in place where it is of 16 bits."""
    halves = sums == np.float32 and memory.type_name(bias) in ("float16", "bfloat16")
    if not halves:
        bias = memory.clamp(problem.xp, bias, problem.dtype)
    return _whole(memory.as_numpy(bias))
