"""README and pages say all there is, and what they cite is there; conftest.py runs their code."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import drawing
import fences
import numpy as np
import offline
import parts
import pytest

import scaledot
from scaledot import cli, statistics
from scaledot.call import How

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}


def headings(page):
    """The names in the headings of a page, where one has several with commas between them."""
    lines = re.findall(r"^##+ (.*)$", PAGES[page], flags=re.M)
    return [name for line in lines for name in line.split(", ")]


def test_the_table_names_every_function():
    calls = set(re.findall(r"^\| `(\w+)\(", README, flags=re.M))
    assert calls == {name for name in scaledot.__all__ if name.islower() and name[0] != "_"}


def test_the_exercise_is_as_it_prints():
    script = ROOT / "examples" / "exercise.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert f"```\n{done.stdout}```" in README


def test_every_statistic_has_a_section():
    assert len(statistics.NAMES) == 14
    assert [name for name in headings("statistics") if name in statistics.NAMES] == [
        *statistics.NAMES
    ]


def test_every_restriction_has_a_section():
    restrictions = set(How.__annotations__) - {"engine", "threads"}
    assert restrictions == set(headings("restrictions")) - {"All together"}


def test_every_finding_has_a_section():
    source = (ROOT / "src" / "scaledot" / "findings.py").read_text(encoding="utf-8")
    kinds = " ".join(re.search(r'kind: str\n    """One of: (.*?)\."""', source, re.S)[1].split())
    assert set(kinds.split(", ")) <= set(headings("diagnosis"))


def test_every_command_has_a_section():
    named = re.findall(r"^  (\w+) ", fences.ran("scaledot --help").split("Commands:")[1], re.M)
    assert sorted(headings("shell")) == sorted(named)


def test_tests_that_pages_cite_are_there():
    cited = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", "".join(PAGES.values())))
    assert len(cited) > 30
    for file, name in cited:
        (path,) = (ROOT / "tests").rglob(file)
        assert f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"


# ------------------------------------------------------------------------- how pages are made


def test_a_grid_says_what_it_shows():
    seen = drawing.grid(np.array([[True, False, True], [False, False, False]]))
    assert "<title>query 0 sees keys 0, 2; query 1 sees no key</title>" in seen
    assert (seen.count('class="seen"'), seen.count('class="hidden"')) == (2, 4)
    weights = drawing.grid(np.array([[0.5, 0.0, 0.001]]))
    assert "query 0 weighs 0.50, 0, 0+" in weights


def test_drawn_code_sees_the_names_of_the_page():
    page = "```pycon\n>>> x = [[True]]\n>>> x[7]\nTraceback (most recent call last):\n"
    page += "    ...\nIndexError: list index out of range\n\n```\n\n"
    page += "```drawn\nnp.array(x)\n```\n"
    assert "<code>np.array(x)</code>" in fences.fill("```python\nimport numpy as np\n```\n" + page)


def test_a_command_that_fails_fails_the_page():
    assert (
        fences.ran("scaledot --version")
        == f"$ scaledot --version\nscaledot {scaledot.__version__}\n"
    )
    with pytest.raises(RuntimeError, match="ended with 2: scaledot: "):
        fences.ran("scaledot run nothing.npz")
    with pytest.raises(ValueError, match="only commands of scaledot"):
        fences.ran("rm -r .")


def test_parts_of_other_files_are_found_or_missed_loudly(tmp_path):
    (tmp_path / "a.md").write_text(
        "<!-- b -->\n![x](docs/x.svg)\n\nOne.\n\n| p |\n|---|\n| q |\n\nTwo.\n<!-- end of b -->\n"
    )
    (tmp_path / "c.py").write_text("def d():\n    return 1\n\n\ndef e(): ...\n")
    assert "](x.svg)" in parts.include("<!-- from a.md: b -->", tmp_path)
    assert parts.include("<!-- from a.md: b, One -->", tmp_path) == "One.\n\n| p |\n|---|\n| q |"
    assert "def d():\n    return 1\n```" in parts.include("<!-- from c.py: d -->", tmp_path)
    for missing in ("a.md: c", "a.md: b, Two", "c.py: f"):
        with pytest.raises((ValueError, KeyError)):
            parts.include(f"<!-- from {missing} -->", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://a.example/x.js"></script>',
        '<link rel="stylesheet" href="//a.example/x.css">',
        '<img src="x.png" srcset="x.png 1x, https://a.example/x.png 2x">',
        '<p style="background: url(http://a.example/x.png)">',
        "<style>@import 'https://a.example/x.css';</style>",
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(tmp_path, text):
    (tmp_path / "index.html").write_text('<a href="https://a.example/">a link</a><img src="x.png">')
    assert list(offline.loads(tmp_path)) == []
    (tmp_path / "index.html").write_text(text)
    assert [file.name for file, _ in offline.loads(tmp_path)] == ["index.html"]


# ------------------------------------------------------------------------ the picture of the README


def svg(tag):
    """Name a tag as it stands in an SVG."""
    return f"{{http://www.w3.org/2000/svg}}{tag}"


def points(path):
    """The points of a path of straight lines, (n, 2)."""
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path.get("d")), float)


def drawn_in(picture):
    """What a picture of charts says: its words, and its lines as shares of their panels.

    Where panels and ticks stand is matplotlib's; what a line shows within its panel is ours.
    """
    text = picture.read_text(encoding="utf-8")
    words = sorted(re.findall(r"<!-- (.*[a-z].*) -->", text))
    panels = []
    for panel in ElementTree.fromstring(text).iter(svg("g")):
        if not re.fullmatch(r"axes_\d+", panel.get("id", "")):
            continue
        frame = points(panel.find(f"{svg('g')}[1]/{svg('path')}"))
        low, size = frame.min(axis=0), np.ptp(frame, axis=0)
        lines = [
            (points(path) - low) / size
            for group in panel.findall(svg("g"))
            if re.fullmatch(r"line2d_\d+", group.get("id", ""))
            for path in group.findall(svg("path"))
        ]
        panels.append(lines)
    return words, panels


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path):
    assert "Drawn by `scaledot scaling --plot`" in README
    assert cli.shell(["scaling", "--plot", str(tmp_path / "scale.svg")]) == 0
    words, panels = drawn_in(tmp_path / "scale.svg")
    kept_words, kept = drawn_in(ROOT / "docs" / "images" / "scale.svg")
    assert kept_words == words, "draw it anew: scaledot scaling --plot docs/images/scale.svg"
    assert [[line.shape for line in panel] for panel in panels] == [[(5, 2)] * 3] * 4
    for panel, other in zip(panels, kept, strict=True):
        np.testing.assert_allclose(np.array(other), np.array(panel), rtol=0, atol=2e-3)
