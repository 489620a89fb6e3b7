"""Pictures by structure: what is drawn is what was asked for, and the labels say what it is."""

import re
from io import StringIO
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure

from scaledot import attention, histograms, observe, plots, views
from scaledot.plots import drawing, files, scale
from scaledot.scaling import study, train

SEEN = ("entropy", "max_weight", "received")
WORDS = ("the", "rat", "that", "ate", "the", "malt", "that", "lay", "in", "the", "house")


def draw(*shape, n=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


def panels(n, size=(6.0, 4.0)):
    return list(Figure(figsize=size, layout="constrained").subplots(1, n, squeeze=False)[0])


def cells_of(ax):
    (image,) = ax.get_images()
    return image.get_array()


def names_on(axis):
    """The names that are drawn on an axis, at their places; none touches another."""
    axis.axes.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in shown]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    return {int(tick.get_loc()): tick.label1.get_text() for tick in shown}


def colour_label(ax):
    (bar,) = (other for other in ax.figure.axes if other.get_label() == "<colorbar>")
    return bar.get_ylabel().replace("\n", " ")


# -------------------------------------------------------------------------------------- weights


def test_a_heat_map_is_the_weights():
    query, key = draw(3, 6, 4)
    found = attention(query, key, key, causal=True)
    for result in (found, found.weights, views.view_weights(query, key, causal=True)):
        ax = plots.weights(result, head=1)
        np.testing.assert_allclose(cells_of(ax), found.weights[1], rtol=1e-12, atol=1e-15)
        assert (ax.get_xlabel(), ax.get_ylabel(), colour_label(ax)) == ("key", "query", "weight")
        assert ax.get_images()[0].get_extent() == [-0.5, 5.5, 5.5, -0.5]
        assert ax.get_xlim() == (-0.5, 5.5)
        assert ax.get_ylim() == (5.5, -0.5)  # the first query is on top
    (given,) = panels(1)
    assert plots.weights(found.weights[0], given) is given


