"""Settings of the contract suite."""

from weft_contract.fixtures import one_thread

__all__ = ["one_thread"]
