"""How kernels are compiled: without the GIL, reference counts or fast-math; and kept on disk.

A compiled kernel is machine code for these sources on this processor, so that is what its folder is
named for: a digest of every file of the engine, the versions of Python, Numba and llvmlite, the
width of vectors, the processor's features. Nothing else than the user must be able to write there,
because what lies there is run. Where nothing can be written, kernels are compiled for each process.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

from scaledot import masks
from scaledot.fused import target

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
kernel: Callable[[Any], Any] = njit(**OPTIONS, no_cpython_wrapper=True)
"""Compile a function as a kernel that kernels call: it allocates nothing, never touches Python, and
Python cannot call it, which saves a tenth of the time of a first call."""

inlined: Callable[[Any], Any] = njit(**OPTIONS, no_cpython_wrapper=True, inline="always")
"""A kernel that becomes part of its caller: LLVM then optimises it once, not once a level."""


def entry(function: Callable[..., None]) -> Any:
    """Compile a kernel that Python calls; it is kept on disk with all that it calls."""
    compiled = njit(**OPTIONS)(function)
    folder = cache_folder()
    if folder is not None and not numba.config.DISABLE_JIT:
        compiled._cache = KernelCache(function)
    return compiled


def records(x: np.ndarray) -> np.ndarray:
    """Return an array of records as kernels take it: with the JIT off, Python reads the fields."""
    return x.view(np.recarray) if numba.config.DISABLE_JIT else x


@cache
def cache_folder() -> Path | None:
    """Return the folder of this machine's kernels, or None where there cannot be one."""
    try:
        base = _user_folder()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(base):
            return None
        folder = base / _digest()
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if os.access(folder, os.R_OK) else None
    except (OSError, RuntimeError):  # no home, nothing writable
        return None


def _user_folder() -> Path:
    """Return where the user's caches lie, or what SCALEDOT_CACHE_DIR says."""
    forced = os.environ.get("SCALEDOT_CACHE_DIR")
    if forced:
        return Path(forced)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "scaledot"


def _is_private(folder: Path) -> bool:
    """Tell whether nobody but the user may write to a folder."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _digest() -> str:
    """Return what a compiled kernel depends on, in 16 letters."""
    found = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted(here.glob("*.py")):
        found.update(path.read_bytes())
    found.update(Path(masks.__file__).read_bytes())
    settings = (
        sys.version,
        numba.__version__,
        llvmlite.__version__,
        target.vector_bytes(),
        sorted(target.cpu_features()),
    )
    found.update(repr(settings).encode())
    return found.hexdigest()[:16]


class Locator:
    """Where Numba finds and keeps kernels."""

    def __init__(self, file: str) -> None:
        self._file = file

    @classmethod
    def from_function(cls, function: object, file: str) -> "Locator":
        """Return the locator of a function, given the file that it stands in."""
        return cls(file)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(cache_folder())

    def ensure_cache_path(self) -> None:
        """Make the folder anew, in case it was removed."""
        Path(self.get_cache_path()).mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Return what stands for the sources: those of the engine, and the function's own."""
        own = hashlib.sha256(Path(self._file).read_bytes()).hexdigest()
        return _digest() + own

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart: there are none."""
        return "0"


class KernelCache(FunctionCache):  # type: ignore[misc]  # Numba has no types for mypy here
    """Numba's cache in our folder; a file that cannot be read or written is as if it were not."""

    _impl_class = type("Impl", (FunctionCache._impl_class,), {"_locator_classes": (Locator,)})

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return a kernel, or None."""
        try:
            return super().load_overload(signature, context)
        except Exception:  # damaged, half removed, or of another version: compile instead
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep a kernel, if that can be done."""
        try:
            super().save_overload(signature, data)
        except OSError:
            return
