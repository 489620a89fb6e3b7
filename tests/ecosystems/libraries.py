"""The array libraries under test, and how to get arrays into and out of them."""

import array_api_strict
import jax.numpy
import numpy as np
import torch

LIBRARIES = ("strict", "torch", "jax")
MODULES = {"strict": array_api_strict, "torch": torch, "jax": jax.numpy}


def put(library, x):
    """Return a NumPy array as an array of the library."""
    if x is None or not isinstance(x, np.ndarray):
        return x
    if library == "torch":
        return torch.from_numpy(np.ascontiguousarray(x))
    return MODULES[library].asarray(x)


def get(x):
    """Return an array of any library as NumPy's."""
    return np.asarray(x)


def is_of(library, x):
    """Tell whether an array is the library's own (NumPy would convert it in silence)."""
    return type(x) is type(MODULES[library].asarray([0.0]))