@pytest.mark.parametrize("dpi", [50, 100, 300])
def test_weights_beyond_the_pixels_share_cells(dpi):
    weights = np.random.default_rng(0).dirichlet(np.ones(1001), size=703)
    (ax,) = panels(1, (3.0, 2.0))
    ax.figure.set_dpi(dpi)
    plots.weights(weights, ax)
    cells = cells_of(ax)
    rows, columns = (-(-n // m) for n, m in zip((703, 1001), cells.shape, strict=True))
    assert colour_label(ax) == f"weight given to {columns} keys, mean of {rows} queries"
    np.testing.assert_allclose(cells.sum(axis=1), 1)
    np.testing.assert_allclose(cells[0, 0], weights[:rows, :columns].sum(axis=1).mean())
    ax.figure.set_dpi(100)
    ax.figure.draw_without_rendering()
    box = ax.get_window_extent()
    assert cells.shape[0] <= box.height
    assert cells.shape[1] <= box.width
    assert ax.get_images()[0].get_extent()[1] == cells.shape[1] * columns - 0.5
    assert ax.get_xlim() == (-0.5, 1000.5)  # the last cell is cut to the keys it has


def test_a_heat_map_of_its_own_shows_what_a_view_holds():
    view = views.view_weights(*draw(700, 4))
    ax = plots.weights(view)
    assert colour_label(ax) == view.label == "weight given to 2 keys, mean of 2 queries"
    look = views.overview(*draw(700, 4))
    assert cells_of(plots.overview(look)[4]).shape == look.weights.cells.shape == (350, 350)


def test_tokens_are_named_where_they_stand():
    n = len(WORDS)
    query, key = draw(n, 4)
    ax = plots.weights(attention(query, key, key), queries=WORDS, keys=WORDS)
    assert names_on(ax.xaxis) == names_on(ax.yaxis) == dict(enumerate(WORDS))
    many = [f"{WORDS[i % n]}{i}" for i in range(300)]
    (small,) = panels(1, (3.0, 2.5))
    plots.weights(np.full((300, 300), 1 / 300), small, queries=many, keys=many)
    for axis in (small.xaxis, small.yaxis):
        shown = names_on(axis)
        assert 3 <= len(shown) < 30
        assert all(many[place] == name for place, name in shown.items())


def test_names_are_no_formulas_and_short():
    names = ["$x$", "a\nb", "x" * 99, "\\$", "$"]
    ax = plots.weights(np.eye(5), keys=names)
    assert list(names_on(ax.xaxis).values()) == [
        r"\$x\$", "a\\nb", "x" * 17 + "…", r"\\$", r"\$",
    ]  # fmt: skip
    for suffix in ("png", "svg"):
        ax.figure.savefig(StringIO() if suffix == "svg" else "/dev/null", format=suffix)


def test_heads_side_by_side_share_their_colours():
    weights = attention(*draw(2, 3, 5, 4, n=3)).weights
    axes = plots.weights_by_head(weights)
    assert len(axes) == 6
    assert [ax.get_title() for ax in axes] == [
        f"head {h} of entry {b}" for b, h in np.ndindex(2, 3)
    ]
    for ax, head in zip(axes, weights.reshape(6, 5, 5), strict=True):
        np.testing.assert_allclose(cells_of(ax), head)
        assert ax.get_images()[0].norm.vmax == weights.max()
    assert colour_label(axes[0]) == "weight"
    given = panels(3)
    assert plots.weights_by_head(weights[0], given) == given
    assert [ax.get_title() for ax in given] == ["head 0", "head 1", "head 2"]
    with pytest.raises(ValueError, match="`ax` must be 3 Axes, one for each panel, got 2"):
        plots.weights_by_head(weights[0], given[:2])
    assert plots.weights_by_head(weights[:0]) == []


def test_what_is_nan_is_hatched_and_said():
    weights = np.full((4, 4), 0.25)
    weights[1] = np.nan
    ax = plots.weights(weights)
    assert ax.patch.get_hatch()
    assert cells_of(ax).mask[1].all()
    assert colour_label(ax) == "weight; hatched: NaN"
    assert not plots.weights(np.eye(4)).patch.get_hatch()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (1, 500), (500, 1)])
def test_heat_maps_of_little(shape):
    ax = plots.weights(np.ones(shape))
    ax.figure.draw_without_rendering()
    assert len(ax.get_images()) == 1


