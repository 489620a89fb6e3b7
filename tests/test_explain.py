"""`scaledot explain` at the shell: what it says, draws and writes to a page."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from scaledot import cli, cli_scale, plots, report, slices, views
from scaledot.scaling import diagnose


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shell(capsys):
    """Run one command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        code = cli.shell([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def save(name="in.npz", heads=3, n=40, size=16, **more):
    query, key = np.random.default_rng(0).normal(size=(2, heads, n, size))
    np.savez(name, **{"query": query, "key": key, "value": key} | more)
    return query, key


def names():
    return sorted(path.name for path in Path().iterdir())


class Page(HTMLParser):
    """The elements of a page, (tag, attributes), and its text outside of pictures and style."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.inside = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("style", "svg"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text += data

    def all(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]


# ------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_picture_beside_the_words(shell, suffix, start):
    query, key = save()
    code, out, err = shell("explain", "in.npz", "--plot", f"out.{suffix}")
    assert (code, out, err) == (0, f"{diagnose(query, key)}\n", "")
    assert Path(f"out.{suffix}").read_bytes().startswith(start)
    assert names() == ["in.npz", f"out.{suffix}"]


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, in place of the files."""
    looks = []
    overview = plots.overview
    monkeypatch.setattr(plots, "overview", lambda look: looks.append(look) or overview(look))
    return looks


@pytest.mark.parametrize("scores", [50, 2**22])
def test_what_is_drawn_is_what_the_library_sees(shell, monkeypatch, drawn, scores):
    monkeypatch.setattr(slices, "SCORES_A_SLICE", scores)
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 4, 30, 8)), rng.normal(size=(2, 2, 50, 8))
    query[:, 3] *= 5
    more = {"mask": rng.random((30, 50)) < 0.7, "key_lengths": np.array([50, 31])}
    save(query=query, key=key, value=key, **more)
    flags = ("--causal", "--query-offset", "9", "--window", "20", "0", "--plot", "out.png")
    code, out, _ = shell("explain", "in.npz", *flags)
    how = {"causal": True, "query_offset": 9, "window": (20, 0)} | more
    found = diagnose(query, key, **how)
    assert (code, out) == (0, f"{found}\n")
    assert found.findings[0].heads == (3,)
    (look,) = drawn
    want = views.overview(query, key, head=3, **how)
    assert look.head == want.head == (0, 3)  # the first head that a finding names
    np.testing.assert_allclose(look.weights.cells, want.weights.cells, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(look.scores.counts, want.scores.counts)
    for name in views.SEEN:
        seen, wanted = getattr(look.seen, name), getattr(want.seen, name)
        np.testing.assert_allclose(seen, wanted, rtol=1e-12, atol=1e-15)


def test_the_head_of_the_entry_that_a_finding_names_is_drawn(shell, drawn):
    query, key = np.random.default_rng(0).normal(size=(2, 3, 4, 60, 16))
    query[2, 1, :, 0], key[2, 1, 7, 0] = 30, 60
    save(query=query, key=key)
    code, out, _ = shell("explain", "in.npz", "--plot", "out.png")
    assert code == 0
    assert "head 1 of entry 2: nearly every query" in out
    assert drawn[0].head == (2, 1)
    assert drawn[0].weights.cells[:, 7].mean() > 0.9


def test_without_findings_it_is_the_first_head(shell, drawn):
    save()
    shell("explain", "in.npz", "--plot", "out.png")
    assert drawn[0].head == (0,)
    two_axes = np.random.default_rng(0).normal(size=(20, 8))
    np.savez("two.npz", query=two_axes, key=two_axes, value=two_axes)
    assert shell("explain", "two.npz", "--plot", "out.png")[0] == 0
    assert drawn[1].head == ()


@pytest.mark.parametrize("shape", [(2, 0, 8), (2, 5, 0), (1, 1)])
def test_pictures_of_little(shell, shape):
    np.savez("in.npz", query=np.zeros(shape), key=np.zeros(shape), value=np.zeros(shape))
    code, _, err = shell("explain", "in.npz", "--plot", "out.png", "--html", "out.html")
    assert (code, err) == (0, "")


# -------------------------------------------------------------------------------- without a value


def test_no_value_is_needed(shell):
    query, key = np.random.default_rng(0).normal(size=(2, 3, 40, 16)).astype(np.float32)
    np.savez("in.npz", q=query, k=key, key_lengths=np.array(30))
    code, out, err = shell("explain", "in.npz", "--html", "out.html")
    assert (code, out, err) == (0, f"{diagnose(query, key, key_lengths=30)}\n", "")
    want = f"{diagnose(query, key)}\n"
    save_file({"query": query, "key": key}, "in.safetensors")
    assert shell("explain", "in.safetensors")[:2] == (0, want)
    np.save("query.npy", query)
    np.save("key.npy", key)
    assert shell("explain", "query.npy", "key.npy")[:2] == (0, want)
    # One that is there is not even read.
    Path("value.npy").write_text("no array")
    assert shell("explain", "query.npy", "key.npy", "value.npy")[:2] == (0, want)
    np.savez("more.npz", query=query, key=key, value=np.zeros(7))
    assert shell("explain", "more.npz")[:2] == (0, want)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["in.npy"], "or two .npy files (query key); got in.npy"),
        (["in.npy"] * 4, "or two .npy files (query key); got in.npy in.npy in.npy in.npy"),
        (["key.npz"], "key.npz lacks `query`; it holds key"),
    ],
)
def test_query_and_key_are_needed(shell, inputs, message):
    np.savez("key.npz", key=np.zeros((3, 4)))
    code, _, err = shell("explain", *inputs)
    assert code == 2
    assert message in err


