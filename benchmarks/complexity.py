"""Cost of layers and translators by length T and by width D, measured beside the formulas, and their receptive fields.

    python benchmarks/complexity.py [--times]

Layers (Vaswani et al. 2017, table 1): self-attention O(T²D), recurrent O(TD²), a convolution over k tokens O(kTD²), all causal.
The operations of one call are counted, and fitted by T^a D^b at the largest sizes; --times adds the processor's seconds of a
pass forward and backward, on one thread. Translators (Kalchbrenner et al. 2016, table 1): how the operations of reading and
writing n tokens grow with n, and how many source and earlier target tokens reach the last output, by its gradient.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from trainings import markdown

from weft.attention.base import Site
from weft.attention.mixers import build_self
from weft.bench.flop_counter import FlopCounter
from weft.bench.machine import about
from weft.config.sections import load_config
from weft.data.batch import Source
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

HEADS, WIDTH = 4, 3
LENGTHS, WIDTHS = (64, 256, 1024, 4096), (64, 128, 256, 512)
SHORT, NARROW = 64, 64
"""The length while the width varies, and the width while the length varies."""
LAYERS: dict[str, tuple[dict[str, object], str, Callable[[int, int], int]]] = {
    "self-attention": ({"kind": "full", "bias": False}, "8TD² + 2T²D", lambda t, d: 8 * t * d * d + 2 * t * t * d),
    "recurrent, GRU": ({"kind": "recurrent"}, "14TD²", lambda t, d: 14 * t * d * d),
    f"convolution, k = {WIDTH}": (
        {"kind": "convolution", "width": WIDTH},
        "(4k + 2)TD²",
        lambda t, d: (4 * WIDTH + 2) * t * d * d,
    ),
}
"""Layer → its part, its operations by hand (a product and a sum are two), and the same as a function."""
SMALL = ("model.dim=32", "data.vocabulary=100")
TRANSLATORS = {
    "RNN, fixed context": ("rnn-fixed", (*SMALL, "model.embedding=32"), ("S + T", "S + T", "T")),
    "RNN, attention": ("rnn-bahdanau", (*SMALL, "model.embedding=32", "model.encoder_dim=32"), ("S · T", "1", "T")),
    "ByteNet, dilations 1 to 16": ("bytenet", (*SMALL, "model.dilations=[1, 2, 4, 8, 16]"), ("S + T", "c", "c")),
    "ConvS2S, 5 layers in the decoder": ("convs2s", (*SMALL, "model.channels=32"), ("S · T", "1", "T / 2")),
    "Transformer": ("transformer-2017", (*SMALL, "model.heads=4", "model.feedforward=128"), ("S² + S · T + T²", "1", "1")),
}
"""Translator → recipe, changes to it, and by the papers: time, path from a source token, path from an earlier target token."""
TEXT, GROWTH = 100, (256, 512)
"""Tokens of the text whose reach is measured, and the lengths between which growth is."""


def layer(kind: dict[str, object], width: int) -> nn.Module:
    torch.manual_seed(1)
    return build_self(kind, Site("causal", width, HEADS))


def call(part: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = part(x, part.init_state(rows=1)).context
    return found


def operations(work: Callable[[], object]) -> int:
    with torch.no_grad(), FlopCounter() as counter:
        work()
    return counter.cost.flops


def seconds(kind: dict[str, object], length: int, width: int) -> float:
    """Processor time of the fastest of five passes forward and backward."""
    part, x = layer(kind, width), torch.randn(1, length, width, requires_grad=True)
    found = []
    for _ in range(5):
        began = time.process_time()
        call(part, x).sum().backward()
        found.append(time.process_time() - began)
    return min(found)


def slope(values: dict[int, float]) -> float:
    """The exponent between the two largest sizes."""
    (small, low), (large, high) = sorted(values.items())[-2:]
    return math.log(high / low) / math.log(large / small)


def layer_rows(times: bool) -> list[tuple[str, ...]]:
    rows = []
    for name, (kind, text, formula) in LAYERS.items():

        def counted(length: int, width: int, kind: dict[str, object] = kind) -> int:
            part, x = layer(kind, width), torch.randn(1, length, width)
            return operations(lambda: call(part, x))

        by_length = {length: counted(length, NARROW) for length in LENGTHS}
        by_width = {width: counted(SHORT, width) for width in WIDTHS}
        ratio = by_length[LENGTHS[-1]] / formula(LENGTHS[-1], NARROW), by_width[WIDTHS[-1]] / formula(SHORT, WIDTHS[-1])
        row = [name, text, *(f"{each:.2f}" for each in ratio), f"{slope(by_length):.2f}", f"{slope(by_width):.2f}"]
        if times:
            taken = {length: seconds(kind, length, NARROW) for length in LENGTHS}
            wide = {width: seconds(kind, SHORT, width) for width in WIDTHS}
            row += [" ".join(f"{1e3 * each:.1f}" for each in some.values()) for some in (taken, wide)]
            row += [f"{slope(taken):.2f}", f"{slope(wide):.2f}"]
        rows.append(tuple(row))
    return rows


def translator(recipe: str, sets: tuple[str, ...]) -> Model:
    torch.manual_seed(1)
    config = load_config(recipe, sets)
    return build_model(config.model, Sizes(100, 100, config.data.shared_vocabulary), where="model").eval()


def run(model: Model, length: int) -> Tensor:
    torch.manual_seed(2)
    source, target = torch.randint(5, 100, (1, length)), torch.randint(5, 100, (1, length))
    encoded = model.encode(Source(source))
    logits: Tensor = model.decoder(target, model.decoder.init_state(encoded)).logits
    return logits


def reach(model: Model, length: int) -> tuple[int, int]:
    """The source tokens and the target tokens whose embeddings change the last output."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> None:
        if isinstance(output, Tensor) and output.dim() == 3 and output.requires_grad:
            output.retain_grad()
            seen.append(output)

    hooks = [part.register_forward_hook(keep) for part in model.modules() if isinstance(part, nn.Embedding)]
    run(model, length)[0, -1].sum().backward()
    for hook in hooks:
        hook.remove()
    texts = [each for each in seen if each.size(1) >= length and each.grad is not None]
    counts = [int((each.grad[0, :length].norm(dim=-1) > 0).sum()) for each in texts if each.grad is not None]
    return counts[0], counts[-1]


def translator_rows() -> list[tuple[str, ...]]:
    rows = []
    for name, (recipe, sets, (time_, source_path, target_path)) in TRANSLATORS.items():
        model = translator(recipe, sets)
        source, target = reach(model, TEXT)
        growth = slope({length: operations(partial(run, model, length)) for length in GROWTH})
        rows.append((name, time_, f"{growth:.2f}", f"{source}", f"{target}", source_path, target_path))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", action="store_true", help="also measure the processor's time, on one thread")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = about()
    print(f"{machine['date']} · {machine['device']} · torch {machine['torch']}\n")
    headings = ["layer", "operations by hand", "counted ÷ by hand, long", "wide", "exponent of T", "of D"]
    if options.times:
        headings += [f"ms, T = {LENGTHS}", f"ms, D = {WIDTHS}", "exponent of T in time", "of D"]
    print(markdown(headings, layer_rows(options.times)))
    headings = ["translator", "time", f"growth of operations, n = {GROWTH[0]} to {GROWTH[1]}"]
    headings += [
        f"source tokens of {TEXT} that reach the last output",
        "target tokens",
        "path from the source",
        "from the target",
    ]
    print(markdown(headings, translator_rows()))


if __name__ == "__main__":
    main()
