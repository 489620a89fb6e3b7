"""The ONNX ``Attention`` operator of opsets 23, 24 and 25, computed by this package.

`attention` is the operator as a function on NumPy arrays; it does not need the onnx package.
`Attention` is the operator as a class, by which onnx's evaluator runs a whole model on it:

    import scaledot.onnx
    from onnx.reference import ReferenceEvaluator
    evaluator = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention])
    outputs = evaluator.run(None, inputs)

The evaluator does not look for `new_ops` inside the functions of a model. Where attention is
called by one, inline first: ``model = onnx.inliner.inline_local_functions(model)``.

Source: the text and the function body of the operator, ``onnx.defs.get_schema("Attention", 25)``,
as of onnx 1.23, whose errata made a row without a visible key 0 instead of NaN.
"""

from typing import Any, NamedTuple

import numpy as np

from scaledot import api, arrays, checks
from scaledot.call import How, prepare
from scaledot.results import Array

__all__ = ["Attention", "AttentionOutputs", "attention"]

# onnx.TensorProto.DataType, by number, so that onnx need not be there.
_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16

_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_ATTRIBUTES = (
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
)


Attention: Any
"""The operator as a subclass of ``onnx.reference.op_run.OpRun``; `__getattr__` makes it."""


class AttentionOutputs(NamedTuple):
    """The outputs of the operator in their order; those that do not exist are None.

    B batches, H query heads, G key heads, T queries, S keys in all, D head size, E value size.
    """

    Y: Array
    """(B, H, T, E), or (B, T, H * E) for inputs of three axes, in the type of Q."""
    present_key: Array | None
    """(B, G, S, D): the past keys, then those of K. None beside `nonpad_kv_seqlen`."""
    present_value: Array | None
    """(B, G, S, E): the past values, then those of V. None beside `nonpad_kv_seqlen`."""
    qk_matmul_output: Array | None
    """(B, H, T, S), in the type of Q. None if `qk_matmul_output_mode` is None."""


def attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int | None = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    engine: str | None = None,
    **unknown: object,
) -> AttentionOutputs:
    """Compute the ONNX operator ``Attention`` of opsets 23, 24 and 25.

    Inputs and attributes have the names, the order and the defaults of the operator. A node says
    which outputs it wants, a call cannot: the fourth, of B * H * T * S numbers, comes unless
    `qk_matmul_output_mode` is None.

    Parameters
    ----------
    Q : ndarray (B, H, T, D) or (B, T, H * D)
        Queries. Float16, bfloat16, float32 or float64.
    K : ndarray (B, G, L, D) or (B, L, G * D)
        Keys, of the type of Q. H is a multiple of G; query head h reads key head h // (H // G).
    V : ndarray (B, G, L, E) or (B, L, G * E)
        Values. Any of the four types.
    attn_mask : ndarray, broadcasts to (B, H, T, S), optional
        Bool: True = may attend. Floating: added to the scores, -inf masks. S is the number of all
        keys, past ones included. A last axis shorter than S is filled up with masked keys; so is
        one of length 1, which opset 23 broadcasts (give it at full length to mean that).
    past_key, past_value : ndarray (B, G, P, D) and (B, G, P, E), optional
        Keys and values before those of K and V, always with four axes, and only together.
    nonpad_kv_seqlen : ndarray (B,) of ints, optional
        How many of the keys are real in each batch; K and V are then the whole cache, and there is
        no past.
    is_causal : {0, 1}
        1: query i sees keys j <= i + offset, where the offset is the number of keys before the
        queries: P with a past, ``nonpad_kv_seqlen - T`` in each batch with that, otherwise 0.
        So the bare T x S mask starts at the **top left**, unlike ``causal=True`` in
        `scaledot.attention`, where the last query sees the last key.
    q_num_heads, kv_num_heads : int, optional
        H and G. Needed for inputs of three axes; with four axes they can only repeat the shape.
    left_window_size, right_window_size : int
        How many keys beside its own position, i + offset, a query sees on each side (opset 25).
        **-1 = all on that side**, which is None in the `window` of `scaledot.attention`.
    qk_matmul_output_mode : {0, 1, 2, 3, None}
        What `qk_matmul_output` is: 0 scale * Q Kᵀ, 1 that after the softcap, 2 that with mask,
        bias, causal, window and padding applied (-inf where a key is not visible), 3 the weights,
        after the softmax. None, not of the operator, leaves it out: long sequences need no memory
        for scores then.
    scale : float, optional
        Default 1 / sqrt(D).
    softcap : float
        c * tanh(score / c) before bias and masks. **0 = off**; that is None in
        `scaledot.attention`.
    softmax_precision : {None, 1, 10, 11, 16}
        Least precision of the softmax: 1 float32, 10 float16, 11 float64, 16 bfloat16. The sums are
        float32 for 16- and 32-bit inputs, float64 for float64 already; 11 makes all of it float64.
    engine : str, optional
        Not of the operator: force an engine of scaledot by name.
    **unknown
        Anything else is refused.

    Returns
    -------
    AttentionOutputs
        ``(Y, present_key, present_value, qk_matmul_output)``, all of fresh memory. A query without
        a visible key has 0 in Y and in mode 3.

    Raises
    ------
    TypeError
        For an unknown attribute; for inputs that are not NumPy arrays of the types above; for an
        `attn_mask` of integers; for attributes of the wrong kind.
    ValueError
        For shapes that do not fit, missing or wrong head counts, a past without its other half or
        beside `nonpad_kv_seqlen`, lengths out of range, attributes out of range, and an engine
        that cannot run.

    Notes
    -----
    The four modes follow the operator's text and function body. The evaluator of onnx 1.23 returns
    the capped scores in mode 0 as well.

    Examples
    --------
    Two queries and three keys, all scores equal: without a past the first query sees one key.

    >>> import numpy as np
    >>> from scaledot.onnx import attention
    >>> Q, K = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 3, 4))
    >>> V = np.asarray([0.0, 1.0, 2.0]).reshape(1, 1, 3, 1)
    >>> attention(Q, K, V, is_causal=1).Y.ravel()
    array([0. , 0.5])

    The same with the first key in the past: it comes before the first query.

    >>> past = {"past_key": K[:, :, :1], "past_value": V[:, :, :1]}
    >>> attention(Q, K[:, :, 1:], V[:, :, 1:], **past, is_causal=1).Y.ravel()
    array([0.5, 1. ])
    """
    _check_attributes(unknown, is_causal, qk_matmul_output_mode, softmax_precision)
    Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen = _adopt(
        (Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    )
    query = _split_heads("Q", Q, "q_num_heads", q_num_heads)
    key = _split_heads("K", K, "kv_num_heads", kv_num_heads)
    value = _split_heads("V", V, "kv_num_heads", kv_num_heads)
    _check_shapes(Q, K, V, query, key, value)
    _check_past(key, value, past_key, past_value, nonpad_kv_seqlen)
    _check_lengths(key, nonpad_kv_seqlen)

    present_key = present_value = None
    if nonpad_kv_seqlen is None:
        key = present_key = _append(past_key, key)
        value = present_value = _append(past_value, value)
    how: How = {
        "causal": bool(is_causal),
        "query_offset": _query_offset(query, past_key, nonpad_kv_seqlen),
        "window": _window(left_window_size, right_window_size),
        "key_lengths": nonpad_kv_seqlen,
        "scale": checks.scale(scale, query.shape[3]),
        "softcap": _softcap(softcap),
        "engine": engine,
        **_mask_or_bias(attn_mask, (*query.shape[:3], key.shape[2]), nonpad_kv_seqlen),
    }
    if softmax_precision == _DOUBLE:
        query, key, value = (x.astype(np.float64) for x in (query, key, value))
    matrix = None
    if qk_matmul_output_mode == 3:
        output, matrix = api.attention(query, key, value, **how)
    else:
        output = api.attend(query, key, value, **how)
        if qk_matmul_output_mode is not None:
            matrix = _stage(qk_matmul_output_mode, query, key, how)
    if Q.ndim == 3:
        output = _join_heads(output)
    matrix = None if matrix is None else _cast(matrix, Q)
    return AttentionOutputs(_cast(output, Q), present_key, present_value, matrix)


# ------------------------------------------------------------------------------------- refusals


def _check_attributes(
    unknown: dict[str, object], is_causal: object, mode: object, precision: object
) -> None:
    """Refuse attributes that the operator does not have, and numbers that name no choice."""
    for name in unknown:
        checks.unknown("input or attribute", name, (*_INPUTS, *_ATTRIBUTES, "engine"), TypeError)
    if is_causal not in (0, 1):
        raise ValueError(f"`is_causal` must be 0 or 1, got {is_causal!r}")
    if mode is not None and checks.integer("qk_matmul_output_mode", mode) not in (0, 1, 2, 3):
        raise ValueError(
            "`qk_matmul_output_mode` must be 0 (scaled), 1 (after the softcap), 2 (after bias and "
            f"masks), 3 (after the softmax), or None for no such output, got {mode!r}"
        )
    known = (_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16)
    if precision is not None and checks.integer("softmax_precision", precision) not in known:
        raise ValueError(
            "`softmax_precision` must be a number of onnx.TensorProto: 1 (float32), 10 (float16), "
            f"11 (float64) or 16 (bfloat16), got {precision!r}"
        )


def _adopt(inputs: tuple[Array | None, ...]) -> list[Array | None]:
    """Return the inputs as plain NumPy arrays, or refuse their kinds and types."""
    xp, given = arrays.adopt(dict(zip(_INPUTS, inputs, strict=True)))
    if xp is not np:
        raise TypeError(
            f"scaledot.onnx takes NumPy arrays, got those of {arrays.library(xp)}; "
            "convert them with numpy.asarray, or call scaledot.attention, which takes them"
        )
    for name in ("Q", "K", "V"):
        if name not in given:
            raise TypeError(f"`{name}` must be an array, got None; only later inputs are optional")
    alike = {"K": "Q", "past_key": "Q", "past_value": "V"}
    for name in ("Q", "K", "V", "past_key", "past_value"):
        if name not in given:
            continue
        kind, wanted = arrays.type_name(given[name]), arrays.type_name(given[alike.get(name, name)])
        if kind not in checks.FLOATS:
            raise TypeError(
                f"`{name}` must be one of {', '.join(checks.FLOATS)}, got {kind}; "
                f"convert it, for example with {name}.astype(numpy.float32)"
            )
        if kind != wanted:
            raise TypeError(
                f"`{name}` must have the type of `{alike[name]}`: need {wanted}, got {kind}; "
                "convert one of them"
            )
    return [given.get(name) for name in _INPUTS]


def _check_shapes(Q: Array, K: Array, V: Array, query: Array, key: Array, value: Array) -> None:
    """Refuse sizes that do not fit; ONNX broadcasts neither batches nor heads."""
    shapes = f"(shapes Q {Q.shape}, K {K.shape}, V {V.shape})"
    if not Q.ndim == K.ndim == V.ndim:
        raise ValueError(f"`Q`, `K` and `V` must all have three axes, or all four {shapes}")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"`Q`, `K` and `V` must have the same batch size, axis 0 {shapes}")
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"`V` must have the heads and the length of `K`: need {key.shape[1:3]}, got "
            f"{value.shape[1:3]} {shapes}"
        )
    n_query_heads, n_key_heads = query.shape[1], key.shape[1]
    if n_query_heads % n_key_heads if n_key_heads else n_query_heads:
        raise ValueError(
            f"the heads of `Q` must be a multiple of those of `K` and `V`: got {n_query_heads} and "
            f"{n_key_heads} {shapes}"
        )


