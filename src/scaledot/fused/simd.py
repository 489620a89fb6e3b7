"""The vocabulary of the kernels: words on vectors, each a few instructions, each with a NumPy twin.

A *pack* is a tuple of one or more vectors of LANES numbers: what a row of a tile holds. Words take
packs and give packs; where a word needs to know how long a pack is, it is shown one (`like`). In
compiled code a vector is an LLVM vector in a register; with the JIT off it is a small NumPy array,
and each word is its twin: the same word in NumPy, which is also what the tests hold it against.

Sums are in float32 or float64. Words that read and write arrays take 16-bit ones too, widened on
load and rounded to nearest even on store: int16 holds the bits of float16, uint16 those of
bfloat16. uint8 holds a mask, and loads as 1 where it is False and forbids.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, imputils
from numba.extending import intrinsic

from scaledot.fused.codegen import (
    EXP2,
    I8,
    I32,
    I64,
    VECTOR_BYTES,
    VECTORS,
    Code,
    literal,
    pack_of,
    unpack,
)

F32_LANES = VECTOR_BYTES // 4
F64_LANES = VECTOR_BYTES // 8
BUNDLE = 4
"""Query rows that read a key together, where there are few: their sums fill the registers."""


# ---------------------------------------------------------------------------------------- words


def word(twin: Any) -> Any:
    """Make a word of its generator, with its twin; with the JIT off the word is the twin."""

    def made(generator: Any) -> Any:
        if config.DISABLE_JIT:
            return twin
        compiled = intrinsic(prefer_literal=True)(generator)
        compiled.twin = twin
        return compiled

    return made


def widen(x: np.ndarray) -> np.ndarray:
    """Return numbers of an array in the type of the sums; int16 holds float16, uint16 bfloat16."""
    if x.dtype == np.int16:
        return x.view(np.float16).astype(np.float32)
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    if x.dtype == np.uint8:
        return (x == 0).astype(np.float32)
    return x


def narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers as an array of a type holds them, rounded to nearest even."""
    if dtype == np.int16:
        return x.astype(np.float16).view(np.int16)
    if dtype == np.uint16:
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    return x


def _lanes(dtype: np.dtype) -> int:
    return VECTOR_BYTES // (8 if dtype == np.float64 else 4)


def _twin_blank(a, n):
    return (np.zeros(_lanes(a.dtype), np.float64 if a.dtype == np.float64 else np.float32),) * n


@word(_twin_blank)
def blank(typing, a, n):
    """Return a pack of n vectors of zeros, of the type of sums of an array."""
    kind = VECTORS[types.float64 if a.dtype == types.float64 else types.float32]
    count = literal(n, 1)

    def generate(context, builder, signature, arguments):
        return context.make_tuple(builder, signature.return_type, [kind.constant(0.0)] * count)

    return pack_of(kind, count)(a, n), generate


@word(lambda n, like: (np.zeros_like(like[0]),) * (n * len(like)))
def zeros(typing, n, like):
    """Return n packs of zeros in one: the accumulators of a tile of n rows."""
    count = literal(n, 0) * like.count

    def generate(context, builder, signature, arguments):
        zero = like.dtype.constant(0.0)
        return context.make_tuple(builder, signature.return_type, [zero] * count)

    return pack_of(like.dtype, count)(n, like), generate


@word(lambda like: (np.zeros_like(like[0]),) * len(like[0]))
def square(typing, like):
    """Return as many vectors of zeros as a vector has lanes."""

    def generate(context, builder, signature, arguments):
        vectors = [like.dtype.constant(0.0)] * like.dtype.lanes
        return context.make_tuple(builder, signature.return_type, vectors)

    return pack_of(like.dtype, like.dtype.lanes)(like), generate


@word(lambda like: (np.zeros_like(like[0]),) * min(BUNDLE, len(like[0])))
def bundle(typing, like):
    """Return as many vectors of zeros as rows are taken together where there are few."""

    def generate(context, builder, signature, arguments):
        vectors = [like.dtype.constant(0.0)] * min(BUNDLE, like.dtype.lanes)
        return context.make_tuple(builder, signature.return_type, vectors)

    return pack_of(like.dtype, min(BUNDLE, like.dtype.lanes))(like), generate


