"""Training speed on the CPU: weft's Transformer against transformers' Marian of the same shape and batches, in one run.

    python benchmarks/cpu_train.py [--threads 2] [--rounds 3]

d 256, feed-forward 1,024, 4 + 4 layers of 4 heads, vocabulary 10,000, post-norm, dropout 0.1, label smoothing 0.1, batches of
4,096 padded tokens with lengths around 15. The two take turns, and the best round of each counts. Padding is not counted.
"""

from __future__ import annotations

import argparse
import platform
import random
import time

import torch
import torch.nn.functional as F
import transformers
from batches import Batch, Step, make_batches, shift_right, speed, training_step
from marian import marian

import weft
from weft.data.batch import PAD
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

VOCABULARY, DIM, HEADS, HIDDEN, LAYERS = 10_000, 256, 4, 1024, 4


def weft_step(half: bool) -> Step:
    options = {"dim": DIM, "heads": HEADS, "feedforward": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": LAYERS}
    spec = {"kind": "transformer", **options, "norm": "post", "dropout": 0.1}
    model: Model = build_model(spec, Sizes(VOCABULARY, VOCABULARY, True)).train()
    return training_step(model, half)


def marian_step(half: bool) -> Step:
    model = marian(VOCABULARY, DIM, HIDDEN, HEADS, LAYERS).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: Batch) -> None:
        source, labels, layout = batch
        fed = shift_right(labels)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(input_ids=source, attention_mask=layout.mask, decoder_input_ids=fed, use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random.seed(0)
    batches = make_batches(VOCABULARY)
    steps = {
        (name, half): make(half) for half in (False, True) for name, make in (("weft", weft_step), ("Marian", marian_step))
    }
    best = dict.fromkeys(steps, 0.0)
    for step in steps.values():
        step(batches[0])
    for _ in range(options.rounds):
        for key, step in steps.items():
            best[key] = max(best[key], speed(step, batches))
    versions = f"torch {torch.__version__} · transformers {transformers.__version__} · weft {weft.__version__}"
    print(f"{time.strftime('%Y-%m-%d')} · {platform.machine()}, {options.threads} threads · {versions}")
    for half in (False, True):
        ours, theirs = best["weft", half], best["Marian", half]
        precision = "bf16" if half else "float32"
        print(f"{precision:8} weft {ours:,.0f} · Marian {theirs:,.0f} target tok/s · ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
