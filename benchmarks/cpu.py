"""Decoding speed on a CPU: Transformers of three sizes against CTranslate2 and transformers in one run, with goals and ratios.

    python benchmarks/cpu.py [--shape base] [--only 1,1x4,32,32x4] [--settings float32,bf16,int8,compiled,native] [--rounds 5]
        [--threads 2] [--families]

base: d 512, feed-forward 2,048, 8 heads, 6 + 6 layers, vocabulary 32,000; small and tiny: the shapes of the recipes
transformer-small and transformer-tiny. Random weights; 32 forced steps from sources of 27 tokens, encoder included. All
systems take turns in every round, and use the cores in two ways (one worker with all threads, or one worker per core); the
best round of the better way counts. "compiled" is decode.precision: int8 with decode.compile: true, and "native" is float32
with it; compilation, once per machine, is not counted. With a shortlist (decode.shortlist: 100), the output layer covers only
as many tokens as such sentences lead to in Multi30k; selecting its rows once per search is counted. The peers compute the
whole output layer, so there are ratios without and with a shortlist. --families adds RNN and ConvS2S, which no peer decodes.
A peer that is not installed is skipped with a message: pip install ctranslate2 transformers.
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
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

# By default, CTranslate2 chooses slower kernels on AMD.
os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")

import torch
from random_text import SOURCE, STEPS

from weft.config.sections import DecodeSection
from weft.data.batch import BOS, PAD, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.cpp_search import encode
from weft.decoding.decoding_options import DecodingOptions, resolve_options
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.int8 import in_int8
from weft.layers.kernels.cpp import CannotBuild, kernels
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import ShortlistDecoder
from weft.worker_processes import Workers

CASES = {"1": (1, 1), "1x4": (1, 4), "32": (32, 1), "32x4": (32, 4)}
"""Name → sentences, beam."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. The three families have the same width and number of layers."""

    vocabulary: int
    dim: int
    hidden: int
    heads: int
    layers: int

    def options(self, kind: str) -> dict[str, object]:
        layers = {"encoder_layers": self.layers, "decoder_layers": self.layers}
        return {
            "transformer": {"dim": self.dim, "feedforward": self.hidden, "heads": self.heads, "norm": "post", **layers},
            "rnn": {"dim": self.dim, "embedding": self.dim, "encoder_dim": 2 * self.dim, "style": "bahdanau"},
            "convs2s": {"dim": self.dim, "channels": self.dim, **layers},
        }[kind]


SHAPES = {
    "base": Shape(32_000, 512, 2048, 8, 6),
    "small": Shape(10_000, 256, 1024, 4, 4),
    "tiny": Shape(6_000, 192, 768, 4, 3),
}
NATIVE = {"compiled": "int8", "native": "float32"}
"""Settings with decode.compile → precision."""

SHORTLISTS = {1: 950, 16: 3900, 32: 4900}
"""Sentences per search → tokens in their shortlist."""

Work = Callable[[], object]
Rows = list[list[int]]


def build_models(kind: str, shape: Shape, settings: Sequence[str]) -> dict[str, Model]:
    """Setting → model with random weights."""
    torch.manual_seed(0)
    model: Model = build_model({"kind": kind, **shape.options(kind)}, Sizes(shape.vocabulary, shape.vocabulary, True)).eval()
    ways: dict[str, Callable[[], Model]] = {
        "float32": lambda: model,
        "bf16": lambda: deepcopy(model).bfloat16(),
        "int8": lambda: in_int8(model),
        "compiled": lambda: in_int8(model, kernels()),
        "native": lambda: model,
    }
    return {setting: ways[setting]() for setting in settings}


def resolved(model: Model, setting: str, beam: int) -> DecodingOptions:
    """The options of a setting. A translator resolves them once, so this is not counted."""
    options = DecodeSection(search={"kind": "beam", "width": beam}, precision=NATIVE.get(setting, setting))  # type: ignore[arg-type]
    return replace(resolve_options(options, model.device), kernels=kernels() if setting in NATIVE else None)