@word(lambda a, i: None)
def prefetch(typing, a, i):
    """Ask for the memory around an element, inside the array or not: nothing is read yet."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, VECTORS[types.float32])
        pointer = builder.bitcast(code.pointer(a, arguments[0], arguments[1]), I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, I32(0), I32(2), I32(1)])
        return context.get_dummy_value()

    return types.void(a, types.intp), generate


def _twin_dots(sums, x, a, i, stride):
    n, count = len(x[0]), len(x)
    found = []
    for place, total in enumerate(sums):
        row, member = divmod(place, count)
        start = i + row * stride
        found.append((total + widen(a[start : start + n]) * x[member]).astype(x[0].dtype))
    return tuple(found)


@word(_twin_dots)
def dots(typing, sums, x, a, i, stride):
    """Return sums[r, j] + x[j] · a[i + r·stride ...], lane by lane, for each vector of x."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, x.dtype)
        vectors, found = unpack(builder, arguments[1]), unpack(builder, arguments[0])
        for r in range(sums.count // x.count):
            place = builder.add(arguments[3], builder.mul(I64(r), arguments[4]))
            row = code.load(a.dtype, code.pointer(a, arguments[2], place))
            for j, vector in enumerate(vectors):
                total = found[r * x.count + j]
                found[r * x.count + j] = code.call("fma", row, vector, total)
        return context.make_tuple(builder, signature.return_type, found)

    return sums(sums, x, a, types.intp, types.intp), generate


@word(lambda x: (np.array([v.sum() for v in x], x[0].dtype),))
def fold_rows(typing, x):
    """Return the sums of the lanes of each of LANES vectors, in one vector."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, x.dtype)
        vectors = code.fold(unpack(builder, arguments[0]))
        return context.make_tuple(builder, signature.return_type, vectors)

    return pack_of(x.dtype, 1)(x), generate


@word(lambda x, like: tuple(np.full_like(v, x) for v in like))
def splat(typing, x, like):
    """Return a pack of one number."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, like.dtype)
        vector = code.splat(arguments[0])
        return context.make_tuple(builder, signature.return_type, [vector] * like.count)

    return like(like.dtype.dtype, like), generate


def _twin_loads(a, i, like):
    n = len(like[0])
    kind = like[0].dtype
    return tuple(widen(a[i + j * n : i + (j + 1) * n]).astype(kind) for j in range(len(like)))


@word(_twin_loads)
def loads(typing, a, i, like):
    """Return the numbers of an array from i on, as many as a pack has."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, like.dtype)
        places = [builder.add(arguments[1], I64(j * like.dtype.lanes)) for j in range(like.count)]
        found = [code.load(a.dtype, code.pointer(a, arguments[0], place)) for place in places]
        return context.make_tuple(builder, signature.return_type, found)

    return like(a, types.intp, like), generate


def _twin_tile(a, i, stride, rows, like):
    n = len(like[0])
    starts = (i + r * stride + j * n for r in range(len(rows)) for j in range(len(like)))
    return tuple(a[start : start + n].copy() for start in starts)


@word(_twin_tile)
def tile(typing, a, i, stride, rows, like):
    """Return packs of an array from i on, `stride` apart, as many as `rows` has vectors."""
    count = rows.count * like.count

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, like.dtype)
        found = []
        for r in range(rows.count):
            start = builder.add(arguments[1], builder.mul(I64(r), arguments[2]))
            places = [builder.add(start, I64(j * like.dtype.lanes)) for j in range(like.count)]
            found += [code.load(a.dtype, code.pointer(a, arguments[0], place)) for place in places]
        return context.make_tuple(builder, signature.return_type, found)

    return pack_of(like.dtype, count)(a, types.intp, types.intp, rows, like), generate


@word(lambda a, scratch: scratch if a.itemsize == 2 else a)
def wide(typing, a, scratch):
    """Return an array itself, or scratch in its place where it holds 16 bits to be widened."""
    kind, place = (scratch, 1) if a.dtype.bitwidth == 16 else (a, 0)

    def generate(context, builder, signature, arguments):
        return imputils.impl_ret_borrowed(context, builder, kind, arguments[place])

    return kind(a, scratch), generate


@word(lambda a: a.itemsize == 2)
def is_half(typing, a):
    """Tell whether an array holds 16 bits; known when compiling, so that a branch on it is free."""

    def generate(context, builder, signature, arguments):
        return context.get_constant(types.boolean, a.dtype.bitwidth == 16)

    return types.boolean(a), generate


@word(lambda like: len(like) * len(like[0]))
def width(typing, like):
    """Return how many numbers a pack holds."""

    def generate(context, builder, signature, arguments):
        return I64(like.count * like.dtype.lanes)

    return types.intp(like), generate


def _twin_stores(a, i, stride, x, like):
    n, count = len(like[0]), len(like)
    for place, vector in enumerate(x):
        row, j = divmod(place, count)
        start = i + row * stride + j * n
        a[start : start + n] = narrow(vector, a.dtype)


@word(_twin_stores)
def stores(typing, a, i, stride, x, like):
    """Write packs, each as long as `like`, to an array from i on, `stride` apart."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, like.dtype)
        for place, vector in enumerate(unpack(builder, arguments[3])):
            row, j = divmod(place, like.count)
            start = builder.add(arguments[1], builder.mul(I64(row), arguments[2]))
            start = builder.add(start, I64(j * like.dtype.lanes))
            code.store(a.dtype, vector, code.pointer(a, arguments[0], start))
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, x, like), generate


