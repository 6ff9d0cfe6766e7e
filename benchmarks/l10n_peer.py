"""The peer of benchmarks/l10n.py: transformers' Marian, trained from scratch on the same pairs for a given time.

    python benchmarks/l10n_peer.py TRAIN TEST DEV --out FOLDER --seconds 600

Joint BPE of 32,000, 512 wide, 6 + 6 layers, compiled, 24,576 padded tokens a step, AdamW, a cosine schedule over the time, the
mean of the weights over its last tenth, beam 5. The time begins with the call: reading, BPE and compiling count. Writes
test.txt and dev.txt. With --slice, it saves its state after so many seconds and ends with the status 75; the same call
continues, and what it prepares again does not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from marian import marian
from multi30k_peer import DEVICE, batches, learn_bpe, translate, update

from weft.data.batch import EOS
from weft.data.formats import open_pairs

RATE, WARMUP, LONGEST, BPE_SAMPLE = 8e-4, 1_000, 200, 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs=3, help="training pairs, test, dev")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--slice", type=float, default=math.inf, help="seconds after which its state is saved")
    parser.add_argument("--tokens", type=int, default=24_576, help="padded tokens of a step")
    options = parser.parse_args()
    began = time.monotonic()
    random.seed(0)
    torch.manual_seed(0)
    pairs = list(open_pairs(options.files[0]))
    tokenizer = learn_bpe(random.sample(pairs, min(BPE_SAMPLE, len(pairs))), 32_000)
    sides = [[one.ids for one in tokenizer.encode_batch(list(side))] for side in zip(*pairs, strict=True)]
    encoded = [([*a, EOS], [*b, EOS]) for a, b in zip(*sides, strict=True) if 0 < len(a) < LONGEST and 0 < len(b) < LONGEST]
    model = marian(tokenizer.get_vocab_size(), 512, 2048, 8, 6, dropout=0.1, attention_dropout=0.1, forced_eos_token_id=EOS).to(
        DEVICE
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=1e-4, fused=DEVICE == "cuda")
    compiled = torch.compile(model, dynamic=True) if DEVICE == "cuda" else model
    prepared, mean, averaged, step = time.monotonic() - began, {}, 0, 0
    start, file = began, options.out / "state.pt"
    if file.exists():
        state = torch.load(file, map_location=DEVICE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        mean, averaged, step, prepared = state["mean"], state["averaged"], state["step"], state["prepared"]
        began = time.monotonic() - state["seconds"]
    for batch in itertools.islice(batches(encoded, options.tokens), step, None):
        if time.monotonic() - start > options.slice:
            facts = {"averaged": averaged, "step": step, "prepared": prepared, "seconds": time.monotonic() - began}
            options.out.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mean": mean, **facts}, file)
            sys.exit(75)
        done = (time.monotonic() - began) / options.seconds
        if done >= 1:
            break
        step += 1
        loss = update(compiled, optimizer, batch, rate=RATE * min(step / WARMUP, 1.0) * 0.5 * (1 + math.cos(math.pi * done)))
        if done > 0.9 and step % 20 == 0:
            averaged += 1
            for name, value in model.state_dict().items():
                mean[name] = value.clone() if averaged == 1 else mean[name] + (value - mean[name]) / averaged
        if step % 500 == 0:
            print(json.dumps({"step": step, "loss": loss.item(), "seconds": time.monotonic() - began}), flush=True)
    model.load_state_dict(mean or model.state_dict())
    model.eval()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, file in zip(("test", "dev"), options.files[1:], strict=True):
        found = translate(model, tokenizer, [source for source, _ in itertools.chain(open_pairs(file))])
        (options.out / f"{name}.txt").write_text("".join(f"{text}\n" for text in found), "utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"parameters": parameters, "steps": step, "prepared": prepared, "seconds": time.monotonic() - began}
    (options.out / "facts.json").write_text(json.dumps(facts), "utf-8")


if __name__ == "__main__":
    main()
