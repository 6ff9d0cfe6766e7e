"""Benchmarks: counted operations, the limits of the machine, measured times, profiles, and comparisons of models."""