def _twin_rank1(acc, a, i, stride, row):
    count = len(row)
    return tuple(
        acc[place] + a[i + (place // count) * stride] * row[place % count]
        for place in range(len(acc))
    )


@word(_twin_rank1)
def rank1(typing, acc, a, i, stride, row):
    """Return acc[r] + a[i + r·stride] · row for every row r of a tile: the heart of a product."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, row.dtype)
        sums, vectors = unpack(builder, arguments[0]), unpack(builder, arguments[4])
        found = []
        for r in range(acc.count // row.count):
            place = builder.add(arguments[2], builder.mul(I64(r), arguments[3]))
            factor = code.splat(builder.load(code.pointer(a, arguments[1], place)))
            for j, vector in enumerate(vectors):
                found.append(code.call("fma", factor, vector, sums[r * row.count + j]))
        return context.make_tuple(builder, signature.return_type, found)

    return acc(acc, a, types.intp, types.intp, row), generate


def elementwise(name, twin, instruction, n_operands):
    """Return a word that does one instruction on each vector of its operands.

    A last operand that is a single pack goes with every row of a longer first one.
    """

    def apply(*packs):
        longest = len(packs[0])
        return tuple(twin(*(pack[place % len(pack)] for pack in packs)) for place in range(longest))

    def generator(packs):
        first = packs[0]

        def generate(context, builder, signature, arguments):
            code = Code(context, builder, first.dtype)
            given = [unpack(builder, x) for x in arguments]
            found = [
                instruction(code, *(vectors[place % len(vectors)] for vectors in given))
                for place in range(first.count)
            ]
            return context.make_tuple(builder, signature.return_type, found)

        return first(*packs), generate

    if n_operands == 1:
        return word(apply)(lambda typing, x: generator((x,)))
    if n_operands == 2:
        return word(apply)(lambda typing, x, y: generator((x, y)))
    if n_operands == 3:
        return word(apply)(lambda typing, x, y, z: generator((x, y, z)))
    return word(apply)(lambda typing, x, y, z, w: generator((x, y, z, w)))


def _larger(code, x, y):
    """Give the larger of two; y where x is NaN, as the processor's own instruction does."""
    return code.b.select(code.b.fcmp_ordered(">", x, y), x, y)


def _anchor(code, x):
    none = code.kind.constant(float("-inf"))
    return code.b.select(code.b.fcmp_ordered("==", x, none), code.kind.constant(0.0), x)


def _add_bias(code, x, y):
    none = code.kind.constant(float("-inf"))
    return code.b.select(code.b.fcmp_ordered("==", y, none), none, code.b.fadd(x, y))


def _unless(code, x, forbidden):
    none = code.kind.constant(float("-inf"))
    forbids = code.b.fcmp_ordered("!=", forbidden, code.kind.constant(0.0))
    return code.b.select(forbids, none, x)


def _tanh(code, x):
    """Give tanh y = e/(e + 2), e = exp(2y) - 1 = 2ⁿ(2^r - 1) + (2ⁿ - 1): exact for small y."""
    b, kind = code.b, code.kind
    single = kind.dtype.bitwidth == 32
    bias, shift, limit = (127, 23, 30.0) if single else (1023, 52, 60.0)
    size = code.call("fabs", x)
    t = b.fmul(size, kind.constant(2 / math.log(2)))
    t = b.select(b.fcmp_ordered(">", t, kind.constant(limit)), kind.constant(limit), t)
    magic = kind.constant(1.5 * 2.0**shift + bias)
    shifted = b.fadd(t, magic)
    r = b.fsub(t, b.fsub(shifted, magic))
    q = kind.constant(EXP2[single][-1])
    for coefficient in EXP2[single][-2:0:-1]:
        q = code.call("fma", q, r, kind.constant(coefficient))
    bits = b.shl(b.bitcast(shifted, kind.integers), code.ints(shift))
    power = b.bitcast(bits, kind.floats)
    e = code.call("fma", power, b.fmul(q, r), b.fsub(power, kind.constant(1.0)))
    return code.call("copysign", b.fdiv(e, b.fadd(e, kind.constant(2.0))), x)


def _twin_power(x, factor, low):
    bias = 1023 if x.dtype == np.float64 else 127
    t = np.where(low > x, low, x).astype(np.longdouble) * factor
    return np.where(t < 0.5 - bias, 0, np.exp2(t)).astype(x.dtype)


add = elementwise("add", lambda x, y: x + y, lambda code, x, y: code.b.fadd(x, y), 2)
sub = elementwise("sub", lambda x, y: x - y, lambda code, x, y: code.b.fsub(x, y), 2)
mul = elementwise("mul", lambda x, y: x * y, lambda code, x, y: code.b.fmul(x, y), 2)
fma = elementwise(
    "fma", lambda x, y, z: x * y + z, lambda code, x, y, z: code.call("fma", x, y, z), 3
)
"""x · y + z, rounded once (its twin rounds twice)."""
larger = elementwise("larger", lambda x, y: np.where(x > y, x, y), _larger, 2)
power = elementwise(
    "power", _twin_power, lambda code, x, factor, low: code.power(x, factor, low), 3
)
"""2^(x · factor) for x · factor <= 127 (1023 in float64), rounded once before the power is taken.

`low` is -127 / factor (-1023 / factor): from there down, and at -inf, the result is exactly 0. NaN
stays NaN. Largest error found: 1 ULP, see tests.
"""
tanh = elementwise("tanh", np.tanh, _tanh, 1)
anchor = elementwise("anchor", lambda x: np.where(x == -np.inf, 0, x), _anchor, 1)
"""What to subtract from scores: their maximum, 0 where there is none."""
add_bias = elementwise(
    "add_bias", lambda x, y: np.where(y == -np.inf, -np.inf, x + y), _add_bias, 2
)
"""x + y, and -inf where y is: a bias of -inf masks, so that not even NaN comes through it."""
unless = elementwise("unless", lambda x, y: np.where(y != 0, -np.inf, x), _unless, 2)
"""x, and -inf where the second is not 0: a mask, turned over."""


def _twin_fold(acc, tops):
    found = list(tops)
    for place, vector in enumerate(acc):
        j = place % len(tops)
        found[j] = np.where(vector > found[j], vector, found[j])
    return tuple(found)


@word(_twin_fold)
def fold_larger(typing, acc, tops):
    """Return the largest of each lane among the rows of a tile, and `tops`; NaN is passed over."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, tops.dtype)
        vectors, found = unpack(builder, arguments[0]), unpack(builder, arguments[1])
        for j in range(tops.count):
            for vector in vectors[j :: tops.count]:
                found[j] = _larger(code, vector, found[j])
        return context.make_tuple(builder, signature.return_type, found)

    return tops(acc, tops), generate


def _twin_within(x, key, bounds, i, far):
    n = len(x[0])
    found = []
    for j, vector in enumerate(x):
        first = i + j * n
        low, high = bounds[first : first + n], bounds[far + first : far + first + n]
        found.append(np.where((low <= key) & (key < high), vector, -np.inf).astype(vector.dtype))
    return tuple(found)


@word(_twin_within)
def within(typing, x, key, bounds, i, far):
    """Return x where bounds[i + lane] <= key < bounds[far + i + lane], else -inf."""

    def generate(context, builder, signature, arguments):
        code, kind = Code(context, builder, x.dtype), x.dtype
        number = builder.trunc(arguments[1], kind.integer) if kind.integer != I64 else arguments[1]
        undefined = ir.Constant(kind.integers, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, kind.lanes), [0] * kind.lanes)
        first = builder.insert_element(undefined, number, I32(0))
        keys = builder.shuffle_vector(first, undefined, zeros)
        found = []
        for j, vector in enumerate(unpack(builder, arguments[0])):
            place = builder.add(arguments[3], I64(j * kind.lanes))
            low = code.load_integers(bounds, arguments[2], place)
            high = code.load_integers(bounds, arguments[2], builder.add(place, arguments[4]))
            seen = builder.and_(
                builder.icmp_signed("<=", low, keys), builder.icmp_signed("<", keys, high)
            )
            found.append(builder.select(seen, vector, kind.constant(float("-inf"))))
        return context.make_tuple(builder, signature.return_type, found)

    return x(x, types.intp, bounds, types.intp, types.intp), generate


def _twin_transposed(a, at, i, column, like):
    n = len(like[0])
    rows = [widen(a[at[i + lane] + column : at[i + lane] + column + n]) for lane in range(n)]
    return tuple(np.stack(rows, axis=1).astype(like[0].dtype))


@word(_twin_transposed)
def transposed(typing, a, at, i, column, like):
    """Return LANES vectors: lane l of the p-th is a[at[i + l] + column + p]."""

    def generate(context, builder, signature, arguments):
        code, n = Code(context, builder, like.dtype), like.dtype.lanes
        rows = []
        for lane in range(n):
            place = code.row(at, arguments[1], arguments[2], lane, arguments[3])
            rows.append(code.load(a.dtype, code.pointer(a, arguments[0], place)))
        return context.make_tuple(builder, signature.return_type, code.transpose(rows))

    return pack_of(like.dtype, like.dtype.lanes)(a, at, types.intp, types.intp, like), generate


def twin_scatter(a, at, i, column, rows):
    """Write the rows of lanes: the twin of `scatter`, and of what writes past the caches."""
    n = len(rows[0])
    for lane in range(n):
        place = at[i + lane] + column
        a[place : place + n] = narrow(np.array([row[lane] for row in rows]), a.dtype)


@word(twin_scatter)
def scatter(typing, a, at, i, column, rows):
    """Write LANES vectors so that lane l of the p-th becomes a[at[i + l] + column + p]."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, rows.dtype)
        for lane, vector in enumerate(code.transpose(unpack(builder, arguments[4]))):
            place = code.row(at, arguments[1], arguments[2], lane, arguments[3])
            code.store(a.dtype, vector, code.pointer(a, arguments[0], place))
        return context.get_dummy_value()

    return types.void(a, at, types.intp, types.intp, rows), generate


def _twin_fetch_add(a, i, x):
    old = int(a[i])
    a[i] += x
    return old


@word(_twin_fetch_add)
def fetch_add(typing, a, i, x):
    """Add to an int64 of an array and return what it was, in one step for all threads."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(a)(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(a, types.intp, types.int64), generate
