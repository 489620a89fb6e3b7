"""Exact attention, softmax(QKᵀ/√d) V, with its output, its weights and their statistics."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaledot.api import attend, attention, merge, observe, plan, softmax, vjp
    from scaledot.planning import Plan
    from scaledot.results import Attention, Gradients, Observation, Part, TopK

__version__ = "0.1.0"

_HOME = {
    "attend": "api",
    "attention": "api",
    "merge": "api",
    "observe": "api",
    "plan": "api",
    "softmax": "api",
    "vjp": "api",
    "Plan": "planning",
    "Attention": "results",
    "Gradients": "results",
    "Observation": "results",
    "Part": "results",
    "TopK": "results",
}

__all__ = [
    "Attention",
    "Gradients",
    "Observation",
    "Part",
    "Plan",
    "TopK",
    "__version__",
    "attend",
    "attention",
    "merge",
    "observe",
    "plan",
    "softmax",
    "vjp",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use, so that importing stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'scaledot' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"scaledot.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
