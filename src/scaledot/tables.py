"""Tables in plain text."""

from collections.abc import Collection, Iterable, Sequence

__all__ = ["table"]


def table(lines: Iterable[Sequence[str]], left: Collection[int] = (), gap: str = "  ") -> str:
    """Return lines of cells in columns: numbers to the right, the columns of `left` to the left.

    >>> print(table([("d", "scale", "spread"), ("1024", "none", "32.0")], left=(1,)))
       d  scale  spread
    1024  none     32.0
    """
    lines = list(lines)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        gap.join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
