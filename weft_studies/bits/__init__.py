"""Sequences of bit vectors, on which Neural Turing Machines are tested."""
