"""The page of `scaledot explain --html`, in a browser without a network."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

SENTENCE = Path(__file__).parents[2] / "examples" / "sentence.npz"
SCREENS = os.environ.get("SCALEDOT_SCREENSHOTS")
"""A folder for pictures of the pages, to be looked at."""


def explain(folder, *arguments):
    command = [sys.executable, "-m", "scaledot", "explain", *map(str, arguments)]
    subprocess.run([*command, "--html", "report.html"], cwd=folder, check=True)
    return folder / "report.html"


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """A page of a sentence, one of arrays with every trouble, and one of many heads."""
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 8, 300, 64)).astype(np.float32)
    query[2, :, 0], key[2, 7, 0] = 30, 60
    query[5, 3] = np.nan
    sick = tmp_path_factory.mktemp("sick")
    np.savez(sick / "a name that is very long and has_no_place_to_break_it.npz",
             query=300 * query, key=key, value=key)  # fmt: skip
    many = tmp_path_factory.mktemp("many")
    query, key = rng.normal(size=(2, 24, 2, 32, 600, 16)).astype(np.float32)[:, :, 0]
    np.savez(many / "many.npz", query=query, key=key, value=key)
    return {
        "sentence": explain(tmp_path_factory.mktemp("sentence"), SENTENCE, "--causal"),
        "sick": explain(sick, next(sick.glob("*.npz"))),
        "many": explain(many, "many.npz", "--layers", "--window", "50", "0"),
    }


@pytest.fixture(params=["sentence", "sick", "many"])
def report(request, reports):
    return reports[request.param]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_all_is_seen_and_nothing_is_asked_for(report, visit, width, scheme):
    page, said, asked = visit(report, width, scheme)
    assert (said, asked) == ([], [])
    assert page.locator("h1").is_visible()
    findings = page.locator(".findings li")
    assert findings.count() > 0 or page.get_by_text("Nothing stands out.").is_visible()
    pictures = page.locator("figure svg[role=img]")
    assert pictures.count() == 5
    for picture in pictures.all():
        box = picture.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["width"] > 250
    assert page.locator("figure svg image").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper, ink = (
        sum(map(int, page.evaluate(f"getComputedStyle(document.body).{name}")[4:-1].split(",")))
        for name in ("backgroundColor", "color")
    )
    assert (paper > ink) == (scheme == "light")
    if SCREENS:
        name = f"{report.parent.name}-{scheme}-{width}.png"
        page.screenshot(path=Path(SCREENS) / name, full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn_in_the_ink_of_the_page(report, visit, scheme):
    page, _, _ = visit(report, scheme=scheme)
    ink = page.evaluate("getComputedStyle(document.body).color")
    faint = page.evaluate("getComputedStyle(document.querySelector('figcaption')).color")
    assert ink != faint
    label = page.locator("figure svg text").first
    assert label.evaluate("x => getComputedStyle(x).fill") == ink
    frame = page.locator("figure svg g[id*=patch] path[style*=currentColor]").first
    assert frame.evaluate("x => getComputedStyle(x).stroke") == ink


def test_the_page_is_accessible(report, visit, axe):
    for scheme in ("light", "dark"):
        page, _, _ = visit(report, scheme=scheme)
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        wrong = [
            (one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]
        ]
        assert wrong == []
        assert len(found["passes"]) > 15


def test_a_wide_table_is_reached_by_the_keyboard(reports, visit):
    page, _, _ = visit(reports["sick"], 320)
    table = page.locator(".table")
    assert table.evaluate("x => x.scrollWidth > x.clientWidth")
    page.keyboard.press("Tab")
    assert table.evaluate("x => x === document.activeElement")
    page.keyboard.press("ArrowRight")
    deadline = time.monotonic() + 10
    while not table.evaluate("x => x.scrollLeft"):  # it glides
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def test_the_page_needs_no_script(reports, visit):
    page, _, asked = visit(reports["sick"], java_script_enabled=False)
    assert asked == []
    assert page.locator(".findings li").first.is_visible()
    assert page.locator("figure svg").last.is_visible()


def test_the_page_can_be_printed(report, visit, tmp_path):
    page, _, _ = visit(report, 700, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(253, 253, 252)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_pictures_stand_close_below_one_another(report, visit, width):
    page, _, _ = visit(report, width)
    columns = {}
    for figure in page.locator("figure").all():
        box = figure.bounding_box()
        columns.setdefault(round(box["x"]), []).append((box["y"], box["y"] + box["height"]))
    assert len(columns) == (2 if width == 1280 else 1)
    for column in columns.values():
        assert all(0 <= below - end <= 40 for (_, end), (below, _) in pairwise(column))
    ends = [column[-1][1] for column in columns.values()]
    assert max(ends) - min(ends) < 300
