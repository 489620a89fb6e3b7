"""The code, commands and drawings of README and docs are tests, and so is all output they show."""

from collections.abc import Iterable

import fences
from sybil import Document, Example, Region, Sybil
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser


def sessions(document: Document) -> Iterable[Region]:
    """Find the lines of `pycon` fences."""
    lines = DocTestStringParser(DocTestEvaluator())
    for fence in CodeBlockParser("pycon", lambda example: None)(document):
        for line in lines(fence.parsed, document.path):
            line.adjust(fence, fence.parsed)
            yield line


def draw(example: Example) -> None:
    """Draw what a fence asks for."""
    assert "<svg" in fences.drawn(example.parsed, example.namespace)


def run(example: Example) -> None:
    """Run the commands of a fence."""
    assert fences.ran(example.parsed)


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(),
        sessions,
        CodeBlockParser("drawn", draw),
        CodeBlockParser("ran", run),
    ],
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
).pytest()
