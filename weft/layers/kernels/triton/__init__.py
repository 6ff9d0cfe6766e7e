"""Triton kernels for NVIDIA GPUs. Each module imports Triton, so import it only after `weft.layers.kernels.triton_available`
returned True.
"""
