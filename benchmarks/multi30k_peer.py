"""The peer of benchmarks/multi30k.py: transformers' Marian, trained from scratch on the same data with the same budget.

    python benchmarks/multi30k_peer.py DIR [--steps 5000] [--save FILE]

Joint BPE of 10,000, d 256, 4 + 4 layers, 5,000 steps of 8,192 padded tokens, inverse square root schedule, the mean of the
weights over the last 30 % of the steps, beam 5. Prints one line of JSON. benchmarks/gpu.py reads FILE.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import sacrebleu
import torch
import torch.nn.functional as F
from marian import marian
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import MarianMTModel

from weft.data.batch import BOS, EOS, PAD

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Pair = tuple[list[int], list[int]]


def read(folder: Path, split: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{split}.{side}").read_text("utf-8").strip("\n").split("\n") for side in ("en", "de")]
    return list(zip(*sides, strict=True))


def learn_bpe(pairs: list[tuple[str, str]], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator((text for pair in pairs for text in pair), trainer)
    return tokenizer


def batches(pairs: list[Pair], budget: int) -> Iterator[list[Pair]]:
    """Endless random batches of pairs of similar length, with rows × longest side within the budget."""
    while True:
        order = random.sample(pairs, len(pairs))
        order.sort(key=lambda pair: (len(pair[1]) // 3, len(pair[0]) // 3))
        cut: list[list[Pair]] = [[]]
        longest = 0
        for pair in order:
            longest = max(longest, len(pair[0]), len(pair[1]))
            if cut[-1] and longest * (len(cut[-1]) + 1) > budget:
                cut.append([])
                longest = max(len(pair[0]), len(pair[1]))
            cut[-1].append(pair)
        random.shuffle(cut)
        yield from cut


def pad(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PAD).to(DEVICE)


def update(model: MarianMTModel, optimizer: torch.optim.Optimizer, batch: list[Pair], rate: float) -> Tensor:
    """Makes one update by label-smoothed cross-entropy at this learning rate. Returns the loss."""
    source, labels = pad([pair[0] for pair in batch]), pad([pair[1] for pair in batch])
    fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(input_ids=source, attention_mask=source != PAD, decoder_input_ids=fed, use_cache=False).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def train(model: MarianMTModel, pairs: list[Pair], steps: int) -> float:
    """Trains and leaves the averaged weights in the model. Returns the seconds of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=1e-4, fused=DEVICE == "cuda")
    stream, mean, averaged = batches(pairs, 8192), {}, 0
    began = time.perf_counter()
    for step in range(1, steps + 1):
        batch = next(stream)
        loss = update(model, optimizer, batch, rate=1e-3 * min(step / 1000, (1000 / step) ** 0.5))
        if step > 0.7 * steps and step % 50 == 0:
            averaged += 1
            for name, value in model.state_dict().items():
                mean[name] = value.clone() if averaged == 1 else mean[name] + (value - mean[name]) / averaged
        if step % 1000 == 0:
            print(
                f"peer: step {step}, loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True
            )
    seconds = time.perf_counter() - began
    if mean:
        model.load_state_dict(mean)
    return seconds


def translate(model: MarianMTModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    outputs = []
    for begin in range(0, len(texts), 128):
        source = pad([[*tokenizer.encode(text).ids, EOS] for text in texts[begin : begin + 128]])
        with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16):
            rows = model.generate(input_ids=source, attention_mask=source != PAD, num_beams=5, max_new_tokens=80)
        outputs += [tokenizer.decode([token for token in row.tolist() if token > 3]) for row in rows]
    return outputs


def build(vocabulary: int) -> MarianMTModel:
    model = marian(vocabulary, 256, 1024, 4, 4, dropout=0.3, attention_dropout=0.1, forced_eos_token_id=EOS)
    return model.to(DEVICE)


def save(model: MarianMTModel, tokenizer: Tokenizer, file: Path) -> None:
    save_model(model, str(file), {"tokenizer": tokenizer.to_str()})


def load(file: Path) -> tuple[MarianMTModel, Tokenizer]:
    with safe_open(file, framework="pt") as saved:
        tokenizer = Tokenizer.from_str(saved.metadata()["tokenizer"])
    model = build(tokenizer.get_vocab_size())
    load_model(model, file, device=str(DEVICE))
    return model.eval(), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--save", type=Path, help="file for the model and its tokenizer")
    options = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    pairs = read(options.folder, "train")
    tokenizer = learn_bpe(pairs, 10_000)
    encoded = [tuple([*tokenizer.encode(text).ids, EOS] for text in pair) for pair in pairs]
    model = build(tokenizer.get_vocab_size())
    seconds = train(model, encoded, options.steps)
    model.eval()
    if options.save:
        save(model, tokenizer, options.save)
    test = read(options.folder, "test_2016_flickr")
    began = time.perf_counter()
    outputs = translate(model, tokenizer, [source for source, _ in test])
    rate = len(test) / (time.perf_counter() - began)
    score = sacrebleu.corpus_bleu(outputs, [[target for _, target in test]])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"parameters": parameters, "seconds": seconds, "bleu": score.score, "sentences_per_second": rate}))


if __name__ == "__main__":
    main()
