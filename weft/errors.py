"""Errors that a user can act on. The command line prints only their message and exits with status 1.

A message says what was wrong, where, and what to do.
"""


class WeftError(Exception):
    """Base class of errors that the user can fix, as opposed to bugs in weft."""


class ConfigError(WeftError):
    """An invalid configuration: unknown key, wrong type, incompatible options."""


class DataError(WeftError):
    """A data file that is missing, damaged, or unsuitable."""


class RunError(WeftError):
    """A run folder that is in use, incomplete, damaged, or of a different architecture."""


class DeviceError(WeftError):
    """A device that does not exist, or that ran out of memory."""


class InputError(WeftError, TypeError):
    """Something other than text where a text is needed, or a tensor of another shape or type than a layer needs."""


class Interrupted(WeftError):
    """The user stopped training (Ctrl-C, SIGTERM) and a checkpoint was saved. The command exits with status 130."""
