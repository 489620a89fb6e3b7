"""Hypothesis strategies that draw whole calls: shapes, types, memory layouts and restrictions."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

ENGINES = ("textbook", "blockwise", "fused")
RESTRICTIONS = (
    "mask",
    "bias",
    "causal",
    "query_offset",
    "window",
    "key_lengths",
    "query_lengths",
    "scale",
    "softcap",
    "sinks",
)
LAYOUTS = ("contiguous", "fortran", "reversed", "stepped", "swapped", "repeated", "read-only")


class Call(NamedTuple):
    """Arguments of a call, and the shape (*lead, H, T, S) that masks and biases broadcast to."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    how: dict[str, Any]
    shape: tuple[int, ...]

    @property
    def arrays(self):
        return self.query, self.key, self.value


@st.composite
def calls(
    draw,
    *,
    types=(np.float32, np.float64),
    restrictions=RESTRICTIONS,
    longest=6,
    empty=True,
    positions=False,
    layouts=LAYOUTS,
    largest=3.0,
):
    """A valid call; `positions` makes sure that every query has a position among the keys."""
    dtype = draw(st.sampled_from(types))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = st.integers(0 if empty and draw(st.integers(0, 9)) == 0 else 1, longest)
    n_queries, n_keys, size, width = (draw(lengths) for _ in range(4))
    lead, heads = draw(outer_shapes(longest, empty))
    matrices = (n_queries, size), (n_keys, size), (n_keys, width)
    arrays = []
    for own, matrix in zip(heads, matrices, strict=True):
        times = draw(st.sampled_from((0.1, 1.0, largest)))
        outer = draw(ones_among(lead))
        if own == (1,) and not outer and draw(st.booleans()):
            own = ()
        drawn = times * numbers.standard_normal((*outer, *own, *matrix))
        arrays.append(draw(laid_out(drawn.astype(dtype), layouts)))
    batch, n_heads = result_shape(*arrays)
    shape = (*batch, *([n_heads] if max(x.ndim for x in arrays) > 2 else []), n_queries, n_keys)
    chosen = [name for name in restrictions if draw(st.integers(0, 2)) == 2]
    how = {name: draw(restriction(name, shape, numbers, dtype, layouts)) for name in chosen}
    one_sided = ("key_lengths" in how) != ("query_lengths" in how)
    needed = positions or how.get("causal") or "window" in how
    if one_sided and needed and "query_offset" not in how:
        how["query_offset"] = draw(restriction("query_offset", shape, numbers, dtype, layouts))
    return Call(*arrays, how, shape)


@st.composite
def outer_shapes(draw, longest, empty):
    """Leading axes, and the head axes of query, key and value: (H,), (G,), (G,), or none."""
    if draw(st.integers(0, 3)) == 0:
        return (), ((), (), ())
    lead = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    if empty and lead and draw(st.integers(0, 19)) == 0:
        lead = (0, *lead[1:])
    groups, n_each = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    query = draw(st.sampled_from((groups * n_each, groups * n_each, 1)))
    key, value = draw(st.sampled_from(((groups, groups), (1, groups), (groups, 1))))
    return lead, ((query,), (key,), (value,))


@st.composite
def ones_among(draw, axes):
    """A shape that broadcasts to these axes: some are 1, some on the left are left out."""
    kept = axes[draw(st.integers(0, len(axes))) if draw(st.integers(0, 2)) == 0 else 0 :]
    return tuple(draw(st.sampled_from((n, n, 1))) for n in kept)


def result_shape(query, key, value):
    """Leading axes and number of heads of the result; one head where there is no such axis."""
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    n_heads = [x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value)]
    return lead, max(n_heads)


@st.composite
def laid_out(draw, array, layouts=LAYOUTS):
    """The same shape and type in another place in memory; "repeated" also changes the values."""
    layout = draw(st.sampled_from(layouts))
    axis = draw(st.integers(0, array.ndim - 1)) if array.ndim else None
    if layout == "read-only":
        array.flags.writeable = False
    if axis is None or layout in ("contiguous", "read-only"):
        return array
    if layout == "fortran":
        return np.asfortranarray(array)
    if layout == "reversed":
        return np.flip(np.flip(array, axis).copy(), axis)
    if layout == "swapped":
        return array.swapaxes(0, axis).copy().swapaxes(0, axis)
    if layout == "repeated" and array.shape[axis]:
        return np.broadcast_to(array.take([0], axis), array.shape)
    spaced = np.zeros((*array.shape[:axis], 2 * array.shape[axis], *array.shape[axis + 1 :]))
    spaced = spaced.astype(array.dtype)
    view = spaced[(*[slice(None)] * axis, slice(None, None, 2))]
    view[...] = array
    return view


def restriction(name, shape, numbers, dtype, layouts=LAYOUTS):
    """The values one keyword may have in a call of this result shape."""
    *outer, n_queries, n_keys = shape
    lead = tuple(outer[:-1])
    match name:
        case "mask" | "bias":
            return _spread(shape, numbers, name, dtype, layouts)
        case "causal":
            return st.booleans()
        case "query_offset":
            return whole_numbers(-3, n_keys + 2, lead)
        case "window":
            side = st.none() | st.integers(0, 3)
            return st.tuples(side, side)
        case "key_lengths":
            return whole_numbers(0, n_keys, lead)
        case "query_lengths":
            return whole_numbers(0, n_queries, lead)
        case "scale":
            return st.sampled_from((None, 0.0, 1.0, -0.7, 0.25, 2))
        case "softcap":
            return st.sampled_from((None, 0.5, 2.0, 30.0))
        case "sinks":
            return ones_among(tuple(outer)).map(
                lambda own: numbers.standard_normal(own).astype(dtype)
            )
    raise ValueError(name)


@st.composite
def _spread(draw, shape, numbers, name, dtype, layouts):
    """A mask or a bias of any shape that broadcasts."""
    own = draw(ones_among(shape))
    density = draw(st.sampled_from((0.2, 0.6, 0.9, 1.0)))
    kept = np.asarray(numbers.random(own) < density)
    if name == "mask":
        return draw(laid_out(kept, layouts))
    bias = np.where(kept, 2 * numbers.standard_normal(own), -np.inf)
    return draw(laid_out(bias.astype(draw(st.sampled_from((dtype, np.float64)))), layouts))


@st.composite
def whole_numbers(draw, low, high, lead):
    """An int, or where there are batches perhaps one for each of them."""
    number = st.integers(low, high)
    if not lead or draw(st.booleans()):
        return draw(number)
    own = draw(ones_among(lead))
    size = int(np.prod(own))
    numbers = draw(st.lists(number, min_size=size, max_size=size))
    array = np.array(numbers, np.int64).reshape(own)
    return array.tolist() if size and draw(st.booleans()) else array
