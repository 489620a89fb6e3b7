import numpy as np


def softmax(z, eksen=-1):
    z = z - z.max(axis=eksen, keepdims=True)
    e = np.exp(z)
    return e / e.sum(axis=eksen, keepdims=True)


def attention(Q, K, V):
    d_k = Q.shape[-1]
    S = Q @ K.T / np.sqrt(d_k)
    A = softmax(S, eksen=-1)
    return A @ V, A


Qk = np.array([[1., 1.], [0., 2.]])
Kk = np.array([[1., 0.], [0., 1.]])
Vk = np.array([[10., 0.], [0., 10.]])

output, weights = attention(Qk, Kk, Vk)
print(output.round(3))
