"""The process of one checkout in before_after.py: trains and decodes, and answers with speeds."""

import importlib.metadata
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from random_text import SOURCE, STEPS

Case = dict[str, Any]
"""gpu, recipe, data; run and words, and of a search rows and options, of a training set and perhaps out."""


def train(case: Case) -> float:
    """Trains a run; returns steps per second of CPU time, or target tokens per second on a GPU."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    import weft

    stamps: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *ignored: stamps.append(time.process_time()))
    with tempfile.TemporaryDirectory() as place:
        out = Path(case.get("out", f"{place}/run"))
        weft.train(case["recipe"], data=case["data"], out=out, set=case["set"])
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]
    hook.remove()
    if case["gpu"]:
        return statistics.median([line["tokens_per_second"] for line in lines if "tokens_per_second" in line])
    warm = len(stamps) // 5
    return (len(stamps) - 1 - warm) / (stamps[-1] - stamps[warm] or 1)


def decode(case: Case, loaded: dict[str, Any]) -> tuple[float, list[str]]:
    """Decoding steps per second, and the texts. Keeps the model in `loaded`."""
    import weft

    model = loaded.get(case["run"]) or loaded.setdefault(case["run"], weft.load(case["run"]))
    clock = time.perf_counter if case["gpu"] else time.process_time
    draw = random.Random(case["rows"])
    lines = [" ".join(f"w{draw.randrange(case['words'])}" for _ in range(SOURCE)) for _ in range(case["rows"])]
    spent: list[float] = []
    for _ in range(5):  # the first two compile, or capture CUDA graphs
        began = clock()
        texts = [answer.text for answer in model.translate(lines, **case["options"])]
        spent.append(clock() - began)
    return STEPS / statistics.median(spent[2:]), texts


def work() -> None:
    """Answers cases, one per line of stdin, on stdout. Everything else that is printed goes to stderr."""
    replies, loaded = os.fdopen(os.dup(1), "w"), dict[str, Any]()
    os.dup2(2, 1)
    # The installed metadata belong to one of the checkouts, and the other may not know their kinds of parts.
    # Those of other packages stay: Triton finds its backends among them.
    installed = importlib.metadata.entry_points

    def entry_points(**selected: Any) -> importlib.metadata.EntryPoints:
        return importlib.metadata.EntryPoints(each for each in installed(**selected) if not each.group.startswith("weft."))

    importlib.metadata.entry_points = entry_points  # type: ignore[assignment]
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(decode(case, loaded) if "rows" in case else (train(case), [])), file=replies, flush=True)
