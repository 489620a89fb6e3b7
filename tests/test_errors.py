"""Every refusal: its type, what its message names, and that nothing was computed before it."""

import ast
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure

from scaledot import (
    Attention,
    Observation,
    attend,
    attention,
    call,
    checks,
    merge,
    observe,
    plan,
    planning,
    plots,
    softmax,
    vjp,
)
from scaledot.histograms import score_histogram
from scaledot.scaling import Thresholds, diagnose, study, train
from scaledot.views import view_weights

INF, NAN = np.inf, np.nan
IN_LIBRARIES = {"two_libraries", "unusable"}
"""Refusals of arrays of other libraries, which NumPy cannot provoke: see tests/ecosystems."""


class Case(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    how: dict[str, Any]
    error: type[Exception]
    message: str


def zeros(*shape, dtype=np.float64):
    return np.zeros(shape, dtype)


def frozen(*shape):
    array = zeros(*shape)
    array.flags.writeable = False
    return array


def foreign(module, name):
    return type(name, (), {"__module__": module})()


Q, K, V = zeros(2, 4), zeros(3, 4), zeros(3, 5)
HEADS = zeros(2, 4, 2, 4), zeros(2, 2, 3, 4), zeros(2, 2, 3, 5)  # (B, H, T, D), (B, G, S, ·)
BOTH = zeros(41)  # room for an output of 2 × 5 and weights of 2 × 3 that overlap or do not

CASES = {
    # ---------------------------------------------------------------------------------- names
    "near option": Case(
        attend, (Q, K, V), {"casual": True}, TypeError,
        r"unknown option 'casual', did you mean 'causal'\?; valid are: mask, bias, .*, threads",
    ),
    "far option": Case(
        plan, (Q, K, V), {"zzz": 1}, TypeError, r"unknown option 'zzz'; valid are: mask, bias",
    ),
    "near engine": Case(
        attend, (Q, K, V), {"engine": "blockwize"}, ValueError,
        r"unknown engine 'blockwize', did you mean 'blockwise'\?; .* textbook, blockwise, fused",
    ),
    "engine kind": Case(
        attend, (Q, K, V), {"engine": 3}, TypeError, "`engine` must be a name, got int",
    ),
    "near statistic": Case(
        observe, (Q, K, V), {"statistics": "entropie"}, ValueError,
        r"unknown statistic 'entropie', did you mean 'entropy'\?; valid are: .*top_k, weights_of",
    ),
    "statistic kind": Case(
        observe, (Q, K, V), {"statistics": ["entropy", 3]}, TypeError,
        "`statistic` must be a name, got int",
    ),
    "statistics kind": Case(
        observe, (Q, K, V), {"statistics": 3}, TypeError,
        "`statistic` must be a name or several, got int",
    ),
    "near wrt": Case(
        vjp, (Q, K, V), {"wrt": "values"}, ValueError,
        r"unknown wrt 'values', did you mean 'value'\?; valid are: query, key, value, bias, sinks",
    ),
    "wrt kind": Case(
        vjp, (Q, K, V), {"wrt": 1}, TypeError, "`wrt` must be a name or several, got int",
    ),
    "wrt not given": Case(
        vjp, (Q, K, V), {"wrt": ("query", "bias")}, ValueError,
        "`wrt` must name arguments of this call: `bias` was not given",
    ),
    # --------------------------------------------------------------------------------- arrays
    "no query": Case(
        attend, (None, K, V), {}, TypeError,
        r"`query` must be an array of NumPy .*got NoneType; .*numpy\.asarray\(query\)",
    ),
    "no key": Case(plan, (Q, None), {}, TypeError, "`key` must be an array .*got NoneType"),
    "no value": Case(
        attend, (Q, K, None), {}, TypeError,
        "`attend` needs a `value`, got None; statistics without one come from `observe`",
    ),
    "no value for weights": Case(
        attention, (Q, K, None), {}, TypeError, "`attention` needs a `value`, got None; .*observe",
    ),
    "no value to differentiate": Case(
        vjp, (Q, K, None), {}, TypeError, "`vjp` needs a `value`, got None; .*`observe`",
    ),
    "set": Case(
        attend, (Q, K, {1.0}), {}, TypeError,
        r"`value` must be an array .*got set; .*numpy\.asarray\(value\)",
    ),
    "text": Case(attend, ("abc", K, V), {}, TypeError, "`query` must be an array .*got str"),
    "DataFrame": Case(
        attend, (Q, foreign("pandas", "DataFrame"), V), {}, TypeError,
        r"`key` must be an array .*got pandas\.DataFrame; .*numpy\.asarray\(key\)",
    ),
    "SciPy sparse": Case(
        attend, (Q, foreign("scipy.sparse._csr", "csr_array"), V), {}, TypeError,
        r"`key` .*got scipy\.sparse\._csr\.csr_array; make it dense: key\.toarray\(\)",
    ),
    "MaskedArray": Case(
        attend, (Q, np.ma.array(K), V), {}, TypeError,
        r"`key` .*plain numpy\.ndarray, .*MaskedArray.*key\.filled\(0\).*`mask` or `key_lengths`",
    ),
    "matrix": Case(
        attend, (Q, K, V.view(np.matrix)), {}, TypeError,
        r"`value` must be a plain .*subclass matrix, .*pass numpy\.asarray\(value\)",
    ),
    "ragged": Case(
        attend, ([[1.0, 2.0], [3.0]], K, V), {}, ValueError,
        "`query` must be a regular array: its nested lists have unequal lengths",
    ),
    "complex": Case(
        attend, (Q, K.astype(complex), V), {}, TypeError,
        "`key` must hold real numbers, got complex128; taken are float16, bfloat16, .*integers and",
    ),
    "text in lists": Case(
        attend, ([["a"]], [["b"]], [[1]]), {}, TypeError, "`query` must hold real numbers, got str",
    ),
    "seconds": Case(
        attend, (Q, K, V.astype("m8[s]")), {}, TypeError,
        r"`value` must hold real numbers, got timedelta64\[s\]; taken are",
    ),
    "float mask": Case(
        attend, (Q, K, V), {"mask": zeros(2, 3)}, TypeError,
        "`mask` must be bool, got float64; a float mask that is added to the scores is `bias`",
    ),
    "int mask": Case(
        attend, (Q, K, V), {"mask": zeros(2, 3, dtype=np.uint8)}, TypeError,
        r"`mask` must be bool, got uint8; True means may attend: .*mask\.astype\(bool\).*mask != 0",
    ),
    "bool bias": Case(
        attend, (Q, K, V), {"bias": zeros(2, 3, dtype=bool)}, TypeError,
        "`bias` must hold numbers, got bool; a bool array that allows and forbids is `mask`",
    ),
    "complex bias": Case(
        attend, (Q, K, V), {"bias": zeros(2, 3, dtype=complex)}, TypeError,
        "`bias` must hold real numbers, got complex128",
    ),
    "bool sinks": Case(
        attend, HEADS, {"sinks": zeros(4, dtype=bool)}, TypeError,
        "`sinks` must hold numbers, got bool$",
    ),
    # --------------------------------------------------------------------------------- shapes
    "one axis": Case(
        attend, (zeros(4), K, V), {}, ValueError,
        r"`query` must have at least two axes, \(\.\.\., H, T, D\), got shape \(4,\)",
    ),
    "number": Case(
        attend, (Q, K, 3.0), {}, ValueError,
        r"`value` must have at least two axes, \(\.\.\., G, S, E\), got shape \(\)",
    ),
    "head size": Case(
        attend, (Q, zeros(3, 6), V), {}, ValueError,
        r"`key` must have the head size of `query`: need 4, got 6 \(shape \(3, 6\)\)",
    ),
    "value length": Case(
        attend, (Q, K, zeros(7, 5)), {}, ValueError,
        r"`value` must have the length of `key`: need 3, got 7 \(shape \(7, 5\), key \(3, 4\)\)",
    ),
    "key heads": Case(
        attend, (zeros(6, 2, 4), zeros(2, 3, 4), zeros(3, 3, 5)), {}, ValueError,
        "`key` and `value` must have the same number of heads, or one of them 1: got 2 and 3",
    ),
    "query heads": Case(
        attend, (zeros(4, 2, 4), zeros(3, 3, 4), zeros(3, 3, 5)), {}, ValueError,
        r"heads of `query` must be a multiple .*got 4 query heads and 3 key heads \(axis -3\)",
    ),
    "leading axes": Case(
        attend, (zeros(2, 1, 2, 4), zeros(5, 1, 3, 4), zeros(1, 3, 5)), {}, ValueError,
        r"leading axes must broadcast: `query` has 2 and `key` has 5 in axis -1 before the heads "
        r"\(shapes \(2,\) and \(5,\)\)",
    ),
    "mask axes": Case(
        attend, (Q, K, V), {"mask": zeros(1, 2, 3, dtype=bool)}, ValueError,
        r"`mask` must not have more axes than \(\.\.\., H, T, S\): got 3 axes \(1, 2, 3\) for "
        r"\(2, 3\); drop or reduce the extra axes",
    ),
    "bias size": Case(
        attend, (Q, K, V), {"bias": zeros(3, 3)}, ValueError,
        r"`bias` must broadcast to \(\.\.\., H, T, S\): need 1 or 2 in axis -2, got 3 \(shape "
        r"\(3, 3\) against \(2, 3\)\); axes are matched from the right",
    ),
    "sinks size": Case(
        attend, HEADS, {"sinks": zeros(3)}, ValueError,
        r"`sinks` must broadcast to \(\.\.\., H\): need 1 or 4 in axis -1, got 3",
    ),
    # ------------------------------------------------------------------- lengths and positions
    "float lengths": Case(
        attend, HEADS, {"key_lengths": [1.0, 2.0]}, TypeError,
        "`key_lengths` must be int or an array of ints of at most 64 bits, got float64",
    ),
    "bool lengths": Case(
        attend, HEADS, {"query_lengths": [True, False], "query_offset": 0}, TypeError,
        "`query_lengths` must be int or an array of ints .*got bool",
    ),
    "huge length": Case(
        attend, (Q, K, V), {"key_lengths": 2**70}, TypeError,
        "`key_lengths` must be int .*at most 64 bits, got object",
    ),
    "offset kind": Case(
        attend, (Q, K, V), {"query_offset": 0.5}, TypeError, "`query_offset` must be int .*float64",
    ),
    "lengths without batch": Case(
        attend, (Q, K, V), {"key_lengths": [1, 2]}, ValueError,
        r"`key_lengths` must be a single int for a query of 2 axes, got shape \(2,\): .*give the "
        r"arrays a head axis, query\[:, None\]",
    ),
    "lengths of another batch": Case(
        attend, HEADS, {"key_lengths": [1, 2, 3]}, ValueError,
        "`key_lengths` must broadcast to the axes before the heads: need 1 or 2 in axis -1, got 3",
    ),
    "long key_lengths": Case(
        attend, HEADS, {"key_lengths": [1, 4]}, ValueError,
        "`key_lengths` must be between 0 and 3, the number of keys: got 4",
    ),
    "negative query_lengths": Case(
        attend, HEADS, {"query_lengths": [-1, 2]}, ValueError,
        "`query_lengths` must be between 0 and 2, the number of queries: got -1",
    ),
    "far offset": Case(
        attend, (Q, K, V), {"query_offset": 2**60 + 1}, ValueError,
        f"`query_offset` must be between -{2**60} and {2**60}, in tokens: got {2**60 + 1}",
    ),
    "one-sided lengths": Case(
        attend, (Q, K, V), {"causal": True, "window": (1, 0), "key_lengths": 2}, ValueError,
        "`causal`, `window` needs the position of the queries, and `key_lengths` alone does not "
        "give it: pass query_offset=0 for a padded batch, query_offset=key_lengths - 2 where",
    ),
    "window kind": Case(
        attend, (Q, K, V), {"window": 4}, TypeError,
        r"`window` must be a pair \(left, right\), got the int 4: \(4, 4\) sees 4 keys on each "
        r"side of the query's own position, \(4, 0\) only those before it",
    ),
    "window bool": Case(
        attend, (Q, K, V), {"window": True}, TypeError,
        r"`window` must be a pair \(left, right\) of ints or None, got True",
    ),
    "window of three": Case(
        attend, (Q, K, V), {"window": (1, 2, 3)}, TypeError,
        r"`window` must be a pair .*got \(1, 2, 3\)",
    ),
    "window float": Case(
        attend, (Q, K, V), {"window": (1.5, 0)}, TypeError,
        r"`window \(left\)` must be an int, got float 1\.5",
    ),
    "window of bools": Case(
        attend, (Q, K, V), {"window": (0, np.True_)}, TypeError,
        r"`window \(right\)` must be an int, got bool",
    ),
    "negative window": Case(
        attend, (Q, K, V), {"window": (None, -1)}, ValueError,
        "`window` must count keys, 0 or more on each side, got -1 on the right; None means",
    ),
    "rows kind": Case(
        observe, (Q, K, V), {"statistics": "weights_of", "rows": [0.5]}, TypeError,
        r"`rows` must be a list of ints, got float64 of shape \(1,\)",
    ),
    "rows shape": Case(
        observe, (Q, K, V), {"statistics": "weights_of", "rows": [[0]]}, TypeError,
        r"`rows` must be a list of ints, got int\d+ of shape \(1, 1\)",
    ),
    "rows range": Case(
        observe, (Q, K, V), {"statistics": "weights_of", "rows": [0, 2]}, ValueError,
        "`rows` must be between -2 and 1, for 2 queries: got 2",
    ),
    "layers": Case(
        diagnose, (Q, K), {"layers": True}, ValueError,
        r"`layers` needs an axis of layers before the heads, .*: got query of shape \(2, 4\)",
    ),
    "layers kind": Case(
        diagnose, HEADS[:2], {"layers": 1}, TypeError, "`layers` must be True or False, got 1",
    ),
    "statistics of a diagnosis": Case(
        diagnose, (Q, K), {"statistics": "all"}, TypeError, "unknown option 'statistics'.*valid",
    ),
    "thresholds kind": Case(
        diagnose, (Q, K), {"thresholds": {"cap": 3.0}}, TypeError,
        r"`thresholds` must be Thresholds, got dict; pass for example Thresholds\(cap=50\.0\)",
    ),
    "threshold of nothing": Case(
        diagnose, (Q, K), {"thresholds": Thresholds(cap=-1.0)}, ValueError,
        r"`thresholds\.cap` must be greater than 0, got -1\.0; leave it out for the default",
    ),
    "threshold kind": Case(
        diagnose, (Q, K), {"thresholds": Thresholds(least="a")}, TypeError,
        r"`thresholds\.least` must be a number, got str",
    ),
    "threshold NaN": Case(
        diagnose, (Q, K), {"thresholds": Thresholds(sink=NAN)}, ValueError,
        r"`thresholds\.sink` must be finite, got nan",
    ),
    "rows missing": Case(
        observe, (Q, K, V), {"statistics": "weights_of"}, ValueError,
        r"`weights_of` needs `rows`, .*rows=\[0, 5\]; for all of them use `attention`",
    ),
    "rows alone": Case(
        observe, (Q, K, V), {"rows": [0]}, ValueError,
        "`rows` chooses the rows of `weights_of`, which is not .*add 'weights_of' to them",
    ),
    # -------------------------------------------------------------------------------- numbers
    "causal": Case(
        attend, (Q, K, V), {"causal": 1}, TypeError, "`causal` must be True or False, got 1",
    ),
    "threads kind": Case(
        attend, (Q, K, V), {"threads": 1.0}, TypeError, r"`threads` must be an int, got float 1\.0",
    ),
    "threads bool": Case(
        attend, (Q, K, V), {"threads": True}, TypeError, "`threads` must be an int, got bool True",
    ),
    "no threads": Case(
        attend, (Q, K, V), {"threads": 0}, ValueError, "`threads` must be at least 1, got 0",
    ),
    "no k": Case(observe, (Q, K, V), {"k": 0}, ValueError, "`k` must be at least 1, got 0"),
    "scale kind": Case(
        attend, (Q, K, V), {"scale": "1"}, TypeError,
        r"`scale` must be a number, got str; of an array of one number pass float\(scale\)",
    ),
    "scale NaN": Case(
        attend, (Q, K, V), {"scale": NAN}, ValueError, "`scale` must be finite, got nan",
    ),
    "scale beyond floats": Case(
        attend, (Q, K, V), {"scale": 10**400}, ValueError, "`scale` must be finite, got inf",
    ),
    "softcap kind": Case(
        attend, (Q, K, V), {"softcap": True}, TypeError, "`softcap` must be a number, got bool",
    ),
    "softcap infinite": Case(
        attend, (Q, K, V), {"softcap": INF}, ValueError, "`softcap` must be finite, got inf",
    ),
    "softcap zero": Case(
        attend, (Q, K, V), {"softcap": 0}, ValueError,
        r"`softcap` must be greater than 0, got 0\.0; None means no cap",
    ),
    "scale of another type": Case(
        attend, (Q.astype(np.float32), K.astype(np.float32), V.astype(np.float32)),
        {"scale": 1e39}, ValueError,
        r"`scale` must be a number that float32, the type of the sums, can hold, got 1e\+39",
    ),
    # ------------------------------------------------------------------------------------ out
    "out list": Case(
        attend, (Q, K, V), {"out": [[0.0]]}, TypeError,
        "`out` must be a writable array of the inputs' library, got list",
    ),
    "out MaskedArray": Case(
        attend, (Q, K, V), {"out": np.ma.zeros((2, 5))}, TypeError,
        r"`out` must be a plain numpy\.ndarray, got its subclass MaskedArray",
    ),
    "out read-only": Case(
        attend, (Q, K, V), {"out": frozen(2, 5)}, ValueError,
        "`out` must be writable and overlap no input: it is read-only",
    ),
    "out byte order": Case(
        attend, (Q, K, V), {"out": zeros(2, 5).astype(np.dtype("f8").newbyteorder())}, ValueError,
        r"`out` must be writable .*: its byte order is foreign \([<>]f8\)",
    ),
    "out shape": Case(
        attend, (Q, K, V), {"out": zeros(5, 2)}, ValueError,
        r"`out` must have exactly the result's shape and type: need \(2, 5\) float64, got \(5, 2\)",
    ),
    "out type": Case(
        attend, (Q, K, V), {"out": zeros(2, 5, dtype=np.float32)}, ValueError,
        r"`out` must have exactly .*: need \(2, 5\) float64, got \(2, 5\) float32",
    ),
    "out of the value": Case(
        attend, (Q, K, V), {"out": V[:2]}, ValueError, "`out` .*: it shares memory with `value`",
    ),
    "out of the bias": Case(
        attend, (Q, K, V), {"bias": (row := zeros(10))[:3], "out": row.reshape(2, 5)}, ValueError,
        "`out` .*: it shares memory with `bias`",
    ),
    "out upon itself": Case(
        attend, (Q, K, V),
        {"out": np.lib.stride_tricks.as_strided(zeros(9), (2, 5), (8, 8))}, ValueError,
        "`out` must be writable .*: two of its elements share memory",
    ),
    "out no pair": Case(
        attention, (Q, K, V), {"out": zeros(2, 5)}, TypeError,
        r"`out` of `attention` must be a pair \(output, weights\), either of them None, got "
        "ndarray; for the output alone use `attend`",
    ),
    "out of three": Case(
        attention, (Q, K, V), {"out": (None, None, None)}, TypeError, "must be a pair .*got tuple",
    ),
    "out weights": Case(
        attention, (Q, K, V), {"out": (zeros(2, 5), zeros(3, 2))}, ValueError,
        r"need \(2, 3\) float64, got \(3, 2\) float64",
    ),
    "out twice": Case(
        attention, (Q, K, V),
        {"out": (BOTH[:10].reshape(2, 5), BOTH[8:14].reshape(2, 3))}, ValueError,
        "`out` must be two arrays that share no memory",
    ),
    # ------------------------------------------------------------------------ softmax and merge
    "softmax of none": Case(softmax, (None,), {}, TypeError, "`z` must be an array .*NoneType"),
    "softmax of complex": Case(
        softmax, ([1j],), {}, TypeError, "`z` must hold real numbers, got complex128",
    ),
    "axis range": Case(
        softmax, (Q,), {"axis": 2}, ValueError, "`axis` must be an axis of an array of 2, got 2",
    ),
    "axis twice": Case(
        softmax, (Q,), {"axis": (0, -2)}, ValueError,
        r"`axis` must not name an axis twice, got \(0, -2\)",
    ),
    "axis kind": Case(
        softmax, (Q,), {"axis": 1.0}, TypeError, r"`axis` must be an int, got float 1\.0",
    ),
    "no parts": Case(
        merge, ([],), {}, ValueError,
        r"`parts` must hold at least one pair \(output, log_sum_exp\), got none",
    ),
    "parts kind": Case(
        merge, (3,), {}, TypeError, "`parts` must be an iterable of pairs .*got int",
    ),
    "part kind": Case(
        merge, ([(Q, zeros(2)), 3.0],), {}, TypeError,
        r"part 1 must be a pair \(output, log_sum_exp\), got float",
    ),
    "part shape": Case(
        merge, ([(Q, zeros(3))],), {}, ValueError,
        r"part 0 must be \(output, log_sum_exp\) of shapes \(\.\.\., E\) and \(\.\.\.\), got "
        r"\(2, 4\) and \(3,\)",
    ),
    "part of no axes": Case(merge, ([(1.0, 0.0)],), {}, ValueError, r"part 0 .*got \(\) and \(\)"),
    "parts of two shapes": Case(
        merge, ([(Q, zeros(2)), (K, zeros(3))],), {}, ValueError,
        r"all parts must have the same shapes: part 1 has .* \(3, 4\), the first \(2, 4\)",
    ),
    "half a part": Case(
        merge, ([(Q, None)],), {}, TypeError, "`log_sum_exp` must be an array .*got NoneType",
    ),
    # ---------------------------------------------------------------------------- views
    "head of too few axes": Case(
        view_weights, HEADS[:2], {"head": 1}, ValueError,
        r"`head` must be a place in \(2, 4\), .*: got 1; head=\(0, 0\) is the first",
    ),
    "head of no axes": Case(
        view_weights, (Q, K), {"head": 0}, ValueError,
        r"`head` must be a place in \(\), .*: got 0; head=None is the first",
    ),
    "head out of range": Case(
        view_weights, HEADS[:2], {"head": (0, 4)}, ValueError,
        r"`head` must be a place in \(2, 4\), got \(0, 4\)",
    ),
    "no head": Case(
        view_weights, (zeros(0, 3, 4), zeros(0, 3, 4)), {"head": 0}, ValueError,
        r"there must be a head to show: the axes before the rows are \(0,\)",
    ),
    "head kind": Case(
        view_weights, HEADS[:2], {"head": (0, 1.0)}, TypeError, "`head` must be an int, got float",
    ),
    "cells kind": Case(
        view_weights, (Q, K), {"cells": 9}, TypeError,
        r"`cells` must be a pair \(for queries, for keys\), got 9",
    ),
    "no cells": Case(
        view_weights, (Q, K), {"cells": (0, 9)}, ValueError, "`cells` must be at least 1, got 0",
    ),
    "no bins": Case(
        score_histogram, (Q, K), {"bins": 0}, ValueError, "`bins` must be at least 1, got 0",
    ),
    "no rows to sample": Case(
        score_histogram, (Q, K), {"rows": 0}, ValueError, "`rows` must be at least 1, got 0",
    ),
    "view of an option": Case(
        view_weights, (Q, K), {"casual": True}, TypeError, "unknown option 'casual'",
    ),
}  # fmt: skip

STUDIED = {
    "dims of one": Case(
        study, (4,), {}, TypeError, r"`dims` must be a list, got int 4; pass \(4,\)",
    ),
    "scales of one": Case(
        study, (), {"scales": "none"}, TypeError,
        r"`scales` must be a list, got str 'none'; pass \('none',\)",
    ),
    "dims range": Case(study, ((0,),), {}, ValueError, "`dims` must be at least 1, got 0"),
    "scale of an unknown name": Case(
        study, (), {"scales": ("sqrt",)}, ValueError, "unknown scale 'sqrt'.*valid are: none",
    ),
    "scale that is infinite somewhere": Case(
        study, ((4, 8),), {"scales": ("none", lambda d: INF if d > 4 else 1.0)}, ValueError,
        "`scale <lambda> at d = 8` must be finite, got inf",
    ),
    "negative seed": Case(study, (), {"rng": -1}, ValueError, "`rng` must be at least 0, got -1"),
    "seed kind": Case(
        study, (), {"rng": "a"}, TypeError,
        r"`rng` must be a seed, a numpy\.random\.Generator or None, got str",
    ),
    "saturated kind": Case(
        study, (), {"saturated": "a"}, TypeError, "`saturated` must be a number, got str",
    ),
    "steps": Case(train, (), {"steps": 0}, ValueError, "`steps` must be at least 1, got 0"),
    "negative seed of a training": Case(
        train, (), {"rng": -2}, ValueError, "`rng` must be at least 0, got -2",
    ),
    "learning rate": Case(
        train, (), {"learning_rate": NAN}, ValueError, "`learning_rate` must be finite, got nan",
    ),
    "negative noise": Case(
        train, (), {"noise": -1}, ValueError, r"`noise` must be at least 0, got -1\.0",
    ),
}  # fmt: skip

AXES = Figure().subplots(1, 2)

PICTURED = {
    "one of many heads": Case(
        plots.weights, (zeros(3, 4, 5),), {}, ValueError,
        r"`head` must be a place in \(3,\), .*: got None; head=0 is the first",
    ),
    "weights of one axis": Case(
        plots.weights, (zeros(3),), {}, ValueError,
        r"`weights` must have at least two axes, \(..., T, S\), got shape \(3,\)",
    ),
    "names of the wrong number": Case(
        plots.weights, (zeros(4, 5),), {"keys": ["a", "b"]}, ValueError,
        "`keys` must name each of 5 tokens, got 2 names",
    ),
    "names in one string": Case(
        plots.weights_by_head, (zeros(4, 5),), {"queries": "abcd"}, TypeError,
        "`queries` must be a list of names, got one string; split it into tokens",
    ),
    "one Axes for several panels": Case(
        plots.weights_by_head, (zeros(3, 4, 5), AXES[0]), {}, ValueError,
        r"`ax` must be 3 Axes, one for each panel, got 1; figure.subplots\(1, 3\) makes them",
    ),
    "several Axes for one panel": Case(
        plots.weights, (zeros(4, 5), AXES), {}, ValueError,
        "`ax` must be one Axes, got 2 of them; pass the one to draw on",
    ),
    "no Axes to save": Case(
        plots.save, ([], "x.png"), {}, ValueError, "`ax` must be one Axes, got 0 of them",
    ),
    "a figure for Axes": Case(
        plots.received, (Observation(received=zeros(4)), AXES[0].figure), {}, TypeError,
        r"`ax` must be Axes of matplotlib, got Figure; figure.subplots\(\) makes them",
    ),
    "a picture of another kind": Case(
        plots.save, (AXES[0], "x.gif"), {}, ValueError,
        "unknown kind of picture 'gif'.*; valid are: png, svg, pdf",
    ),
    "an observation for weights": Case(
        plots.weights, (Observation(entropy=zeros(4)),), {}, TypeError,
        "`result` must be of kind Attention, as scaledot.attention returns it, got Observation",
    ),
    "weights for an observation": Case(
        plots.concentration, (Attention(zeros(4, 5), zeros(4, 5)),), {}, TypeError,
        "`result` must be of kind Observation, as scaledot.observe returns it, got Attention",
    ),
    "a training for a study": Case(
        plots.study, (train(d=1, steps=1),), {}, TypeError,
        "`result` must be of kind Study, as scaledot.scaling.study returns it, got Training",
    ),
    "weights for a training": Case(
        plots.training, (zeros(4, 5),), {}, TypeError,
        "`result` must be of kind Training, as scaledot.scaling.train returns it, got ndarray",
    ),
    "weights for a histogram": Case(
        plots.scores, (zeros(4, 5),), {}, TypeError,
        "must be of kind ScoreHistogram, as scaledot.histograms.score_histogram returns it, got",
    ),
    "weights for an overview": Case(
        plots.overview, (zeros(4, 5),), {}, TypeError,
        "`result` must be of kind Overview, as scaledot.views.overview returns it, got ndarray",
    ),
    "not observed": Case(
        plots.concentration, (Observation(entropy=zeros(4)),), {}, ValueError,
        r"must hold max_weight: observe\(query, key, statistics=\('entropy', 'max_weight'\)\)",
    ),
    "nothing received": Case(
        plots.received, (Observation(entropy=zeros(4)),), {}, ValueError,
        r"must hold received: observe\(query, key, statistics=\('received',\)\)",
    ),
}  # fmt: skip

NO_NUMBA = Case(
    attend, (Q, K, V), {"engine": "fused"}, ValueError,
    "engine 'fused' cannot do this: numba is not installed; leave `engine` out and the plan",
)  # fmt: skip

NO_MATPLOTLIB = Case(
    plots.training, (train(d=1, steps=1),), {}, ModuleNotFoundError,
    r'a picture needs matplotlib, which is not installed: pip install "scaledot\[plots\]"',
)  # fmt: skip

PULLED = {
    "nothing": ((), {}, ValueError, "at least one gradient .*: grad_output, log_sum_exp, entropy"),
    "output shape": (
        (zeros(2, 4),), {}, ValueError,
        r"`grad_output` must have the shape of what it is .*: need \(2, 5\), got \(2, 4\)",
    ),
    "lse shape": ((), {"log_sum_exp": zeros(2, 1)}, ValueError, r"`log_sum_exp` .*need \(2,\)"),
    "entropy shape": ((), {"entropy": 1.0}, ValueError, r"`entropy` .*need \(2,\), got \(\)"),
    "complex": ((zeros(2, 5, dtype=complex),), {}, TypeError, "`grad_output` must hold real"),
    "kind": (("abc",), {}, TypeError, "`grad_output` must be an array .*got str"),
    "subclass": ((np.ma.zeros((2, 5)),), {}, TypeError, r"`grad_output` .*\.filled\(0\)"),
}  # fmt: skip


def case_id(name):
    return name.replace(" ", "-")


def refusal(case, **more):
    """Return the exception with which the call is refused, as the case wants it."""
    with pytest.raises(case.error, match=case.message) as found:
        case.function(*case.arguments, **case.how, **more)
    assert type(found.value) is case.error
    return found.value


@pytest.fixture
def idle(monkeypatch):
    """Engines that must not run."""

    def engine(name):
        raise AssertionError(f"{name} was asked to compute")

    monkeypatch.setattr(call, "_engine", engine)


@pytest.fixture
def without_numba(monkeypatch):
    """A machine on which kernels cannot be compiled."""
    monkeypatch.setattr(planning, "missing_numba", lambda: "numba is not installed")
    planning.clear()
    yield
    planning.clear()


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("case", (CASES | STUDIED).values(), ids=map(case_id, CASES | STUDIED))
def test_a_refusal_says_what_must_hold(case):
    refusal(case)


@pytest.mark.parametrize("case", PICTURED.values(), ids=map(case_id, PICTURED))
def test_a_refusal_to_draw_says_what_must_hold(case):
    refusal(case)


@pytest.mark.parametrize("name", PULLED)
def test_a_refusal_of_a_pullback_says_what_must_hold(name, engine):
    arguments, more, error, message = PULLED[name]
    _, pullback = vjp(Q, K, V, engine=engine)
    refusal(Case(pullback, arguments, more, error, message))


@pytest.mark.usefixtures("without_numba")
def test_an_engine_that_is_not_there_is_refused():
    refusal(NO_NUMBA)
    assert plan(zeros(99, 4), zeros(99, 4)).engine == "blockwise"


def test_refusals_are_the_same_on_each_engine(engine):
    for case in CASES.values():
        if case.function not in (softmax, merge) and "engine" not in case.how:
            assert str(refusal(case, engine=engine)) == str(refusal(case))


def places_of(error):
    """Return the lines of `checks` that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    return {f.lineno for f in frames if f.filename == checks.__file__}


@pytest.fixture
def without_matplotlib(monkeypatch):
    """An installation without the extra for pictures."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.usefixtures("without_numba", "without_matplotlib")
def test_every_refusal_is_tested():
    """Each `raise` of `checks` is reached by a case above."""
    cases = (*CASES.values(), *STUDIED.values(), *PICTURED.values(), NO_NUMBA, NO_MATPLOTLIB)
    reached = set().union(*(places_of(refusal(case)) for case in cases))
    _, pullback = vjp(Q, K, V)
    for case in PULLED.values():
        reached |= places_of(refusal(Case(pullback, *case)))
    missed = set()
    for function in ast.parse(Path(checks.__file__).read_text("utf-8")).body:
        for raised in ast.walk(function):
            if isinstance(raised, ast.Raise):
                lines = range(raised.lineno, raised.end_lineno + 1)
                if reached.isdisjoint(lines):
                    missed.add((function.name, raised.lineno))
    assert {name for name, _ in missed} == IN_LIBRARIES, sorted(missed)


# --------------------------------------------------------------------------------------- before


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"mask": zeros(2, 3)}, TypeError),
        ({"casual": True}, TypeError),
        ({"key_lengths": 4}, ValueError),
        ({"scale": NAN}, ValueError),
    ],
    ids=["mask", "option", "lengths", "scale"],
)
def test_a_refused_call_writes_nothing(how, error, engine):
    output, weights = np.full((2, 5), 7.0), np.full((2, 3), 7.0)
    with pytest.raises(error):
        attend(Q, K, V, out=output, engine=engine, **how)
    with pytest.raises(error):
        attention(Q, K, V, out=(output, weights), engine=engine, **how)
    assert (output == 7).all()
    assert (weights == 7).all()


