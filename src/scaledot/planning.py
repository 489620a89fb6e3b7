"""What a call will do, and why: decided from kinds, shapes, types and numbers, never from values.

A plan is made once for each signature and cached; arrays travel beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays, checks, masks
from scaledot.layout import Layout, Shape, layout
from scaledot.problem import Frame
from scaledot.request import Blocks

WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number."""
ENGINES = ("textbook", "blockwise", "fused")
TEXTBOOK_SCORES = 1024
"""Up to so many scores the definition itself is the fastest, and needs no memory to speak of."""
BLOCK_SCORES = 2**20
"""Scores in flight: 4 MiB in float32, so that a block and its few copies stay near the caches."""
BLOCK_ROWS = 512
BLOCK_KEYS = 1024
"""Rows and keys of a block: large enough that a library's matrix product runs at full speed."""


FUSED_ROWS = 48
"""Rows of a tile of the fused engine, in AVX-512: three vectors."""
FUSED_KEYS = 96
"""Keys of a block of the fused engine: 96 × 48 scores are 18 KiB. Where threads share a nearest
cache of 48 KiB, 64 are 3 % faster; where they do not, 128 are 2 % faster (measured)."""


class Kind(NamedTuple):
    """All a plan says of an array."""

    shape: Shape
    dtype: str


Given = tuple[Shape, Any]
"""The shape of an array, and its type as its library has it."""


class Signature(NamedTuple):
    """All that a plan depends on."""

    xp: Any
    """The library of the arrays."""
    on_cpu: bool
    """Whether the arrays are in memory that the processor reads."""
    positions: bool
    """Whether more than the restrictions needs to know where the queries stand: `distance`."""
    query: Given
    key: Given
    value: Given | None = None
    mask: Given | None = None
    bias: Given | None = None
    sinks: Given | None = None
    query_offset: Given | None = None
    key_lengths: Given | None = None
    query_lengths: Given | None = None
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    scale: float | None = None
    softcap: float | None = None
    engine: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Plan:
    """What will be done, and why; ``print(plan)`` says it in words."""

    engine: str
    why: str
    library: str
    query: Kind
    key: Kind
    value: Kind | None
    heads: int
    key_heads: int
    dtype: str
    """Type of output and weights."""
    sum_dtype: str
    """Type of the sums, the log-sum-exp and every floating statistic."""
    scale: float
    softcap: float | None
    restrictions: tuple[str, ...]
    blocks: Blocks
    array_blocks: Blocks
    """What the array engine takes at once beside the kernels: gradients."""
    n_scores: int
    result_bytes: int
    """Bytes of the output."""
    working_bytes: int
    """Bytes in flight, about."""
    frame: Frame = field(repr=False, compare=False)
    """What engines are told of the call beside its arrays."""

    def __str__(self) -> str:
        """Say what will be done, a line for each decision."""
        kinds = [("query", self.query), ("key", self.key), ("value", self.value)]
        shapes = "  ".join(f"{name} {kind.shape}" for name, kind in kinds if kind is not None)
        groups = f", {self.heads // self.key_heads} to a key head" if self._is_grouped else ""
        lines = [
            ("engine", f"{self.engine}: {self.why}"),
            ("arrays", f"{self.library}  {shapes}"),
            ("heads", f"{self.heads}{groups}"),
            ("types", f"sums in {self.sum_dtype}, output and weights in {self.dtype}"),
            ("scale", f"{self.scale:.6g}"),
            ("restrictions", ", ".join(self.restrictions) or "none"),
            ("blocks", "{} heads × {} rows × {} keys".format(*self.blocks)),
            ("scores", f"{self.n_scores:,}"),
            ("memory", f"output {_bytes(self.result_bytes)}, working {_bytes(self.working_bytes)}"),
            ("threads", self._threads),
        ]
        return "\n".join(f"{name:<13}{text}" for name, text in lines)

    @property
    def _threads(self) -> str:
        if self.engine != "fused":
            return "those of the library's own products"
        return f"at most {self.blocks.threads}" if self.blocks.threads else "all usable CPUs"

    @property
    def _is_grouped(self) -> bool:
        return bool(self.key_heads) and self.heads != self.key_heads


