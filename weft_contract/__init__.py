"""The contract suite: written once, applied to every entry of every table, and to the parts of installed packages."""
