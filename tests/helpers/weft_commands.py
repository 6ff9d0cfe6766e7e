"""Commands of weft in the processes that `launch` forks from one that has imported everything, as torchrun would start them.

As a program it is one of these processes: `python weft_commands.py '[[PORT, STATUS, "train", …], …]'` runs the commands one
after the other, each over a port of its own, and each has to end with its status. Messages go to standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.helpers import pictures
from tests.helpers.process_group import free_port, launch
from weft import cli

LATER = (
    *("weft.training.train_run", "weft.training.result_files", "weft.tasks.translation.task", "weft.models.transformer"),
    *("weft.tasks.language_modeling.task", "weft.data.tokenizers.bpe_and_unigram", "sacrebleu"),
)


def run_together(*commands: Sequence[str | Path], status: int = 0) -> str:
    """What two processes say that run these commands one after the other. status: that of the last one; the others succeed."""
    ends = [0] * (len(commands) - 1) + [status]
    jobs = [[str(free_port()), str(end), *map(str, command)] for command, end in zip(commands, ends, strict=True)]
    return "".join(launch(__file__, jobs))


def run_commands(jobs: Sequence[Sequence[str]]) -> None:
    """One process of several jobs."""
    for port, status, *command in jobs:
        os.environ["MASTER_PORT"] = port
        with contextlib.redirect_stderr(sys.stdout), pictures.left_out():
            found = cli.run(command)
        assert found == int(status), f"{command} ended with {found}"


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    run_commands(json.loads(sys.argv[1]))
