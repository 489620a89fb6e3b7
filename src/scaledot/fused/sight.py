"""Words for what is observed of the scores and weights; see `scaledot.fused.simd` for the others.

Exponentials of masked scores are marked: they are -0, so that a weight of 0 that is hidden is told
from one that is too small, in rows where all that is visible is NaN.
"""

import numpy as np
from llvmlite import ir
from numba import types

from scaledot.fused.codegen import I32, I64, VECTORS, Code, unpack
from scaledot.fused.simd import elementwise, twin_scatter, word

INFINITE = float("-inf")


def _seen(code, x, score, other):
    hidden = code.b.fcmp_ordered("==", score, code.kind.constant(INFINITE))
    return code.b.select(hidden, other, x)


def _same(code, x, y, new, old):
    return code.b.select(code.b.fcmp_ordered("==", x, y), new, old)


def _above(code, x, y, new, old):
    return code.b.select(code.b.fcmp_ordered(">", x, y), new, old)


def _mark(code, x, score):
    return _seen(code, x, score, code.kind.constant(-0.0))


def _weigh(code, x, factor):
    sign = ir.Constant(
        code.kind.integers, [-(2 ** (code.kind.integer.width - 1))] * code.kind.lanes
    )
    marked = code.b.icmp_signed("==", code.b.bitcast(x, code.kind.integers), sign)
    return code.b.select(marked, code.kind.constant(0.0), code.b.fmul(x, factor))


absolute = elementwise("absolute", np.abs, lambda code, x: code.call("fabs", x), 1)
at_least = elementwise(
    "at_least",
    lambda x, low: np.where(low > x, low, x),
    lambda code, x, low: code.b.select(code.b.fcmp_ordered(">", low, x), low, x),
    2,
)
"""The larger of x and a lower bound; NaN stays NaN."""
div = elementwise("div", lambda x, y: x / y, lambda code, x, y: code.b.fdiv(x, y), 2)
seen = elementwise("seen", lambda x, s, other: np.where(s == -np.inf, other, x), _seen, 3)
"""x where the score is visible, that is not -inf, else the other."""
same = elementwise("same", lambda x, y, new, old: np.where(x == y, new, old), _same, 4)
"""The new where x and y are equal, else the old."""
above = elementwise("above", lambda x, y, new, old: np.where(x > y, new, old), _above, 4)
"""The new where x is greater than y, else the old."""
mark = elementwise("mark", lambda x, s: np.where(s == -np.inf, -0.0, x), _mark, 2)
"""An exponential, -0 where its score is masked."""
weigh = elementwise(
    "weigh", lambda x, f: np.where((x == 0) & np.signbit(x), 0, x * f).astype(x.dtype), _weigh, 2
)
"""The weight of a marked exponential: 0 where it is masked, whatever the factor is."""


@word(lambda acc, start: (sum(acc, start[0]),))
def fold_add(typing, acc, start):
    """Return the sum of the vectors of a pack, and of a single one."""

    def generate(context, builder, signature, arguments):
        (found,) = unpack(builder, arguments[1])
        for vector in unpack(builder, arguments[0]):
            found = builder.fadd(vector, found)
        return context.make_tuple(builder, signature.return_type, [found])

    return start(acc, start), generate


@word(lambda like: tuple(np.full_like(v, p) for p, v in enumerate(like)))
def steps(typing, like):
    """Return a pack whose vectors hold 0, 1, 2, ..."""

    def generate(context, builder, signature, arguments):
        vectors = [like.dtype.constant(float(p)) for p in range(like.count)]
        return context.make_tuple(builder, signature.return_type, vectors)

    return like(like), generate


def _twin_sink(held, values, score, value):
    found = []
    for j in range(len(held)):
        before = value[0] if j == 0 else np.where(score[0] > held[j - 1], values[j - 1], value[0])
        found.append(np.where(score[0] > held[j], before, values[j]))
    return tuple(found)


@word(_twin_sink)
def sink(typing, held, values, score, value):
    """Return the values that go with descending lists, once a score has sunk into each list."""

    def generate(context, builder, signature, arguments):
        lists, given = unpack(builder, arguments[0]), unpack(builder, arguments[1])
        (number,), (new,) = unpack(builder, arguments[2]), unpack(builder, arguments[3])
        larger = [builder.fcmp_ordered(">", number, item) for item in lists]
        found = []
        for j, item in enumerate(given):
            before = new if j == 0 else builder.select(larger[j - 1], given[j - 1], new)
            found.append(builder.select(larger[j], before, item))
        return context.make_tuple(builder, signature.return_type, found)

    return values(held, values, score, value), generate


