"""The effect of the scale: the study, the training, their pictures, and the shell."""

import json
import math
import sys

import numpy as np
import pytest

from scaledot import cli, cli_scale, plots
from scaledot.plots import scale
from scaledot.scaling import Thresholds, diagnose, study, train


def test_the_study_draws_as_the_lesson_does():
    found = study(dims=(4, 1024), rng=0, n_keys=8, scales=("none", "1/sqrt(d)"))
    spreads = [(row.d, round(row.spread, 1)) for row in found]
    assert spreads == [(4, 2.0), (4, 1.0), (1024, 32.0), (1024, 1.0)]
    rng = np.random.default_rng(0)
    for d, row in zip((4, 1024), found.rows[::2], strict=True):
        query, key = rng.normal(size=(2, 10_000, d))
        assert row.spread == pytest.approx(np.std((query * key).sum(-1)), rel=1e-12)


def test_theory_is_measured_at_every_size():
    for row in study(dims=(1, 3, 64, 500), n_pairs=4000, n_keys=32):
        factor = {"none": 1, "1/sqrt(d)": 1 / math.sqrt(row.d), "1/d": 1 / row.d}[row.scale]
        assert row.factor == pytest.approx(factor)
        assert row.predicted == pytest.approx(factor * math.sqrt(row.d))
        assert row.spread == pytest.approx(row.predicted, rel=0.06)
        assert row.entropy_share == pytest.approx(row.entropy / math.log(32))
        assert 1 <= row.effective_keys <= 32
        assert 1 / 32 <= row.max_weight <= 1


def test_large_scores_pile_the_softmax_on_one_key_and_the_gradient_dies():
    none, scaled = (
        [row for row in study(dims=(64, 256, 1024), n_pairs=2000) if row.scale == name]
        for name in ("none", "1/sqrt(d)")
    )
    for field, sign in (("entropy", -1), ("max_weight", 1), ("jacobian_norm", -1)):
        assert np.all(sign * np.diff([getattr(row, field) for row in none]) > 0)
        values = np.array([getattr(row, field) for row in scaled])
        assert np.ptp(values) < 0.05 * values.mean()
    assert none[-1].saturated > 0.5 > scaled[-1].saturated == 0


def test_a_scale_of_ones_own():
    def half(d):
        return 0.5

    (row,) = study(dims=(16,), scales=(half,), n_pairs=500, n_keys=4)
    assert (row.scale, row.factor, row.predicted) == ("half", 0.5, 2.0)


def test_the_study_in_words_and_in_json():
    found = study(dims=(4, 1024), n_pairs=200, n_keys=4)
    lines = str(found).splitlines()
    assert len(lines) == 7
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split()[:4] == ["d", "scale", "spread", "theory"]
    again = json.loads(json.dumps(found.to_dict()))
    assert again["rows"][0] == found.rows[0]._asdict()
    assert again["n_keys"] == 4
    assert study(dims=(4, 1024), n_pairs=200, n_keys=4) == found
    other = study(dims=(4, 1024), n_pairs=200, n_keys=7)  # keys do not disturb the pairs
    assert [row.spread for row in other] == [row.spread for row in found]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dims": (0,)}, ValueError, "`dims` must be at least 1, got 0"),
        ({"dims": (4.0,)}, TypeError, "`dims` must be an int, got float"),
        ({"n_pairs": 0}, ValueError, "`n_pairs` must be at least 1"),
        ({"n_keys": True}, TypeError, "`n_keys` must be an int"),
        ({"scales": ("sqrt",)}, ValueError, "unknown scale 'sqrt'.*valid are: none"),
        ({"scales": (lambda d: math.inf,)}, ValueError, "must be finite"),
    ],
)
def test_what_a_study_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        study(**({"dims": (4,), "n_pairs": 10} | arguments))


def test_without_the_scale_training_locks():
    found = train()
    assert found.scaled.loss[-20:].mean() < 0.1
    assert found.unscaled.loss[-20:].mean() > 1  # worse than weighing all keys alike
    assert found.unscaled.max_weight[:20].mean() > 0.95 > found.scaled.max_weight[:20].mean()
    again = train()
    np.testing.assert_array_equal(again.unscaled.loss, found.unscaled.loss)
    assert len(str(found).splitlines()) == 11
    assert json.loads(json.dumps(found.to_dict()))["unscaled"]["loss"] == list(found.unscaled.loss)
    with pytest.raises(ValueError, match="`steps` must be at least 1"):
        train(steps=0)


def test_a_short_training_prints_too():
    assert len(str(train(d=4, steps=3)).splitlines()) == 4


