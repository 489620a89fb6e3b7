"""The diagnosis: it finds what is wrong wherever it is, and nothing where nothing is."""

import json
import math

import ml_dtypes
import numpy as np
import pytest

from scaledot import cli, diagnosis
from scaledot.scaling import Thresholds, diagnose

SEEDS = range(25)


def healthy(heads=4, n=120, size=64, seed=0):
    return np.random.default_rng(seed).normal(size=(2, heads, n, size))


def run(capsys, *arguments):
    code = cli.shell([str(x) for x in arguments])
    return code, *capsys.readouterr()


def kinds(*arrays, **how):
    return [finding.kind for finding in diagnose(*arrays, **how).findings]


def test_healthy_arrays_have_no_findings():
    query, key = healthy()
    found = diagnose(query, key)
    assert found.findings == ()
    assert str(found).endswith("nothing stands out")
    assert all(0.9 < head.spread < 1.1 for head in found.heads)
    assert found.heads[0].spread_before == pytest.approx(8 * found.heads[0].spread)
    assert found.suggested_scale == pytest.approx(1 / 8, rel=0.05)
    assert kinds(query, key, causal=True) == []
    assert kinds(query[0], key[0]) == []


def test_a_forgotten_scale_is_found():
    query, key = healthy()
    found = diagnose(query, key, scale=1.0)
    assert [finding.kind for finding in found.findings] == ["no-scale"]
    assert "looks forgotten or too large; use 1/sqrt(64) = 0.125" in found.findings[0].message
    assert found.suggested_scale == pytest.approx(1 / 8, rel=0.05)


def test_a_scale_of_the_wrong_size_is_found():
    query, key = healthy(heads=16)
    assert kinds(query, key, scale=1 / math.sqrt(16 * 64)) == ["wrong-size"]
    assert kinds(query, key, scale=0.001) == ["spread", "uniform"]
    assert "is too small; use 1/sqrt(64)" in diagnose(query, key, scale=0.001).findings[0].message
    assert kinds(100 * query, key)[0] == "spread"


def test_a_head_collapsed_to_one_key_is_found():
    query, key = healthy()
    query[2, :, 0], key[2, 7, 0] = 30.0, 60.0
    found = [f for f in diagnose(query, key).findings if f.kind == "collapsed"]
    assert [finding.heads for finding in found] == [(2,)]


def test_a_uniform_head_is_found():
    query, key = healthy()
    query[1] *= 1e-3
    (finding,) = diagnose(query, key).findings
    assert (finding.kind, finding.heads) == ("uniform", (1,))
    assert finding.message.startswith("head 1: all keys are weighed alike")


def test_one_head_among_healthy_ones_is_named_and_not_the_scale():
    query, key = healthy()
    query[3] *= 5
    (finding,) = diagnose(query, key).findings
    assert (finding.kind, finding.heads) == ("spread", (3,))
    assert diagnose(query, key).suggested_scale == pytest.approx(1 / 8, rel=0.1)
    query[0] *= 300
    assert all(len(line) <= 80 for line in str(diagnose(query, key)).splitlines())


def test_scores_that_grow_from_layer_to_layer_are_found():
    query, key = np.random.default_rng(0).normal(size=(2, 5, 3, 90, 32))
    growing = query * 1.3 ** np.arange(5)[:, None, None, None]
    found = diagnose(growing, key, layers=True)
    assert [finding.kind for finding in found.findings] == ["growing"]
    np.testing.assert_allclose(np.divide(found.layers[1:], found.layers[:-1]), 1.3, rtol=0.05)
    assert kinds(query, key, layers=True) == []
    with pytest.raises(ValueError, match="`layers` needs an axis of layers before the heads"):
        diagnose(query[0, 0], key[0, 0], layers=True)


