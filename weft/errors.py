"""Errors that a user can act on. The command line prints only their message and exits with status 1.

A message says what was wrong, where, and what to do. It never shows a password or a token.
"""

import os
import re

CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
"""The name and password, or the token, before the host of an address."""

SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|SECRET|API_KEYS?|SECRET(_ACCESS)?_KEY)$")
"""Ends of the names of environment variables that hold secrets, such as HF_TOKEN and WEFT_API_KEYS."""

SHORTEST_SECRET = 6
"""Characters of the shortest value that is taken for a secret."""

HIDDEN = "***"


def without_secrets(text: str) -> str:
    """A text with stars in place of the credentials in addresses and of the secrets in environment variables."""
    if "://" in text:
        text = CREDENTIALS.sub(f"{HIDDEN}@", text)
    for name, value in os.environ.items():
        if SECRET_NAME.search(name):
            for secret in value.split(","):
                if len(secret.strip()) >= SHORTEST_SECRET:
                    text = text.replace(secret.strip(), HIDDEN)
    return text


class WeftError(Exception):
    """Base class of errors that the user can fix, as opposed to bugs in weft."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


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
