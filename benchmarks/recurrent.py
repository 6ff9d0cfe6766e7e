"""Training speed of recurrent models: weft against a loop that feeds the same model one token at a time.

    python benchmarks/recurrent.py [--device cuda] [--batch-tokens 12288] [--rounds 3]

The models of the recipes rnn-luong (with and without input feeding) and rnn-bahdanau, vocabulary 10,000, lengths around 15.
The loop follows the equations literally: the encoder's cells token by token in each direction, and the decoder token by token,
passing its state. Weights, output layer, optimiser and batches are the same on both sides, and so is the loss, which is checked
first. The two take turns, and the best round of each counts. bf16 on a GPU, float32 on a CPU. Padding is not counted.
"""

from __future__ import annotations

import argparse
import platform
import random
import time

import torch
from batches import Batch, Hidden, make_batches, parallel_hidden, shift_right, speed, training_step

import weft
from weft.config.sections import load_config
from weft.data.batch import Layout, Source
from weft.layers.recurrent import Cell, RecurrentLayer
from weft.models.base import Encoded, Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.rnn import RecurrentEncoder

VOCABULARY = 10_000

MODELS: dict[str, tuple[str, dict[str, bool]]] = {
    "Luong, without input feeding": ("rnn-luong", {"input_feeding": False}),
    "Luong, with input feeding": ("rnn-luong", {"input_feeding": True}),
    "Bahdanau": ("rnn-bahdanau", {}),
}
"""Title → recipe, and changes to its model."""


def encode(model: Model, source: torch.Tensor, layout: Layout) -> Encoded:
    """The encoder's output, computed one cell after the other."""
    encoder = model.encoder
    assert isinstance(encoder, RecurrentEncoder)
    x, final = encoder.noise(encoder.front(Source(source, layout))[0]), []
    for number, layer in enumerate(encoder.stack.layers):
        assert isinstance(layer, RecurrentLayer)
        outputs, ends = zip(
            *(one_direction(layer, way, encoder.stack.noise(x) if number else x, layout.mask) for way in range(layer.ways))
        )
        x = torch.cat(outputs, -1)
        final.append(tuple(torch.cat(parts, -1) for parts in zip(*ends)))
    return Encoded(x, layout, final=final)


def one_direction(layer: RecurrentLayer, way: int, x: torch.Tensor, ok: torch.Tensor) -> tuple[torch.Tensor, Cell]:
    """The outputs [B, T, W] of a layer in one direction, and its last states."""
    weights = layer.rnn.all_weights[way]
    state = tuple(x.new_zeros(x.size(0), layer.rnn.hidden_size) for _ in range(layer.parts))
    outputs = []
    for t in range(x.size(1))[:: -1 if way else 1]:
        if layer.parts == 1:
            new: Cell = (torch.gru_cell(x[:, t], state[0], *weights),)
        else:
            new = torch.lstm_cell(x[:, t], state, *weights)
        real = ok[:, t, None]
        state = tuple(torch.where(real, after, before.to(after.dtype)) for after, before in zip(new, state))
        outputs.append(torch.where(real, state[0], 0.0))
    return torch.stack(outputs[:: -1 if way else 1], 1), state


def sequential_hidden(model: Model, batch: Batch) -> torch.Tensor:
    """Hidden states [B, T, D], computed one target token after the other."""
    source, labels, layout = batch
    state = model.decoder.init_state(encode(model, source, layout))
    steps = []
    for token in shift_right(labels).split(1, 1):
        step = model.decoder.hidden_states(token, state)
        state = step.state
        steps.append(step.hidden)
    return torch.cat(steps, 1)


def make(title: str, device: str) -> Model:
    recipe, changed = MODELS[title]
    torch.manual_seed(0)
    options = {**load_config(recipe).model, **changed}
    model: Model = build_model(options, Sizes(VOCABULARY, VOCABULARY, shared=True))
    return model.to(device).train()


@torch.no_grad()
def check(model: Model, batch: Batch) -> None:
    """Checks that both ways give the same loss without dropout."""
    model.eval()
    ways = (parallel_hidden(model, batch), sequential_hidden(model, batch))
    losses = [model.decoder.loss(hidden, batch[1])[0].item() for hidden in ways]
    model.train()
    if abs(losses[0] - losses[1]) > 1e-3 * losses[0]:
        raise SystemExit(f"the two ways differ: losses of {losses[0]:.2f} and {losses[1]:.2f}")


def measure(title: str, batches: list[Batch], device: str, rounds: int) -> list[float]:
    """The best speed of each way, in target tokens per second."""
    ways: list[Hidden] = [parallel_hidden, sequential_hidden]
    check(make(title, device), batches[0])
    gpu = device != "cpu"
    steps = [training_step(make(title, device), gpu, way, replay=gpu and way is parallel_hidden) for way in ways]
    for batch in batches:
        for step, times in zip(steps, (4, 1), strict=True):  # weft records a size when it occurs for the third time
            for _ in range(times):
                step(batch)
    turns = [[speed(step, batches) for step in steps] for _ in range(rounds)]
    return [max(speeds) for speeds in zip(*turns, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-tokens", type=int, default=12288)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    random.seed(0)
    batches = make_batches(VOCABULARY, options.batch_tokens, options.batches, options.device)
    here = f"{platform.machine()}, {torch.get_num_threads()} threads"
    machine = here if options.device == "cpu" else torch.cuda.get_device_name()
    print(f"{time.strftime('%Y-%m-%d')} · {machine} · torch {torch.__version__} · weft {weft.__version__}\n")
    print("| model | weft, target tokens/s | token by token | ratio |\n|---|---|---|---|")
    for title in MODELS:
        ours, loop = measure(title, batches, options.device, options.rounds)
        print(f"| {title} | {ours:,.0f} | {loop:,.0f} | {ours / loop:.1f} |", flush=True)


if __name__ == "__main__":
    main()