def test_sinks_overflow_and_clipping_are_found():
    query, key = healthy()
    query[..., 0], key[0, 0, 0] = 8.0, 8.0
    (finding,) = diagnose(query, key).findings
    assert (finding.kind, finding.heads) == ("sink", (0,))
    assert diagnose(query, key).heads[0].sinks == (0,)
    query, key = healthy()
    found = diagnose(300 * query, 300 * key)
    assert found.heads[0].overflows > 0
    assert 0 < found.heads[0].clip < 1
    assert {"overflow", "clip"} <= {finding.kind for finding in found.findings}
    peak = found.heads[0].largest_score
    assert found.heads[0].clip == pytest.approx(100 / peak)
    none = Thresholds(cap=1e9, high_spread=1e9, saturated=1.1)
    assert kinds(300 * query, 300 * key, thresholds=none) == ["overflow"]


def test_rows_without_a_key_and_rows_of_nan_are_left_out():
    query, key = healthy()
    mask = np.ones((120, 120), bool)
    mask[3] = False
    query[0, 5] = np.nan
    found = diagnose(query, key, mask=mask)
    assert [finding.kind for finding in found.findings] == ["not-finite"]
    assert all(math.isfinite(x) for head in found.heads for x in head[:6])
    assert [head.unsound for head in found.heads] == [1, 0, 0, 0]
    nothing = diagnose(query, key, mask=np.zeros((120, 120), bool))
    assert [finding.kind for finding in nothing.findings] == ["no-key"]
    assert "–" in str(nothing)
    assert diagnose(query[:, :0], key).findings == ()


def test_dead_and_unsound_arrays_are_not_called_healthy():
    query, key = healthy()
    for dead in (diagnose(0 * query, key), diagnose(query, key[:, :1] + 0 * key)):
        assert [finding.kind for finding in dead.findings] == ["uniform"]
        assert dead.suggested_scale is None
    assert "would bring" not in str(dead)
    (all_nan,) = diagnose(query * np.nan, key).findings
    assert all_nan.kind == "not-finite"
    assert all_nan.message.startswith("every row that sees a key sees a NaN")
    large = diagnose(1e10 * query.astype("f"), 1e11 * key.astype("f"))
    assert {"overflow", "clip"} <= {finding.kind for finding in large.findings}
    query[1, 4] = np.inf
    (finding,) = diagnose(query, key).findings
    assert (finding.kind, finding.heads) == ("not-finite", (1,))
    assert "1 of them" in finding.message


def test_few_rows_or_keys_say_nothing_of_a_head():
    for n_queries, n_keys in ((1, 8), (50, 1), (50, 3), (5, 5)):
        query, key = healthy(n=50)
        assert kinds(query[:, :n_queries], key[:, :n_keys]) == []
        assert kinds(query[:, :n_queries], key[:, :n_keys], causal=True) == []


def test_padding_hides_no_sink_and_no_layout_is_refused():
    query, key = healthy()
    query[..., 0], key[0, 0, 0] = 8.0, 8.0
    padded = np.concatenate([query, np.zeros((4, 300, 64))], axis=1)
    assert kinds(padded, key, query_lengths=120) == ["sink"]
    for shape in ((4, 0, 64), (0, 9, 64), (2, 0, 9, 64), (0, 2, 9, 64)):
        nothing = np.zeros(shape)
        assert diagnose(nothing, nothing).findings == ()
    assert kinds(query[:, :, :0], key[:, :, :0]) == ["uniform"]


def test_a_bias_that_sets_keys_apart_is_not_called_uniform():
    query, key = healthy(n=20)
    away = np.abs(np.arange(20)[:, None] - np.arange(20))
    assert kinds(0.001 * query, key, bias=-5.0 * away) == []
    assert kinds(0.001 * query, key) == ["uniform"]
    assert diagnose(query, key, scale=-1.0).suggested_scale < 0


# ------------------------------------------------------------------------------ nothing is wrong


def causal_bias(n, hidden):
    return np.where(np.tri(n, dtype=bool), 0.0, hidden)


def alibi(n, heads):
    slopes = 2.0 ** -np.arange(1, heads + 1)
    return -np.abs(np.arange(n)[:, None] - np.arange(n)) * slopes[:, None, None]


