"""Callers' arrays in, and results back: libraries, types, fresh memory.

For NumPy and lists NumPy is its own namespace; array-api-compat is loaded for the first array of
another library.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_char
from functools import lru_cache
from typing import Any

import numpy as np

from scaledot import checks
from scaledot.results import Array

ALIGNMENT = 64
"""Bytes: a cache line, and what other libraries ask of memory that they take without copying."""

OVERLAP_EFFORT: Any = 100_000
"""Candidate solutions that `numpy.shares_memory` may look at: milliseconds."""

PROMOTED = {frozenset(("float16", "bfloat16")): "float32"}
"""Pairs of floats whose common type is neither of them (Array API, type promotion rules)."""


def adopt(named: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """Return the library of the arrays that are not None, and those as arrays of that library."""
    given = {name: x for name, x in named.items() if x is not None}
    if all(type(x) is np.ndarray for x in given.values()):
        return np, given
    foreign = {name: x for name, x in given.items() if not _is_plain(x)}
    if not foreign:
        return np, {name: _to_numpy(name, x) for name, x in given.items()}
    xp = _namespace(given, foreign)
    device = _compat().device(next(iter(foreign.values())))

    def joined(name: str, x: Any) -> Array:
        found = _to_numpy(name, x)
        if found.dtype.kind == "f":
            found = clamp(np, found, np.dtype(default_float(xp)))
        return xp.asarray(found, device=device)

    return xp, {name: x if name in foreign else joined(name, x) for name, x in given.items()}


def adopt_all(named: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """Return the library of arrays that must all be there, and them as its arrays."""
    for name, x in named.items():
        if x is None:
            checks.not_an_array(name, x)
    return adopt(named)


def _is_plain(x: object) -> bool:
    """Tell whether NumPy speaks for an object: its own arrays, numbers, lists."""
    return isinstance(x, np.ndarray | np.generic | bool | int | float | complex | list | tuple)


def _to_numpy(name: str, x: Any) -> np.ndarray:
    """Return a plain array of an array, a number or nested lists."""
    if isinstance(x, np.ndarray):
        if type(x) not in (np.ndarray, np.memmap):
            checks.subclass(name, x)
        return x.view(np.ndarray)
    if isinstance(x, list | tuple):
        _refuse_leaves(name, x)
    try:
        return np.asarray(x)
    except ValueError:
        checks.ragged(name)


def _refuse_leaves(name: str, x: Any) -> None:
    """Refuse lists that hold arrays whose meaning the conversion to numbers would lose."""
    for leaf in x:
        if isinstance(leaf, list | tuple):
            _refuse_leaves(name, leaf)
        elif type(leaf) not in (int, float, bool, np.ndarray) and hasattr(leaf, "dtype"):
            if isinstance(leaf, np.ndarray):
                checks.subclass(name, leaf)
            if not isinstance(leaf, np.generic):
                checks.not_an_array(name, leaf)


def _compat() -> Any:
    """Return array-api-compat, loaded on first use."""
    import array_api_compat

    return array_api_compat


def _namespace(given: Mapping[str, Any], foreign: Mapping[str, Any]) -> Any:
    """Return the one namespace of the arrays of other libraries, or refuse them."""
    compat = _compat()
    first, xp = "", None
    for name, x in foreign.items():
        if not compat.is_array_api_obj(x):
            checks.not_an_array(name, x)
        _refuse_unusable(name, x, compat)
        found = compat.array_namespace(x)
        if xp is None:
            first, xp = name, found
        elif found is not xp:
            checks.two_libraries(first, library(xp), name, library(found))
    for name, x in given.items():
        if isinstance(x, np.ndarray):
            checks.two_libraries(first, library(xp), name, "numpy")
    return xp


def _refuse_unusable(name: str, x: Any, compat: Any) -> None:
    """Refuse arrays without values in memory, and those that record gradients."""
    if compat.is_dask_array(x):
        checks.unusable(name, "a lazy Dask array", f"compute it first: {name}.compute()")
    if compat.is_pydata_sparse_array(x):
        checks.unusable(name, "a sparse array", f"make it dense: {name}.todense()")
    if compat.is_torch_array(x):
        _refuse_torch(name, x, sys.modules["torch"])
    if compat.is_jax_array(x) and isinstance(x, sys.modules["jax"].core.Tracer):
        checks.unusable(
            name,
            "a JAX tracer, which has none yet (inside jit, grad or vmap)",
            "call scaledot outside of the traced function; gradients come from scaledot.vjp",
        )


def _refuse_torch(name: str, x: Any, torch: Any) -> None:
    """Refuse PyTorch tensors that record gradients, or hold no dense values."""
    if x.is_nested or type(x).__name__ == "MaskedTensor":
        kind = "nested" if x.is_nested else "masked"
        remedy = "pass a padded tensor, with `key_lengths` or `mask`"
        checks.unusable(name, f"a {kind} tensor", remedy)
    if x.layout is not torch.strided:
        checks.unusable(name, f"a tensor of layout {x.layout}", f"make it dense: {name}.to_dense()")
    fake = type(x).__name__ == "FakeTensor" or x.device.type == "meta"
    if fake or torch._C._functorch.is_functorch_wrapped_tensor(x):
        checks.unusable(
            name,
            f"a {type(x).__name__} without data (traced, transformed or on the meta device)",
            "call scaledot outside of torch.compile and torch.func transforms",
        )
    if x.requires_grad and torch.is_grad_enabled():
        checks.unusable(
            name,
            "a tensor that records gradients, which would be lost",
            f"pass {name}.detach() if they are not wanted; gradients come from scaledot.vjp",
        )


def library(xp: Any) -> str:
    """Return the plain name of a namespace: numpy, torch, jax, ..."""
    name = str(xp.__name__)
    return name.removeprefix("array_api_compat.").split(".")[0]


# ---------------------------------------------------------------------------------------- types


def type_name(x: Array) -> str:
    """Return the name of an array's type, the same in every library and byte order."""
    return name_of(x.dtype)