@pytest.mark.usefixtures("idle")
def test_one_good_place_of_two_is_not_written(engine):
    output, weights = np.full((2, 5), 7.0), np.full((2, 3), 7.0)
    for out in (
        (output, weights[:, :2]),
        (output, weights.astype(np.float32)),
        (output, output[:, :3]),
        (output[:1], weights),
    ):
        with pytest.raises(ValueError, match="`out` must"):
            attention(Q, K, V, out=out, engine=engine)
    assert (output == 7).all()
    assert (weights == 7).all()


@pytest.mark.usefixtures("idle")
def test_a_plan_computes_nothing(any_engine):
    plan(Q, K, V, engine=any_engine, causal=True, key_lengths=3, query_lengths=2)


# ------------------------------------------------------------------------------------- accepted

NUMPY_KINDS = {
    "window": ((1, 0), (np.int64(1), np.uint8(0))),
    "window list": ((1, None), [np.int32(1), None]),
    "causal": (True, np.True_),
    "key_lengths": (2, np.int64(2)),
    "key_lengths 0-d": (2, np.array(2, np.uint8)),
    "query_lengths": (1, np.int16(1)),
    "query_offset": (-1, np.int64(-1)),
    "scale": (0.5, np.float32(0.5)),
    "scale int": (2.0, np.int64(2)),
    "softcap": (2.0, np.float64(2)),
    "threads": (1, np.int64(1)),
}


