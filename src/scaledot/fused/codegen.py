"""How words become instructions: the type of a vector, and pieces of generated LLVM code."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import ForceLiteralArg
from numba.extending import models, register_model

from scaledot.fused import target

VECTOR_BYTES = target.vector_bytes()

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class Vector(types.Type):
    """LANES numbers of float32 or float64 in a register."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.lanes = VECTOR_BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype} x {self.lanes})")

    @property
    def element(self) -> Any:
        """The LLVM type of a number."""
        return F32 if self.dtype.bitwidth == 32 else F64

    @property
    def integer(self) -> Any:
        """The LLVM integer of the same width."""
        return I32 if self.dtype.bitwidth == 32 else I64

    @property
    def floats(self) -> Any:
        """The LLVM vector."""
        return ir.VectorType(self.element, self.lanes)

    @property
    def integers(self) -> Any:
        """The LLVM vector of integers of the same width."""
        return ir.VectorType(self.integer, self.lanes)

    def constant(self, value: float) -> Any:
        """Return a vector of one number."""
        return ir.Constant(self.floats, [ir.Constant(self.element, value)] * self.lanes)


VECTORS = {types.float32: Vector(types.float32), types.float64: Vector(types.float64)}


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector is passed as it is."""

    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, kind.floats)


def pack_of(kind: Vector, n: int) -> types.UniTuple:
    """Return the type of a pack."""
    return types.UniTuple(kind, n)


def literal(number: Any, place: int) -> int:
    """Return the value of a literal argument, or ask Numba to make it one."""
    if not isinstance(number, types.IntegerLiteral):
        raise ForceLiteralArg([place])
    return number.literal_value


# ------------------------------------------------------------------------- pieces of generated code


class Code:
    """A builder of instructions for words on one type of vector."""

    def __init__(self, context: Any, builder: Any, kind: Vector) -> None:
        self.context, self.b, self.kind = context, builder, kind

    def pointer(self, array_type: Any, array: Any, index: Any) -> Any:
        """Return the address of an element of a flat array."""
        data = self.context.make_array(array_type)(self.context, self.b, array).data
        return self.b.gep(data, [index])

    def row(self, at_type: Any, at: Any, i: Any, lane: int, column: Any) -> Any:
        """Return the place of the row of a lane, at[i + lane], at a column."""
        start = self.b.load(self.pointer(at_type, at, self.b.add(i, I64(lane))))
        return self.b.add(start, column)

    def call(self, name: str, *arguments: Any, result: Any = None) -> Any:
        """Call an LLVM intrinsic on vectors."""
        kind = result or arguments[0].type
        letter = "f" if self.kind.element in (F32, F64) else "i"
        suffix = f"v{self.kind.lanes}{letter}{self.kind.dtype.bitwidth}"
        function = ir.FunctionType(kind, [x.type for x in arguments])
        callee = cgutils.get_or_insert_function(self.b.module, function, f"llvm.{name}.{suffix}")
        return self.b.call(callee, arguments)

    def splat(self, number: Any) -> Any:
        """Return a vector of one number."""
        undefined = ir.Constant(self.kind.floats, ir.Undefined)
        first = self.b.insert_element(undefined, number, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, self.kind.lanes), [0] * self.kind.lanes)
        return self.b.shuffle_vector(first, undefined, zeros)

    def load(self, dtype: Any, pointer: Any) -> Any:
        """Return LANES numbers, widened from 16 bits where the array holds those."""
        b, n = self.b, self.kind.lanes
        if dtype.bitwidth == 8:
            allowed = self._aligned(b.load(self._cast(pointer, ir.VectorType(I8, n))), dtype)
            forbids = b.icmp_signed("==", allowed, ir.Constant(ir.VectorType(I8, n), [0] * n))
            return b.select(forbids, self.kind.constant(1.0), self.kind.constant(0.0))
        if dtype.bitwidth != 16:
            return self._aligned(b.load(self._cast(pointer, self.kind.floats)), dtype)
        halves = self._aligned(b.load(self._cast(pointer, ir.VectorType(I16, n))), dtype)
        if dtype.signed:
            return b.fpext(b.bitcast(halves, ir.VectorType(F16, n)), self.kind.floats)
        wide = b.zext(halves, ir.VectorType(I32, n))
        return b.bitcast(b.shl(wide, self.ints(16)), self.kind.floats)

    def store(self, dtype: Any, x: Any, pointer: Any) -> None:
        """Write LANES numbers, rounded to 16 bits where the array holds those."""
        if dtype.bitwidth == 16:
            x = self._narrow(dtype, x)
        self._aligned(self.b.store(x, self._cast(pointer, x.type)), dtype)

    def stream(self, array_type: Any, array: Any, index: Any, x: Any) -> None:
        """Write LANES numbers past the caches, to whole lines of memory."""
        if array_type.dtype.bitwidth == 16:
            self.store(array_type.dtype, x, self.pointer(array_type, array, index))
            return
        pointer = self._cast(self.pointer(array_type, array, index), x.type)
        instruction = self.b.store(x, pointer)
        instruction.align = VECTOR_BYTES
        one = self.b.module.add_metadata([I32(1)])
        instruction.set_metadata("nontemporal", one)

    def _narrow(self, dtype: Any, x: Any) -> Any:
        b, n = self.b, self.kind.lanes
        halves = ir.VectorType(I16, n)
        if dtype.signed:
            return b.bitcast(b.fptrunc(x, ir.VectorType(F16, n)), halves)
        bits = b.bitcast(x, self.kind.integers)
        odd = b.and_(b.lshr(bits, self.ints(16)), self.ints(1))
        rounded = b.lshr(b.add(b.add(bits, self.ints(0x7FFF)), odd), self.ints(16))
        quiet = b.or_(b.lshr(bits, self.ints(16)), self.ints(0x40))
        return b.trunc(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), halves)

    def ints(self, value: int) -> Any:
        """Return a vector of one integer."""
        return ir.Constant(self.kind.integers, [value] * self.kind.lanes)

    def _cast(self, pointer: Any, kind: Any) -> Any:
        return self.b.bitcast(pointer, kind.as_pointer())

    @staticmethod
    def _aligned(instruction: Any, dtype: Any) -> Any:
        instruction.align = dtype.bitwidth // 8
        return instruction

    def load_integers(self, array_type: Any, array: Any, index: Any) -> Any:
        """Return LANES integers of the width of the numbers."""
        pointer = self._cast(self.pointer(array_type, array, index), self.kind.integers)
        return self._aligned(self.b.load(pointer), array_type.dtype)

    def transpose(self, rows: list[Any]) -> list[Any]:
        """Return LANES vectors of LANES numbers with rows and columns exchanged.

        Stage by stage, pairs of rows 1, 2, 4, ... apart exchange blocks of that size.
        """
        n, step = self.kind.lanes, 1
        while step < n:
            low = [lane if not lane & step else n + lane - step for lane in range(n)]
            high = [lane + step if not lane & step else n + lane for lane in range(n)]
            exchanged = list(rows)
            for r in range(n):
                if not r & step:
                    exchanged[r] = self._shuffle(rows[r], rows[r + step], low)
                    exchanged[r + step] = self._shuffle(rows[r], rows[r + step], high)
            rows, step = exchanged, step * 2
        return rows

    def fold(self, rows: list[Any]) -> list[Any]:
        """Return one vector of the sums of the lanes of LANES vectors.

        Stage by stage, lanes 1, 2, 4, ... apart are added, of two neighbours into one vector.
        """
        n, step = self.kind.lanes, 1
        while step < n:
            own = [lane + n if lane & step else lane for lane in range(n)]
            across = [lane - step + n if lane & step else lane + step for lane in range(n)]
            rows = [
                self.b.fadd(self._shuffle(x, y, own), self._shuffle(x, y, across))
                for x, y in zip(rows[::2], rows[1::2], strict=True)
            ]
            step *= 2
        return rows

    def _shuffle(self, x: Any, y: Any, lanes: list[int]) -> Any:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    def power(self, x: Any, factor: Any, low: Any) -> Any:
        """Return 2^(x · factor): see the word `power`."""
        b, kind = self.b, self.kind
        single = kind.dtype.bitwidth == 32
        bias, shift = (127, 23) if single else (1023, 52)
        # The constant comes first: the comparison then lets NaN through.
        x = b.select(b.fcmp_ordered(">", low, x), low, x)
        # Added to 1.5 · 2^shift a number is rounded to an integer, which lies in the lowest bits;
        # the bias added with it makes those bits the exponent field of 2^n.
        magic = kind.constant(1.5 * 2.0**shift + bias)
        shifted = self.call("fma", x, factor, magic)
        r = self.call("fma", x, factor, b.fneg(b.fsub(shifted, magic)))
        y = kind.constant(EXP2[single][-1])
        for coefficient in EXP2[single][-2::-1]:
            y = self.call("fma", y, r, kind.constant(coefficient))
        bits = b.shl(b.bitcast(shifted, kind.integers), self.ints(shift))
        return b.fmul(y, b.bitcast(bits, kind.floats))


EXP2 = {
    True: (
        1.0,
        0.693147214968,
        0.240226527829,
        0.0555031055101,
        0.00961769297299,
        0.00134066439024,
        0.000155946781613,
    ),
    False: (
        1.0,
        0.69314718055994569675,
        0.24022650695910098007,
        0.055504108664790394552,
        0.0096181291076070023796,
        0.0013333558153439964747,
        0.0001540353044157213033,
        0.000015252727385193868197,
        1.3215442675329822143e-6,
        1.0180647659234138888e-7,
        7.0725704128144235096e-9,
        4.078071929588336665e-10,
    ),
}
"""Coefficients of 2^r on [-1/2, 1/2], by Remez with p(0) = 1, for float32 and float64: relative
error 2.6e-9 and 1.8e-17, below the rounding of the type."""


def unpack(builder: Any, pack: Any) -> list[Any]:
    """Return the vectors of a pack."""
    return cgutils.unpack_tuple(builder, pack)
