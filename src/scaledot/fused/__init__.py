"""The fused engine: kernels written in Python, compiled by Numba, for arrays in CPU memory."""
