"""The contract suite over the built-in tables, and planted bugs that it must catch."""