# ---------------------------------------------------------------------------------------- a page


def test_a_page_says_and_shows_what_was_found(shell):
    query, key = save()
    code, out, _ = shell("explain", "in.npz", "--scale", "1", "--html", "out.html")
    found = diagnose(query, key, scale=1.0)
    assert (code, out) == (0, f"{found}\n")
    page = Page(Path("out.html").read_text("utf-8"))
    assert page.all("html")[0]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("h1", "main", "header", "footer")] == [1, 1, 1, 1]
    assert "Queries and keys of in.npz" in page.text
    assert page.text.index(found.findings[0].message) < page.text.index("spread")
    assert [cell["scope"] for cell in page.all("th")] == ["col"] * 11 + ["row"] * 3
    for head in found.heads:
        for column in report.COLUMNS:
            assert column.cell(head) in page.text
    pictures = page.all("svg")
    assert len(pictures) == len(page.all("figcaption")) == len(report.CAPTIONS)
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["aria-label"] in page.text  # the caption, to be read by all
    assert "(3, 40, 16)" in page.text
    assert "scale1.0" in page.text


def test_a_page_needs_nothing_else(shell):
    save()
    shell("explain", "in.npz", "--html", "out.html")
    text = Path("out.html").read_text("utf-8")
    page = Page(text)
    assert not page.all("script", "link", "iframe", "object")
    given = [
        attributes[name]
        for _, attributes in page.elements
        for name in ("href", "src", "xlink:href")
        if name in attributes
    ]
    assert given
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in given)
    assert "@import" not in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
    shell("explain", "in.npz", "--html", "again.html")
    assert Path("again.html").read_text("utf-8") == text


def test_names_on_a_page_are_text(shell):
    save("<i>&amp;'.npz")
    assert shell("explain", "<i>&amp;'.npz", "--html", "out.html")[0] == 0
    page = Page(Path("out.html").read_text("utf-8"))
    assert page.text.count("<i>&amp;'.npz") == 3  # title, heading and source
    assert not page.all("i")


def test_a_page_of_layers_and_of_healthy_arrays(shell):
    query, key = np.random.default_rng(0).normal(size=(2, 3, 2, 40, 16))
    save(query=query, key=key, value=key)
    shell("explain", "in.npz", "--layers", "--html", "out.html")
    text = Path("out.html").read_text("utf-8")
    assert "Nothing stands out." in text
    spreads = ", ".join(f"{x:.3g}" for x in diagnose(query, key, layers=True).layers)
    assert f"Spread of the scaled products by layer, from the first: {spreads}." in text
    assert "Weights of head 0 of entry 0, a row for each query" in text


def test_everything_at_once(shell):
    save()
    code, out, _ = shell("explain", "in.npz", "--json", "--plot", "o.svg", "--html", "o.html")
    assert code == 0
    assert len(json.loads(out)["heads"]) == 3
    assert names() == ["in.npz", "o.html", "o.svg"]


# -------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "x.gif"], "--plot must name a .png or .svg or .pdf file, got x.gif"),
        (["--html", "x.txt"], "--html must name a .html file, got x.txt"),
        (["--plot", "no/where.png"], "cannot write no/where.png"),
        (["--html", "no/where.html"], "cannot write no/where.html"),
        (["--layers", "--html", "x.html"], "`layers` needs an axis of layers"),
        (["--softcap", "0", "--plot", "x.png"], "`softcap` must be greater than 0"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(shell, arguments, message):
    save()
    code, out, err = shell("explain", "in.npz", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert names() == ["in.npz"]


def test_no_heads_no_picture(shell):
    save(heads=0)
    assert shell("explain", "in.npz")[0] == 0
    code, _, err = shell("explain", "in.npz", "--plot", "out.png")
    assert code == 2
    assert "there must be a head to show" in err
    assert names() == ["in.npz"]


@pytest.mark.parametrize("option", ["--plot", "--html"])
def test_without_matplotlib_nothing_is_computed(shell, monkeypatch, option):
    monkeypatch.setattr(cli_scale, "find_spec", lambda name: None)
    code, _, err = shell("explain", "no.npz", option, "x.png" if option == "--plot" else "x.html")
    assert code == 2
    assert err == f'scaledot: {option} needs matplotlib: pip install "scaledot[plots]"\n'


# ------------------------------------------------------------------------------------ long work


def test_a_terminal_sees_the_progress(shell, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    save()
    assert shell("explain", "in.npz")[2] == ""
    monkeypatch.setattr(slices, "SCORES_A_SLICE", 1)
    assert "40/40" in shell("explain", "in.npz")[2]
    assert "80/80" in shell("explain", "in.npz", "--plot", "out.png")[2]


@pytest.mark.parametrize("where", ["observe", "view_weights"])
def test_ctrl_c_leaves_no_file_behind(shell, monkeypatch, where):
    def stop(*_, **__):
        raise KeyboardInterrupt

    save()
    if where == "observe":
        monkeypatch.setattr(slices, "fill", stop)
    else:
        monkeypatch.setattr(views, "view_weights", stop)
    code, _, err = shell("explain", "in.npz", "--plot", "o.png", "--html", "o.html")
    assert (code, err) == (130, "scaledot: interrupted, nothing was written\n")
    assert names() == ["in.npz"]
