"""Measure, print Markdown, write JSON, and put tables and picture into the README.

python -m benchmarks [--rounds N] [--groups long,decode] [--json FILE] [--readme] [--into FILE]
"""

import argparse
import json
import math
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks import ceilings, peers, plot
from benchmarks.cases import CASES, Case
from benchmarks.facts import FACTS, Table
from benchmarks.measure import turns
from scaledot.fused import target

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
MARKS = "<!-- benchmarks -->", "<!-- end of benchmarks -->"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each call (default 5)")
    parser.add_argument("--groups", default="", help="only these groups of cases, by comma")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--readme", action="store_true", help="put tables and picture into the README"
    )
    parser.add_argument("--into", type=Path, help="put the tables into this Markdown file")
    options = parser.parse_args()
    wanted = [group for group in options.groups.split(",") if group]
    cases = [case for case in CASES if not wanted or case.group in wanted]
    results = []
    for case in cases:
        results.append(measure(case, options.rounds))
        print(f"{case.name:<40}{results[-1]['scaledot'] * 1e3:10.2f} ms", file=sys.stderr)
    tables = []
    for name, fact in FACTS.items():
        if not wanted or name in wanted:
            tables.append(fact(options.rounds))
            print(tables[-1].title, file=sys.stderr)
    text = report(results, tables)
    print(text)
    if options.json:
        figures = {"machine": machine(), "results": results}
        figures["tables"] = [table._asdict() for table in tables]
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if options.readme:
        put(text, README)
        plot.draw(results, PICTURE)
    if options.into:
        put(text, options.into)
    return 0


def measure(case: Case, rounds: int) -> dict:
    """Return the seconds of a case by us and all peers, and the ceiling in the same turns."""
    calls = {"scaledot": peers.scaledot(case)}
    for name, peer in peers.PEERS.items():
        call = peer(case)
        if call is not None:
            calls[name] = call
    ceiling, amount = ceilings.memory_read() if case.group == "decode" else ceilings.multiply_adds()
    calls["ceiling"] = ceiling
    times = turns(calls, rounds)
    # What can be done at most is what was done in the best turn; the rest are medians.
    rate = amount / min(times.pop("ceiling"))
    found = {name: float(np.median(x)) for name, x in times.items()}
    need = case.bytes if case.group == "decode" else case.flops
    if case.dtype == "float64":
        rate /= 2
    share = need / found["scaledot"] / rate
    others = {name: x for name, x in found.items() if name != "scaledot"}
    best = min(others, key=others.__getitem__) if others else None
    gain = others[best] / found["scaledot"] if best else math.nan
    return {"case": case.name, "group": case.group, **found, "share": share, "best": best,
            "gain": gain}  # fmt: skip


def machine() -> str:
    """Return the machine and the versions."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("scaledot", "numpy", "numba", "torch", "onnxruntime", "jax"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    width = target.vector_bytes() * 8
    return (
        f"{target.n_threads()} threads of {_processor()}, {width}-bit vectors; "
        f"{', '.join(versions)}"
    )


def _processor() -> str:
    """Return the name of the processor."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def report(results: list[dict], tables: list[Table]) -> str:
    """Return the tables and what they say in a line a group."""
    names = [name for name in peers.PEERS if any(name in result for result in results)]
    head = ("heads × length × size", "scaledot", *names, "of the ceiling", "best peer / ours")
    rows = [
        (
            result["case"],
            f"**{result['scaledot'] * 1e3:.2f}**",
            *(f"{result[name] * 1e3:.2f}" if name in result else "–" for name in names),
            f"{result['share'] * 100:.0f} %",
            f"{result['gain']:.2f}" if result["best"] else "–",
        )
        for result in results
    ]
    lines = markdown(Table("Milliseconds, medians", head, rows)) if rows else []
    for group in dict.fromkeys(result["group"] for result in results):
        gains = [r["gain"] for r in results if r["group"] == group and r["best"]]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            lines.append(f"- {group}: {mean:.2f}× the best peer of each, geometric mean of "
                         f"{len(gains)}")  # fmt: skip
    for table in tables:
        lines += ["", *markdown(table)]
    ceiling = "the multiply-add peak, in decoding the rate at which memory is read"
    lines += ["", f"The ceiling is {ceiling}, the best of its turns among theirs. {machine()}."]
    return "\n".join(lines)


def markdown(table: Table) -> list[str]:
    """Return the lines of a table."""
    lines = [f"{table.title}.", "", f"| {' | '.join(table.head)} |", f"|{'---|' * len(table.head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in table.rows), ""]


def put(text: str, file: Path) -> None:
    """Put the tables between their marks in a file; one that is not there holds nothing else."""
    page = file.read_text(encoding="utf-8") if file.exists() else "\n".join(MARKS) + "\n"
    start, end = (page.index(mark) for mark in MARKS)
    page = page[: start + len(MARKS[0])] + "\n" + text + "\n" + page[end:]
    file.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