def name_of(dtype: Any) -> str:
    """Return the name of a type."""
    kind: Any = type(dtype)
    return _name_of(kind, dtype)


@lru_cache(maxsize=256)
def _name_of(_: Any, dtype: Any) -> str:
    """Return the name of a type; NumPy takes microseconds to spell it.

    The class comes first in the key, so that types of two libraries are never compared.
    """
    name = getattr(dtype, "name", None)
    return str(name) if name is not None else str(dtype).rpartition(".")[2]


def default_float(xp: Any) -> str:
    """Return the library's default real type, which integers, bools and lists become."""
    if xp is np:
        return "float64"
    dtype = xp.__array_namespace_info__().default_dtypes()["real floating"]
    return type_name(xp.empty((0,), dtype=dtype))


def promote(names: Sequence[str]) -> str:
    """Return the common type of floating types, by the Array API's table."""
    result = names[0]
    for name in names[1:]:
        pair = frozenset((result, name))
        larger = max(result, name, key=("bfloat16", "float16", "float32", "float64").index)
        result = PROMOTED.get(pair, larger)
    return result


def floats(xp: Any, given: Mapping[str, Array]) -> tuple[list[Array], str]:
    """Return arrays in the type of their sums, and the name of the type of results."""
    for name, x in given.items():
        checks.number_type(name, type_name(x))
    names = [type_name(x) for x in given.values()]
    names = [name if name in checks.FLOATS else default_float(xp) for name in names]
    sums = getattr(xp, sum_type(promote(names)))
    return [convert(xp, x, sums) for x in given.values()], names[0]


def sum_type(name: str) -> str:
    """Return the type in which numbers of a type are summed."""
    return "float64" if name == "float64" else "float32"


def dtype_of(xp: Any, name: str, examples: Sequence[Array]) -> Any:
    """Return the library's type of a name; bfloat16 comes from the array that has it."""
    if hasattr(xp, name):
        return getattr(xp, name)
    return next(x.dtype for x in examples if type_name(x) == name)


def index_dtype(xp: Any) -> Any:
    """Return the type of indices: int64, where the library has it (JAX by default has int32)."""
    if xp is np:
        return np.int64
    return xp.__array_namespace_info__().default_dtypes()["indexing"]


def convert(xp: Any, x: Array, dtype: Any) -> Array:
    """Return the array in a type, itself where it has that type already."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def fresh(xp: Any, x: Array, dtype: Any) -> Array:
    """Return a copy in a type, in aligned memory of its own."""
    if xp is not np:
        return xp.astype(x, dtype, copy=True)
    copy = empty(np, x.shape, dtype, None)
    copy[...] = x
    return copy


def clamp(xp: Any, x: Array, dtype: Any) -> Array:
    """Convert, finite values clamped to the finite range; infinities and NaN stay."""
    if x.dtype == dtype or type_name(x) != "float64":
        return convert(xp, x, dtype)
    limit = float(xp.finfo(dtype).max)
    with np.errstate(all="ignore"):
        return convert(xp, xp.where(xp.isfinite(x), xp.clip(x, -limit, limit), x), dtype)


def as_numpy(x: Array) -> np.ndarray:
    """Return an array in CPU memory as NumPy's view of it; bfloat16 may come as its bits."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "untyped_storage"):  # PyTorch, whose bfloat16 NumPy does not take
        x = x.detach()
        if type_name(x) == "bfloat16":
            x = x.view(sys.modules["torch"].uint16)
        found: np.ndarray = x.numpy()
        return found
    return np.asarray(x)


