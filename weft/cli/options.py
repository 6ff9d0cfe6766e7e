"""What several commands understand alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.config import document
from weft.errors import ConfigError, RunError

if TYPE_CHECKING:
    from weft.translator import Translator


def runs(text: str) -> list[str]:
    """The run folders that `a,b` names. A folder whose own name has a comma is one."""
    found = [text] if text and Path(text).is_dir() else [part.strip() for part in text.split(",")]
    if not all(found):
        raise RunError(f"{text!r} names no run folder, or one too few; write RUN, or RUN,RUN for an ensemble")
    return found


def on_all_cores(translator: Translator, options: dict[str, Any]) -> dict[str, Any]:
    """The options with a worker for each core of a CPU, unless the user or the run says how many there are to be."""
    from weft.tasks.workers import cores

    alone = translator.model.device.type != "cpu" or translator.config.decode.workers != "auto"
    return options if alone else {"workers": cores(), **options}


def decode_options(sets: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Settings of the section decode from `--set decode.beam=5` and from flags that were given."""
    options: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        section, _, name = key.strip().rpartition(".")
        if not equals or section not in ("", "decode") or not name:
            raise ConfigError(
                f"--set {text}: a trained run can only be given settings of decoding, such as --set decode.beam=5"
            )
        options[name] = document.value(value, f"--set {text}")
    return options | {name: value for name, value in flags.items() if value is not None}
