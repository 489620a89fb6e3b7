"""Files of the shell: arrays in, never unpickled, and results out, never half written."""

import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

REQUIRED = ("query", "key", "value")
OPTIONAL = ("mask", "bias", "sinks", "key_lengths", "query_lengths", "query_offset")
SHORT = {"q": "query", "k": "key", "v": "value"}

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

SAFETENSORS_TYPES = {
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    **{f"{sign}{bits}": f"{name}{bits}"
       for sign, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Types that safetensors and NumPy share; of the others bfloat16 alone is taken, by ml_dtypes."""


class Refusal(Exception):
    """What the person at the shell has to change, in one line."""


# -------------------------------------------------------------------------------------- reading


def read_inputs(paths: Sequence[Path], required: Sequence[str] = REQUIRED) -> dict[str, Array]:
    """Return the arrays of the input files by their full names, the required ones first.

    Those of `REQUIRED` that are not required may be there, and are not read.
    """
    suffixes = [path.suffix.lower() for path in paths]
    if len(required) <= len(paths) <= len(REQUIRED) and set(suffixes) == {".npy"}:
        return {name: _read_npy(path) for name, path in zip(required, paths, strict=False)}
    if suffixes == [".npz"]:
        return _read_npz(paths[0], required)
    if suffixes == [".safetensors"]:
        return _read_safetensors(paths[0], required)
    count = "three" if len(required) == len(REQUIRED) else "two"
    raise Refusal(
        f"inputs must be one .npz, one .safetensors, or {count} .npy files "
        f"({' '.join(required)}); got {' '.join(map(str, paths))}"
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say of everything that can be wrong with a file which file it was."""
    try:
        yield
    except (Refusal, MemoryError):
        raise
    except FileNotFoundError as error:
        raise Refusal(f"no such file: {path}") from error
    except zipfile.BadZipFile as error:
        raise Refusal(f"cannot read {path}: not a .npz, or a damaged one ({error})") from error
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # of many kinds: zlib's, zipfile's, those of NumPy's header parser
        raise Refusal(f"cannot read {path}: {error}") from error


def _read_npy(path: Path) -> Array:
    """Return the array of a .npy file."""
    with _reading(path), path.open("rb") as stream:
        return _array(stream, f"{path}")


def _read_npz(path: Path, required: Sequence[str]) -> dict[str, Array]:
    """Return the arrays of a .npz file; names are looked at before any array is read."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        found = {}
        for name, stored in _known(path, members, required).items():
            with archive.open(members[stored]) as stream:
                found[name] = _array(stream, f"`{stored}` in {path}")
        return found


def _array(stream: IO[bytes], what: str) -> Array:
    """Return the array that a stream in NumPy's format holds; nothing is ever unpickled."""
    start = stream.read(6)
    if start != b"\x93NUMPY":
        kind = "pickled Python objects" if start[:1] == b"\x80" else "something else"
        raise Refusal(f"{what} is no NumPy array but {kind}; write it with numpy.save or savez")
    stream.seek(0)
    try:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise Refusal(
            f"{what} holds pickled Python objects, which are never loaded; save an array of numbers"
        ) from error
    # NumPy's format has no name for bfloat16 and writes it as raw bytes
    if array.dtype.kind == "V" and array.dtype.names is None:
        raise Refusal(
            f"{what} has lost its type ({array.dtype}; .npy and .npz cannot hold bfloat16): "
            "save it as float32, or in a .safetensors file"
        )
    return array


def _read_safetensors(path: Path, required: Sequence[str]) -> dict[str, Array]:
    """Return the arrays of a .safetensors file; bfloat16 among them."""
    try:
        from safetensors import SafetensorError, deserialize
    except ModuleNotFoundError as error:
        raise Refusal(f'reading {path} needs safetensors: pip install "scaledot[cli]"') from error
    with _reading(path):
        try:
            # safetensors gives this function no types
            tensors = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise Refusal(f"cannot read {path}: {error}") from error
    return {
        name: np.frombuffer(
            tensors[stored]["data"], _numpy_type(tensors[stored]["dtype"], f"`{stored}` in {path}")
        ).reshape(tensors[stored]["shape"])
        for name, stored in _known(path, tensors, required).items()
    }


def _numpy_type(stored: str, what: str) -> np.dtype[Any]:
    """Return NumPy's type for one of safetensors, little-endian as that format is."""
    if stored == "BF16":
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise Refusal(
                f"{what} is bfloat16, which NumPy learns from ml_dtypes: pip install ml_dtypes"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if stored not in SAFETENSORS_TYPES:
        taken = ", ".join((*SAFETENSORS_TYPES.values(), "bfloat16"))
        raise Refusal(f"{what} is of type {stored}; taken are {taken}")
    return np.dtype(SAFETENSORS_TYPES[stored]).newbyteorder("<")


def _known(path: Path, stored: Mapping[str, object], required: Sequence[str]) -> dict[str, str]:
    """Return {name: its name in the file}, or refuse missing, unknown and doubled names."""
    names = (*REQUIRED, *OPTIONAL)
    found: dict[str, str] = {}
    for own in stored:
        name = SHORT.get(own, own)
        if name not in names:
            known = ", ".join(names)
            raise Refusal(f"unknown array `{own}` in {path}; known are {known}, and q, k, v")
        if name in found:
            raise Refusal(f"{path} holds `{name}` twice, as `{found[name]}` and as `{own}`")
        found[name] = own
    missing = [f"`{name}`" for name in required if name not in found]
    if missing:
        held = ", ".join(stored) or "nothing"
        raise Refusal(f"{path} lacks {' and '.join(missing)}; it holds {held}")
    return {name: found[name] for name in (*required, *OPTIONAL) if name in found}


# -------------------------------------------------------------------------------------- writing


class Wanted(NamedTuple):
    """Which files are to be written, and where the weights go."""

    output: Path | None
    weights_to: Path | None
    weights_inside: bool
    """The weights go into the output file."""


def check_target(
    option: str, path: Path, suffix: str | tuple[str, ...], inputs: Sequence[Path]
) -> None:
    """Refuse a result of the wrong kind, or one that would replace an input."""
    suffixes = (suffix,) if isinstance(suffix, str) else suffix
    if path.suffix.lower() not in suffixes:
        raise Refusal(f"{option} must name a {' or '.join(suffixes)} file, got {path}")
    if path.is_dir():
        raise Refusal(f"{option} must name a file, {path} is a folder")
    if any(path.exists() and given.exists() and path.samefile(given) for given in inputs):
        raise Refusal(f"{option} would overwrite the input {path}; name another file")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a draft beside `path` that takes its place if all goes well, and vanishes if not.

    The draft is made at once, so that a folder that cannot be written is known before the work.
    """
    target = Path(os.path.realpath(path))  # a link keeps pointing where it does
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        draft.open("xb").close()
        try:
            yield draft
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Refusal(f"cannot write {path}: {error.strerror or error}") from error


def storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that NumPy's files hold a type in: float32 for bfloat16, which is exact."""
    return np.dtype(np.float32) if dtype.name == "bfloat16" else dtype


def write_npz(draft: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays under their names."""
    stored: dict[str, Any] = {
        name: x.astype(storable(x.dtype), copy=False) for name, x in arrays.items()
    }
    with draft.open("wb") as stream:
        np.savez(stream, **stored)


def mapped_npy(draft: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the array of a new .npy file of zeros, mapped into memory."""
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    free = shutil.disk_usage(draft.parent).free
    if size > free:  # asked beforehand: a map that finds the disk full ends the process (SIGBUS)
        raise Refusal(
            f"{draft.parent} has {readable(free)} free, the weights need {readable(size)}"
        )
    array: Array = np.lib.format.open_memmap(draft, mode="w+", dtype=dtype, shape=shape)
    return array


def readable(n_bytes: int) -> str:
    """Return a size in the largest binary unit that fits it.

    >>> readable(1023), readable(3 * 2**29)
    ('1023 B', '1.5 GiB')
    """
    power = min(max(n_bytes.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{n_bytes} B" if power == 0 else f"{n_bytes / 1024**power:.1f} {UNITS[power]}"