def on_host(x: Array) -> np.ndarray:
    """Return an array of any library and device as NumPy's."""
    if isinstance(x, np.ndarray):
        return x
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError, ValueError):  # on a device that NumPy cannot read
        return np.asarray(_compat().to_device(x, "cpu"))


# --------------------------------------------------------------------------------------- memory


def empty(xp: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> Array:
    """Return fresh memory, 64-byte aligned (libraries other than NumPy align their own)."""
    if xp is not np:
        return xp.empty(shape, dtype=dtype, device=device)
    dtype = np.dtype(dtype)
    buffer = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -addressof(c_char.from_buffer(buffer.data)) % ALIGNMENT
    return np.ndarray(shape, dtype, buffer, start)


def device_of(xp: Any, x: Array) -> Any:
    """Return where an array lives; None in NumPy."""
    return None if xp is np else _compat().device(x)


def on_cpu(xp: Any, x: Array) -> bool:
    """Tell whether NumPy can look at the memory of an array without copying."""
    if xp is np:
        return True
    name = library(xp)
    if name == "torch":
        return bool(x.device.type == "cpu")
    return name == "jax" and all(device.platform == "cpu" for device in x.devices())


def is_immutable(x: Array) -> bool:
    """Tell whether an array is updated through `.at`, as JAX's are."""
    return type(x).__module__.startswith("jax")


def check_out(
    xp: Any, name: str, out: Array, shape: tuple[int, ...], dtype: str, inputs: Mapping[str, Array]
) -> None:
    """Refuse a place for a result that does not fit, cannot be written, or overlaps an input."""
    if xp is np:
        if not isinstance(out, np.ndarray):
            checks.out_kind(name, type(out).__name__)
        if type(out) not in (np.ndarray, np.memmap):
            checks.subclass(name, out)
        if not out.flags.writeable:
            checks.out_value(name, "it is read-only")
        if not out.dtype.isnative:
            checks.out_value(name, f"its byte order is foreign ({out.dtype})")
    elif not _compat().is_array_api_obj(out) or _compat().array_namespace(out) is not xp:
        checks.out_kind(name, f"{type(out).__module__}.{type(out).__name__}")
    elif is_immutable(out):
        checks.out_kind(name, "an immutable array; leave it out and use what is returned")
    else:
        _refuse_unusable(name, out, _compat())
    if _overlaps_itself(out):
        checks.out_value(name, "two of its elements share memory")
    checks.result_array(name, tuple(out.shape), type_name(out), shape, dtype)
    for other, x in inputs.items():
        if overlap(out, x):
            checks.out_value(name, f"it shares memory with `{other}`")


def _torch_bytes(x: Array) -> tuple[int, int]:
    """Return the addresses of a tensor's memory, half-open; tensors have no negative strides."""
    start = x.data_ptr()
    if not x.numel():
        return start, start
    spans = (step * (size - 1) for step, size in zip(x.stride(), x.shape, strict=True))
    return start, start + (1 + sum(spans)) * x.element_size()


def _overlaps_itself(x: Array) -> bool:
    """Tell whether two elements may share memory: an axis does not step over those within it."""
    if hasattr(x, "untyped_storage"):
        steps, unit = x.stride(), 1
    elif isinstance(x, np.ndarray):
        steps, unit = x.strides, x.itemsize
    else:
        return False
    reach = unit
    for step, size in sorted((abs(step), size) for step, size in zip(steps, x.shape, strict=True)):
        if size > 1:
            if step < reach:
                return True
            reach += step * (size - 1)
    return False


def overlap(one: Array, other: Array) -> bool:
    """Tell whether two arrays of one library may share memory."""
    if hasattr(one, "untyped_storage"):  # PyTorch, on any device
        (start, stop), (begin, end) = _torch_bytes(one), _torch_bytes(other)
        return start < end and begin < stop
    # The exact question is hard for odd strides: past a bounded effort the answer is yes.
    try:
        return np.shares_memory(np.asarray(one), np.asarray(other), max_work=OVERLAP_EFFORT)
    except np.exceptions.TooHardError:
        return True
