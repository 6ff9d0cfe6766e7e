"""How good a system is, and whether it is better than another."""
