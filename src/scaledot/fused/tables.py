"""The tables of a call: made once for each signature, and kept."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from scaledot.fused.decode import MOST_PARTS, PART_KEYS
from scaledot.fused.forward import FULL_TILE
from scaledot.fused.jit import records
from scaledot.fused.simd import F32_LANES, F64_LANES
from scaledot.fused.windows import Geometry, places
from scaledot.fused.work import CALL, HEAD, KEYED

LEAST_PLAIN_SCALE = 1e-30
"""Below it the exponent's factor could not take the largest float32 to a weight of 0."""
KEPT_HEADS = 4096
"""Tables of more heads, 0.2 MiB, are made anew for each call."""

Ints = int | tuple[int, ...]
"""One for all heads, or one for each."""


class Signature(NamedTuple):
    """All that the tables depend on."""

    sizes: tuple[int, ...]
    """Those of the axes (*batch, *folded)."""
    n_batch: int
    """How many of them are batch axes."""
    sums: str
    is_half: bool
    """Whether keys and values are of 16 bits."""
    n_queries: int
    n_keys: int
    head_size: int
    value_size: int
    has_output: bool
    has_bias: bool
    has_mask: bool
    has_sinks: bool
    query: Geometry
    key: Geometry
    value: Geometry
    bias: Geometry
    mask: Geometry
    out: Geometry
    query_offset: Ints
    key_lengths: Ints
    query_lengths: Ints
    left: int
    right: int
    scale: float
    softcap: float | None
    block_keys: int


class Tables(NamedTuple):
    """What kernels are told of a call."""

    call: np.ndarray
    heads: np.ndarray
    keyed: np.ndarray
    full: int
    """Lanes of a full tile."""
    n_floats: int
    """Of the scratch of a thread."""
    n_items: int
    flops: int
    """Operations of an item, at most."""
    n_rows: int
    """Query rows that share their keys."""
    n_parts: int
    """Of the keys of a set, in decoding."""
    n_sets: int


def tables(its: Signature) -> Tables:
    """Return the tables of a call."""
    return _kept(its) if math.prod(its.sizes) <= KEPT_HEADS else _make(its)


def _make(its: Signature) -> Tables:
    """Make the tables of a call."""
    heads = np.empty(math.prod(its.sizes), HEAD)
    for name in ("query", "out", "bias", "mask"):
        heads[name] = places(its.sizes, getattr(its, name))
    heads["query_offset"] = its.query_offset
    heads["n_keys"], heads["n_queries"] = its.key_lengths, its.query_lengths
    keyed = np.empty(math.prod(its.sizes[: its.n_batch]), KEYED)
    keyed["key"] = places(its.sizes[: its.n_batch], its.key)
    keyed["value"] = places(its.sizes[: its.n_batch], its.value)
    call = np.zeros(1, CALL)
    n_folded = len(heads) // max(1, len(keyed))
    call["n_batches"], call["n_folded"] = len(keyed), n_folded
    for name in (
        "n_queries", "n_keys", "head_size", "value_size", "has_output", "has_bias", "has_mask",
        "has_sinks", "left", "right", "block_keys", "scale",
    ):  # fmt: skip
        call[name] = getattr(its, name)
    for name in ("query", "key", "value", "bias", "mask", "out"):
        lies = getattr(its, name)
        call[f"{name}_row"], call[f"{name}_column"] = lies.row, lies.column
    is_plain = its.softcap is None and not its.has_bias and its.scale > LEAST_PLAIN_SCALE
    unit = its.scale if is_plain else 1.0
    call["is_plain"], call["unit"], call["softcap"] = is_plain, unit, its.softcap or 0.0
    call["exponent"] = unit * math.log2(math.e)
    call["least"] = (-1023 if its.sums == "float64" else -127) / call["exponent"]
    n_floats = _plan_scratch(call, its)
    n_parts = min(MOST_PARTS, max(1, -(-its.n_keys // PART_KEYS)))
    call["n_parts"], call["part_size"] = n_parts, 2 + its.value_size
    full = int(call["full"][0])
    n_items = len(keyed) * -(-n_folded * its.n_queries // full)
    flops = 2 * full * its.n_keys * (its.head_size + its.value_size) + 1
    return Tables(
        call=records(call),
        heads=records(heads),
        keyed=records(keyed),
        full=full,
        n_floats=n_floats,
        n_items=n_items,
        flops=flops,
        n_rows=n_folded * its.n_queries,
        n_parts=n_parts,
        n_sets=len(keyed),
    )


_kept = lru_cache(maxsize=128)(_make)


def _plan_scratch(call: Any, its: Signature) -> int:
    """Note where everything lies in the scratch of floats, and return how much that is."""
    full = FULL_TILE * (F64_LANES if its.sums == "float64" else F32_LANES)
    block, head, size = its.block_keys, its.head_size, its.value_size
    rooms = {
        "row_max": full,
        "row_sum": full,
        "shrink": full,
        "factor": full,
        "queries": head * full,
        "scores": block * full,
        "output": size * full,
        "taint": size * full,
        "bias": block * full if its.has_bias else 0,
        "forbidden": block * full if its.has_mask else 0,
        "keys": block * head + full if its.is_half else 0,
        "values": block * size + full,
    }
    call["full"], at = full, 0
    for name, n in rooms.items():
        call[f"at_{name}"] = at
        at += -(-n // full) * full
    return at
