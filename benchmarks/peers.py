"""The same attention by others; a peer that is not installed, or cannot do a case, is left out."""

import math
from collections.abc import Callable

import numpy as np

from benchmarks.cases import Case
from scaledot import attend

Call = Callable[[], object]


def scaledot(case: Case) -> Call:
    """Return a call of this library."""
    query, key, value = case.arrays()
    return lambda: attend(query, key, value, **case.how)


def numpy(case: Case) -> Call | None:
    """Return attention as one writes it in NumPy."""
    if case.window is not None or case.n_keys > 4096 < case.n_queries:
        return None
    query, key, value = case.arrays()
    scale = np.asarray(1 / math.sqrt(case.size), case.dtype)
    hidden = None
    if case.causal:
        hidden = ~np.tril(np.ones((case.n_queries, case.n_keys), bool))

    def call() -> np.ndarray:
        keys, values = key, value
        if case.heads != case.groups:
            keys, values = (np.repeat(x, case.heads // case.groups, axis=1) for x in (key, value))
        scores = query @ keys.swapaxes(-1, -2) * scale
        if hidden is not None:
            scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores @ values

    return call


def torch(case: Case) -> Call | None:
    """Return a call of torch's scaled_dot_product_attention."""
    try:
        import torch
    except ImportError:
        return None
    if case.window is not None:
        return None
    query, key, value = (torch.from_numpy(x) for x in case.arrays())
    grouped = case.heads != case.groups
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(query, key, value, is_causal=case.causal, enable_gqa=grouped)


def jax(case: Case) -> Call | None:
    """Return a compiled call of jax.nn.dot_product_attention."""
    try:
        import jax
    except ImportError:
        return None
    if case.dtype == "float64" or case.n_keys > 4096 < case.n_queries:
        return None
    query, key, value = (jax.numpy.asarray(x.swapaxes(1, 2)) for x in case.arrays())
    attention = jax.jit(jax.nn.dot_product_attention, static_argnames="is_causal")
    return lambda: attention(query, key, value, is_causal=case.causal).block_until_ready()


def onnxruntime(case: Case) -> Call | None:
    """Return a call of ONNX Runtime's Attention."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper
    except ImportError:
        return None
    if case.window is not None or case.dtype != "float32":
        return None
    names = ("Q", "K", "V")
    arrays = dict(zip(names, case.arrays(), strict=True))
    node = helper.make_node("Attention", names, ["Y"], is_causal=int(case.causal))
    kinds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape)
        for name, x in arrays.items()
    ]
    out = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "attention", kinds, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        session.run(None, arrays)
    except Exception:  # an older runtime does not know the operator
        return None
    return lambda: session.run(None, arrays)


PEERS = {"torch": torch, "onnxruntime": onnxruntime, "jax": jax, "numpy": numpy}
