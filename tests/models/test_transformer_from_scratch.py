"""The Transformer of examples/transformer_from_scratch.py, with the weights of weft's, computes and writes the same."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.helpers.translation_task import make_model, random_batch
from weft.config.registry import build
from weft.data.batch import BOS, EOS, PAD, PairBatch
from weft.decoding.beam_search import BeamSelector
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.losses.cross_entropy import label_smoothed_cross_entropy
from weft.models.base import Model
from weft.training.lr_schedules import ScheduleContext

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "transformer_from_scratch.py"
VOCABULARY, DIM, HEADS, HIDDEN, LAYERS, LONGEST = 12, 16, 4, 24, 2, 9
SIZES = {"dim": DIM, "heads": HEADS, "feedforward": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": LAYERS}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> Model:
    """weft's Transformer in float64, post-norm, with outputs of several lengths and no parameter that is zero or one."""
    model = make_model(VOCABULARY, kind="transformer", norm="post", **SIZES).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.1)
            parameter.mul_(2.0 if "table" in name else 1.0)
        end = model.decoder.output.weight[EOS]
        model.decoder.layers[-1].around_network.norm.bias.add_(end / end.norm() ** 2, alpha=3.0)
    return model


@pytest.fixture(scope="module")
def copied(example: ModuleType, model: Model) -> torch.nn.Module:
    """The Transformer of the example with the weights of weft's: the joint projections are divided, the names translated."""
    divided: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        *path, part, kind = name.replace("mixer.attention.heads", "attention").replace("cross.heads", "cross").split(".")
        parts = {"query_key_value": ["query", "key", "value"], "key_value": ["key", "value"]}.get(part, [part])
        place = ".".join(path).replace("around_mixer", "add_attention").replace("around_", "add_").replace(".layers.", ".")
        for each, rows in zip(parts, weight.chunk(len(parts)), strict=True):
            divided[f"{place}.{each}.{kind}"] = rows
    divided["table.weight"] = model.decoder.output.weight
    made = example.Transformer(VOCABULARY, DIM, HEADS, HIDDEN, LAYERS, dropout=0.0).double().eval()
    made.load_state_dict({name: divided[name] for name in made.state_dict()})
    return made


@pytest.fixture(scope="module")
def batch() -> PairBatch:
    return random_batch(rows=6, vocabulary=VOCABULARY)


def search(model: Model, batch: PairBatch, selector: TokenSelector) -> list[list[tuple[float, list[int]]]]:
    """(score, tokens) of the texts that weft finds for each source."""
    rows = len(batch.rows)
    limits = LengthLimits(torch.full((rows,), LONGEST), torch.zeros(rows, dtype=torch.long), torch.arange(rows))
    with torch.inference_mode():
        source = model.encode(batch.source)
    texts, _ = run_search(model.decoder, source, selector, SearchRequest(torch.full((rows, 1), BOS), limits))
    return [[(text.score, text.tokens) for text in each] for each in texts]


def test_logits_and_loss_are_equal(example: ModuleType, model: Model, copied: torch.nn.Module, batch: PairBatch) -> None:
    with torch.no_grad():
        expected = model.decoder(batch.target, model.decoder.init_state(model.encode(batch.source)), batch.target_layout).logits
        logits = copied(batch.source.values, batch.target)
    real = batch.labels != PAD
    assert expected.std() > 0.5
    torch.testing.assert_close(logits[real], expected[real], rtol=1e-10, atol=1e-10)
    loss, _ = label_smoothed_cross_entropy(expected, batch.labels, 0.1)
    torch.testing.assert_close(example.label_smoothed_loss(logits, batch.labels, 0.1), loss, rtol=1e-10, atol=1e-10)


def test_greedy_outputs_are_equal(example: ModuleType, model: Model, copied: torch.nn.Module, batch: PairBatch) -> None:
    expected = [texts[0][1] for texts in search(model, batch, GreedySelector())]
    assert example.greedy_search(copied, batch.source.values, LONGEST) == expected


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beam", [1, 3])
def test_beam_outputs_are_equal(
    example: ModuleType, model: Model, copied: torch.nn.Module, batch: PairBatch, beam: int, penalty: float
) -> None:
    expected = search(model, batch, BeamSelector(beam, penalty))
    assert len({len(tokens) for texts in expected for _, tokens in texts}) > 1
    for row, texts in zip(batch.source.values, expected, strict=True):
        found = example.beam_search(copied, row[row != PAD], LONGEST, beam, penalty)
        assert [tokens for _, tokens in found] == [tokens for _, tokens in texts]
        assert [score for score, _ in found] == pytest.approx([score for score, _ in texts], abs=1e-5)


def test_learning_rates_are_equal(example: ModuleType) -> None:
    schedule = build("weft.training:SCHEDULES", {"kind": "noam", "warmup": 40}, ScheduleContext(100, DIM))
    for step in (1, 7, 40, 41, 100):
        assert example.noam(step, DIM, 40) == pytest.approx(schedule(step), rel=1e-12)


def test_it_learns(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps on a few dates are enough to see that the loss falls."""
    torch.manual_seed(0)
    pairs = [pair for _, pair in zip(range(64), example.date_pairs(1))]
    characters = example.Characters([text for pair in pairs for text in pair])
    assert all(characters.decode(characters.encode(text)) == text for pair in pairs for text in pair)
    model = example.Transformer(len(characters), 32, 2, 64, 1, dropout=0.0)
    source, target, labels = next(example.batches(pairs, characters, 64, seed=1))
    before = example.label_smoothed_loss(model(source, target), labels).item()
    example.train(model, pairs, characters, steps=20, warmup=10)
    assert example.label_smoothed_loss(model(source, target), labels).item() < 0.8 * before


def test_the_page_is_short_needs_torch_alone_and_names_files_of_weft() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 300
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - {"torch"} <= sys.stdlib_module_names
    named = set(re.findall(r"weft/[\w/]+\.py", text))
    assert len(named) >= 12 and all((ROOT / name).is_file() for name in named)