def search(model: Model, vocabulary: int, how: DecodingOptions, beam: int, shortlist: bool, source: Rows) -> int:
    """Decodes 32 forced steps; returns the number of generated tokens."""
    rows, decoder, bias = len(source), model.decoder, None
    column = torch.full((rows,), STEPS)
    selector: TokenSelector = BeamSelector(beam) if beam > 1 else GreedySelector()
    with how.arithmetic(next(model.parameters()).dtype, how.beams):
        if shortlist:
            size = min(SHORTLISTS[min(SHORTLISTS, key=lambda known: abs(known - rows))], vocabulary)
            decoder, bias = ShortlistDecoder(decoder, torch.arange(size) * (vocabulary // size)), torch.zeros(rows, size)
        hypotheses, _ = run_search(
            decoder,
            encode(model, Source(torch.tensor(source))),
            selector,
            SearchRequest(
                prefix=torch.full((rows, 1), BOS),
                limits=LengthLimits(column, column - 1, torch.arange(rows), bias),
                constraints=[ForbidTokens([PAD, BOS])],
                n_best=1,
            ),
        )
    return sum(len(best.tokens) for best, *_ in hypotheses)


def run_alone(find: Callable[[Rows], int], source: Rows, threads: int) -> None:
    torch.set_num_threads(threads)
    find(source)


def run_in_workers(workers: Workers[Rows, int], parts: Sequence[Rows]) -> None:
    for _ in workers.run(parts):
        pass


def weft_works(
    models: dict[str, Model], shape: Shape, rows: int, beam: int, threads: int, stack: ExitStack
) -> Iterator[tuple[str, Work]]:
    source = torch.randint(4, shape.vocabulary, (rows, SOURCE), generator=torch.Generator().manual_seed(1)).tolist()
    last = list(models)[-1]
    for setting, shortlist in [*((name, False) for name in models), (last, True)]:
        find = partial(search, models[setting], shape.vocabulary, resolved(models[setting], setting, beam), beam, shortlist)
        name = f"weft {setting}{' shortlist' * shortlist}"
        for count in sorted({1, threads}) if rows == 1 else [threads]:
            yield name, partial(run_alone, find, source, count)
        if rows > 1 and threads > 1:
            workers = stack.enter_context(Workers(threads, find))
            yield name, partial(run_in_workers, workers, [source[part::threads] for part in range(threads)])


def ctranslate2_works(folder: Path, shape: Shape, rows: int, beam: int, threads: int) -> Iterator[tuple[str, Work]]:
    import ctranslate2
    from ctranslate import write_model

    if not (folder / "model.bin").exists():
        write_model(folder, shape.vocabulary, shape.dim, shape.hidden, shape.heads, shape.layers)
    source = [[f"t{row * SOURCE + at}" for at in range(SOURCE)] for row in range(rows)]
    ways = [(1, threads), (threads, 1)] if rows > 1 else [(1, 1), (1, threads)]
    options = {"beam_size": beam, "max_decoding_length": STEPS, "min_decoding_length": STEPS}
    for workers, each in dict.fromkeys(ways):
        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="int8", inter_threads=workers, intra_threads=each
        )
        size = max(1, rows // workers)
        yield "CTranslate2 int8", partial(translator.translate_batch, source, max_batch_size=size, **options)


def transformers_work(shape: Shape, rows: int, beam: int, threads: int) -> Work:
    from marian import decode, marian

    sizes = shape.vocabulary, shape.dim, shape.hidden, shape.heads, shape.layers
    model = marian(*sizes, forced_eos_token_id=None).eval()
    source = torch.randint(4, shape.vocabulary, (rows, SOURCE))

    def work() -> None:
        torch.set_num_threads(threads)
        decode(model, source, beam, STEPS)

    return work


def best_times(works: list[tuple[str, Work]], rounds: int) -> dict[str, float]:
    """Name → the fewest milliseconds per step, over all works of that name and all rounds."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, work in works:
            began = time.perf_counter()
            work()
            spent = (time.perf_counter() - began) / STEPS * 1000
            if number > 0:  # the first round warms up
                best[name] = min(spent, best.get(name, spent))
    return best


def compare(case: str, shape: Shape, rounds: int, threads: int, models: dict[str, Model], folder: Path) -> None:
    rows, beam = CASES[case]
    with ExitStack() as stack:
        works = list(weft_works(models, shape, rows, beam, threads, stack))
        if find_spec("ctranslate2"):
            works += ctranslate2_works(folder, shape, rows, beam, threads)
        if find_spec("transformers"):
            works.append(("transformers float32", transformers_work(shape, rows, beam, threads)))
        best = best_times(works, rounds)
    ours = min(value for name, value in best.items() if name.startswith("weft") and "shortlist" not in name)
    shortlisted = min(value for name, value in best.items() if "shortlist" in name)
    goals = {"CTranslate2 int8": 1.2, "transformers float32": 3.0}
    cells = [f"{name} {value:.2f}" for name, value in best.items()]
    ratios = [
        f"{best[peer] / ours:.2f}, with a shortlist {best[peer] / shortlisted:.2f} × {peer} (goal {goal})"
        for peer, goal in goals.items()
        if peer in best
    ]
    print(f"| {rows} | {beam} | {', '.join(cells)} | {', '.join(ratios) or 'no peer'} |", flush=True)


def families(cases: list[str], shape: Shape, rounds: int, threads: int, settings: Sequence[str]) -> None:
    print("\n| model | batch | beam | ms per step |\n|---|---|---|---|")
    for kind in ("rnn", "convs2s"):
        models = build_models(kind, shape, settings)
        for rows, beam in (CASES[case] for case in cases):
            with ExitStack() as stack:
                best = best_times(list(weft_works(models, shape, rows, beam, threads, stack)), rounds)
            cells = ", ".join(f"{name} {value:.2f}" for name, value in best.items())
            print(f"| {kind} | {rows} | {beam} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="base", help="the size of the models")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument(
        "--settings", default="float32,bf16,int8,native,compiled", help="precisions of weft, separated by commas"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--families", action="store_true", help="also measure RNN and ConvS2S, which no peer decodes")
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} · {platform.processor() or platform.machine()}, {options.threads} threads · "
          f"torch {torch.__version__} · load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for peer in ("ctranslate2", "transformers"):
        if not find_spec(peer):
            print(f"skipping {peer}, which is not installed (pip install {peer})")
    settings = options.settings.split(",")
    try:
        kernels()
    except CannotBuild as error:
        print(f"skipping the settings {' and '.join(NATIVE)}: {error}")
        settings = [setting for setting in settings if setting not in NATIVE]
    print("\n| batch | beam | ms per step | speed of weft's best relative to |\n|---|---|---|---|")
    cases, shape = options.only.split(","), SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as folder:
        models = build_models("transformer", shape, settings)
        for case in cases:
            compare(case, shape, options.rounds, options.threads, models, Path(folder))
    if options.families:
        families(cases, shape, options.rounds, options.threads, settings)


if __name__ == "__main__":
    main()
