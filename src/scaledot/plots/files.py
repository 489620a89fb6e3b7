"""Pictures in files, and in web pages."""

import re
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaledot import checks
from scaledot.plots.drawing import AnyAxes, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("png", "svg", "pdf")
"""What a picture is saved as."""


def save(ax: AnyAxes, file: str | Path, suffix: str | None = None) -> None:
    """Write the whole figure of some axes to a file; the same bytes for the same figure.

    Parameters
    ----------
    ax : Axes, or several of them
        What a function of this module returned.
    file : str or Path
        Where to; its suffix is .png, .svg or .pdf.
    suffix : str, optional
        Which of them, where the name of the file does not say it.

    Raises
    ------
    TypeError
        `ax` that are no Axes.
    ValueError
        Another suffix; no axes at all.

    Examples
    --------
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from scaledot import plots
    >>> with TemporaryDirectory() as folder:
    ...     plots.save(plots.weights(np.eye(3)), Path(folder) / "eye.png")
    ...     [file.name for file in Path(folder).iterdir()]
    ['eye.png']
    """
    from matplotlib import rc_context

    kind = (suffix or Path(file).suffix).lower().removeprefix(".")
    checks.choice("kind of picture", kind, KINDS)
    figure = figure_of(ax)
    dates: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "scaledot"}):
        figure.savefig(file, format=kind, dpi=150, metadata=dates.get(kind))


def inline_svg(ax: "Axes", name: str, description: str) -> str:
    """Return the figure of some axes as an element of a web page, in the page's ink and type.

    Its ids begin with `name`, so that no two figures of a page share one.
    """
    from matplotlib import rc_context

    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawn = StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure_of(ax).savefig(drawn, format="svg", transparent=True, metadata=nothing)
    text = drawn.getvalue()
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text[text.index("<svg") :])
    label = f'role="img" aria-label="{escape(description)}" fill="currentColor"'
    return text.replace("<svg ", f"<svg {label} ", 1).replace("#000000", "currentColor")