HEALTHY = {
    "plain": lambda q, k, rng: (q, k, {}),
    "causal": lambda q, k, rng: (q, k, {"causal": True}),
    "window": lambda q, k, rng: (q, k, {"window": (int(rng.integers(0, 9)), 0)}),
    "groups": lambda q, k, rng: (q, k[:, :2], {"causal": True}),
    "one key head": lambda q, k, rng: (q, k[:, :1], {}),
    "padded keys": lambda q, k, rng: (q, k, {"key_lengths": rng.integers(0, k.shape[-2] + 1, 3)}),
    "three keys of many": lambda q, k, rng: (q, k, {"key_lengths": [3, 2, 3]}),
    "three keys of many, causal": lambda q, k, rng: (
        q, k, {"key_lengths": 3, "causal": True, "query_offset": 0},
    ),
    "padded queries": lambda q, k, rng: (
        q, k, {"query_lengths": rng.integers(0, q.shape[-2] + 1, 3)},
    ),
    "few keys": lambda q, k, rng: (q, k[:, :, : int(rng.integers(1, 6))], {}),
    "few rows": lambda q, k, rng: (q[:, :, : int(rng.integers(1, 6))], k, {}),
    "mask": lambda q, k, rng: (q, k, {"mask": rng.random((q.shape[-2], k.shape[-2])) < 0.3}),
    "mask of a batch": lambda q, k, rng: (
        q, k, {"mask": rng.random((3, 1, 1, k.shape[-2])) < 0.5},
    ),
    "bias that masks": lambda q, k, rng: (q, k, {"bias": causal_bias(q.shape[-2], -np.inf)}),
    "bias that nearly masks": lambda q, k, rng: (q, k, {"bias": causal_bias(q.shape[-2], -1e9)}),
    "ALiBi": lambda q, k, rng: (q, k, {"bias": alibi(q.shape[-2], 4), "causal": True}),
    "softcap": lambda q, k, rng: (q, k, {"softcap": 20.0}),
    "sinks": lambda q, k, rng: (q, k, {"sinks": rng.normal(size=4)}),
    "bfloat16": lambda q, k, rng: (*(x.astype(ml_dtypes.bfloat16) for x in (q, k)), {}),
    "float16": lambda q, k, rng: (*(x.astype(np.float16) for x in (q, k)), {"causal": True}),
    "layers": lambda q, k, rng: (q, k, {"layers": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_healthy_arrays(name):
    """Not once in 25 draws, of 12 heads each, of any size."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        n, size = int(rng.choice([16, 17, 33, 64, 120])), int(rng.choice([4, 8, 16, 64]))
        query, key, how = HEALTHY[name](*rng.normal(size=(2, 3, 4, n, size)), rng)
        found = diagnose(query, key, **how)
        assert found.findings == (), f"seed {seed}, {n} tokens of size {size}"
        assert found.striking is None


def test_false_findings_in_many_heads_are_rare():
    """One in a thousand heads at most, where there is least to tell by: 16 tokens, 4 numbers."""
    wrong = 0
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 128, 16, 4))
        for how in ({}, {"causal": True}, {"bias": causal_bias(16, -1e9)}):
            for finding in diagnose(query, key, **how).findings:
                assert finding.kind == "sink"
                wrong += len(finding.heads)
    assert wrong <= 3 * len(SEEDS) * 128 / 1000


@pytest.mark.parametrize("n_layers", [2, 3, 12])
def test_layers_that_differ_by_chance_do_not_grow(n_layers):
    """The noise of a spread is known to the threshold: four standard errors, 1 in 30,000."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        query, key = rng.normal(size=(2, n_layers, 1, 16, int(rng.choice([4, 8, 32]))))[:, :, None]
        for limits in (Thresholds(), Thresholds(growth=1.01)):
            found = kinds(query, key, layers=True, causal=bool(seed % 2), thresholds=limits)
            assert found == []


def test_a_growth_that_is_real_and_small_is_not_worth_a_word():
    query, key = np.random.default_rng(0).normal(size=(2, 3, 2, 200, 32))[:, :, None]
    query *= np.reshape([1, 1.3, 1.69], (-1, 1, 1, 1, 1))
    assert kinds(query, key, layers=True) == []
    assert kinds(query, key, layers=True, thresholds=Thresholds(growth=1.5)) == ["growing"]


# ---------------------------------------------------------------------------- something is wrong


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [4, 8, 64, 256])
def test_a_forgotten_scale_is_found_at_any_size(size, causal):
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 2, 4, 48, size))
        found = diagnose(query, key, scale=1.0, causal=causal).findings
        assert [finding.kind for finding in found if finding.kind != "clip"] == ["no-scale"]
        assert f"use 1/sqrt({size})" in found[0].message


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 3, 8, 32])
def test_the_scale_of_the_width_is_found_with_any_number_of_heads(heads, causal):
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 2, heads, 64, 16))
        found = diagnose(query, key, scale=1 / math.sqrt(heads * 16), causal=causal).findings
        assert [finding.kind for finding in found] == ["wrong-size"]
        assert f"1/sqrt({heads * 16}), that of the model's width" in found[0].message


