"""How fast attention is here, beside its peers: ``python -m benchmarks``."""
