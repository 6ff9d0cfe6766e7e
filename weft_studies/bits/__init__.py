"""Sequences of bit vectors, on which Neural Turing Machines, stacks and queues are tested."""