def _bytes(n: int) -> str:
    """Return a number of bytes in words."""
    size, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def clear() -> None:
    """Forget all plans: after changing a constant of this module."""
    plan.cache_clear()
    known.clear()


known: dict[Any, Any] = {}
"""What small calls were found to be, by all that they depend on: `scaledot.shortcut` fills it. It
stands here because it holds what plans say, and goes when they go."""


ARRAYS = ("query", "key", "value")
BESIDE = ("mask", "bias", "sinks")
POSITIONS = ("query_offset", "key_lengths", "query_lengths")


@lru_cache(maxsize=4096)
def plan(its: Signature) -> Plan:
    """Return the plan of a call, or refuse what its signature shows to be wrong."""
    kinds = _kinds(its)
    query, key, value = (kinds.get(name) for name in ARRAYS)
    assert query is not None
    assert key is not None
    shape = layout(query.shape, key.shape, value.shape if value else None)
    _check_types(kinds)
    n_queries, head_size = query.shape[-2:]
    n_keys = key.shape[-2]
    _check_broadcasts(kinds, shape, n_queries, n_keys)
    _check_positions(its, n_queries, n_keys)
    names = [kinds[name].dtype for name in ARRAYS if name in kinds]
    default = arrays.default_float(its.xp)
    dtype = arrays.promote([name if name in checks.FLOATS else default for name in names])
    sum_dtype = arrays.sum_type(dtype)
    scale = checks.scale(its.scale, head_size)
    checks.fits("scale", scale, sum_dtype)
    checks.fits("softcap", its.softcap, sum_dtype, normal=True)
    n_scores = math.prod(shape.sizes) * n_queries * n_keys
    engine, why = _choose(its, n_scores)
    blocks = _blocks(engine, its.threads or 0, shape, n_queries, n_keys)
    backward = "textbook" if engine == "textbook" else "blockwise"
    left, right = masks.sides(its.window, its.causal)
    rows = np.arange(n_queries)
    rows.flags.writeable = False
    return Plan(
        engine=engine,
        why=why,
        library=arrays.library(its.xp),
        query=query,
        key=key,
        value=value,
        heads=shape.heads,
        key_heads=shape.groups,
        dtype=dtype,
        sum_dtype=sum_dtype,
        scale=scale,
        softcap=its.softcap,
        restrictions=_restrictions(its),
        blocks=blocks,
        array_blocks=_blocks(backward, its.threads or 0, shape, n_queries, n_keys),
        n_scores=n_scores,
        result_bytes=math.prod(shape.sizes) * n_queries * WIDTH[dtype] * _value_size(value),
        working_bytes=3 * WIDTH[sum_dtype] * math.prod(blocks[:3]),
        frame=Frame(
            xp=its.xp,
            layout=shape,
            kind=dtype,
            dtype=getattr(its.xp, sum_dtype),
            rows=rows,
            n_keys=n_keys,
            left=left,
            right=right,
            scale=scale,
            softcap=its.softcap,
        ),
    )


def _kinds(its: Signature) -> dict[str, Kind]:
    """Return the kinds of the arrays that are given, by name."""
    given = {name: getattr(its, name) for name in (*ARRAYS, *BESIDE, *POSITIONS)}
    return {
        name: Kind(kind[0], arrays.name_of(kind[1]))
        for name, kind in given.items()
        if kind is not None
    }


def _value_size(value: Kind | None) -> int:
    return 0 if value is None else value.shape[-1]


