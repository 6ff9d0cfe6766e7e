"""Models that train in seconds on one core, for tests that need a trained one."""

from __future__ import annotations

import fcntl
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import weft
from weft import cli
from weft.training.validate_and_save import Result

SETTINGS: dict[str, Any] = {
    "data.tokenizer": "words",
    "data.vocabulary": 100,
    "model.dim": 32,
    "model.heads": 2,
    "model.feedforward": 64,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.dropout": 0.0,
    "model.position": "sinusoidal",
    "train.steps": 400,
    "train.batch_tokens": 768,
    "train.precision": "float32",
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 40},
    "train.validate_every": 0,
    "train.save_every": 100,
    "train.keep_last": 4,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
    "decode.beam": 1,
}
"""Written over transformer-tiny."""


def generated(kind: str, count: int = 4000, split: str = "train", longest: int = 7) -> str:
    return f"generated:{kind}?count={count}&longest={longest}&split={split}"


def train(out: Path, kind: str = "reverse", settings: Mapping[str, Any] | None = None, **options: Any) -> Result:
    """Train on a generated task of sequences and score it on 200 unseen ones."""
    data = {"data": generated(kind), "valid": generated(kind, 200, "valid"), **options}
    return weft.train("transformer-tiny", out=out, set={**SETTINGS, **(settings or {})}, **data)


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, made by the first process that asks, while the others wait."""
    done = folder.with_suffix(".done")
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def sets(settings: Mapping[str, Any] | None = None) -> list[str]:
    """`SETTINGS` with others written over them, as `--set` takes them."""
    values = {**SETTINGS, "train.schedule": "{kind: cosine, rate: 0.01, warmup: 40}", **(settings or {})}
    return ["--set", *(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items())]


class Shell:
    """Runs command lines in this process, as `weft` does in its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"", status: int = 0) -> str:
        """Standard output of a command that has to end with `status`, without a traceback in any case."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        self.capsys.readouterr()
        found = cli.run([str(argument) for argument in arguments])
        self.out, self.err = self.capsys.readouterr()
        assert found == status, self.err
        assert "Traceback" not in self.err
        return self.out

    def fails(self, *arguments: str | Path, says: Iterable[str] = (), status: int = 1, stdin: str | bytes = b"") -> str:
        """The message of a command that fails and says all of this."""
        self(*arguments, stdin=stdin, status=status)
        assert self.err.count("weft: error:") == (status == 1), self.err
        for text in says:
            assert text in self.err, self.err
        return self.err
