"""The front door: the functions of the package, and nothing else.

Shape letters: `...` leading (batch) axes, `H` query heads, `G` key/value heads, `T` queries, `S`
keys, `D` head size, `E` value size.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import numpy as np

from scaledot import arrays, checks, gradients, online, shortcut, statistics
from scaledot.call import Call, How, chosen_rows, prepare
from scaledot.planning import Plan
from scaledot.request import RESIDUALS, Request
from scaledot.results import Array, Attention, Gradients, Observation, Part

Pullback = Callable[..., Gradients]


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    out: tuple[Array | None, Array | None] | None = None,
    **how: Unpack[How],
) -> Attention:
    """Return softmax(query · keyᵀ · scale) · value, and the weights it was made with.

    Parameters
    ----------
    query : array (..., H, T, D)
        Two axes are enough; leading axes broadcast. Axis -3, where there is one, counts heads: H is
        a multiple of G, and query head h reads key head h // (H // G), or one of both is 1.
    key : array (..., G, S, D)
        Real numbers, as all three: floats, integers or bools.
    value : array (..., G, S, E)
        Of the heads and the length of the keys.
    out : (array or None, array or None), optional
        Where to write the output and the weights: of exactly the result's shape and type, writable,
        overlapping no input. They are what is returned.
    mask : bool array, broadcasts to (..., H, T, S)
        True = may attend (as in PyTorch's `scaled_dot_product_attention`; the opposite of the masks
        of `torch.nn.MultiheadAttention`).
    bias : float array, broadcasts to (..., H, T, S)
        Added to the scaled (and capped) scores; -inf masks.
    causal : bool
        Query i sees the keys j <= i + query_offset.
    query_offset : int or ints
        Position of query 0 among the keys. The default S - T lets the last query see the last key
        (bottom-right alignment); with both lengths given it is key_lengths - query_lengths. 0 is
        the top-left alignment of PyTorch and JAX.
    window : (int or None, int or None)
        How many keys *beside* its own position a query sees to the left and right; None is all of
        them. (4, 0) is five keys.
    key_lengths, query_lengths : int or ints
        How many keys and queries are real; the rest is padding. Lengths and offsets broadcast to
        the axes before H.
    scale : float
        Factor of the products; the default is 1/√D.
    softcap : float
        c · tanh(score / c), after the scale and before bias and masks.
    sinks : array, broadcasts to (..., H)
        Logits that take part in the denominator alone.
    engine : {"textbook", "blockwise", "fused"}
        Force an engine; `plan` says which one is taken, and why.
    threads : int
        At most so many threads of this library; never changes what is computed.

    Returns
    -------
    Attention
        output (..., H, T, E) and weights (..., H, T, S), in the promoted type of the inputs. A row
        that sees no key has output 0 and weights 0.

    Raises
    ------
    TypeError
        An argument of the wrong kind: a mask that is not bool, complex numbers, arrays of two
        libraries, an array that records gradients.
    ValueError
        Shapes, lengths or numbers that do not fit.

    Notes
    -----
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1. Restrictions intersect, always
    in this order: scale, softcap, bias, masks (by select), softmax, product. Sums are float32 for
    16- and 32-bit inputs, else float64.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import attention
    >>> query = np.array([[1.0, 1.0], [0.0, 2.0]])
    >>> key = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, weights = attention(query, key, 10 * np.eye(2))
    >>> weights.round(3)
    array([[0.5  , 0.5  ],
           [0.196, 0.804]])

    Two queries at the end of five keys, and the same from the top left:

    >>> query, key = np.zeros((2, 1)), np.zeros((5, 1))
    >>> (attention(query, key, key, causal=True).weights > 0).astype(int)
    array([[1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]])
    >>> (attention(query, key, key, causal=True, query_offset=0).weights > 0).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0]])

    One key beside the own position on the left, that is two keys:

    >>> (attention(query, key, key, window=(1, 0)).weights > 0).astype(int)
    array([[0, 0, 1, 1, 0],
           [0, 0, 0, 1, 1]])
    """
    if value is None:
        checks.value_needed("attention")
    if out is None and (taken := shortcut.take(query, key, value, how, seeing=True)) is not None:
        return Attention(*taken)
    call = prepare(query, key, value, how)
    places: dict[str, Array] = {}
    if out is not None:
        checks.out_pair(out)
        problem = call.problem
        n_queries, n_keys = problem.query.shape[-2], problem.key.shape[-2]
        places |= call.out("output", out[0], n_queries, call.given["value"].shape[-1])
        places |= call.out("weights", out[1], n_queries, n_keys)
        if len(places) == 2:
            checks.apart(arrays.overlap(places["output"], places["weights"]))
    found = call.run(Request(weights=True), out=places)
    output, weights = found["output"], found["weights"]
    if out is None:
        shortcut.remember(call, how, output, weights)
    return Attention(output, weights)


def attend(
    query: Array, key: Array, value: Array, *, out: Array | None = None, **how: Unpack[How]
) -> Array:
    """Return the output of `attention` alone, in O(T + S) memory.

    Parameters
    ----------
    query, key, value : array
        As for `attention`.
    **how
        The keywords of `attention` from `mask` on.
    out : array (..., H, T, E), optional
        Where to write the output; it is what is returned.

    Returns
    -------
    array (..., H, T, E)
        In the promoted type of the inputs.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import attend
    >>> attend(np.zeros((1, 4)), np.zeros((2, 4)), np.array([[1.0], [3.0]]))
    array([[2.]])
    """
    if value is None:
        checks.value_needed("attend")
    if out is None and (taken := shortcut.take(query, key, value, how)) is not None:
        return taken[0]
    call = prepare(query, key, value, how)
    n_queries, size = call.problem.query.shape[-2], call.given["value"].shape[-1]
    found = call.run(Request(), out=call.out("output", out, n_queries, size))["output"]
    if out is None:
        shortcut.remember(call, how, found)
    return found


def observe(
    query: Array,
    key: Array,
    value: Array | None = None,
    *,
    statistics: str | Iterable[str] = statistics.DEFAULT,
    k: int = 8,
    rows: Sequence[int] | Array | None = None,
    **how: Unpack[How],
) -> Observation:
    """Return the output together with statistics of the weights, in O(T + S) memory.

    Parameters
    ----------
    query, key, value : array
        As for `attention`. Without a value there is no output and no second product.
    **how
        The keywords of `attention` from `mask` on.
    statistics : name, names or "all"
        What is wanted; the first ten below by default. "all" is all of them, `weights_of` where
        `rows` are given.
    k : int
        How many weights `top_k` keeps of each row.
    rows : ints
        The query rows of `weights_of`; negative ones count from the end.

    Returns
    -------
    Observation
        With None for what was not asked for. Floating statistics are in the type of the sums:

        - ``log_sum_exp`` (..., H, T): natural logarithm of Σ exp(score), sink included;
        - ``max_score``: the largest visible score, sink excluded; -inf without a key;
        - ``argmax``: its key, the lowest on ties; -1 without a key;
        - ``max_weight``: the largest weight; 0 without a key;
        - ``entropy``: -Σ p ln p over keys, in nats; 0 without a key;
        - ``effective_keys``: (Σp)²/Σp²; 0 without a key;
        - ``jacobian_norm``: ‖diag p - ppᵀ‖ (Frobenius), how much gradient the softmax lets
          through; 0 without a key;
        - ``score_mean``, ``score_std``: of scale · query · key over visible keys, before cap and
          bias; NaN without a key;
        - ``peak_product``: the largest abs(scale · query · key) over visible keys; 0 without a key;
        - ``distance``: Σ p · abs(i + query_offset - j) / Σ p; NaN without a key;
        - ``received`` (..., H, S): per key, the sum of the weights it gets;
        - ``top_k`` (..., H, T, min(k, S)): values and indices, descending, lowest key on ties,
          0 and -1 where a row has fewer keys;
        - ``weights_of`` (..., H, len(rows), S): the weights of the chosen rows.

        A row that sees a NaN or +inf score has NaN in every floating statistic and -1 in `argmax`
        and the indices.

    Raises
    ------
    ValueError
        An unknown statistic, `weights_of` without rows, rows out of range, and as `attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import observe
    >>> seen = observe(np.zeros((3, 1)), np.zeros((3, 1)), statistics="entropy", causal=True)
    >>> seen.entropy.round(3)
    array([0.   , 0.693, 1.099])
    """
    names = _names(statistics, rows is not None)
    checks.rows_needed("weights_of" in names, rows is not None)
    k = checks.integer("k", k, least=1)
    call = prepare(
        query,
        key,
        value,
        how,
        positions="distance" in names,
    )
    chosen = None if rows is None else chosen_rows(rows, call.problem.query.shape[-2])
    asked = Request(output=value is not None, statistics=names, k=k)
    found = call.run(asked)
    if chosen is not None:
        found["weights_of"] = call.weights_of(chosen)
    return Observation(**found)


def _names(names: str | Iterable[str], with_rows: bool) -> tuple[str, ...]:
    """Return the statistics asked for, in the order of the table."""
    if isinstance(names, str) and names == "all":
        return tuple(n for n in statistics.NAMES if with_rows or n != "weights_of")
    return checks.choices("statistic", names, statistics.NAMES)


def vjp(
    query: Array,
    key: Array,
    value: Array,
    *,
    wrt: str | Iterable[str] | None = None,
    **how: Unpack[How],
) -> tuple[Array, Pullback]:
    """Return the output, and the function that pulls gradients back to the arguments.

    Parameters
    ----------
    query, key, value : array
        As for `attention`.
    **how
        The keywords of `attention` from `mask` on.
    wrt : name or names
        Of query, key, value, bias, sinks: the arguments whose gradients are wanted. By default all
        that were given.

    Returns
    -------
    output : array (..., H, T, E)
        In the promoted type of the inputs.
    pullback : function
        ``pullback(grad_output=None, *, log_sum_exp=None, entropy=None)`` takes the gradients of a
        loss by the output (..., H, T, E), by the log-sum-exp and by the entropy (..., H, T), at
        least one of them, and returns `Gradients`: each of the shape and type of its argument
        (of integers in the type of the output), summed over what was broadcast.

    Raises
    ------
    ValueError
        `wrt` names an argument that was not given; a gradient does not have the shape of what it is
        the gradient of; and as `attention`.

    Notes
    -----
    The arrays must not change between the call and the pullback. Memory is O(T + S) beside the
    gradients; the weights are made again block by block (Dao 2022, "FlashAttention", appendix B).

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import vjp
    >>> output, pullback = vjp(np.zeros((1, 1)), np.zeros((2, 1)), np.array([[1.0], [3.0]]))
    >>> pullback(np.ones((1, 1))).value
    array([[0.5],
           [0.5]])
    """
    if value is None:
        checks.value_needed("vjp")
    call = prepare(query, key, value, how)
    given = [name for name in Gradients._fields if name in call.given]
    names = tuple(given) if wrt is None else checks.choices("wrt", wrt, Gradients._fields)
    checks.wanted(names, given)
    found = call.run(Request(residuals=True), dtype=call.plan.sum_dtype)
    known = {name: call.spread(found[name], 1) for name in RESIDUALS}
    known["output"] = call.spread(found["output"], 2)
    with np.errstate(all="ignore"):
        output = arrays.fresh(call.xp, found["output"], call.dtype(call.plan.dtype))

    def pullback(
        grad_output: Array | None = None,
        *,
        log_sum_exp: Array | None = None,
        entropy: Array | None = None,
    ) -> Gradients:
        """Return the gradients of a loss from those by output, log-sum-exp and entropy."""
        return _pull_back(
            call,
            known,
            names,
            {"grad_output": grad_output, "log_sum_exp": log_sum_exp, "entropy": entropy},
        )

    return output, pullback


def _pull_back(
    call: Call, known: dict[str, Array], names: tuple[str, ...], incoming: dict[str, Array | None]
) -> Gradients:
    """Return the gradients by the named arguments."""
    if all(x is None for x in incoming.values()):
        checks.gradients_given(tuple(incoming))
    with np.errstate(all="ignore"):
        pulled = call.incoming(incoming)
    entropy = None
    if pulled["entropy"] is not None:
        entropy = call.spread(call.entropy(), 1)
    backward = gradients.Backward(
        **known,
        grad_output=pulled["grad_output"],
        grad_log_sum_exp=pulled["log_sum_exp"],
        grad_entropy=pulled["entropy"],
        entropy=entropy,
    )
    with np.errstate(all="ignore"):
        totals = gradients.backward(call.problem, call.plan.array_blocks, backward, names)
        return Gradients(**call.as_arguments(totals))


def merge(parts: Iterable[tuple[Array, Array]]) -> Part:
    """Join the attention of the same queries to different keys into that to all of them.

    Parameters
    ----------
    parts : iterable of (output, log_sum_exp)
        At least one pair, all of the same shapes (..., E) and (...): `Part`, or the output and the
        natural log-sum-exp from elsewhere. A base-2 log-sum-exp must be multiplied by ln 2 first. A
        part with a log-sum-exp of -inf is neutral, whatever its output holds. A sink must be in one
        part only.

    Returns
    -------
    Part
        The output in the promoted type of the outputs, the log-sum-exp in the type of the sums.

    Raises
    ------
    TypeError, ValueError
        No part, a part that is not a pair, shapes that differ, arrays of two libraries.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import merge
    >>> output, log_sum_exp = merge([([[1.0]], [0.0]), ([[3.0]], [1.0])])
    >>> output.round(6), log_sum_exp.round(6)
    (array([[2.462117]]), array([1.313262]))
    """
    checks.parts_kind(parts)
    library: Any = None
    rows: online.Rows | None = None
    outputs: dict[str, Array] = {}
    shape: tuple[int, ...] | None = None
    for number, pair in enumerate(parts):
        checks.part_kind(number, pair)
        xp, given = arrays.adopt_all({"output": pair[0], "log_sum_exp": pair[1]})
        if library is not None and xp is not library:
            names = arrays.library(library), arrays.library(xp)
            checks.two_libraries("part 0", names[0], f"part {number}", names[1])
        numbers, kind = arrays.floats(xp, given)
        checks.part(number, tuple(numbers[0].shape), tuple(numbers[1].shape), shape)
        library, shape = xp, tuple(numbers[0].shape)
        outputs[kind] = given["output"]
        with np.errstate(all="ignore"):
            rows = online.merge(xp, rows, Part(*numbers))
    if rows is None:
        checks.no_parts()
    dtype = arrays.dtype_of(library, arrays.promote(list(outputs)), list(outputs.values()))
    with np.errstate(all="ignore"):
        output = online.add(rows.acc, rows.taint)
        log_sum_exp = online.log_sum_exp(library, rows.row_max, rows.row_sum)
        sums = log_sum_exp.dtype
        return Part(arrays.fresh(library, output, dtype), arrays.fresh(library, log_sum_exp, sums))


def softmax(z: Array, axis: int | tuple[int, ...] | None = -1) -> Array:
    """Return exp(z) / Σ exp(z), safe for numbers of any size.

    Parameters
    ----------
    z : array
        Real numbers; integers become the library's default real type.
    axis : int, tuple of ints or None
        The axes over which the result sums to 1; None is all of them.

    Returns
    -------
    array
        Of the shape of `z`, and of its type where that is floating. Where all of `z` along the axes
        is -inf, zeros; where there is a NaN or +inf among them, NaN, and 0 at -inf.

    Raises
    ------
    TypeError, ValueError
        Numbers that are not real; axes that `z` does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import softmax
    >>> softmax(np.array([1000.0, 1000.0])), softmax(np.array([-np.inf, -np.inf]))
    (array([0.5, 0.5]), array([0., 0.]))
    """
    xp, given = arrays.adopt_all({"z": z})
    (numbers,), kind = arrays.floats(xp, given)
    axes = checks.axes(axis, numbers.ndim)
    with np.errstate(all="ignore"):
        weights = online.softmax_over(xp, numbers, axes)
        return arrays.fresh(xp, weights, arrays.dtype_of(xp, kind, (given["z"],)))


def plan(query: Array, key: Array, value: Array | None = None, **how: Unpack[How]) -> Plan:
    """Return what a call with these arguments would do, and why; nothing is computed.

    Parameters
    ----------
    query, key, value : array
        As for `attention`.
    **how
        The keywords of `attention` from `mask` on.

    Returns
    -------
    Plan
        Frozen and hashable; ``print`` says it in words.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot import plan
    >>> small = plan(np.zeros((8, 4, 64)), np.zeros((2, 5, 64)), np.zeros((2, 5, 64)))
    >>> small.engine, small.why
    ('textbook', '160 scores are at most 1,024')
    """
    return prepare(query, key, value, how).plan