def _check_positions(its: Signature, n_queries: int, n_keys: int) -> None:
    """Refuse to guess where the queries stand."""
    used = {
        "causal": its.causal,
        "window": its.window != (None, None),
        "distance": its.positions,
    }
    uses = [name for name, is_used in used.items() if is_used]
    one_sided = (its.key_lengths is None) != (its.query_lengths is None)
    if uses and one_sided and its.query_offset is None:
        given = "query_lengths" if its.key_lengths is None else "key_lengths"
        checks.positions_known(uses, given, n_keys, n_queries)


def _check_types(kinds: Mapping[str, Kind]) -> None:
    """Refuse types that are not taken."""
    for name, kind in kinds.items():
        if name in ARRAYS:
            checks.number_type(name, kind.dtype)
        elif name == "mask":
            checks.mask_type(kind.dtype)
        elif name in BESIDE:
            checks.bias_type(name, kind.dtype)


def _check_broadcasts(
    kinds: Mapping[str, Kind], shape: Layout, n_queries: int, n_keys: int
) -> None:
    """Refuse arrays beside query, key and value whose shapes do not fit."""
    for name in ("mask", "bias"):
        if name in kinds:
            target = shape.shape(n_queries, n_keys)
            checks.broadcasts(name, kinds[name].shape, target, "(..., H, T, S)")
    if "sinks" in kinds:
        checks.broadcasts("sinks", kinds["sinks"].shape, shape.shape(), "(..., H)")
    for name in POSITIONS:
        if name in kinds:
            kind = kinds[name]
            checks.position_type(name, kind.shape, kind.dtype, shape.lead, shape.rank)


def _choose(its: Signature, n_scores: int) -> tuple[str, str]:
    """Return the engine and why."""
    obstacle = _obstacle(its)
    if its.engine is not None:
        if its.engine == "fused" and obstacle:
            checks.engine_cannot("fused", obstacle)
        return its.engine, "asked for by name"
    if n_scores <= TEXTBOOK_SCORES:
        return "textbook", f"{n_scores:,} scores are at most {TEXTBOOK_SCORES:,}"
    if obstacle:
        return "blockwise", f"in O(T + S) memory; not fused, because {obstacle}"
    return "fused", f"more than {TEXTBOOK_SCORES:,} scores, in CPU memory"


def _obstacle(its: Signature) -> str:
    """Return why the fused engine cannot do a call, or nothing."""
    if not its.on_cpu:
        return "the arrays are not in CPU memory"
    return missing_numba()


@cache
def missing_numba() -> str:
    """Return why kernels cannot be compiled here, or nothing."""
    if find_spec("numba") is None:
        return "numba is not installed"
    return ""


def _blocks(engine: str, threads: int, shape: Layout, n_queries: int, n_keys: int) -> Blocks:
    """Return how much is taken at once."""
    n_heads = math.prod(shape.sizes)
    if engine == "textbook":
        return Blocks(max(n_heads, 1), max(n_queries, 1), max(n_keys, 1))
    if engine == "fused":
        return Blocks(1, min(FUSED_ROWS, max(n_queries, 1)), FUSED_KEYS, threads)
    rows = max(1, min(n_queries, BLOCK_ROWS))
    # Few rows, as in decoding, leave room for longer blocks of keys.
    keys = max(1, min(n_keys, BLOCK_KEYS * max(1, BLOCK_ROWS // (8 * rows))))
    return Blocks(max(1, min(n_heads, BLOCK_SCORES // (rows * keys))), rows, keys)


def _restrictions(its: Signature) -> tuple[str, ...]:
    """Return what restricts or changes the scores, in words."""
    words = [f"softcap {its.softcap}"] if its.softcap is not None else []
    words += [name for name in ("bias", "mask") if getattr(its, name) is not None]
    words += ["causal"] if its.causal else []
    words += [f"window {its.window}"] if its.window != (None, None) else []
    words += [
        name.replace("_", " ")
        for name in ("key_lengths", "query_lengths", "query_offset", "sinks")
        if getattr(its, name) is not None
    ]
    return tuple(words)