def test_colours_read_in_grey():
    colours = colormaps[drawing.COLOURS](np.linspace(0, 1, 256))[:, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    lightness = np.cbrt(linear @ [0.2126, 0.7152, 0.0722])  # CIE 1976 L*, but for a line's factors
    steps = np.diff(lightness)
    assert (steps > 0).all()
    assert steps.std() < 0.25 * steps.mean()  # the same step everywhere
    assert len({style["marker"] for style in drawing.STYLES}) == len(drawing.STYLES)


# ------------------------------------------------------------------------------- rows and keys


def test_entropy_and_largest_weight_of_each_head():
    query, key = draw(3, 40, 8)
    query[1, 7] = np.nan
    mask = np.ones((40, 40), bool)
    mask[3] = False
    seen = observe(query, key, mask=mask, statistics=SEEN)
    given = panels(2)
    axes = plots.concentration(seen, given)
    assert axes == given
    assert [ax.get_ylabel() for ax in axes] == ["entropy, nats (at most 3.69)", "largest weight"]
    keep = np.ones((3, 40), bool)
    keep[:, 3] = keep[1, 7] = False
    for ax, name in zip(axes, ("entropy", "max_weight"), strict=True):
        assert ax.get_xlabel() == "head"
        rows = [x[k] for x, k in zip(getattr(seen, name), keep, strict=True)]
        median = ax.get_lines()[0]
        assert median.get_xdata().tolist() == [0, 1, 2]
        np.testing.assert_allclose(median.get_ydata(), [np.median(x) for x in rows])
        half, whole = ax.collections
        np.testing.assert_allclose(
            [part[:, 1] for part in half.get_segments()],
            [np.percentile(x, (25, 75)) for x in rows],
        )
        np.testing.assert_allclose(
            [part[:, 1] for part in whole.get_segments()], [(x.min(), x.max()) for x in rows]
        )
        names = [text.get_text() for text in ax.get_legend().get_texts()]
        assert names == ["median", "half of the rows", "all of them"]
    assert axes[0].get_lines()[1].get_ydata()[0] == pytest.approx(np.log(40))
    plain = plots.concentration(observe(query, key))
    assert plain[0].get_ylabel() == "entropy, nats"
    assert len(plain[0].get_lines()) == 1


def test_heads_of_batches_are_taken_together():
    query, key = draw(4, 2, 30, 8)
    seen = observe(query, key, statistics=SEEN)
    axes = plots.concentration(seen)
    np.testing.assert_allclose(
        axes[0].get_lines()[0].get_ydata(), np.median(seen.entropy, axis=(0, 2))
    )
    ax = plots.received(seen)
    for line, mass in zip(ax.get_lines(), seen.received.sum(axis=0), strict=True):
        np.testing.assert_allclose(line.get_ydata(), mass)


@pytest.mark.parametrize("heads", [1, 4, 5])
def test_received_weight_of_each_head(heads):
    query, key = draw(heads, 12, 8)
    seen = observe(query, key, statistics="received")
    (given,) = panels(1)
    ax = plots.received(seen, given, keys=[f"t{i}" for i in range(12)])
    assert ax is given
    assert ax.get_xlabel() == "key (sums over all queries)"
    assert names_on(ax.xaxis)[0] == "t0"
    if heads <= 4:
        assert ax.get_ylabel() == "weight received"
        lines = [line.get_ydata() for line in ax.get_lines()]
        assert [line.get_label() for line in ax.get_lines()] == [f"head {n}" for n in range(heads)]
        np.testing.assert_allclose(lines, seen.received)
        assert (ax.get_legend() is None) == (heads == 1)
    else:
        assert ax.get_ylabel() == "head"
        assert colour_label(ax) == "weight received"
        np.testing.assert_allclose(cells_of(ax), seen.received)


@pytest.mark.parametrize("heads", [2, 6])
def test_keys_beyond_the_pixels_are_taken_together(heads):
    seen = observe(*draw(heads, 3001, 2), statistics="received")
    ax = plots.received(seen)
    step = int(ax.get_xlabel().removeprefix("key (sums over all queries, means of ").split()[0])
    assert step > 1
    drawn = cells_of(ax) if heads == 6 else [line.get_ydata() for line in ax.get_lines()]
    assert np.shape(drawn)[1] == -(-3001 // step)
    assert 3001 % step  # the last has fewer keys
    for place, keys in ((0, slice(step)), (-1, slice(-(3001 % step), None))):
        want = seen.received[:, keys].mean(axis=1)
        np.testing.assert_allclose(np.array(drawn)[:, place], want)
    if heads == 2:
        assert ax.get_lines()[0].get_xdata()[:2].tolist() == [(step - 1) / 2, step + (step - 1) / 2]


@pytest.mark.parametrize("scale", [0.125, 1.0, -0.5, 0.0])
def test_scores_before_and_after_the_scale(scale):
    seen = histograms.score_histogram(*draw(4, 100, 16), scale=scale, bins=20)
    (given,) = panels(1)
    ax = plots.scores(seen, given)
    assert ax is given
    assert ax.get_xlabel() == "product\nall 400 rows, 40,000 products"
    assert (ax.get_ylabel(), ax.get_yscale()) == ("density", "log")
    drawn = [stairs.get_data() for stairs in ax.patches]
    assert len(drawn) == (2 if scale else 1)
    for data, factor in zip(drawn, (1, scale), strict=False):
        assert np.sum(data.values * np.diff(data.edges)) == pytest.approx(1)
        assert sorted(data.edges) == list(data.edges)
        assert np.ptp(data.edges) == pytest.approx(np.ptp(seen.edges) * abs(factor))
    label = ax.get_legend().get_texts()[0].get_text()
    assert label == f"query · key: spread {seen.std:.3g}"
    if scale:
        label = ax.get_legend().get_texts()[1].get_text()
        assert label == f"times the scale {scale:.4g}: spread {abs(scale) * seen.std:.3g}"


def test_no_scores_at_all():
    ax = plots.scores(histograms.score_histogram(*draw(0, 4)))
    ax.figure.draw_without_rendering()
    assert len(ax.patches) == 0


def test_an_overview_has_five_panels():
    look = views.overview(*draw(2, 6, 30, 8), head=(1, 3), causal=True)
    axes = plots.overview(look)
    assert [ax.get_ylabel() for ax in axes] == [
        "density", "entropy, nats (at most 3.40)", "largest weight", "head", "query",
    ]  # fmt: skip
    assert axes[4].get_title() == "head 3 of entry 1"
    np.testing.assert_array_equal(cells_of(axes[4]), look.weights.cells)
    given = panels(5)
    assert plots.overview(look, given) == given
    with pytest.raises(ValueError, match="`ax` must be 5 Axes"):
        plots.overview(look, given[:4])


# ---------------------------------------------------------------------------- axes of a caller


def drawings():
    """Each function with a result: its name, its panels, and how to draw on given axes."""
    query, key = draw(3, 30, 8)
    query[1, 7] = np.nan
    seen = observe(query, key, statistics=SEEN)
    weights = attention(query, key, key, causal=True).weights
    return {
        "weights": (1, lambda ax: plots.weights(weights, ax, head=2)),
        "weights_by_head": (3, lambda ax: plots.weights_by_head(weights, ax)),
        "concentration": (2, lambda ax: plots.concentration(seen, ax)),
        "received": (1, lambda ax: plots.received(seen, ax)),
        "scores": (1, lambda ax: plots.scores(histograms.score_histogram(query, key), ax)),
        "study": (4, lambda ax: plots.study(study(dims=(4, 16), n_pairs=50, n_keys=8), ax)),
        "training": (1, lambda ax: plots.training(train(d=4, steps=30), ax)),
        "overview": (5, lambda ax: plots.overview(views.overview(query, key), ax)),
    }


DRAWINGS = drawings()


def test_every_picture_is_tried_on_axes_of_a_caller():
    assert set(DRAWINGS) == set(plots.__all__) - {"save"}


@pytest.mark.parametrize("layout", ["constrained", "tight", None])
@pytest.mark.parametrize("name", DRAWINGS)
def test_any_layout_keeps_what_is_beside_an_axes_off_its_neighbours(name, layout):
    n, on = DRAWINGS[name]
    figure = Figure(figsize=(16, 9), layout=layout)
    axes = figure.subplots(2, 3)
    for ax in axes.flat:
        ax.set(xlabel="x", ylabel="y")
    chosen = axes.flat[:n] if n > 1 else axes[0, 0]
    drawn = on(chosen)
    assert (list(drawn) if n > 1 else [drawn]) == list(axes.flat[:n])
    figure.draw_without_rendering()  # a layout that cannot hold what is drawn warns
    if layout is None:
        return
    bars = [ax for ax in [*figure.axes, *axes.flat[n - 1].child_axes] if ax not in set(axes.flat)]
    assert bool(bars) == name.startswith(("weights", "overview"))
    for bar in bars:
        box = bar.get_tightbbox()
        assert not any(box.overlaps(ax.get_window_extent()) for ax in axes.flat)


def test_axes_are_taken_from_arrays_lists_of_lists_and_mosaics():
    weights = np.full((6, 4, 4), 0.25)
    figure = Figure(layout="constrained")
    square = figure.subplots(2, 3)
    want = list(square.flat)
    assert plots.weights_by_head(weights, square) == want
    assert plots.weights_by_head(weights, square.tolist()) == want
    assert plots.weights_by_head(weights[0], want[0]) == want[:1]
    assert plots.weights(weights[0], square[:1, :1]) is want[0]
    mosaic = Figure().subplot_mosaic("AB")
    assert plots.weights_by_head(weights[:2], list(mosaic.values())) == list(mosaic.values())


def test_a_subfigure_is_drawn_on_and_saved_with_its_figure(tmp_path):
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subfigures(1, 2)
    axes = right.subplots(1, 2)
    assert plots.weights(np.full((700, 700), 1 / 700), axes[0]) is axes[0]
    axes[1].remove()
    plots.weights_by_head(np.full((2, 3, 3), 1 / 3), left.subplots(1, 2))
    for name, ax in (("one", axes[0]), ("several", left.axes[:2])):
        plots.save(ax, tmp_path / f"{name}.svg")
        text = (tmp_path / f"{name}.svg").read_text("utf-8")
        assert 'viewBox="0 0 576 216"' in text  # 8 × 3 inches: the whole of it
        assert text.count("<image") == 5  # three maps and two bars


def test_only_pictures_that_are_named_are_written(tmp_path):
    ax = plots.weights(np.eye(3))
    for wrong in ("x.gif", "x", "x.svgz"):
        with pytest.raises(ValueError, match=r"unknown kind of picture .*: png, svg, pdf"):
            plots.save(ax, tmp_path / wrong)
    plots.save(ax, tmp_path / "draft", ".SVG")
    assert [file.name for file in tmp_path.iterdir()] == ["draft"]
    assert (tmp_path / "draft").read_text("utf-8").startswith("<?xml")


# ------------------------------------------------------------------------------- what is said


def test_few_rows_far_beyond_all_others_do_not_leave_them_in_the_dark():
    n = 400
    causal = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    ax = plots.weights(causal[:, :n])
    cells, norm = cells_of(ax), ax.get_images()[0].norm
    peaks = cells.max(axis=1)
    assert (peaks > norm.vmax).mean() <= drawing.FEW_ROWS
    assert norm(peaks[-1]) > 0.25  # the lightest of the last row; 1 is the lightest there is
    assert colour_label(ax).endswith(f"; colours end at {norm.vmax:.3g}")
    assert ax.get_images()[0].colorbar.extend == "max"
    both = np.stack([causal, causal])
    assert plots.weights_by_head(both)[1].get_images()[0].norm.vmax < 0.2


@pytest.mark.parametrize(
    "weights",
    [
        np.eye(400),
        np.full((400, 400), 1 / 400),
        np.eye(400)[np.zeros(400, int)],  # one key takes all
        np.tril(np.ones((20, 20))) / np.arange(1, 21)[:, None],
        np.where(np.arange(400)[:, None] < 380, np.nan, np.eye(400)),
        np.where(np.arange(400)[:, None] < 380, 0, np.eye(400)),  # most rows see no key
    ],
    ids=["diagonal", "even", "sink", "few", "NaN", "hidden"],
)
def test_colours_go_to_the_largest_weight_where_it_is_no_exception(weights):
    ax = plots.weights(weights)
    image = ax.get_images()[0]
    assert image.norm.vmax == np.ma.max(cells_of(ax))
    assert image.colorbar.extend == "neither"
    assert "colours end" not in colour_label(ax)


def test_the_head_that_was_chosen_is_the_title():
    weights = np.full((2, 3, 4, 4), 0.25)
    assert plots.weights(weights, head=(1, -1)).get_title() == "head 2 of entry 1"
    assert plots.weights(weights[0], head=1).get_title() == "head 1"
    assert plots.weights(weights[0, 0]).get_title() == ""


def test_received_weight_that_is_nan_is_said():
    query, key = draw(3, 20, 8)
    query[1] = np.nan
    query[2, 4] = np.nan
    seen = observe(query, key, causal=True, statistics="received")
    ax = plots.received(seen)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["head 0", "head 1 (NaN at 20 keys)", "head 2 (NaN at 5 keys)"]
    (alone,) = plots.received(observe(query[1], key[1], statistics="received")).get_legend().texts
    assert alone.get_text() == "head 0 (NaN at 20 keys)"
    many = observe(
        np.concatenate([query, query]), np.concatenate([key, key]), statistics="received"
    )
    assert colour_label(plots.received(many)) == "weight received; hatched: NaN"


def test_a_sample_says_how_its_rows_were_drawn():
    seen = histograms.score_histogram(*draw(2, 300, 4), rows=50, rng=3)
    label = "50 of 600 rows, drawn by seed 3; 15,000 products"
    assert plots.scores(seen).get_xlabel() == f"product\n{label}"
    (small,) = panels(1, (3.0, 3.0))
    assert plots.scores(seen, small).get_xlabel() == "product\n" + label.replace("; ", ";\n")


def test_a_study_of_scales_of_one_name_has_a_line_for_each():
    def _half(d):
        return 0.5

    scales = (_half, lambda d: 1 / d, "none", lambda d: 2.0)
    found = study(dims=(16, 4, 64), n_pairs=50, n_keys=8, scales=scales)
    for axes in (plots.study(found), plots.study(found, panels(4))):
        for ax, (field, _) in zip(axes, scale.PANELS, strict=True):
            for place, line in enumerate(ax.get_lines()):
                assert line.get_xdata().tolist() == [16, 4, 64]
                want = [getattr(row, field) for row in found.rows[place::4]]
                assert line.get_ydata().tolist() == want
        legend = axes[0].get_legend() or axes[0].figure.legends[0]
        assert [text.get_text() for text in legend.get_texts()] == [
            "scale _half", "scale <lambda> (1)", "scale none", "scale <lambda> (2)",
        ]  # fmt: skip


def test_sizes_are_written_out_and_the_legend_hides_nothing():
    found = study(n_pairs=50, n_keys=8)
    axes = plots.study(found, panels(4, (11, 3)))
    figure = axes[0].figure
    figure.draw_without_rendering()
    for ax in axes:
        assert list(names_on(ax.xaxis)) == [4, 16, 64, 256, 1024]
        assert list(names_on(ax.xaxis).values()) == ["4", "16", "64", "256", "1024"]
    legend = axes[0].get_legend().get_window_extent()
    assert not any(legend.overlaps(ax.get_window_extent()) for ax in axes)
    assert all("$" not in tick.get_text() for tick in axes[0].get_yticklabels())


def test_the_legend_of_a_training_names_what_is_faint():
    ax = plots.training(train(d=4, steps=30))
    legend = ax.get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    faint = legend.legend_handles[names.index("each step by itself")]
    assert faint.get_alpha() == ax.get_lines()[0].get_alpha() < 1
    assert "means of 21 steps" in ax.get_ylabel()
    ax.figure.draw_without_rendering()
    assert not legend.get_window_extent().overlaps(ax.get_window_extent())


# ---------------------------------------------------------------------------------- in a page


def test_pictures_of_a_page_share_no_name_and_take_its_ink():
    view = views.view_weights(*draw(30, 4))
    texts = [files.inline_svg(plots.weights(view), name, 'a < "b"') for name in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in texts]
    assert ids[0].isdisjoint(ids[1])
    for text, own, name in zip(texts, ids, ("one", "two"), strict=True):
        used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
        assert used
        assert used <= own
        assert all(one.startswith(f"{name}-") for one in own)
        assert text.startswith('<svg role="img" aria-label="a &lt; &quot;b&quot;"')
        assert "#000000" not in text
        assert "#ffffff" not in text
        assert ">query</text>" in text
    assert texts[0] == files.inline_svg(plots.weights(view), "one", 'a < "b"')
