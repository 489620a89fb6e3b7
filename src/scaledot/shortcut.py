"""The short way of a small call whose like was made before.

What a call of contiguous NumPy arrays does, its checks, its plan and the tables of its kernels,
depends on shapes, types and plain options alone: only the memory differs. Of a call of 8 heads of
16 × 64, finding all of that again is half the time.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays, planning
from scaledot.call import Call
from scaledot.request import Request

MOST_SCORES = 2**23
"""Beyond so many, some ten milliseconds, the long way costs too little to matter."""
MOST_HEADS = 512
"""The tables of more heads, 40 KiB, are not worth keeping."""
KEPT = 256
"""So many kinds of calls are remembered, and then all forgotten."""
PLAIN = frozenset((bool, int, float, str))
NOT_KEPT = np.empty(0)
"""In place of the caller's arrays, which nobody shall keep alive."""


Found = tuple[np.ndarray, np.ndarray | None]
"""The output, and the weights where they are asked for."""


class Known(NamedTuple):
    """What a call was found to be."""

    shape: tuple[int, ...]
    weights_shape: tuple[int, ...] | None
    """None where the output alone is wanted."""
    dtype: np.dtype[Any]
    scale: float
    inputs: Any
    """`scaledot.fused.inputs.Inputs` without its arrays; None where it is by the definition."""
    threads: int


def take(
    query: Any, key: Any, value: Any, how: Mapping[str, Any], *, seeing: bool = False
) -> Found | None:
    """Return the results, or None where no call of this kind is known, or this one needs more.

    `seeing`: the weights are wanted too.
    """
    known: Known | None = planning.known.get(_kind(query, key, value, how, seeing))
    if known is None:
        return None
    out, weights = arrays.empty(np, known.shape, known.dtype, None), None
    if known.weights_shape is not None:
        weights = arrays.empty(np, known.weights_shape, known.dtype, None)
    found = out, weights
    if known.inputs is None:
        return found if _define(query, key, value, known.scale, out, weights) else None
    from scaledot.fused import inputs, launch

    given = inputs.exchange(known.inputs, query, key, value)
    if weights is not None:
        launch.see(given, out, weights, known.threads)
        return found
    rows = inputs.NO_NUMBERS[given.its.sums]
    return found if launch.attend(given, out, rows, known.threads) else None


def _define(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: float,
    out: np.ndarray,
    weights: np.ndarray | None,
) -> bool:
    """Write the results by their definition; tell whether they are finite: else a row needs care.

    These are the steps of `scaledot.textbook` where nothing is restricted, with the same bits: what
    the other steps there are for shows in a number that is not finite.
    """
    with np.errstate(all="ignore"):
        scores = query @ key.mT * scale
        exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
        found = np.divide(exps, exps.sum(axis=-1, keepdims=True), out=weights)
        np.matmul(found, value, out=out)
        is_finite = np.isfinite(out).all()
        return bool(is_finite and (weights is None or np.isfinite(weights).all()))


def remember(
    call: Call, how: Mapping[str, Any], out: np.ndarray, weights: np.ndarray | None = None
) -> None:
    """Remember a call that has been made, and what it returned, if its like can be taken."""
    plan, given = call.plan, call.given
    query, key, value = arguments = [given[name] for name in planning.ARRAYS]
    is_small = 0 < plan.n_scores <= MOST_SCORES and math.prod(call.problem.sizes) <= MOST_HEADS
    kind = _kind(query, key, value, how, weights is not None) if is_small else None
    if kind is None or kind in planning.known:
        return
    if any(arrays.type_name(x) != plan.dtype or not x.dtype.isnative for x in arguments):
        return
    inputs = None
    if plan.engine == "fused":
        inputs = _inputs(call, out, weights)
        if inputs is None:
            return
    elif plan.engine != "textbook" or not _is_plain(plan, how):
        return
    if len(planning.known) >= KEPT:
        planning.known.clear()
    planning.known[kind] = Known(
        out.shape,
        None if weights is None else weights.shape,
        out.dtype,
        plan.scale,
        inputs,
        plan.blocks.threads,
    )


def _inputs(call: Call, out: np.ndarray, weights: np.ndarray | None) -> Any:
    """Return what kernels read of a call, without its arrays; None where it goes in parts."""
    from scaledot.fused import engine, inputs, tables

    wanted = None
    if weights is not None:
        if not engine.is_at_once(call.problem, Request(weights=True)):
            return None
        wanted = tables.Wanted(weights=inputs.lies(call.spread(weights, 2)))
    found = inputs.inputs(
        call.problem,
        call.spread(out, 2),
        has_rows=weights is not None,
        block_keys=call.plan.blocks.keys,
        wanted=wanted,
    )
    return found._replace(query=NOT_KEPT, key=NOT_KEPT, value=NOT_KEPT)


def _is_plain(plan: planning.Plan, how: Mapping[str, Any]) -> bool:
    """Tell whether the definition holds as it stands: heads of their own, nothing restricted."""
    kinds = (plan.query, plan.key, plan.value)
    fronts = {kind.shape[:-2] for kind in kinds if kind is not None}
    return len(fronts) == 1 and plan.dtype == plan.sum_dtype and how.keys() <= {"scale", "engine"}


def _kind(
    query: Any, key: Any, value: Any, how: Mapping[str, Any], seeing: bool
) -> tuple[Any, ...] | None:
    """Return all that a call depends on but its numbers; None where that is more than this."""
    for x in (query, key, value):
        if type(x) is not np.ndarray:
            return None
        flags = x.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    kind = seeing, query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype
    if not how:
        return kind
    types = tuple(map(type, how.values()))  # True is equal to 1, but not taken for it
    return (*kind, *how.items(), *types) if PLAIN.issuperset(types) else None
