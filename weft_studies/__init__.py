"""Studies that come with weft as a package of their own: ciphers, bits, stories with questions, couplets, synthetic data.

They are registered like the parts and recipes of any other package, by the entry points in pyproject.toml; nothing in weft
imports them.
"""
