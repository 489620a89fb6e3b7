"""The effect of the scale: the study, the training, their pictures, and the shell."""

import json
import math
import sys

import numpy as np
import pytest

from scaledot import cli, cli_scale, plots
from scaledot.plots import scale
from scaledot.scaling import study, train


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


def test_without_the_scale_training_locks():
    found = train()
    scaled, unscaled = found.scaled, found.unscaled
    assert scaled.loss[-20:].mean() < 0.1
    assert unscaled.loss[-20:].mean() > 1  # worse than weighing all keys alike
    assert unscaled.max_weight[0] > 0.95 > 0.5 > scaled.max_weight[0]
    assert unscaled.spread[0] == pytest.approx(32 * scaled.spread[0])
    assert unscaled.jacobian_norm[0] < 0.2 * scaled.jacobian_norm[0]
    # The rows that are not yet one-hot drive the scores apart, and what is left of it dies.
    assert unscaled.spread[-20:].mean() > 5 * unscaled.spread[0]
    assert unscaled.jacobian_norm[-20:].mean() < 0.5 * unscaled.jacobian_norm[0]
    again = train()
    np.testing.assert_array_equal(again.unscaled.loss, found.unscaled.loss)
    assert len(str(found).splitlines()) == 11
    assert all(len(line) <= 80 for line in str(found).splitlines())
    assert json.loads(json.dumps(found.to_dict()))["unscaled"]["loss"] == list(found.unscaled.loss)


def test_the_lock_is_one_of_the_learning_rate():
    """At a tenth of the rate the model without the scale learns, if not as well as the other."""
    rates = {rate: train(d=256, learning_rate=rate) for rate in (1.0, 10.0, 30.0)}
    scaled, unscaled = (
        {rate: getattr(found, name).loss[-20:].mean() for rate, found in rates.items()}
        for name in ("scaled", "unscaled")
    )
    assert unscaled[1.0] < 0.3 < 1 < min(unscaled[10.0], unscaled[30.0])
    assert max(scaled[10.0], scaled[30.0]) < 0.1
    assert min(scaled.values()) < 0.5 * min(unscaled.values())


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
        (["--dims", 0], "--dims takes whole numbers of at least 1, such as 4 64 1024; got '0'"),
        (["--dims", "x"], "--dims takes whole numbers of at least 1, such as 4 64 1024; got 'x'"),
        (["4", "--pairs", 0], "Invalid value for '--pairs'"),
        (["4", "--seed", -1], "Invalid value for '--seed'"),
        (["4", "--keys", "x"], "see `scaledot scaling --help`"),
        (["4", "--plot", "x.gif"], "--plot must name a .png or .svg or .pdf file, got x.gif"),
        (["4", "--plot", "no/where.png"], "cannot write no/where.png"),
    ],
)
def test_what_scaling_refuses_at_the_shell(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(cli_scale.scaledot.scaling, "study", None)  # nothing is computed
    code, out, err = run(capsys, "scaling", *arguments)
    assert (code, out) == (2, "")
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
