"""Errors that a user can act on. The command line prints their text alone, without a traceback, and exits with status 1.

A message says what was wrong, where, and what to do next.
"""


class WeftError(Exception):
    """Base of every error that is the user's to mend rather than a bug in weft."""


class ConfigError(WeftError):
    """A configuration that is not valid: unknown key, wrong type, options that cannot go together."""


class DataError(WeftError):
    """A data file that is missing, broken, or does not fit what was asked of it."""


class RunError(WeftError):
    """A run folder that is in use, incomplete, damaged, or of another architecture."""


class DeviceError(WeftError):
    """A device that does not exist, or that ran out of memory."""


class Interrupted(WeftError):
    """Training was stopped by the user (Ctrl-C, SIGTERM) after a checkpoint was saved. The command exits with status 130."""
