"""Draw the long cases: multiply-adds a second over the length, for every library."""

from pathlib import Path

from benchmarks.cases import CASES

NAMES = {
    "scaledot": "scaledot",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "jax": "JAX",
    "numpy": "NumPy by hand",
}
"""How the libraries are called in the picture."""
# Okabe and Ito's palette, told apart by all eyes, and by their marks in grey.
STYLES = {
    "scaledot": ("#0072B2", "o"),
    "torch": ("#D55E00", "s"),
    "onnxruntime": ("#009E73", "^"),
    "jax": ("#CC79A7", "D"),
    "numpy": ("#E69F00", "v"),
}


def draw(results: list[dict], file: Path) -> None:
    """Write the picture of results, with and without the causal restriction."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    cases = {case.name: case for case in CASES if case.group == "long" and case.size == 64}
    shown = [r for r in results if r["case"] in cases]
    with rc_context({"svg.hashsalt": "scaledot", "svg.fonttype": "path"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        peak = max(cases[r["case"]].flops / r["scaledot"] / r["share"] / 1e9 for r in shown)
        for ax, causal in zip(axes, (False, True), strict=True):
            chosen = [
                r for r in results if r["case"] in cases and cases[r["case"]].causal == causal
            ]
            lengths = [cases[r["case"]].n_queries for r in chosen]
            for name, label in NAMES.items():
                rates = [cases[r["case"]].flops / r[name] / 1e9 for r in chosen if name in r]
                if len(rates) == len(lengths):
                    color, mark = STYLES[name]
                    ax.plot(lengths, rates, color=color, marker=mark, label=label)
            ax.axhline(peak, color="0.5", linestyle="--", label="multiply-add peak")
            ax.set_xscale("log", base=2)
            ax.set_xticks(lengths, [str(n) for n in lengths])
            ax.set_xlabel("length: queries and keys")
            ax.set_title("causal" if causal else "full")
            ax.grid(alpha=0.3)
        axes[0].set_ylabel("GFLOP/s, visible scores")
        axes[0].set_ylim(bottom=0)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(file, metadata={"Date": None})
