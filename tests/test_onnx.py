"""scaledot.onnx is the operator: the public conformance cases, the function body, every refusal.

Two references that share no line with the package: the outputs that come with onnx's own cases,
and the function body that defines the operator, which onnx's evaluator runs step by step.
"""

import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import onnx.inliner
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.backend.test.case.node import collect_testcases, function_expand_helper
from onnx.reference import ReferenceEvaluator

import scaledot.onnx
from scaledot.onnx import attention

ENGINES = (None, "textbook", "blockwise")
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
RNG = np.random.default_rng(0)


def conformance_cases():
    """The cases that come with onnx, the operator as one node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of all operators are made, with their overflows
        found = collect_testcases("Attention")
    other = ("_expanded", "linear", "flex")
    return [c for c in found if "attention" in c.name and not any(x in c.name for x in other)]


CASES = conformance_cases()
on_each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
on_each_engine = pytest.mark.parametrize("engine", ENGINES)


def operator(engine):
    """The class for the evaluator, which looks at its name, with an engine forced."""
    return type("Attention", (scaledot.onnx.Attention,), {"engine": engine})


def assert_conforms(case, inputs, outputs):
    """Hold outputs, by name, against those of the case, within the tolerance of the case.

    Y and the weights of 16-bit cases were computed with 16-bit products and sums, so the case
    itself is off by more than its tolerance. There the bound is the distance of the case from the
    same computation in float64, and one rounding of our own.
    """
    expected = dict(
        zip((o.name for o in case.model.graph.output), case.data_sets[0][1], strict=True)
    )
    exact = None
    for name, want in expected.items():
        got = outputs[name]
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        got, wide = np.float64(got), np.float64(want)
        bound = case.atol + case.rtol * np.abs(wide)
        if want.dtype.itemsize == 2:
            exact = exact or run_in_float64(case.model, inputs)
            bound += np.abs(wide - exact[name]) + ml_dtypes.finfo(want.dtype).eps * np.abs(wide)
        finite = np.isfinite(wide)
        np.testing.assert_array_equal(got[~finite], wide[~finite])
        assert np.all(np.abs(got[finite] - wide[finite]) <= bound[finite]), name


def run_in_float64(model, inputs):
    """The outputs of a model by onnx's own evaluator, 16-bit inputs widened."""
    wide = {k: np.float64(x) if x.dtype.itemsize == 2 else x for k, x in inputs.items()}
    names = [o.name for o in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, wide), strict=True))


def inputs_of(case):
    """The inputs of a case, by name."""
    return dict(zip((i.name for i in case.model.graph.input), case.data_sets[0][0], strict=True))


def attributes_of(case):
    """The attributes of the node of a case, by name."""
    return {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}


# ------------------------------------------------------------------------------- conformance


def test_there_are_93_conformance_cases():
    assert len(CASES) == 93
    assert {opset.version for case in CASES for opset in case.model.opset_import} == {23, 24, 25}
    assert all(len(c.model.graph.node) == len(c.data_sets) == 1 for c in CASES)


@on_each_engine
@on_each_case
def test_conformance_of_the_function(case, engine):
    inputs = inputs_of(case)
    results = attention(**inputs, **attributes_of(case), engine=engine)
    assert_conforms(case, inputs, results._asdict())


@on_each_engine
@on_each_case
def test_conformance_of_models(case, engine):
    inputs = inputs_of(case)
    results = ReferenceEvaluator(case.model, new_ops=[operator(engine)]).run(None, inputs)
    names = [o.name for o in case.model.graph.output]
    assert_conforms(case, inputs, dict(zip(names, results, strict=True)))


# ---------------------------------------------------------------------------- the function body


def model_of(inputs, outputs=OUTPUTS[:1], opset=25, **attributes):
    """A model of one Attention node; an output named "" is left out."""
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, list(outputs), **attributes)
    return model_of_nodes([node], inputs, [name for name in outputs if name], opset)


