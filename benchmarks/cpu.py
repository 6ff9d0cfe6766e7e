"""Decoding on a CPU: Transformer-base beside CTranslate2 and transformers in one run, with goals and ratios.

    python benchmarks/cpu.py [--only 1,32,32x4] [--settings float32,bf16,int8,compiled] [--rounds 5] [--threads 2] [--families]

d 512, feed-forward 2,048, 8 heads, 6 + 6 layers, vocabulary 32,000, random weights; 32 forced steps from sources of 27 tokens,
the encoder included. All take turns in every round, in both ways of using the cores (one worker with all threads, or a worker
for each core); the best round of the best way counts. Compiled is decode.precision: int8 with decode.compile: true, whose
compiling, once for a machine, is not counted. With a shortlist the output layer is computed for some tokens only
(decode.shortlist: 100), as many as sentences of that length led to in Multi30k; it is cut out once a search, which counts. The
peers compute all of it, so there is a ratio without and one with a shortlist. --families adds RNN and ConvS2S, which no peer
decodes. A peer that is not installed is left out, and it says so: pip install ctranslate2 transformers.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

# It takes the slower kernels on AMD by itself.
os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")

import torch
from gpu import DIM, HEADS, HIDDEN, LAYERS, SHAPE, SOURCE, STEPS, VOCABULARY

from weft.batch import BOS, PAD
from weft.config import DecodeSection
from weft.inference.resolve import resolve
from weft.inference.workers import Workers
from weft.layers.int8 import in_int8
from weft.models.base import Model, Sizes
from weft.models.narrowed import NarrowedDecoder
from weft.native import CannotBuild, kernels, using
from weft.registry import build
from weft.search.choosers import Beam, Chooser, Greedy, Limits
from weft.search.constraints import Forbid
from weft.search.loop import generate

CASES = {"1": (1, 1), "32": (32, 1), "32x4": (32, 4)}
"""name → sentences, beam."""

FAMILIES = {
    "transformer": {**SHAPE, "norm": "post"},
    "rnn": {"dim": DIM, "embedding": DIM, "encoder_dim": 2 * DIM, "style": "bahdanau"},
    "convs2s": {"dim": DIM, "channels": DIM, "encoder_layers": LAYERS, "decoder_layers": LAYERS},
}
SHORTLISTS = {1: 950, 16: 3900, 32: 4900}
"""Sentences searched together → the tokens they choose among."""

Work = Callable[[], object]
Rows = list[list[int]]


def made(kind: str, settings: Sequence[str]) -> dict[str, Model]:
    """A model of random weights in each setting."""
    torch.manual_seed(0)
    model: Model = build("weft.models:MODELS", {"kind": kind, **FAMILIES[kind]}, Sizes(VOCABULARY, VOCABULARY, True)).eval()
    ways: dict[str, Callable[[], Model]] = {
        "float32": lambda: model,
        "bf16": lambda: deepcopy(model).bfloat16(),
        "int8": lambda: in_int8(model),
        "compiled": lambda: in_int8(model, kernels()),
    }
    return {setting: ways[setting]() for setting in settings}


def search(model: Model, setting: str, beam: int, shortlist: bool, source: Rows) -> int:
    rows, native = len(source), kernels() if setting == "compiled" else None
    precision = "int8" if native else setting
    decoder, bias = model.decoder, None
    column = torch.full((rows,), STEPS)
    chooser: Chooser = Beam(beam) if beam > 1 else Greedy()
    options = DecodeSection(search={"kind": "beam", "width": beam}, precision=precision)  # type: ignore[arg-type]
    resolved = replace(resolve(options, model.device), kernels=native)
    half = resolved.autocasts(next(model.parameters()).dtype, resolved.beams)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half), using(native):
        if shortlist:
            size = SHORTLISTS[min(SHORTLISTS, key=lambda known: abs(known - rows))]
            decoder, bias = NarrowedDecoder(decoder, torch.arange(size) * (VOCABULARY // size)), torch.zeros(rows, size)
        found, _ = generate(
            decoder,
            model.encode(torch.tensor(source)),
            chooser,
            first=torch.full((rows, 1), BOS),
            limits=Limits(column, column - 1, torch.arange(rows), bias),
            constraints=[Forbid([PAD, BOS])],
            best=1,
        )
    return sum(len(best.tokens) for best, *_ in found)


def alone(find: Callable[[Rows], int], source: Rows, threads: int) -> None:
    torch.set_num_threads(threads)
    find(source)


def side_by_side(crew: Workers[Rows, int], parts: Sequence[Rows]) -> None:
    for _ in crew.run(parts):
        pass


def ours(models: dict[str, Model], rows: int, beam: int, threads: int, open_: ExitStack) -> Iterator[tuple[str, Work]]:
    source = torch.randint(4, VOCABULARY, (rows, SOURCE), generator=torch.Generator().manual_seed(1)).tolist()
    last = list(models)[-1]
    for setting, shortlist in [*((name, False) for name in models), (last, True)]:
        find, name = partial(search, models[setting], setting, beam, shortlist), f"weft {setting}{' shortlist' * shortlist}"
        for count in sorted({1, threads}) if rows == 1 else [threads]:
            yield name, partial(alone, find, source, count)
        if rows > 1 and threads > 1:
            crew = open_.enter_context(Workers(threads, find))
            yield name, partial(side_by_side, crew, [source[part::threads] for part in range(threads)])


def ctranslate2_works(folder: Path, rows: int, beam: int, threads: int) -> Iterator[tuple[str, Work]]:
    import ctranslate2
    from ctranslate import write_model

    if not (folder / "model.bin").exists():
        write_model(folder, VOCABULARY, DIM, HIDDEN, HEADS, LAYERS)
    source = [[f"t{row * SOURCE + at}" for at in range(SOURCE)] for row in range(rows)]
    ways = [(1, threads), (threads, 1)] if rows > 1 else [(1, 1), (1, threads)]
    options = {"beam_size": beam, "max_decoding_length": STEPS, "min_decoding_length": STEPS}
    for workers, each in dict.fromkeys(ways):
        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="int8", inter_threads=workers, intra_threads=each
        )
        size = max(1, rows // workers)
        yield "CTranslate2 int8", partial(translator.translate_batch, source, max_batch_size=size, **options)


def transformers_work(rows: int, beam: int, threads: int) -> Work:
    from marian import marian

    model = marian(VOCABULARY, DIM, HIDDEN, HEADS, LAYERS, forced_eos_token_id=None).eval()
    source = torch.randint(4, VOCABULARY, (rows, SOURCE))
    options = {"num_beams": beam, "do_sample": False, "max_new_tokens": STEPS, "min_new_tokens": STEPS}

    def work() -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            model.generate(input_ids=source, attention_mask=torch.ones_like(source), **options)

    return work


def measured(works: list[tuple[str, Work]], rounds: int) -> dict[str, float]:
    """The best milliseconds a step of each name, over all its ways and all rounds."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, work in works:
            began = time.perf_counter()
            work()
            spent = (time.perf_counter() - began) / STEPS * 1000
            if number > 0:  # the first round warms up
                best[name] = min(spent, best.get(name, spent))
    return best


