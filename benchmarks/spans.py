"""How far back a recurrent language model with attention has to look: spans of 1 to 15 states (Daniluk et al. 2017).

    python benchmarks/spans.py brown.txt.gz --out OUT [--seeds 2] [--steps-scale 0.1]

Every twentieth block of 200 lines is held out, since the texts of a corpus may be sorted by kind. All models are LSTMs with
equally many parameters: plain; with attention to the last states whose parts are separate (key, value, predict) or not; and the
4-gram RNN. They train in parallel, in separate processes. The second table says how the model with the longest span divides its
attention among distances. The paper finds that about 5 states suffice, and that a 4-gram RNN is as good.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from trainings import about, add_options, common_settings, deadline, markdown, prepare_data, scale_steps, select

from weft.attention.base import Attended
from weft.attention.core.weight_recorder import observe
from weft.attention.key_value import KeyValueAttention
from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.data.text_lines import read_lines
from weft.data.tokenizers import load_tokenizers
from weft.models.language_model import LanguageModel
from weft.runs.run_folder import complete
from weft.runs.translator import load_generator
from weft.tasks.language_modeling.data import TextFile, read_text

RECIPE = "lm-rnn-attention"
SPANS = (1, 2, 5, 10, 15)
BLOCK, HELD = 200, 20
"""Lines per block; of this many blocks, the last is held out."""


def _attention(parts: int, span: int, dim: int = 384) -> tuple[str, ...]:
    return (f"model.attention={{kind: key_value, parts: {parts}, span: {span}}}", f"model.dim={dim}")


SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain": ("LSTM", ("model.style=plain",)),
    "attention": ("attention, last 5", _attention(1, 5, dim=316)),
    "key-value": ("key–value, last 5", _attention(2, 5, dim=368)),
    **{f"predict-{span}": (f"key–value–predict, last {span}", _attention(3, span)) for span in SPANS},
    "4-gram": ("4-gram RNN", ("model.style=ngram", "model.ngram=4")),
}
"""Name → description and settings. The widths of states give all models equally many parameters, to 1 %."""


@dataclass
class Score:
    """The held-out scores of a system with one seed."""

    system: str
    seed: int
    parameters: int
    perplexity: float
    bits_per_character: float


def split(text: Path, out: Path) -> tuple[str, str]:
    """Writes the two parts of a text; returns their paths."""
    parts: dict[str, list[str]] = {"train": [], "valid": []}
    for number, line in enumerate(read_lines(str(text))):
        parts["valid" if number // BLOCK % HELD == HELD - 1 else "train"].append(line)
    for name, lines in parts.items():
        (out / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(out / "train.txt"), str(out / "valid.txt")


def plan(system: str, seed: int, files: tuple[str, str], out: Path, scale: float, sets: Sequence[str]) -> Training:
    changes = (*common_settings(out), *SYSTEMS[system][1], *sets, scale_steps(RECIPE, sets, scale), f"train.seed={seed}")
    return Training(RECIPE, (files[0],), (files[1],), changes)


def score(system: str, seed: int, run: Path, valid: str) -> Score:
    generator = load_generator(run)
    found = generator.score(valid)
    return Score(system, seed, generator.model.count_parameters(), found["perplexity"], found["bits_per_character"])


@torch.inference_mode()
def distances(run: Path, valid: str, cache: Path, rows: int = 32, length: int = 64) -> list[float]:
    """The mean attention weight of each distance, from the previous state on, over some held-out text."""
    generator = load_generator(run)
    model = generator.model
    assert isinstance(model, LanguageModel)
    look = next(part for part in model.modules() if isinstance(part, KeyValueAttention))
    assert look.window is not None
    span, weights = look.window.span, list[Tensor]()

    def note(attended: Attended) -> None:
        assert attended.weights is not None
        weights.append(attended.weights[:, 0].float())

    tokenizer, _ = load_tokenizers(run, generator.config.data.tokenizer)
    text = read_text([TextFile(valid)], tokenizer, folder=cache)
    rows = min(rows, len(text) // length)
    tokens = torch.tensor(text.tokens[: rows * length].astype("int64")).view(rows, length).to(model.device)
    with observe(look, note):
        model(tokens)
    # Only queries that have a whole span before them.
    return [float(weights[0].diagonal(-away, 1, 2)[:, span - away :].mean()) for away in range(1, span + 1)]


def tables(scores: Sequence[Score], far: Sequence[float]) -> str:
    rows = []
    for system in dict.fromkeys(each.system for each in scores):
        mine = [each for each in scores if each.system == system]
        cells = [f"{mean(getattr(each, name) for each in mine):.{digits}f}" for name, digits in MEASURES]
        spread = max(each.perplexity for each in mine) - min(each.perplexity for each in mine)
        rows.append((SYSTEMS[system][0], f"{mine[0].parameters:,}", *cells, f"{spread:.2f}"))
    table = markdown(("system", "parameters", "perplexity", "bits per character", "perplexity, range over seeds"), rows)
    if not far:
        return table
    shares = markdown([str(away) for away in range(1, len(far) + 1)], [[f"{weight:.3f}" for weight in far]])
    return f"{table}\nMean attention weight by distance, span of {len(far)}:\n\n{shares}"


MEASURES = (("perplexity", 2), ("bits_per_character", 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file, such as the Brown corpus; may be .gz")
    parser.add_argument("--seeds", type=int, default=2, help="trainings per system (default 2)")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = split(options.text, out)
    runs = {
        f"{system}.{seed}": (system, seed, plan(system, seed, files, out, options.steps_scale, options.set))
        for seed in range(1, options.seeds + 1)
        for system in select(SYSTEMS, options.only)
    }
    prepare_data(next(iter(runs.values()))[2].config())
    processes = Processes(out / "logs", at_once=options.at_once, until=deadline(options.minutes))
    with ThreadPoolExecutor(options.at_once) as workers:
        try:
            list(workers.map(lambda name: train(runs[name][2], out / name, processes, name), runs))
        except (Failure, Stopped) as error:
            print(error, file=sys.stderr)
    runs = {name: run for name, run in runs.items() if complete(out / name)}
    scores = [score(system, seed, out / name, files[1]) for name, (system, seed, _) in runs.items()]
    longest = out / f"predict-{max(SPANS)}.1"
    far = distances(longest, files[1], out / "cache") if longest.name in runs else []
    table = f"{about()}\n\n{tables(scores, far)}"
    (out / "spans.md").write_text(table, "utf-8")
    document = {"about": about(), "scores": list(map(asdict, scores)), "weights by distance": far}
    (out / "spans.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(f"{table}\nwritten to {out / 'spans.md'} and .json")


if __name__ == "__main__":
    main()
