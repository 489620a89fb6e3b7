"""How the axes of callers' arrays become canonical ones, from shapes alone.

Callers' shapes are (..., H, T, D) for the query and (..., G, S, D) for the key. The heads are split
into (G, H // G), and every axis in which key and value have size 1 is *folded*: keys and values go
without it, and products take it as further query rows. What remains are *batch* axes; an axis of
size 1 everywhere is left out.

    query (*batch, *folded, T, D)    key (*batch, S, D)    value (*batch, S, E)
    mask, bias (*batch, *folded, T, S)    lengths, offsets, sinks (*batch, *folded)

Sizes of 1 stay where an array broadcasts. All of it is views.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from scaledot import checks
from scaledot.results import Array

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The axes (*lead, G, H // G) of one call, and which of them are batch axes and folded.

    Made once for each signature, and told apart by identity.
    """

    rank: int
    """Axes of the largest of query, key and value."""
    lead: Shape
    """The broadcast axes before the heads."""
    heads: int
    """H, those of the result."""
    groups: int
    """G, those of key and value."""
    batch: tuple[int, ...]
    """Places in (*lead, G, H // G) in which key or value have a size."""
    folded: tuple[int, ...]
    """Places in which only the query has a size."""

    @cached_property
    def sizes(self) -> Shape:
        """The sizes of the batch axes, then of the folded ones."""
        axes = (*self.lead, self.groups, self.heads // self.groups if self.groups else 1)
        return tuple(axes[place] for place in (*self.batch, *self.folded))

    def shape(self, *tail: int) -> Shape:
        """Return a caller's shape: (..., H, *tail), without heads where the arrays had none."""
        return tail if self.rank == 2 else (*self.lead, self.heads, *tail)

    def spread(self, xp: Any, x: Array, n_tail: int = 2) -> Array:
        """Return a view (*batch, *folded, *tail) of a caller's (..., H, *tail)."""
        shape, order = _axes(self, tuple(x.shape), n_tail)
        x = _reshape(xp, x, shape)
        return x if order is None else xp.permute_dims(x, order)

    def spread_keys(self, xp: Any, x: Array) -> Array:
        """Return a view (*batch, S, D) of a caller's keys or values, free of the folded axes."""
        return _reshape(xp, x, _key_axes(self, tuple(x.shape)))

    def gather_keys(self, xp: Any, x: Array, shape: Shape) -> Array:
        """Return canonical keys or values in the caller's shape; undoes `spread_keys`."""
        return _reshape(xp, x, shape)

    def gather(self, xp: Any, x: Array, shape: Shape) -> Array:
        """Return a canonical (*batch, *folded, *tail) in the caller's shape; undoes `spread`."""
        order = (*self.batch, *self.folded)
        inverse = [order.index(place) for place in sorted(order)]
        if inverse != list(range(len(order))):
            x = xp.permute_dims(x, (*inverse, *range(len(order), x.ndim)))
        return _reshape(xp, x, shape)


@lru_cache(maxsize=4096)
def _axes(layout: Layout, given: Shape, n_tail: int) -> tuple[Shape, Shape | None]:
    """Return a shape with the axes kept, and the order that makes them canonical, if any."""
    shape = (1,) * (len(layout.lead) + 1 + n_tail - len(given)) + given
    *lead, heads = shape[: len(shape) - n_tail]
    split = (heads, 1)
    if heads == layout.heads != 0:
        split = (layout.groups, heads // layout.groups)
    axes, tail = (*lead, *split), shape[len(shape) - n_tail :]
    kept = sorted((*layout.batch, *layout.folded))
    order = [kept.index(place) for place in (*layout.batch, *layout.folded)]
    shape = (*(axes[place] for place in kept), *tail)
    if order == list(range(len(order))):
        return shape, None
    return shape, (*order, *range(len(order), len(shape)))


@lru_cache(maxsize=4096)
def _key_axes(layout: Layout, given: Shape) -> Shape:
    """Return the shape (*batch, S, D) of keys or values, whose folded axes have size 1."""
    shape, order = _axes(layout, given, 2)
    front = [shape[place] for place in order or range(len(shape))]
    return (*front[: len(layout.batch)], *given[-2:])


def _reshape(xp: Any, x: Array, shape: Shape) -> Array:
    """Return the array in a shape, itself where it has that shape already."""
    return x if tuple(x.shape) == shape else xp.reshape(x, shape)


def layout(query: Shape, key: Shape, value: Shape | None) -> Layout:
    """Return the layout of a call, or refuse shapes that do not fit."""
    shapes = {"query": query, "key": key} | ({} if value is None else {"value": value})
    checks.ranks(shapes)
    checks.sizes(query, key, value)
    lead = checks.leading({name: shape[:-3] for name, shape in shapes.items()})
    query_heads, key_heads, value_heads = (_heads(s) for s in (query, key, value or key))
    checks.key_heads(key_heads, value_heads)
    groups = value_heads if key_heads == 1 else key_heads
    checks.query_heads(query_heads, groups)
    heads = groups if query_heads == 1 else query_heads
    axes = (*lead, groups, heads // groups if groups else 1)
    keyed = [
        any(_size(shape, place - len(lead) - 3) != 1 for shape in (key, value or key))
        for place in range(len(lead))
    ]
    keyed += [groups != 1, False]
    return Layout(
        rank=max(len(shape) for shape in shapes.values()),
        lead=lead,
        heads=heads,
        groups=groups,
        batch=tuple(place for place, has in enumerate(keyed) if has),
        folded=tuple(p for p, has in enumerate(keyed) if not has and axes[p] != 1),
    )


def _heads(shape: Shape) -> int:
    """Return the size of the head axis; an array without one has a single head."""
    return shape[-3] if len(shape) > 2 else 1


def _size(shape: Shape, place: int) -> int:
    """Return the size of an axis counted from the right; missing axes have size 1."""
    return shape[place] if -place <= len(shape) else 1


def part_sizes(sizes: Shape, most: int) -> Shape:
    """Return how much of each axis one part takes so that it has at most `most` elements.

    The last axes are taken whole, one is divided, and those before it go one by one.

    Examples
    --------
    >>> part_sizes((2, 32, 4), 1000)
    (2, 32, 4)
    >>> part_sizes((2, 32, 4), 50)
    (1, 12, 4)
    """
    taken: list[int] = []
    for place in reversed(range(len(sizes))):
        rest = max(1, most // max(1, math.prod(sizes[place + 1 :])))
        taken.insert(0, min(sizes[place], rest) if all_whole(taken, sizes[place + 1 :]) else 1)
    return tuple(taken)


def all_whole(taken: list[int], sizes: Shape) -> bool:
    """Tell whether every axis is taken whole."""
    return list(sizes) == taken


def by_head(x: np.ndarray) -> np.ndarray:
    """Return what rows or keys have, (..., H, T), as (H, ..., T); of one head without an axis."""
    return np.moveaxis(x, -2, 0) if x.ndim > 1 else x[None]