@pytest.mark.parametrize("name", NUMPY_KINDS, ids=case_id)
def test_numbers_of_numpy_are_numbers(name, engine, numbers):
    arrays = [numbers.standard_normal(x.shape) for x in (Q, K, V)]
    python, numpy = NUMPY_KINDS[name]
    option = name.split()[0]
    want = attend(*arrays, engine=engine, **{option: python})
    np.testing.assert_array_equal(attend(*arrays, engine=engine, **{option: numpy}), want)


def test_integers_of_numpy_count_and_choose(numbers):
    query, key = numbers.standard_normal((2, 4)), numbers.standard_normal((3, 4))
    seen = observe(
        query, key, statistics=("top_k", "weights_of"), k=np.int64(2), rows=np.array([1])
    )
    assert seen.top_k.values.shape == (2, 2)
    assert seen.weights_of.shape == (1, 3)
    np.testing.assert_array_equal(softmax(query, axis=np.int64(0)), softmax(query, axis=0))


@pytest.mark.parametrize("option", checks.OPTIONS)
def test_none_or_false_is_an_option_left_out(option):
    left_out = False if option == "causal" else None
    np.testing.assert_array_equal(attend(Q, K, V, **{option: left_out}), attend(Q, K, V))
    with pytest.raises(TypeError, match=rf"'{option}s', did you mean '{option}'\?"):
        attend(Q, K, V, **{f"{option}s": left_out})