def test_a_scale_that_is_right_for_its_arrays_is_not_called_wrong():
    """Queries that were scaled or normalised beforehand want a scale of 1."""
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 2, 4, 64, 16))
        assert kinds(query / 4, key, scale=1.0) == []
        assert kinds(query * 2, key, scale=1 / math.sqrt(4 * 16)) == []  # the width, and it fits


def test_a_scale_of_zero_is_named_and_not_the_queries():
    (finding,) = diagnose(*healthy(), scale=0.0).findings
    assert finding.kind == "uniform"
    assert "the scale is 0" in finding.message
    assert "use 1/sqrt(64)" in finding.message


def collapse(query, key, to=7):
    query[..., 0], key[..., to, 0] = 30.0, 60.0


def of_kind(kind, *arrays, **how):
    found = diagnose(*arrays, **how)
    (finding,) = (one for one in found.findings if one.kind == kind)
    return found, finding


def test_what_is_wrong_in_one_layer_is_found_there():
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 6, 2, 4, 64, 32))
        query[1, 1, 3] *= 1e-4
        collapse(query[4, :, 2], key[4, :, 2])
        found, finding = of_kind("collapsed", query, key, layers=True)
        assert finding.places == ((4, 0, 2), (4, 1, 2))
        assert finding.message.startswith("head 2 of layer 4: ")
        assert found.striking == (4, 0, 2)
        _, finding = of_kind("uniform", query, key, layers=True)
        assert finding.places == ((1, 1, 3),)
        assert finding.message.startswith("head 3 of layer 1, entry 1: ")


def test_what_is_wrong_in_one_entry_is_found_there():
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 3, 4, 80, 16))
        collapse(query[2, 1], key[2, 1])
        query[0, 3] *= 1e-4
        query[1, 0, :, 0], key[1, 0, 0, 0] = 6.0, 6.0
        for how in ({}, {"key_lengths": [80, 70, 60]}, {"mask": np.ones((3, 1, 1, 80), bool)}):
            found, finding = of_kind("collapsed", query, key, **how)
            assert (finding.places, found.striking) == (((2, 1),), (2, 1))
            assert finding.message.startswith("head 1 of entry 2: ")
            assert of_kind("uniform", query, key, **how)[1].places == ((0, 3),)
            assert of_kind("sink", query, key, **how)[1].places == ((1, 0),)
            assert found.heads[0].sinks == (0,)


def test_a_head_collapsed_on_another_key_in_each_entry_is_collapsed():
    query, key = np.random.default_rng(0).normal(size=(2, 3, 4, 80, 16))
    for entry in range(3):
        collapse(query[entry, 1], key[entry, 1], to=5 + 20 * entry)
    found, finding = of_kind("collapsed", query, key)
    assert finding.heads == (1,)
    assert finding.message.startswith("head 1: ")
    assert found.heads[1].one_key > 0.99
    assert "sink" not in [one.kind for one in found.findings]


@pytest.mark.parametrize("to", [0, 7, 25, 30])
def test_a_causal_head_is_collapsed_where_rows_can_see_the_key(to):
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, 4, 64, 32))
        collapse(query[2], key[2], to=to)
        found, finding = of_kind("collapsed", query, key, causal=True)
        assert finding.heads == (2,)
        assert "sink" not in [one.kind for one in found.findings]