def _check_past(
    key: Array,
    value: Array,
    past_key: Array | None,
    past_value: Array | None,
    nonpad_kv_seqlen: Array | None,
) -> None:
    """Refuse half a past, a past of another shape, and a past beside a cache of its own."""
    if past_key is None and past_value is None:
        return
    if past_key is None or past_value is None:
        there, lacking = (
            ("past_value", "past_key") if past_key is None else ("past_key", "past_value")
        )
        raise ValueError(
            f"`past_key` and `past_value` must come together, got `{there}` alone; "
            f"pass `{lacking}` as well"
        )
    if nonpad_kv_seqlen is not None:
        raise ValueError(
            "`past_key` and `past_value` must not come with `nonpad_kv_seqlen`, for which K and V "
            "are the whole cache; leave out one or the other"
        )
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        n_past = past_key.shape[2] if past_key.ndim == 4 else "P"
        wanted = (*new.shape[:2], n_past, new.shape[3])
        if past.shape != wanted:
            letters = "(B, G, P, D)" if name == "past_key" else "(B, G, P, E)"
            raise ValueError(
                f"`{name}` must have four axes {letters}, also where Q, K and V have three: need "
                f"{wanted}, got {past.shape}"
            )


def _check_lengths(key: Array, nonpad_kv_seqlen: Array | None) -> None:
    """Refuse numbers of real keys that are not one int for each batch within the cache."""
    if nonpad_kv_seqlen is None:
        return
    n_batches, n_keys = key.shape[0], key.shape[2]
    kind = arrays.type_name(nonpad_kv_seqlen)
    if kind not in checks.INTEGERS:
        raise TypeError(f"`nonpad_kv_seqlen` must hold ints, got {kind}")
    if nonpad_kv_seqlen.shape != (n_batches,):
        raise ValueError(
            f"`nonpad_kv_seqlen` must hold one length for each batch: need shape {(n_batches,)}, "
            f"got {nonpad_kv_seqlen.shape}"
        )
    if n_batches:
        least, most = int(nonpad_kv_seqlen.min()), int(nonpad_kv_seqlen.max())
        checks.position_range("nonpad_kv_seqlen", least, most, 0, n_keys, "the length of K")


