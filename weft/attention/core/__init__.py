"""Building blocks that attention mechanisms share: stores for keys and values, fused kernels, scores, patterns and sums."""