def model_of_nodes(nodes, inputs, outputs, opset=25, functions=()):
    """A model of some nodes."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in inputs.items()
        ],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [None] * 4) for n in outputs],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11, functions=functions)


def by_function_body(model, inputs):
    """The outputs of a model of one node by the function body that defines it, as onnx makes it.

    `onnx.inliner` could put it in place too, but for omitted inputs, whose type it asks for.
    """
    node, opset = onnx.NodeProto(), model.opset_import[0].version
    node.CopyFrom(model.graph.node[0])
    schema = onnx.defs.get_schema("Attention", opset)
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in given and attribute.default_value.name
    )
    types = {i.name: i.type.SerializeToString() for i in model.graph.input}
    body = onnx.FunctionProto.FromString(
        schema.get_context_dependent_function_with_opset_version(
            opset, node.SerializeToString(), [types.get(name, b"") for name in node.input]
        )
    )
    nodes = function_expand_helper(node, body, "body_")
    names = [output.name for output in model.graph.output]
    whole = model_of_nodes(nodes, inputs, names, opset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a row without a key passes through -inf - -inf
        return ReferenceEvaluator(whole).run(None, inputs)


@st.composite
def calls(draw):
    """Inputs and attributes that an opset allows, and the opset."""
    opset = draw(st.sampled_from((23, 24, 25)))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_batches, n_key_heads, group = (draw(st.integers(1, 3)) for _ in range(3))
    n_queries, n_new, size, value_size = (draw(st.integers(1, 6)) for _ in range(4))
    shapes = {
        "Q": (n_batches, n_key_heads * group, n_queries, size),
        "K": (n_batches, n_key_heads, n_new, size),
        "V": (n_batches, n_key_heads, n_new, value_size),
    }
    inputs = {name: rng.normal(0, 2, shape).astype(dtype) for name, shape in shapes.items()}
    attributes = {
        "is_causal": draw(st.integers(0, 1)),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
        "softcap": draw(st.sampled_from((0.0, 1.5))),
    }
    if draw(st.booleans()):
        attributes["scale"] = 0.3
    if draw(st.booleans()):
        attributes["softmax_precision"] = onnx.TensorProto.DOUBLE
    if opset == 25:
        for side in ("left_window_size", "right_window_size"):
            attributes[side] = draw(st.integers(-1, 4))

    n_keys = n_new
    cache = draw(st.sampled_from(("none", "past", "padded")))
    if cache == "past":
        n_past = draw(st.integers(0, 4))
        n_keys += n_past
        for name, width in (("past_key", size), ("past_value", value_size)):
            inputs[name] = rng.normal(size=(n_batches, n_key_heads, n_past, width)).astype(dtype)
    if cache == "padded" and opset > 23:
        inputs["nonpad_kv_seqlen"] = rng.integers(0, n_keys + 1, n_batches)

    kind = draw(st.sampled_from(("none", "bool", "float")))
    if kind != "none":
        shape = [n_batches, n_key_heads * group, n_queries, n_keys]
        for axis in range(3):
            if draw(st.booleans()):
                shape[axis] = 1
        if opset > 23:
            real = int(inputs["nonpad_kv_seqlen"].max()) if "nonpad_kv_seqlen" in inputs else 1
            shape[3] = draw(st.integers(max(real, 1), n_keys))
        elif draw(st.booleans()):
            shape[3] = 1
        shape = shape[draw(st.integers(0, 2)) :]
        visible = rng.random(shape) < 0.7
        floating = np.where(visible, rng.normal(size=shape), -np.inf).astype(dtype)
        inputs["attn_mask"] = visible if kind == "bool" else floating
    if draw(st.booleans()):
        for name in ("Q", "K", "V"):
            x = inputs[name]
            inputs[name] = x.swapaxes(1, 2).reshape(n_batches, x.shape[2], -1)
        attributes |= {"q_num_heads": n_key_heads * group, "kv_num_heads": n_key_heads}
    return inputs, attributes, opset


@settings(max_examples=150, deadline=None)
@given(call=calls(), engine=st.sampled_from(ENGINES))
def test_models_are_what_the_function_body_says(call, engine):
    inputs, attributes, opset = call
    outputs = ("Y", "", "", "qk_matmul_output") if "nonpad_kv_seqlen" in inputs else OUTPUTS
    model = model_of(inputs, outputs, opset, **attributes)
    expected = by_function_body(model, inputs)
    actual = ReferenceEvaluator(model, new_ops=[operator(engine)]).run(None, inputs)
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------- what is not in those


def arrays(*shape, n_heads=2, n_keys=5, dtype=np.float32):
    """Q, K, V of small shapes."""
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, n_heads, 3, 4))
    k, v = rng.normal(size=(2, 2, 2, n_keys, 4))
    return {"Q": q.astype(dtype), "K": k.astype(dtype), "V": v.astype(dtype)}


def test_absent_outputs_are_none():
    inputs = arrays()
    results = attention(**inputs, qk_matmul_output_mode=None)
    assert results._fields == OUTPUTS
    assert results.qk_matmul_output is None
    padded = attention(**inputs, nonpad_kv_seqlen=np.array([2, 5]))
    assert padded.present_key is padded.present_value is None


def test_first_step_of_a_cache_returns_copies_of_its_keys():
    inputs = arrays()
    results = attention(**inputs)
    np.testing.assert_array_equal(results.present_key, inputs["K"])
    np.testing.assert_array_equal(results.present_value, inputs["V"])
    assert not any(np.shares_memory(one, x) for one in results[:3] for x in inputs.values())


@on_each_engine
def test_growing_cache_is_the_whole(engine):
    inputs = arrays(n_keys=3)
    whole = attention(**inputs, is_causal=1, engine=engine).Y
    past = {}
    for i in range(3):
        step = {name: x[:, :, i : i + 1] for name, x in inputs.items()}
        y, past["past_key"], past["past_value"], _ = attention(
            **step, **past, is_causal=1, engine=engine
        )
        np.testing.assert_allclose(y, whole[:, :, i : i + 1], rtol=1e-5, atol=1e-6)


def test_mode_0_is_before_the_softcap_as_the_text_says():
    inputs = arrays()
    product = inputs["Q"] @ inputs["K"].swapaxes(2, 3) / 2
    for opset in (23, 24, 25):
        model = model_of(inputs, ("Y", "", "", "scores"), opset, softcap=0.5)
        _, scores = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention]).run(None, inputs)
        np.testing.assert_allclose(scores, product, rtol=1e-5, atol=1e-6)


def test_y_has_the_type_of_q_where_v_has_another():
    inputs = arrays()
    q, k, v = inputs["Q"].astype(np.float16), inputs["K"].astype(np.float16), inputs["V"]
    results = attention(q, k, v.astype(np.float64), qk_matmul_output_mode=3)
    assert results.Y.dtype == results.qk_matmul_output.dtype == np.float16
    assert results.present_value.dtype == np.float64
    np.testing.assert_allclose(results.Y, attention(q, k, v).Y, rtol=2e-3)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_type_comes_back(dtype, mode):
    results = attention(**arrays(dtype=dtype), qk_matmul_output_mode=mode)
    assert all(x.dtype == dtype for x in results)


def test_what_is_too_large_for_the_type_of_q_is_infinite_and_silent():
    inputs = {name: 200 * np.ones((1, 1, 1, 4), np.float16) for name in "QKV"}
    results = attention(**inputs, scale=1.0, qk_matmul_output_mode=0)
    assert results.qk_matmul_output == np.inf
    assert results.Y.ravel().tolist() == [200.0] * 4


@pytest.mark.parametrize("precision", [1, 10, 16])
def test_lower_softmax_precision_changes_nothing(precision):
    for dtype in (np.float32, np.float64):
        inputs = arrays(dtype=dtype)
        plain, lower = attention(**inputs), attention(**inputs, softmax_precision=precision)
        np.testing.assert_array_equal(lower.Y, plain.Y)


def test_double_softmax_precision_computes_in_float64():
    inputs = arrays(n_keys=200)
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    results = attention(**inputs, softmax_precision=11, qk_matmul_output_mode=3)
    exact = attention(**wide, qk_matmul_output_mode=3)
    np.testing.assert_array_equal(results.Y, exact.Y.astype(np.float32))
    np.testing.assert_array_equal(
        results.qk_matmul_output, exact.qk_matmul_output.astype(np.float32)
    )
    assert results.present_key.dtype == np.float32


def test_foreign_byte_order_comes_back_native():
    inputs = arrays()
    swapped = {name: x.astype(">f4") for name, x in inputs.items()}
    results = attention(**swapped, qk_matmul_output_mode=2)
    assert results.Y.dtype == results.qk_matmul_output.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(results.Y, attention(**inputs).Y)


@on_each_engine
def test_what_is_masked_cannot_matter(engine):
    inputs = arrays()
    clean = attention(**inputs, nonpad_kv_seqlen=np.array([2, 3]), engine=engine).Y
    for name in ("K", "V"):
        inputs[name][0, :, 2:] = np.nan
        inputs[name][1, :, 3:] = np.inf
    results = attention(
        **inputs, nonpad_kv_seqlen=np.array([2, 3]), qk_matmul_output_mode=2, engine=engine
    )
    np.testing.assert_array_equal(results.Y, clean)
    assert np.all(results.qk_matmul_output[0, :, :, 2:] == -np.inf)


@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3])
@pytest.mark.parametrize(("n_batches", "n_queries", "n_keys"), [(2, 0, 5), (2, 3, 0), (0, 3, 5)])
def test_no_queries_no_keys_no_batches(mode, n_batches, n_queries, n_keys):
    q = np.ones((n_batches, 4, n_queries, 8), np.float32)
    k = np.ones((n_batches, 2, n_keys, 8), np.float32)
    results = attention(q, k, k, qk_matmul_output_mode=mode)
    np.testing.assert_array_equal(results.Y, np.zeros_like(q) if n_keys == 0 else q)
    if mode is not None:
        assert results.qk_matmul_output.shape == (n_batches, 4, n_queries, n_keys)


def test_mask_of_one_key_broadcasts_in_opset_23_and_is_filled_up_since():
    inputs = arrays() | {"attn_mask": np.ones((3, 1), bool)}
    for opset, n_visible in ((23, 5), (24, 1), (25, 1)):
        model = model_of(inputs, ("Y", "", "", "weights"), opset, qk_matmul_output_mode=3)
        _, weights = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention]).run(None, inputs)
        assert np.all(np.count_nonzero(weights, axis=-1) == n_visible)


# ------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[:1], ("Y", "", "pv"), ("Y", "", "", "qk")])
@pytest.mark.parametrize("opset", [23, 24, 25])
def test_omitted_outputs(opset, outputs):
    inputs = arrays()
    model = model_of(inputs, outputs, opset)
    onnx.checker.check_model(model)
    evaluator = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention])
    results = attention(**inputs, qk_matmul_output_mode=0)
    wanted = [x for name, x in zip(outputs, results, strict=False) if name]
    for got, want in zip(evaluator.run(None, inputs), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_scores_are_not_made_for_a_node_that_does_not_name_them(monkeypatch):
    inputs = arrays()
    monkeypatch.setattr(scaledot.onnx, "_stage", None)
    for outputs in (("Y",), ("Y", "", "present_value", "")):
        evaluator = ReferenceEvaluator(model_of(inputs, outputs), new_ops=[operator(None)])
        evaluator.run(None, inputs)


def test_omitted_output_does_not_become_the_omitted_input_of_the_next_node():
    inputs = arrays()
    past = {"past_key": inputs["K"], "past_value": inputs["V"]}
    nodes = [
        helper.make_node("Attention", ["Q", "K", "V"], ["A", "", "", "qk"]),
        helper.make_node("Attention", ["A", "K", "V", "", "past_key", "past_value"], ["Y"]),
    ]
    model = model_of_nodes(nodes, inputs | past, ["Y"])
    evaluator = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention])
    first = attention(**inputs).Y
    expected = attention(first, inputs["K"], inputs["V"], **past).Y
    np.testing.assert_array_equal(evaluator.run(None, inputs | past)[0], expected)


def test_attention_inside_a_function_is_reached_after_inlining():
    inputs = arrays()
    body = helper.make_function(
        "local",
        "Layer",
        list("QKV"),
        ["Y"],
        [helper.make_node("Attention", list("QKV"), ["Y"], softcap=2.0)],
        [helper.make_opsetid("", 25)],
    )
    call = helper.make_node("Layer", list("QKV"), ["Y"], domain="local")
    model = model_of_nodes([call], inputs, ["Y"], functions=[body])
    seen = []

    class Attention(scaledot.onnx.Attention):
        def _run(self, *inputs, **attributes):
            seen.append(self.engine)
            return super()._run(*inputs, **attributes)

    flat = onnx.inliner.inline_local_functions(model)
    (y,) = ReferenceEvaluator(flat, new_ops=[Attention]).run(None, inputs)
    assert seen == [None]
    np.testing.assert_array_equal(y, attention(**inputs, softcap=2.0).Y)


def test_present_beside_padded_keys_is_refused_in_a_model():
    inputs = arrays() | {"nonpad_kv_seqlen": np.array([2, 5])}
    model = model_of(inputs, ("Y", "present_key"), 24)
    evaluator = ReferenceEvaluator(model, new_ops=[scaledot.onnx.Attention])
    with pytest.raises(ValueError, match=r"'present_key' .*beside `nonpad_kv_seqlen`"):
        evaluator.run(None, inputs)


def test_class_is_made_once():
    assert scaledot.onnx.Attention is scaledot.onnx.Attention
    assert scaledot.onnx.Attention.__qualname__ == "Attention"
    with pytest.raises(AttributeError, match=r"'scaledot\.onnx' has no attribute 'attend'"):
        _ = scaledot.onnx.attend


def test_function_works_without_onnx():
    script = """
