"""The tables of a call: made once for each signature, and kept."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from scaledot.fused.decode import (
    ASKED_BYTES,
    BLOCK,
    LEAST_KEYS,
    MOST_PARTS,
    MOST_ROWS,
    PART_KEYS,
)
from scaledot.fused.forward import FULL_TILE
from scaledot.fused.jit import records
from scaledot.fused.observe import KEPT_TOPS
from scaledot.fused.simd import BUNDLE, F32_LANES, F64_LANES
from scaledot.fused.windows import Geometry, geometry, places
from scaledot.fused.work import CALL, HEAD, KEYED, MOMENTS
from scaledot.problem import Frame

LEAST_PLAIN_SCALE = 1e-30
"""Below it the exponent's factor could not take the largest float32 to a weight of 0."""
KEPT_BYTES = 2**20
"""Exponentials of a tile of up to so many bytes are kept until their sums are known: beyond what
the second cache takes, making them again is as fast."""
LEAST_TURNS = 32
"""Parts of what keys receive, over all sets of keys: enough for the threads to balance."""
FEWEST_TURNS = 4
"""The same where the parts of long rows of keys are larger than `RECEIVED_BYTES`."""
RECEIVED_BYTES = 2**21
KEPT_HEADS = 4096
"""Tables of more heads, 0.2 MiB, are made anew for each call."""

