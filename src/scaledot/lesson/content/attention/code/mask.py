import numpy as np

Qk = np.array([[1., 1.], [0., 2.]])
Kk = np.array([[1., 0.], [0., 1.]])
S = Qk @ Kk.T / np.sqrt(2)

S = np.where(np.tri(2, dtype=bool), S, -np.inf)
e = np.exp(S - S.max(axis=-1, keepdims=True))
print((e / e.sum(axis=-1, keepdims=True)).round(3))
