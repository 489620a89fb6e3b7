"""One call in canonical form: what the engines work on, and where they put what they find."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays, masks
from scaledot.layout import Layout, part_sizes
from scaledot.layout import layout as layout_of
from scaledot.results import Array
from scaledot.scores import Scores, scores

Index = tuple[slice, ...]
WHOLE = slice(None)


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """What a call is apart from its arrays: made once for each signature, known by identity."""

    xp: Any
    layout: Layout
    kind: str
    """The name of the promoted type of query, key and value."""
    dtype: Any
    """The library's type of the sums, in which everything is computed."""
    rows: np.ndarray
    """(T,): the numbers of the query rows, read-only."""
    n_keys: int
    left: int
    """How many keys a row sees before its own position; `right`: behind it."""
    right: int
    scale: float
    softcap: float | None


class Problem(NamedTuple):
    """A frame, canonical arrays (see `scaledot.layout`), and where their rows and keys end."""

    frame: Frame
    sizes: tuple[int, ...]
    """(*batch, *folded): those of the layout, or of a part of the heads."""
    query: Array
    """(*batch, *folded, T, D)."""
    key: Array
    """(*batch, S, D)."""
    value: Array | None
    """(*batch, S, E)."""
    mask: Array | None
    """(*batch, *folded, T, S), sizes of 1 where it broadcasts."""
    bias: Array | None
    """(*batch, *folded, T, S), sizes of 1 where it broadcasts; finite values fit `dtype`."""
    sinks: Array | None
    """(*batch, *folded, 1), in `dtype`."""
    rows: np.ndarray
    """(T,): the numbers of the query rows."""
    query_offset: np.ndarray | int
    """An int, or int64 (*batch, *folded, 1), sizes of 1 where it broadcasts; so the next two."""
    n_keys: np.ndarray | int
    n_queries: np.ndarray | int
    restricted: bool
    """Whether some row may not see all keys by position or lengths."""

    @property
    def xp(self) -> Any:
        """The library of the arrays."""
        return self.frame.xp

    @property
    def layout(self) -> Layout:
        """The axes of the call."""
        return self.frame.layout

    @property
    def dtype(self) -> Any:
        """The type of the sums."""
        return self.frame.dtype

    def parts(self, most: int) -> Iterator[tuple[Index, "Problem"]]:
        """Yield parts of at most `most` heads, each with its place in (*batch, *folded)."""
        sizes = self.sizes
        if 0 in sizes:
            return
        taken = part_sizes(sizes, most)
        if taken == sizes:
            yield (WHOLE,) * len(sizes), self
            return
        steps = (range(0, size, take) for size, take in zip(sizes, taken, strict=True))
        for begins in product(*steps):
            index = tuple(
                slice(a, min(a + n, size)) for a, n, size in zip(begins, taken, sizes, strict=True)
            )
            yield index, self._part(index)

    def _part(self, index: Index) -> "Problem":
        """Return the problem of some heads."""
        n_batch = self.key.ndim - 2

        def cut(x: Any, front: Index) -> Any:
            return x if x is None or isinstance(x, int) else x[(*within(front, x.shape), ...)]

        return self._replace(
            sizes=tuple(place.stop - place.start for place in index),
            query=cut(self.query, index),
            key=cut(self.key, index[:n_batch]),
            value=cut(self.value, index[:n_batch]),
            **{
                name: cut(getattr(self, name), index)
                for name in ("mask", "bias", "sinks", "query_offset", "n_keys", "n_queries")
            },
        )

    def of_head(self, place: tuple[int, ...]) -> "Problem":
        """Return the problem of one head, at its place in (*lead, H), with no axes but its own."""
        axes = self.layout
        *lead, head = place or (0,)
        grouped = (*lead, *divmod(head, axes.heads // axes.groups))
        index = tuple(grouped[axis] for axis in (*axes.batch, *axes.folded))

        def pick(x: Any, n_tail: int = 2) -> Any:
            if x is None or isinstance(x, int):
                return x
            front = x.shape[: x.ndim - n_tail]
            return x[(*(0 if n == 1 else i for i, n in zip(index, front, strict=False)), ...)]

        query, key = pick(self.query), pick(self.key)
        alone = layout_of(tuple(query.shape), tuple(key.shape), None)
        return self._replace(
            frame=replace(self.frame, layout=alone),
            sizes=alone.sizes,
            query=query,
            key=key,
            value=pick(self.value),
            mask=pick(self.mask),
            bias=pick(self.bias),
            **{
                name: pick(getattr(self, name), 1)
                for name in ("sinks", "query_offset", "n_keys", "n_queries")
            },
        )

    def of_rows(self, rows: slice | np.ndarray) -> "Problem":
        """Return the problem of some query rows, which keep their numbers and positions."""

        def take(x: Any) -> Any:
            if x is None or x.shape[-2] == 1 < len(self.rows):
                return x
            if isinstance(rows, slice):
                return x[..., rows, :]
            chosen = self.xp.asarray(rows, device=arrays.device_of(self.xp, self.query))
            return self.xp.take(x, chosen, axis=x.ndim - 2)

        return self._replace(
            query=take(self.query),
            mask=take(self.mask),
            bias=take(self.bias),
            rows=self.rows[rows],
        )

    def row_blocks(self, n_rows: int) -> Iterator[slice]:
        """Yield blocks of at most so many rows."""
        for begin in range(0, len(self.rows), n_rows):
            yield slice(begin, min(begin + n_rows, len(self.rows)))

    def walk(self, rows: slice, n_keys: int) -> Iterator[tuple[slice, Scores]]:
        """Yield the blocks of keys that some row sees, with their scores; an empty one if none."""
        nothing = True
        for keys, partial in masks.key_blocks(*self.intervals(rows), n_keys):
            nothing = False
            yield keys, self.scores(rows, keys, partial)
        if nothing:
            yield slice(0, 0), self.scores(rows, slice(0, 0))

    def positions(self, rows: slice) -> Array:
        """Return the positions of rows among the keys, (*batch, *folded, rows)."""
        # As floats: the integers of some libraries are narrower than an offset may be.
        positions = (self.rows[rows] + self.query_offset).astype(np.float64)
        positions = self.xp.asarray(positions, device=arrays.device_of(self.xp, self.query))
        return arrays.convert(self.xp, positions, self.dtype)

    def intervals(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys that rows may see, half-open, each (*batch, *folded, rows)."""
        left, right = self.frame.left, self.frame.right
        return masks.visible_keys(
            self.rows[rows], self.query_offset, left, right, self.n_keys, self.n_queries
        )

    def scores(self, rows: slice, keys: slice, partial: bool = True) -> Scores:
        """Return the scores of a block; `partial`: not every row's interval holds all the keys."""
        xp, dtype = self.xp, self.dtype
        bias = _cut(self.bias, rows, keys)
        return scores(
            xp,
            arrays.convert(xp, self.query[..., rows, :], dtype),
            arrays.convert(xp, self.key[..., keys, :], dtype),
            scale=self.frame.scale,
            softcap=self.frame.softcap,
            bias=None if bias is None else arrays.clamp(xp, bias, dtype),
            visible=self._visible(rows, keys, partial),
        )

    def _visible(self, rows: slice, keys: slice, partial: bool) -> Array | None:
        """Return which keys of a block the rows may see, or None for all."""
        allowed = _cut(self.mask, rows, keys)
        if not partial or not self.restricted:
            return allowed
        xp, device = self.xp, arrays.device_of(self.xp, self.query)
        start, stop = (xp.asarray(x[..., None], device=device) for x in self.intervals(rows))
        column = xp.arange(keys.start, keys.stop, dtype=start.dtype, device=device)
        inside = (column >= start) & (column < stop)
        return inside if allowed is None else inside & allowed

    def values(self, keys: slice) -> Array:
        """Return the values of some keys in the type of the sums."""
        assert self.value is not None
        return arrays.convert(self.xp, self.value[..., keys, :], self.dtype)

    def canvas(
        self, *tail: int, dtype: Any = None, out: Array | None = None, on_host: bool = False
    ) -> "Canvas":
        """Return an empty place for a result of shape (..., H, *tail), or `out` as that place.

        `on_host`: what is written are NumPy's arrays, whatever the library.
        """
        shape = self.layout.shape(*tail)
        dtype = self.dtype if dtype is None else dtype
        if out is None and on_host and arrays.is_immutable(self.query):
            out = arrays.empty(np, shape, dtype, None)
        elif out is None:
            out = arrays.empty(self.xp, shape, dtype, arrays.device_of(self.xp, self.query))
        xp, place = (np, arrays.as_numpy(out)) if on_host else (self.xp, out)
        return Canvas(xp, self.layout, out, self.layout.spread(xp, place, len(tail)))


class Canvas:
    """A result that is written block by block through a canonical view of it."""

    def __init__(self, xp: Any, layout: Layout, whole: Array, view: Array) -> None:
        self._xp = xp
        self._layout = layout
        self._whole = whole
        self.view = view
        """(*batch, *folded, *tail)."""

    def put(self, index: Index, block: Array) -> None:
        """Write a block at its place (*batch, *folded, *tail)."""
        block = arrays.convert(self._xp, block, self.view.dtype)
        self.view = assign(self.view, index, block)

    def add(self, index: Index, block: Array) -> None:
        """Add a block at its place."""
        self.put(index, self.view[index] + block)

    def whole(self) -> Array:
        """Return the result in the caller's shape."""
        if arrays.is_immutable(self._whole):
            return self._layout.gather(self._xp, self.view, tuple(self._whole.shape))
        return self._whole


def assign(x: Array, index: Index, block: Array) -> Array:
    """Write a block into an array and return it; one that is immutable is returned anew."""
    if arrays.is_immutable(x):
        return x.at[index].set(block)
    x[index] = block
    return x


def within(index: Index, shape: tuple[int, ...]) -> Index:
    """Return the part of an index that an array of a shape has: axes of size 1 are taken whole."""
    return tuple(WHOLE if size == 1 else place for place, size in zip(index, shape, strict=False))


def _cut(x: Array | None, rows: slice, keys: slice) -> Array | None:
    """Return a block of a mask or bias; axes in which it broadcasts stay."""
    if x is None:
        return None
    return x[(..., *within((rows, keys), x.shape[-2:]))]