Ints = int | tuple[int, ...]
"""One for all heads, or one for each."""
Lies = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and bytes of an element of an array."""

NOTHING: Lies = ((1, 1), (0, 0), 1)
"""How an array lies that is not there."""


class Wanted(NamedTuple):
    """What is wanted beside output and log-sum-exp."""

    moments: bool = False
    distance: bool = False
    k: int = 0
    """How many of the largest weights."""
    received: bool = False
    weights: Lies | None = None
    lead: int | None = None
    """Weights of a row before the first that begins a line of memory; None where the rows differ,
    or the weights are few, and are not written past the caches."""


class Signature(NamedTuple):
    """All that the tables depend on."""

    frame: Frame
    sizes: tuple[int, ...]
    query: Lies
    key: Lies
    value: Lies | None
    bias: Lies | None
    mask: Lies | None
    out: Lies | None
    """None where no output is wanted."""
    has_sinks: bool
    has_rows: bool
    wanted: Wanted | None
    query_offset: Ints
    key_lengths: Ints
    query_lengths: Ints
    block_keys: int


class Tables(NamedTuple):
    """What kernels are told of a call."""

    call: np.ndarray
    heads: np.ndarray
    keyed: np.ndarray
    sums: np.dtype
    full: int
    """Lanes of a full tile."""
    n_floats: int
    """Of the scratch of a thread."""
    n_items: int
    flops: int
    """Operations of an item, at most."""
    n_turns: int
    """Items of a set of keys where something is observed, each of some tiles."""
    n_rows: int
    """Query rows that share their keys."""
    n_parts: int
    """In decoding, of all sets of keys."""
    part_size: int
    """Numbers that a part leaves."""
    part_floats: int
    """Of the scratch of a thread, in decoding."""
    part_flops: int
    is_decoding: bool


def tables(its: Signature) -> Tables:
    """Return the tables of a call."""
    n_heads = math.prod(its.sizes)
    return _kept(its) if n_heads <= KEPT_HEADS else _make(its)


def _make(its: Signature) -> Tables:
    """Make the tables of a call."""
    frame, sizes = its.frame, its.sizes
    n_batch = len(its.key[0]) - 2
    lies = {
        name: geometry(*(getattr(its, name) or NOTHING))
        for name in ("query", "key", "value", "bias", "mask", "out")
    }
    wanted = its.wanted or Wanted()
    lies["weights"] = geometry(*(wanted.weights or NOTHING))
    heads = np.empty(math.prod(sizes), HEAD)
    for name in ("query", "out", "bias", "mask"):
        heads[name] = places(sizes, lies[name]) if getattr(its, name) else 0
    heads["weights"] = places(sizes, lies["weights"]) if wanted.weights else 0
    heads["query_offset"] = its.query_offset
    heads["n_keys"], heads["n_queries"] = its.key_lengths, its.query_lengths
    keyed = np.empty(math.prod(sizes[:n_batch]), KEYED)
    keyed["key"] = places(sizes[:n_batch], lies["key"])
    keyed["value"] = places(sizes[:n_batch], lies["value"]) if its.value else 0
    n_folded = len(heads) // max(1, len(keyed))
    n_queries, head_size = its.query[0][-2:]
    value_size = its.out[0][-1] if its.out else 0
    is_double = frame.kind == "float64"
    call = np.zeros(1, CALL)
    for name, number in {
        "n_batches": len(keyed),
        "n_folded": n_folded,
        "n_queries": n_queries,
        "n_keys": frame.n_keys,
        "head_size": head_size,
        "value_size": value_size,
        "has_output": its.out is not None,
        "has_bias": its.bias is not None,
        "has_mask": its.mask is not None,
        "has_sinks": its.has_sinks,
        "has_rows": its.has_rows,
        "left": frame.left,
        "right": frame.right,
        "block_keys": its.block_keys,
        "scale": frame.scale,
    }.items():
        call[name] = number
    n_tiles = _n_tiles(n_folded * n_queries, F64_LANES if is_double else F32_LANES)
    n_turns = n_tiles
    if wanted.received:
        size = len(heads) * frame.n_keys * (8 if is_double else 4)
        n_turns = min(LEAST_TURNS, max(FEWEST_TURNS, RECEIVED_BYTES * len(keyed) // max(1, size)))
        n_turns = -(-n_turns // max(1, len(keyed)))
    call["n_turns"] = max(1, min(n_tiles, n_turns))
    call["n_phases"] = 2 if wanted.received or wanted.weights else 1
    call["k"], call["has_moments"] = wanted.k, wanted.moments
    call["has_distance"], call["has_received"] = wanted.distance, wanted.received
    call["has_weights"], call["streams"] = wanted.weights is not None, wanted.lead is not None
    call["lead"] = wanted.lead or 0
    # Rows of a bias or mask that all heads share are then read once, not once for each head.
    shared = [lies[name] for name in ("bias", "mask") if getattr(its, name)]
    call["by_rows"] = any(lie.row and not any(lie.front[:n_batch]) for lie in shared)
    for name, lie in lies.items():
        call[f"{name}_row"], call[f"{name}_column"] = lie.row, lie.column
    is_plain = frame.softcap is None and not its.bias and frame.scale > LEAST_PLAIN_SCALE
    unit = frame.scale if is_plain else 1.0
    call["is_plain"], call["unit"], call["softcap"] = is_plain, unit, frame.softcap or 0.0
    call["exponent"] = unit * math.log2(math.e)
    call["least"] = (-1023 if is_double else -127) / call["exponent"]
    lanes = F64_LANES if is_double else F32_LANES
    n_floats = _plan_scratch(call[0], lanes, its.key[2] == 2, its.wanted)
    n_parts = min(MOST_PARTS, max(1, -(-frame.n_keys // PART_KEYS)))
    full, n_rows = int(call["full"][0]), n_folded * n_queries
    bundle = 1 if n_rows <= 1 else min(BUNDLE, full // FULL_TILE)
    n_padded = -(-n_rows // bundle) * bundle
    call["bundle"], call["n_bundles"] = bundle, n_padded // bundle
    n_bytes = len(keyed) * frame.n_keys * (head_size + value_size) * its.key[2]
    call["asks"] = bundle > 1 or n_bytes > ASKED_BYTES
    call["n_parts"], call["part_size"] = n_parts, n_padded * (2 + value_size)
    return Tables(
        call=records(call),
        heads=records(heads),
        keyed=records(keyed),
        sums=np.dtype(np.float64 if is_double else np.float32),
        full=full,
        n_floats=n_floats,
        n_items=len(keyed) * n_tiles,
        flops=2 * full * frame.n_keys * (head_size + value_size) + 1,
        n_turns=int(call["n_turns"][0]),
        n_rows=n_rows,
        n_parts=len(keyed) * n_parts,
        part_size=n_padded * (2 + value_size),
        part_floats=max(
            value_size,
            n_padded * head_size + full + min(BLOCK, -(-frame.n_keys // full) * full) * bundle,
        ),
        part_flops=2 * n_rows * frame.n_keys * (head_size + value_size) // n_parts + 1,
        is_decoding=_is_decoding(its, lies, n_rows, full // FULL_TILE),
    )


def _is_decoding(its: Signature, lies: dict[str, Geometry], n_rows: int, lanes: int) -> bool:
    """Tell whether there are few queries over many keys, in rows of whole vectors."""
    names = ("query", "key", "value", "out") if its.out else ("query", "key")
    head_size, value_size = its.query[0][-1], its.out[0][-1] if its.out else 0
    return (
        n_rows <= MOST_ROWS
        and its.frame.n_keys >= LEAST_KEYS
        and head_size > 0
        and head_size % lanes == value_size % lanes == 0
        and all(lies[name].column == 1 for name in names)
        and its.wanted is None
        and not (its.bias and its.bias[2] == 2)  # a bias is read number by number
    )


_kept = lru_cache(maxsize=128)(_make)


def _n_tiles(n_rows: int, lanes: int) -> int:
    """Return how many tiles some rows take."""
    n_vectors = -(-n_rows // lanes)
    return -(-n_vectors // FULL_TILE)


def _plan_scratch(call: Any, lanes: int, is_half: bool, wanted: Wanted | None) -> int:
    """Note where everything lies in the scratch of floats, and return how much that is."""
    full = FULL_TILE * lanes
    block = -(-int(call["block_keys"]) // lanes) * lanes
    head, size = int(call["head_size"]), int(call["value_size"])
    rooms = {
        "row_max": full,
        "row_sum": full,
        "shrink": full,
        "factor": full,
        "queries": head * full,
        "scores": block * full,
        "output": size * full,
        "taint": size * full,
        "forbidden": block * full if call["has_mask"] else 0,
        "keys": block * head + full if is_half else 0,
        "values": block * size + full,
    }
    if wanted is not None:
        n_keys = -(-int(call["n_keys"]) // lanes) * lanes
        width = 8 if lanes == F64_LANES else 4
        call["keeps"] = call["n_phases"] == 2 and n_keys * full * width <= KEPT_BYTES
        if call["keeps"]:
            rooms["scores"] = max(n_keys, block) * full
        rooms["scores"] += 2 * lanes * full
        rooms |= {
            "gain": 2 * full,
            "products": block * full,
            "block_max": (-(-n_keys // block) + 1) * full,
            "tops": max(wanted.k, KEPT_TOPS) * full,
            "tags": max(wanted.k, KEPT_TOPS) * full,
            "candidate": full,
            "grown": full,
            "gap": full,
            "position": full,
            **dict.fromkeys(MOMENTS, full),
        }
    call["full"], at = full, 0
    for name, n in rooms.items():
        call[f"at_{name}"] = at
        at += -(-n // full) * full
    return at
