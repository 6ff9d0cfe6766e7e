"""Triton kernels for NVIDIA GPUs. Each module imports Triton, so import it only after `weft.kernels.serve` returned True."""