import sys
sys.modules["onnx"] = None
import numpy as np
import scaledot.onnx
x = np.ones((1, 1, 2, 4), np.float32)
assert scaledot.onnx.attention(x, x, x, qk_matmul_output_mode=2).Y.tolist() == x.tolist()
try:
    scaledot.onnx.Attention
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert "needs the onnx package: pip install onnx" in done.stdout


# ----------------------------------------------------------------------------------- refusals


FOUR = arrays()
THREE = {name: x.swapaxes(1, 2).reshape(2, x.shape[2], 8) for name, x in FOUR.items()}
PAST = {"past_key": FOUR["K"], "past_value": FOUR["V"]}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"causal": 1}, TypeError, "unknown input or attribute 'causal', did you mean 'is_causal'"),
        ({"window": 3}, TypeError, "valid are: Q, K, V, .*left_window_size"),
        ({"is_causal": 2}, ValueError, "`is_causal` must be 0 or 1, got 2"),
        ({"qk_matmul_output_mode": 4}, ValueError, r"must be 0 \(scaled\), 1 .* got 4"),
        ({"qk_matmul_output_mode": 2.0}, TypeError, "`qk_matmul_output_mode` must be an int"),
        ({"softmax_precision": 2}, ValueError, r"must be .* 1 \(float32\), 10 .* got 2"),
        ({"softcap": -1.0}, ValueError, "`softcap` must be greater than 0, or 0 for none, got -1"),
        ({"softcap": np.nan}, ValueError, "`softcap` must be finite"),
        ({"scale": np.inf}, ValueError, "`scale` must be finite"),
        ({"left_window_size": -2}, ValueError, "`left_window_size` .* or -1 for all .* got -2"),
        ({"right_window_size": 1.0}, TypeError, "`right_window_size` must be an int, got float"),
        ({"engine": "quick"}, ValueError, "quick"),
        ({"Q": None}, TypeError, "`Q` must be an array, got None"),
        ({"Q": FOUR["Q"].astype(int)}, TypeError, "`Q` must be one of float16, .* got int64"),
        ({"K": FOUR["K"].astype(float)}, TypeError, "`K` must have the type of `Q`.* float64"),
        ({"Q": FOUR["Q"][0, 0]}, ValueError, r"`Q` must have three axes, .* got shape \(3, 4\)"),
        ({"K": THREE["K"], "kv_num_heads": 2}, ValueError, "must all have three axes, or all four"),
        ({"K": FOUR["K"][:1]}, ValueError, "same batch size"),
        ({"K": FOUR["K"][:, :1]}, ValueError, r"`V` must .* need \(1, 5\), got \(2, 5\)"),
        (
            {"K": FOUR["K"][..., :3]},
            ValueError,
            "`key` must have the head size of `query`: need 4, got 3",
        ),
        ({"Q": arrays(n_heads=3)["Q"]}, ValueError, "must be a multiple .* got 3 and 2"),
        ({"q_num_heads": 4}, ValueError, "`q_num_heads` must be the heads of `Q`.* need 2, got 4"),
        ({"q_num_heads": 0}, ValueError, "`q_num_heads` must be at least 1, got 0"),
        ({"attn_mask": np.ones((3, 5), int)}, TypeError, "`attn_mask` must be bool .* got int64"),
        ({"attn_mask": np.ones((4, 5), bool)}, ValueError, "`attn_mask` must broadcast to"),
        ({"attn_mask": np.ones((3, 6))}, ValueError, "`attn_mask` must broadcast to"),
        ({"attn_mask": np.ones((1,) * 5)}, ValueError, "`attn_mask` must not have more axes"),
        ({"past_key": FOUR["K"]}, ValueError, "must come together, got `past_key` alone"),
        ({"past_value": FOUR["V"]}, ValueError, "must come together, got `past_value` alone"),
        (PAST | {"nonpad_kv_seqlen": np.array([1, 2])}, ValueError, "must not come with"),
        (PAST | {"past_key": FOUR["K"][0]}, ValueError, "`past_key` must have four axes"),
        (PAST | {"past_value": FOUR["V"][:, :, :2]}, ValueError, r"need \(2, 2, 5, 4\), got"),
        (PAST | {"past_key": FOUR["K"].astype(np.float16)}, TypeError, "`past_key` .* type of `Q`"),
        ({"nonpad_kv_seqlen": np.array([1.0, 2.0])}, TypeError, "must hold ints, got float64"),
        ({"nonpad_kv_seqlen": np.array([1])}, ValueError, r"need shape \(2,\), got \(1,\)"),
        ({"nonpad_kv_seqlen": np.array([1, 6])}, ValueError, "between 0 and 5.* got 6"),
        (
            {"nonpad_kv_seqlen": np.array([1, 4]), "attn_mask": np.ones((3, 3), bool)},
            ValueError,
            "`attn_mask` must be at least as long .* need 4, got 3",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        attention(**(FOUR | call))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"q_num_heads": 2}, "`kv_num_heads` must be given where `K` has three axes"),
        ({"kv_num_heads": 2}, "`q_num_heads` must be given where `Q` has three axes"),
        ({"q_num_heads": 3, "kv_num_heads": 1}, "last axis of `Q` must be a multiple .* 8 for 3"),
    ],
)
def test_refusals_of_head_counts(heads, message):
    with pytest.raises(ValueError, match=message):
        attention(**THREE, **heads)


def test_arrays_of_other_libraries_are_refused():
    import array_api_strict

    x = array_api_strict.ones((1, 1, 2, 4))
    with pytest.raises(TypeError, match=r"takes NumPy arrays, got those of array_api_strict"):
        attention(x, x, x)
