import numpy as np

rng = np.random.default_rng(0)
for d in (4, 64, 1024):
    q = rng.normal(size=(10000, d))
    k = rng.normal(size=(10000, d))
    s = (q * k).sum(axis=-1)
    print(d, s.std().round(1), (s / np.sqrt(d)).std().round(2))