# -------------------------------------------------------------------------------------- pictures


def test_the_panels_of_a_study():
    found = study(dims=(4, 16), n_pairs=100, n_keys=8)
    axes = plots.study(found)
    assert len(axes) == 4
    for ax, (field, label) in zip(axes, scale.PANELS, strict=True):
        assert ax.get_xlabel() == "size d of the vectors"
        assert ax.get_ylabel().startswith(label)
        lines = ax.get_lines()
        assert [line.get_label() for line in lines] == [
            "scale none",
            "scale 1/sqrt(d)",
            "scale 1/d",
        ]
        for number, line in enumerate(lines):
            np.testing.assert_array_equal(line.get_xdata(), [4, 16])
            want = [getattr(row, field) for row in found.rows[number::3]]
            np.testing.assert_array_equal(line.get_ydata(), want)
    again = plots.study(found, ax=axes)
    assert again == axes
    with pytest.raises(ValueError, match="must be 4 Axes"):
        plots.study(found, ax=axes[:2])


def test_the_curves_of_a_training():
    found = train(d=4, steps=30)
    ax = plots.training(found)
    assert ax.get_xlabel() == "step (d = 4, learning rate 10)"
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["without scale", "1/sqrt(d)", "each step by itself"]
    raw = [line.get_ydata() for line in ax.get_lines()]
    np.testing.assert_array_equal(raw[0], found.unscaled.loss)
    smooth = [np.mean(found.unscaled.loss[max(0, i - 10) : i + 11]) for i in range(30)]
    np.testing.assert_allclose(raw[1], smooth)
    assert plots.training(found, ax=ax) is ax


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_is_the_same_file_twice(tmp_path, suffix):
    found = study(dims=(4,), n_pairs=50, n_keys=4)
    for name in ("one", "two"):
        plots.save(plots.study(found)[0], tmp_path / (name + suffix))
    one, two = (tmp_path.joinpath(name + suffix).read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 1000


# ------------------------------------------------------------------------------------- the shell


def run(capsys, *arguments):
    code = cli.shell([str(x) for x in arguments])
    return code, *capsys.readouterr()


def test_scaling_at_the_shell(capsys, tmp_path):
    code, out, err = run(capsys, "scaling", "--dims", 4, 1024, "--pairs", 300, "--keys", 8)
    assert (code, err) == (0, "")
    want = study(dims=(4, 1024), n_pairs=300, n_keys=8)
    assert out == f"{want}\n"
    picture = tmp_path / "study.svg"
    code, out, _ = run(capsys, "scaling", 4, "--pairs", 50, "--json", "--plot", picture)
    assert code == 0
    assert json.loads(out)["study"]["rows"][0]["d"] == 4
    assert picture.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    code, out, _ = run(capsys, "scaling", 4, "--pairs", 50, "--train", "--plot", picture)
    assert code == 0
    assert "training, d = 1024" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dims"], "--dims needs at least one size"),
        (["--dims", 0], "`dims` must be at least 1, got 0"),
        (["4", "--pairs", 0], "`n_pairs` must be at least 1"),
        (["4", "--plot", "x.gif"], "--plot must name a .png or .svg or .pdf file, got x.gif"),
        (["4", "--plot", "no/where.png"], "cannot write no/where.png"),
    ],
)
def test_what_scaling_refuses_at_the_shell(capsys, arguments, message):
    code, _, err = run(
        capsys, "scaling", *arguments, *([] if "--pairs" in arguments else ["--pairs", 9])
    )
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_plots_need_matplotlib(capsys, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ModuleNotFoundError, match=r'pip install "scaledot\[plots\]"'):
            plots.study(study(dims=(4,), n_pairs=9))
    monkeypatch.setattr(cli_scale, "find_spec", lambda name: None)
    code, _, err = run(capsys, "scaling", 4, "--plot", "x.png")
    assert code == 2
    assert 'pip install "scaledot[plots]"' in err


# ----------------------------------------------------------------------------------- diagnosis


def healthy(heads=4, n=120, size=64, seed=0):
    return np.random.default_rng(seed).normal(size=(2, heads, n, size))


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
    assert nothing.findings == ()
    assert diagnose(query[:, :0], key).findings == ()


def test_dead_and_unsound_arrays_are_not_called_healthy():
    query, key = healthy()
    for dead in (diagnose(0 * query, key), diagnose(query, key[:, :1] + 0 * key)):
        assert [finding.kind for finding in dead.findings] == ["uniform"]
        assert dead.suggested_scale is None
    assert "would bring" not in str(dead)
    assert [f.kind for f in diagnose(query * np.nan, key).findings] == ["not-finite"]
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
