"""The version, and the name under which weft is installed. On package indexes, `weft` is another project."""

VERSION = "0.2.0"
DISTRIBUTION = "weft-seq2seq"


def install(extra: str) -> str:
    """The command that installs an extra, for messages about a missing package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