@word(lambda held, values, score, value: (np.where(score[0] > held[-1], values[-1], value[0]),))
def displaced(typing, held, values, score, value):
    """Return the value that leaves lists when a score sinks into them, or its own."""

    def generate(context, builder, signature, arguments):
        last, leaving = unpack(builder, arguments[0])[-1], unpack(builder, arguments[1])[-1]
        (number,), (new,) = unpack(builder, arguments[2]), unpack(builder, arguments[3])
        larger = builder.fcmp_ordered(">", number, last)
        found = builder.select(larger, leaving, new)
        return context.make_tuple(builder, signature.return_type, [found])

    return score(held, values, score, value), generate


@word(lambda x: (x[-1],))
def bottom(typing, x):
    """Return the last vector of a pack."""

    def generate(context, builder, signature, arguments):
        last = unpack(builder, arguments[0])[-1]
        return context.make_tuple(builder, signature.return_type, [last])

    return types.UniTuple(x.dtype, 1)(x), generate


def _twin_tag(number, like):
    kind = np.int64 if like[0].dtype == np.float64 else np.int32
    return (np.full(len(like[0]), number, kind).view(like[0].dtype),)


@word(_twin_tag)
def tag(typing, number, like):
    """Return an integer in all lanes of a vector, as bits: to be carried, not computed with."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, like.dtype)
        bits = builder.trunc(arguments[0], I32) if like.dtype.integer == I32 else arguments[0]
        vector = code.splat(builder.bitcast(bits, like.dtype.element))
        return context.make_tuple(builder, signature.return_type, [vector])

    return like(types.int64, like), generate


@word(lambda x, i: int(x[i : i + 1].view(np.int64 if x.itemsize == 8 else np.int32)[0]))
def untag(typing, x, i):
    """Return the integer whose bits stand in an array of numbers."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, VECTORS[x.dtype])
        integer = code.kind.integer
        pointer = code.pointer(x, arguments[0], arguments[1])
        bits = builder.load(builder.bitcast(pointer, integer.as_pointer()))
        return builder.sext(bits, I64) if integer == I32 else bits

    return types.int64(x, types.intp), generate


def _twin_lanes_above(x, y):
    return sum(1 << lane for lane in range(len(x[0])) if x[0][lane] > y[0][lane])


@word(_twin_lanes_above)
def lanes_above(typing, x, y):
    """Return a bit for each lane of a single vector in which x is greater than y."""

    def generate(context, builder, signature, arguments):
        (one,), (other,) = (unpack(builder, pack) for pack in arguments)
        above = builder.fcmp_ordered(">", one, other)
        return builder.zext(builder.bitcast(above, ir.IntType(x.dtype.lanes)), I64)

    return types.int64(x, y), generate


@word(lambda bits: (int(bits) & -int(bits)).bit_length() - 1)
def lowest(typing, bits):
    """Return the number of the lowest bit that is set."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@word(twin_scatter)
def stream(typing, a, at, i, column, rows):
    """Write LANES vectors as `scatter` does, past the caches: each to a whole line of memory."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, rows.dtype)
        for lane, vector in enumerate(code.transpose(unpack(builder, arguments[4]))):
            place = code.row(at, arguments[1], arguments[2], lane, arguments[3])
            code.stream(a, arguments[0], place, vector)
        return context.get_dummy_value()

    return types.void(a, at, types.intp, types.intp, rows), generate


def _twin_scatter_add(a, at, i, column, rows):
    n = len(rows[0])
    for lane in range(n):
        place = at[i + lane] + column
        a[place : place + n] += np.array([row[lane] for row in rows])


@word(_twin_scatter_add)
def scatter_add(typing, a, at, i, column, rows):
    """Add LANES vectors so that lane l of the p-th goes to a[at[i + l] + column + p]."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, rows.dtype)
        for lane, vector in enumerate(code.transpose(unpack(builder, arguments[4]))):
            place = code.row(at, arguments[1], arguments[2], lane, arguments[3])
            pointer = code.pointer(a, arguments[0], place)
            code.store(a.dtype, builder.fadd(code.load(a.dtype, pointer), vector), pointer)
        return context.get_dummy_value()

    return types.void(a, at, types.intp, types.intp, rows), generate
