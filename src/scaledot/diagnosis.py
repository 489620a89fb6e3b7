"""What the scores of arrays look like, head by head, and what to do about it.

All numbers come from `scaledot.observe` without a value: no score matrix, no second product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

from scaledot import api, arrays, checks
from scaledot.call import prepare
from scaledot.findings import Case, Finding, find, layer_spreads, typical_spread
from scaledot.heads import Head, Thresholds
from scaledot.places import STATISTICS, seen_by_place
from scaledot.results import Array, Observation
from scaledot.tables import table

__all__ = ["COLUMNS", "Column", "Diagnosis", "diagnose", "judge"]


class Column(NamedTuple):
    """A column of the table of heads."""

    name: str
    meaning: str
    text: Callable[[Head], str]

    def cell(self, head: Head) -> str:
        """Return the number of a head in words; a dash where no row has one."""
        return self.text(head) if head.rows else "–"


COLUMNS = (
    Column("spread", "standard deviation of the scaled products of a row, before cap and bias; "
           "about 1 is healthy", lambda head: f"{head.spread:.3g}"),
    Column("unscaled", "the same before the scale", lambda head: f"{head.spread_before:.3g}"),
    Column("one-hot", "share of rows that give one key nearly all their weight, so that no "
           "gradient comes through", lambda head: f"{head.saturated:.0%}"),
    Column("flat", "share of rows that weigh all keys alike", lambda head: f"{head.flat:.0%}"),
    Column("grad", "mean norm of the softmax Jacobian: how much gradient comes through",
           lambda head: f"{head.gradient:.3g}"),
    Column("largest", "largest absolute scaled product", lambda head: f"{head.largest_score:.3g}"),
    Column("overflow", "rows with a product that float16 could not hold, before the scale",
           lambda head: f"{head.overflows}"),
    Column("clip", "QK-Clip's factor for the scores: 1 where none is beyond the cap",
           lambda head: f"{head.clip:.2g}"),
    Column("sinks", "keys that take far more than their share of the weight",
           lambda head: f"{len(head.sinks)}"),
    Column("rows", "rows that see a key, and neither NaN nor infinity",
           lambda head: f"{head.rows}"),
)  # fmt: skip
"""What is shown of a head, in words and on the page."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`: ``print`` shows a table of the heads, and the findings."""

    scale: float
    """The scale that was used."""
    suggested_scale: float | None
    """The scale that would bring the spread of the median head to 1; None where products hardly
    differ, so that none would, and where there are too few to tell."""
    heads: tuple[Head, ...]
    layers: tuple[float, ...]
    """The spread of each layer, that of its median head, where the first axis counts layers."""
    findings: tuple[Finding, ...]

    @property
    def striking(self) -> tuple[int, ...] | None:
        """The first place in (..., H) that a finding names; None where none does."""
        return next((finding.places[0] for finding in self.findings if finding.places), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, as JSON takes it."""
        return {
            "scale": self.scale,
            "suggested_scale": self.suggested_scale,
            "heads": [head._asdict() for head in self.heads],
            "layers": list(self.layers),
            "findings": [finding._asdict() for finding in self.findings],
        }

    def __str__(self) -> str:
        """Return the table and the findings."""
        lines = [table(
            [("head", *(column.name for column in COLUMNS)),
             *((str(number), *(column.cell(head) for column in COLUMNS))
               for number, head in enumerate(self.heads))],
            gap=" ",
        )]  # fmt: skip
        lines.append(f"scale {self.scale:.6g}")
        if self.suggested_scale is not None:
            lines[-1] += f"; {self.suggested_scale:.6g} would bring the spread to 1"
        if self.layers:
            lines.append(
                "spread by layer: " + " ".join(f"{x:.3g}" if x else "–" for x in self.layers)
            )
        for finding in self.findings or [Finding("", (), "nothing stands out")]:
            lines.append(fill(finding.message, 80, initial_indent="- ", subsequent_indent="  "))
        return "\n".join(lines)


def diagnose(
    query: Array,
    key: Array,
    *,
    layers: bool = False,
    thresholds: Thresholds | None = None,
    **how: Any,
) -> Diagnosis:
    """Say what the scores of queries and keys look like, head by head, and what to do.

    Each head is judged in each entry of the axes before the heads, layer by layer and sequence by
    sequence, where it has rows enough; otherwise all its entries together.

    Parameters
    ----------
    query, key : array
        As for `scaledot.attention`.
    **how
        The keywords of `scaledot.attention` from `mask` on; `scale` is the one that your own code
        uses, 1/√D by default.
    layers : bool
        The first axis counts the layers of a model; scores that grow from layer to layer are found.
    thresholds : Thresholds
        From where on something is worth a word.

    Returns
    -------
    Diagnosis
        Numbers of each head, and findings in words, none for healthy arrays.

    Raises
    ------
    TypeError, ValueError
        As `scaledot.attention`; `layers` with fewer than four axes; thresholds of another kind, or
        one that is not greater than 0.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot.scaling import diagnose
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.normal(size=(2, 4, 100, 64))
    >>> print(diagnose(query, key, scale=1.0).findings[0].kind)
    no-scale
    """
    limits = Thresholds() if thresholds is None else thresholds
    checks.thresholds(limits, Thresholds)
    given = prepare(query, key, None, how).given
    shape = tuple(given["query"].shape)
    if checks.flag("layers", layers):
        checks.layers(shape, tuple(given["key"].shape))
    seen = api.observe(query, key, statistics=STATISTICS, **how)
    return judge(seen, shape, layers=layers, limits=limits, **how)


def judge(
    seen: Observation,
    shape: tuple[int, ...],
    *,
    layers: bool = False,
    limits: Thresholds = Thresholds(),  # noqa: B008  # a NamedTuple is immutable
    **how: Any,
) -> Diagnosis:
    """Return what `diagnose` does from what was observed, `STATISTICS` of queries of a shape."""
    scale = checks.scale(how.get("scale"), shape[-1])
    whole = seen_by_place(seen, shape[-2], how)
    all_places = whole.places(scale, limits)
    heads = tuple(
        all_places.head(number, scale, limits.cap) for number in range(all_places.rows.shape[-1])
    )
    places = all_places
    if places.rows.size and places.choosing.max() < limits.least:  # too few rows in each alone
        places = whole.together(1 if layers else 0).places(scale, limits)
    case = Case(
        places=places,
        limits=limits,
        scale=scale,
        n_queries=shape[-2],
        size=shape[-1],
        layers=layers,
        biased=how.get("bias") is not None,
        softcap=how.get("softcap"),
    )
    findings = find(case)
    if arrays.on_host(seen.received).ndim == 1:  # no axis of heads
        findings = tuple(one._replace(places=((),) if one.places else ()) for one in findings)
    spread = typical_spread(case)
    suggested = scale / spread if scale and spread and spread >= limits.flat * abs(scale) else None
    return Diagnosis(scale, suggested, heads, layer_spreads(case), findings)
