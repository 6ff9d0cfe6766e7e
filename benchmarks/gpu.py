"""Transformer-base on one GPU: training and decoding speed against transformers in the same run, with goals and ratios.

    python benchmarks/gpu.py [--only train-25k,decode-64] [--peer no] [--compile]
    python benchmarks/gpu.py --only multi30k --multi30k DIR --run RUN --peer-model FILE

d 512, feed-forward 2,048, 8 heads, 6 + 6 layers, vocabulary 32,000, lengths as in news text, bf16. Training is `weft.train` on
a file of random text, including data loading, clipping and optimiser; the peer has its batches on the device. Decoding is 32
steps from sources of 27 tokens. Only real target tokens count, not padding. --compile sets decode.compile; train.compile keeps
its default. "waiting" is the share of time in which the GPU was idle because the next batch was not ready. The peer's training
is timed twice: from its 13th to its 52nd batch, as their shapes come, and again ("later") with the same batches.

multi30k: text to text, beam 5, the 1,000 sentences of test_2016_flickr in DIR, by a trained run, and by the peer from a FILE of
benchmarks/multi30k_peer.py; also the time of a recipe from the start of Python to the end of its first step.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import random
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_multi30k import first_step, peer_multi30k, weft_multi30k
from random_text import DIM, HEADS, HIDDEN, LAYERS, SHAPE, SOURCE, STEPS, VOCABULARY, lengths, write_text
from timing import Figures, timed
from torch._dynamo.utils import counters

import weft
from weft.data.batch import BOS, PAD, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.cuda_graph_search import search_graphs_of
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.training import training_loop
from weft.training.training_loop import Update
from weft.training.validate_and_save import Session


class IdleTimer:
    """Measures how long the GPU is idle before each batch, by two events in its stream."""

    def __init__(self) -> None:
        self.marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._ahead = training_loop._prefetched

    def __enter__(self) -> IdleTimer:
        training_loop._prefetched = self.ahead
        return self

    def __exit__(self, *error: object) -> None:
        training_loop._prefetched = self._ahead

    def ahead(self, session: Session, mine: range) -> Generator[Update, None, None]:
        with closing(self._ahead(session, mine)) as ready:
            while True:
                pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                pair[0].record()
                work = next(ready)
                pair[1].record()
                self.marks.append(pair)
                yield work

    def share(self, skip: int = 20) -> float:
        """The idle share of the time from the first batch after `skip` others to the last."""
        torch.cuda.synchronize()
        marks = self.marks[skip:]
        return sum(first.elapsed_time(last) for first, last in marks) / marks[0][0].elapsed_time(marks[-1][1])


def weft_training(tokens: int, steps: int = 90) -> Figures:
    counters.clear()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        options = {
            "data": {"tokenizer": {"kind": "words"}, "vocabulary": VOCABULARY, "cache": str(folder / "cache")},
            "model": {"kind": "transformer", **SHAPE, "norm": "post", "dropout": 0.1},
            "train": {"steps": steps, "batch_tokens": tokens, "precision": "bf16", "log_every": 15, "save_every": steps},
        }
        (folder / "base.yaml").write_text(json.dumps(options))
        data = write_text(folder, 40 * tokens // 25)
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        with IdleTimer() as idle:
            weft.train(folder / "base.yaml", data=data, out=folder / "run")
        total = time.perf_counter() - began
        lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        rates = sorted(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
        return {
            "tok/s": rates[len(rates) // 2],
            "GiB": torch.cuda.max_memory_allocated() / 2**30,
            "waiting": idle.share(),
            "graphs compiled": counters["stats"]["unique_graphs"],
            "seconds in all": total,
        }


def peer_model() -> torch.nn.Module:
    from marian import marian

    model: torch.nn.Module = marian(VOCABULARY, DIM, HIDDEN, HEADS, LAYERS, forced_eos_token_id=None).cuda()
    return model


def peer_batches(tokens: int, count: int = 24) -> list[tuple[torch.Tensor, ...]]:
    """Shuffled batches of pairs of similar length, within the budget of padded tokens; extents are multiples of 8."""
    batches: list[list[tuple[int, int]]] = [[]]
    draw = random.Random(0)
    for pair in sorted(lengths(count * tokens // 20, draw)):
        if batches[-1] and max(*pair, *map(max, batches[-1])) * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(pair)
    batches.pop()  # the last one is not full
    draw.shuffle(batches)
    result = []
    for rows in batches[:count]:
        sides = []
        for side in (0, 1):
            size = torch.tensor([pair[side] for pair in rows])
            real = torch.arange(-(-int(size.max()) // 8) * 8) < size[:, None]
            sides += [torch.randint(4, VOCABULARY, real.shape).masked_fill(~real, PAD).cuda(), real.cuda()]
        result.append(tuple(sides))
    return result


def peer_training(tokens: int, steps: int = 40, warm: int = 12) -> Figures:
    """transformers with torch.compile: its speed after some steps, as batches come, and once it has seen all their shapes.

    It compiles for dynamic extents, but compiles again when two extents that were equal at first differ, or the reverse.
    """
    model = peer_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model, dynamic=True)
    batches = peer_batches(tokens)

    def step(source: torch.Tensor, source_ok: torch.Tensor, labels: torch.Tensor, ok: torch.Tensor) -> None:
        fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(input_ids=source, attention_mask=source_ok, decoder_input_ids=fed, use_cache=False).logits
            gold = labels.masked_fill(~ok, -100).flatten()
            loss = F.cross_entropy(logits.flatten(0, 1).float(), gold, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def rate(steps: list[tuple[torch.Tensor, ...]]) -> float:
        each = iter(steps)
        return sum(int(ok.sum()) for _, _, _, ok in steps) / len(steps) / timed(lambda: step(*next(each)), len(steps))

    torch.cuda.reset_peak_memory_stats()
    for batch in batches[:warm]:
        step(*batch)
    turns = list(itertools.islice(itertools.cycle(batches), steps))
    return {"tok/s": rate(turns), "tok/s later": rate(turns), "GiB": torch.cuda.max_memory_allocated() / 2**30}


def weft_decoding(rows: int, beam: int, compiled: bool) -> Figures:
    spec = {"kind": "transformer", **SHAPE, "norm": "post"}
    model: Model = build_model(spec, Sizes(VOCABULARY, VOCABULARY, True)).cuda().eval().bfloat16()
    source = torch.randint(4, VOCABULARY, (rows, SOURCE), device="cuda")
    selector: TokenSelector = BeamSelector(beam) if beam > 1 else GreedySelector()
    column = torch.full((rows,), STEPS, device="cuda")
    limits = LengthLimits(column, column - 1, torch.arange(rows, device="cuda"))
    recorder = search_graphs_of(model)
    assert recorder is not None
    recorded = recorder.runner("one", Compiler(print) if compiled else None)

    def work() -> None:
        with torch.inference_mode():
            run_search(
                model.decoder,
                recorded.encode(model, Source(source)),
                selector,
                SearchRequest(
                    prefix=torch.full((rows, 1), BOS, device="cuda"),
                    limits=limits,
                    constraints=[ForbidTokens([PAD, BOS])],
                    n_best=1,
                    runner=recorded,
                ),
            )

    began = time.perf_counter()
    for _ in range(3):
        work()
    warm = time.perf_counter() - began
    return {"ms per step": timed(work, 3) / STEPS * 1000, "seconds to warm up": warm}


def peer_decoding(rows: int, beam: int) -> Figures:
    from marian import decode

    model = peer_model().eval().to(torch.bfloat16)
    source = torch.randint(4, VOCABULARY, (rows, SOURCE), device="cuda")
    work = partial(decode, model, source, beam, STEPS)
    work()
    return {"ms per step": timed(work, 2) / STEPS * 1000}


CASES: dict[str, tuple[float, Callable[[bool], Figures], Callable[[], Figures]]] = {
    "train-25k": (3.0, lambda compiled: weft_training(25_000), lambda: peer_training(25_000)),
    "train-100k": (1.4, lambda compiled: weft_training(100_000, 50), lambda: peer_training(100_000)),
    "decode-1": (12.0, lambda compiled: weft_decoding(1, 1, compiled), lambda: peer_decoding(1, 1)),
    "decode-64": (7.0, lambda compiled: weft_decoding(64, 4, compiled), lambda: peer_decoding(64, 4)),
    "decode-512": (4.0, lambda compiled: weft_decoding(512, 4, compiled), lambda: peer_decoding(512, 4)),
}


def compare(name: str, goal: float, ours: Callable[[], Figures], theirs: Callable[[], Figures] | None) -> None:
    """Runs both and prints a line with their figures and ratio."""
    figures = []
    for work in filter(None, (ours, theirs)):
        torch.manual_seed(0)
        figures.append(work())
        gc.collect()
        torch.cuda.empty_cache()
    cells = " | ".join(
        ", ".join(f"{key} {value:,.3g}" if value < 1000 else f"{key} {value:,.0f}" for key, value in each.items())
        for each in figures
    )
    ratio = ""
    if len(figures) == 2:
        key = next(iter(figures[0]))
        quotient = figures[0][key] / figures[1][key]
        ratio = f" | {1 / quotient if key.startswith('ms') else quotient:.2f} × (goal {goal})"
        if later := figures[1].get(f"{key} later"):
            ratio += f", {figures[0][key] / later:.2f} × later"
    print(f"{name}: {cells}{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--peer", choices=["yes", "no"], default="yes")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--multi30k", type=Path, help="folder of Multi30k")
    parser.add_argument("--run", type=Path, help="a run trained on Multi30k")
    parser.add_argument("--peer-model", type=Path, help="file saved by benchmarks/multi30k_peer.py")
    options = parser.parse_args()
    versions = f"Python {platform.python_version()} · torch {torch.__version__}"
    print(f"{time.strftime('%Y-%m-%d')} · {torch.cuda.get_device_name()} · {versions}", flush=True)
    for name in options.only.split(","):
        if name == "multi30k":
            ours = partial(weft_multi30k, options.multi30k, options.run, options.compile)
            theirs = partial(peer_multi30k, options.multi30k, options.peer_model) if options.peer_model else None
            compare(name, 20.0, ours, theirs)
            compare("start", 20.0, partial(first_step, options.multi30k), None)
        else:
            goal, weft_case, peer_case = CASES[name]
            compare(name, goal, partial(weft_case, options.compile), peer_case if options.peer == "yes" else None)


if __name__ == "__main__":
    main()