# ------------------------------------------------------------------------ to scaledot, and back


def _split_heads(name: str, x: Array, attribute: str, n_heads: int | None) -> Array:
    """Return (B, H, T, D) of an input of either form."""
    if x.ndim not in (3, 4):
        raise ValueError(
            f"`{name}` must have three axes, (batch, length, heads * size), or four, "
            f"(batch, heads, length, size), got shape {x.shape}"
        )
    if n_heads is not None:
        n_heads = checks.integer(attribute, n_heads, least=1)
    if x.ndim == 4:
        if n_heads not in (None, x.shape[1]):
            raise ValueError(
                f"`{attribute}` must be the heads of `{name}`, axis 1 of four: need {x.shape[1]}, "
                f"got {n_heads}; with four axes it can be left out"
            )
        return x
    if n_heads is None:
        raise ValueError(
            f"`{attribute}` must be given where `{name}` has three axes, shape {x.shape}: they do "
            "not say how many heads share the last one"
        )
    n_batches, length, width = x.shape
    if width % n_heads:
        raise ValueError(
            f"the last axis of `{name}` must be a multiple of `{attribute}`: got {width} for "
            f"{n_heads} heads (shape {x.shape})"
        )
    return x.reshape(n_batches, length, n_heads, width // n_heads).swapaxes(1, 2)


def _join_heads(output: Array) -> Array:
    """Return (B, T, H * E) of (B, H, T, E)."""
    n_batches, n_heads, length, size = output.shape
    return output.swapaxes(1, 2).reshape(n_batches, length, n_heads * size)


def _append(past: Array | None, new: Array) -> Array:
    """Return past and new keys as one array, fresh also where there is no past."""
    return np.concatenate([new] if past is None else [past, new], axis=2)


def _query_offset(query: Array, past_key: Array | None, lengths: Array | None) -> Array | int:
    """Return how many keys come before the first query, in all batches or in each."""
    if lengths is not None:
        return lengths.astype(np.int64) - query.shape[2]
    return 0 if past_key is None else past_key.shape[2]


def _window(left: int, right: int) -> tuple[int | None, int | None]:
    """Return the window of scaledot, where None is unbounded and not -1."""
    sides: list[int | None] = []
    for name, size in (("left_window_size", left), ("right_window_size", right)):
        n_keys = checks.integer(name, size)
        if n_keys < -1:
            raise ValueError(
                f"`{name}` must be a number of keys, or -1 for all on that side, got {n_keys}"
            )
        sides.append(None if n_keys == -1 else n_keys)
    return sides[0], sides[1]


def _softcap(softcap: float) -> float | None:
    """Return the softcap of scaledot, where None is off and not 0."""
    cap = checks.real("softcap", softcap)
    if cap < 0:
        raise ValueError(f"`softcap` must be greater than 0, or 0 for none, got {cap}")
    return cap or None


def _mask_or_bias(attn_mask: Array | None, shape: tuple[int, ...], lengths: Array | None) -> How:
    """Return attn_mask under the name that it has in scaledot, a short one filled up."""
    if attn_mask is None:
        return {}
    kind = arrays.type_name(attn_mask)
    if kind != "bool" and kind not in checks.FLOATS:
        raise TypeError(
            f"`attn_mask` must be bool (True = may attend) or floating (added to the scores), got "
            f"{kind}; pass attn_mask.astype(bool), or attn_mask.astype(numpy.float32)"
        )
    n_given = attn_mask.shape[-1] if attn_mask.ndim else shape[-1]
    if lengths is not None and n_given < lengths.max(initial=0):
        raise ValueError(
            "`attn_mask` must be at least as long as the largest of `nonpad_kv_seqlen`: need "
            f"{lengths.max()}, got {n_given} (shape {attn_mask.shape})"
        )
    if n_given < shape[-1]:
        hidden = False if kind == "bool" else -np.inf
        filling = np.full((*attn_mask.shape[:-1], shape[-1] - n_given), hidden, attn_mask.dtype)
        attn_mask = np.concatenate([attn_mask, filling], axis=-1)
    checks.broadcasts("attn_mask", attn_mask.shape, shape, "(B, H, T, S)")
    return {"mask": attn_mask} if kind == "bool" else {"bias": attn_mask}


def _stage(mode: int, query: Array, key: Array, how: How) -> Array:
    """Return the scores, (B, H, T, S), at the stage that a mode names."""
    n_queries, n_keys = query.shape[2], key.shape[2]
    call = prepare(query, key, None, how)
    with np.errstate(all="ignore"):
        stages = call.problem.scores(slice(0, n_queries), slice(0, n_keys))
    scores = (stages.scaled, stages.capped, stages.masked)[mode]
    layout = call.problem.layout
    return layout.gather(np, scores, layout.shape(n_queries, n_keys))


def _cast(x: Array, like: Array) -> Array:
    """Return the array in the type of another; what is too large for it becomes infinite."""
    with np.errstate(all="ignore"):
        return x.astype(like.dtype.newbyteorder("="), copy=False)


# ------------------------------------------------------------------------ the evaluator's class


def __getattr__(name: str) -> Any:
    """Make the class `Attention` when it is first asked for, because it needs the onnx package."""
    if name != "Attention":
        raise AttributeError(f"module 'scaledot.onnx' has no attribute {name!r}")
    try:
        from onnx.reference.op_run import OpRun
    except ImportError as error:
        raise ImportError(
            "scaledot.onnx.Attention needs the onnx package: pip install onnx "
            "(scaledot.onnx.attention does without)"
        ) from error
    globals()[name] = made = _operator(OpRun)
    return made


def _operator(base: Any) -> Any:
    """Return the class of the operator."""

    class Attention(base):  # type: ignore[misc]  # the base is known only where onnx is
        """The operator ``Attention`` for ``ReferenceEvaluator(model, new_ops=[Attention])``.

        Serves models of opsets 23, 24 and 25. A subclass may force an engine; it must be called
        Attention too, since the evaluator finds operators by the name of their class.
        """

        __module__ = __name__
        __qualname__ = "Attention"
        op_domain = ""
        engine: str | None = None

        def run(self, *inputs: Any, **keywords: Any) -> tuple[Any, ...]:
            """Run the node; an omitted output is None.

            The evaluator of onnx 1.23 stores an omitted output under its name "", where later
            nodes look up omitted *inputs*: anything but None would become their mask.
            """
            results = super().run(*inputs, **keywords)
            named = zip(self.onnx_node.output, results, strict=True)
            return tuple(x if name else None for name, x in named)

        def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
            """Return an array for each output of the node, an empty one for those omitted."""
            wanted = self.onnx_node.output
            mode = attributes.pop("qk_matmul_output_mode", 0)
            if len(wanted) < 4 or not wanted[3]:
                mode = None
            opset = self.run_params["opsets"].get(self.op_domain, 25)
            inputs = _broadcast_mask(opset, inputs)
            results = attention(
                *inputs, qk_matmul_output_mode=mode, engine=self.engine, **attributes
            )
            for name, x in zip(wanted, results, strict=False):
                if name and x is None:
                    raise ValueError(
                        f"output {name!r} of ONNX Attention must not be asked for beside "
                        "`nonpad_kv_seqlen`: K and V are the whole cache already"
                    )
            empty = np.empty(0, results.Y.dtype)
            return tuple(x if name else empty for name, x in zip(wanted, results, strict=False))

    return Attention


def _broadcast_mask(opset: int, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs; opset 23 broadcasts a mask of one key, which later ones fill up."""
    mask = inputs[3] if len(inputs) > 3 else None
    if opset > 23 or mask is None or mask.shape[-1:] != (1,):
        return inputs
    past = inputs[4] if len(inputs) > 4 else None
    n_keys = inputs[1].shape[-2] + (0 if past is None else past.shape[2])
    full = np.broadcast_to(mask, (*mask.shape[:-1], n_keys))
    return (*inputs[:3], full, *inputs[4:])