def test_entries_of_one_row_are_judged_together():
    query = np.random.default_rng(0).normal(size=(40, 4, 1, 16))
    key = np.random.default_rng(1).normal(size=(40, 4, 50, 16))
    assert kinds(query, key) == []
    collapse(query[:, 2], key[:, 2])
    query[:, 3] *= 1e-4
    found, finding = of_kind("collapsed", query, key)
    assert (finding.heads, found.striking) == ((2,), (0, 2))
    assert finding.message.startswith("head 2: ")
    assert of_kind("uniform", query, key)[1].heads == (3,)
    assert kinds(query[:10], key[:10]) == ["clip"]  # too few rows, even together


def test_more_places_than_fit_a_line_are_counted_out():
    query, key = np.random.default_rng(0).normal(size=(2, 12, 3, 4, 20, 8))
    query[:, 0, 1] *= 1e-4
    message = of_kind("uniform", query, key)[1].message
    assert message.startswith("head 1 of entry 0, 0; entry 1, 0; entry 2, 0; and more: ")
    query[1:] *= 1e-4
    message = of_kind("uniform", query, key, layers=True)[1].message
    assert message.startswith("heads 0, 2, 3 of layers 1, 2, 3, 4, 5, 6, 7, 8 and more; head 1 of ")


@pytest.mark.parametrize(
    "factors",
    [1.3 ** np.arange(5), 1.15 ** np.arange(12), [1, 1.5, 2.2, 2.1, 3.3, 5, 7.5], [1, 3]],
    ids=["steady", "slow", "with a dip", "two layers"],
)
def test_growing_scores_are_found(factors):
    for seed in SEEDS:
        query, key = np.random.default_rng(seed).normal(size=(2, len(factors), 2, 4, 32, 16))
        query *= np.reshape(factors, (-1, 1, 1, 1, 1))
        found = diagnose(query, key, layers=True)
        assert [finding.kind for finding in found.findings] == ["growing"]
        assert found.layers[-1] > 2 * found.layers[0]


def test_one_odd_head_of_the_last_layer_is_no_growth():
    query, key = np.random.default_rng(0).normal(size=(2, 2, 1, 4, 64, 16))
    query[1, 0, 2] *= 20
    assert "growing" not in kinds(query, key, layers=True)


def test_a_softcap_does_the_work_of_a_clip():
    query, key = healthy()
    assert "clip" in kinds(60 * query, key)
    assert "clip" not in kinds(60 * query, key, softcap=30.0)


def test_the_place_of_arrays_without_heads_is_their_only_one():
    query, key = healthy(heads=1)
    found = diagnose(1e-3 * query[0], key[0])
    assert (found.striking, found.findings[0].places) == ((), ((),))
    assert found.findings[0].message.startswith("head 0: ")


def test_the_table_has_all_columns():
    query, key = healthy()
    found = diagnose(60 * query, key)
    head, first = (line.split() for line in str(found).splitlines()[:2])
    assert head == ["head", *(column.name for column in diagnosis.COLUMNS)]
    assert first == ["0", *(column.cell(found.heads[0]) for column in diagnosis.COLUMNS)]
    assert "nan" not in str(diagnose(query * np.nan, key))
    assert json.loads(json.dumps(found.to_dict()))["findings"][0]["places"] == []


def test_explain_at_the_shell(capsys, tmp_path):
    query, key = healthy()
    file = tmp_path / "in.npz"
    np.savez(file, query=query, key=key, value=key)
    code, out, _ = run(capsys, "explain", file)
    assert code == 0
    assert out == f"{diagnose(query, key)}\n"
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = run(capsys, "explain", file, "--scale", 1, "--json")
    assert code == 0
    assert json.loads(out)["findings"][0]["kind"] == "no-scale"
    code, _, err = run(capsys, "explain", tmp_path / "none.npz")
    assert code == 2
    assert "no such file" in err
