"""Prove that a built site loads nothing from elsewhere: `python docs/making/offline.py site`.

Links may lead anywhere; scripts, styles, fonts, pictures and frames must be of the site.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADING = {"src", "srcset", "data", "poster", "xlink:href"}
"""Attributes that make a browser load, on any element."""
OUTSIDE = re.compile(r"\s*(?:https?:)?//", re.I)
IN_STYLE = re.compile(r"(?:url\(\s*|@import\s+)[\"']?\s*((?:https?:)?//[^\"')\s]+)", re.I)


class Page(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Look at the attributes of an element."""
        for name, value in attributes:
            if name in LOADING or (name == "href" and tag in ("link", "image", "use")):
                urls = (value or "").split(",") if name == "srcset" else [value or ""]
                self.loads += filter(OUTSIDE.match, urls)
            elif name == "style":
                self.loads += IN_STYLE.findall(value or "")


def loads(site: Path) -> Iterator[tuple[Path, str]]:
    """Go through what the pages and styles of a site load from elsewhere."""
    for file in sorted(site.rglob("*")):
        if file.suffix == ".html":
            page = Page()
            text = file.read_text(encoding="utf-8")
            page.feed(text)
            styles = "".join(re.findall(r"<style.*?</style>", text, re.S))
            yield from ((file, url) for url in page.loads + IN_STYLE.findall(styles))
        elif file.suffix == ".css":
            yield from ((file, url) for url in IN_STYLE.findall(file.read_text(encoding="utf-8")))


def main() -> int:
    """Print what is loaded from elsewhere, and fail if anything is."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        print(f"{site} holds no built site", file=sys.stderr)
        return 2
    found = list(loads(site))
    for file, url in found:
        print(f"{file}: loads {url}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