def compare(case: str, rounds: int, threads: int, models: dict[str, Model], folder: Path) -> None:
    rows, beam = CASES[case]
    with ExitStack() as open_:
        works = list(ours(models, rows, beam, threads, open_))
        if find_spec("ctranslate2"):
            works += ctranslate2_works(folder, rows, beam, threads)
        if find_spec("transformers"):
            works.append(("transformers float32", transformers_work(rows, beam, threads)))
        best = measured(works, rounds)
    mine = min(value for name, value in best.items() if name.startswith("weft") and "shortlist" not in name)
    listed = min(value for name, value in best.items() if "shortlist" in name)
    goals = {"CTranslate2 int8": 1.2, "transformers float32": 3.0}
    cells = [f"{name} {value:.2f}" for name, value in best.items()]
    ratios = [
        f"{best[peer] / mine:.2f}, with a shortlist {best[peer] / listed:.2f} × {peer} (goal {goal})"
        for peer, goal in goals.items()
        if peer in best
    ]
    print(f"| {rows} | {beam} | {', '.join(cells)} | {', '.join(ratios) or 'no peer'} |", flush=True)


def families(cases: list[str], rounds: int, threads: int, settings: Sequence[str]) -> None:
    print("\n| model | batch | beam | ms a step |\n|---|---|---|---|")
    for kind in ("rnn", "convs2s"):
        models = made(kind, settings)
        for rows, beam in (CASES[case] for case in cases):
            with ExitStack() as open_:
                best = measured(list(ours(models, rows, beam, threads, open_)), rounds)
            cells = ", ".join(f"{name} {value:.2f}" for name, value in best.items())
            print(f"| {kind} | {rows} | {beam} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--settings", default="float32,bf16,int8,compiled", help="of weft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--families", action="store_true", help="also RNN and ConvS2S, which no peer decodes")
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} · {platform.processor() or platform.machine()}, {options.threads} threads · "
          f"torch {torch.__version__} · load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for peer in ("ctranslate2", "transformers"):
        if not find_spec(peer):
            print(f"{peer} is not installed: it is left out (pip install {peer})")
    settings = options.settings.split(",")
    try:
        kernels()
    except CannotBuild as error:
        print(f"nothing is compiled: {error}")
        settings = [setting for setting in settings if setting != "compiled"]
    print("\n| batch | beam | ms a step | weft's best against |\n|---|---|---|---|")
    cases = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        models = made("transformer", settings)
        for case in cases:
            compare(case, options.rounds, options.threads, models, Path(folder))
    if options.families:
        families(cases, options.rounds, options.threads, settings)


if __name__ == "__main__":
    main()
