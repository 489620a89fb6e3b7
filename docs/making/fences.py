"""Fences of a page that stand for what they make.

- `math` holds TeX and becomes MathML;
- `ran` holds commands of `scaledot` and becomes what they print;
- `drawn` holds Python expressions and becomes what they are, drawn; a comment before one is its
  caption. They see the names that the page's `python` and `pycon` fences before them made.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
from typing import Any
from unittest import mock

from drawing import figure

from scaledot import cli

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def fill(markdown: str) -> str:
    """Return a page with its fences filled."""
    names: dict[str, Any] = {}
    is_drawn = "```drawn\n" in markdown

    def made(match: re.Match[str]) -> str:
        kind, source = match.groups()
        if kind == "math":
            return formula(source)
        if kind == "ran":
            return f"```console\n{ran(source)}```"
        if kind == "drawn":
            return drawn(source, names)
        if kind in ("python", "pycon") and is_drawn:
            _run(kind, source, names)
        return match[0]

    return FENCE.sub(made, markdown)


def formula(source: str) -> str:
    """Return a formula as MathML, which browsers show by themselves."""
    from latex2mathml.converter import convert

    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def ran(source: str) -> str:
    """Return commands, and what each prints."""
    return "\n".join(f"$ {line}\n{_printed(line)}" for line in source.splitlines())


def _printed(line: str) -> str:
    """Return what a command prints, 80 columns wide."""
    program, *arguments = shlex.split(line)
    if program != "scaledot":
        raise ValueError(f"only commands of scaledot are run, not {line!r}")
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="80"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = cli.shell(arguments)
    if status:
        raise RuntimeError(f"{line!r} ended with {status}: {err.getvalue()}")
    return out.getvalue()


def drawn(source: str, names: dict[str, Any]) -> str:
    """Return expressions drawn, side by side where there is room."""
    figures, words = [], []
    for line in source.splitlines():
        if line.startswith("# "):
            words.append(line[2:])
        elif line:
            figures.append(figure(line, " ".join(words), names))
            words = []
    return f'<div class="drawn">{"".join(figures)}</div>'


def _run(kind: str, source: str, names: dict[str, Any]) -> None:
    """Run the code of a page for the names that it makes, without what is meant to be refused."""
    parts = [source]
    if kind == "pycon":
        lines = doctest.DocTestParser().get_examples(source)
        parts = [line.source for line in lines if line.exc_msg is None]
    with contextlib.redirect_stdout(io.StringIO()):
        for part in parts:
            exec(compile(part, "page", "exec"), names)
