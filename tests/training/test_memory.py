"""Memory: the batch that fits, batches in parts with the gradients of the whole, and steps that begin again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import small_task, tiny
from tests.helpers.small_task import SmallModel, SmallTask
from weft.config.sections import Config, load_config
from weft.data.batch import Layout, PairBatch, Source
from weft.errors import ConfigError, DeviceError
from weft.tasks.base import Loss
from weft.training import checkpoint
from weft.training.log import Log, Sink
from weft.training.memory import LARGEST, SMALLEST, divided, largest_batch, resolve_batch_tokens

CPU = torch.device("cpu")


@pytest.mark.parametrize(("room", "expected"), [(1024, 1024), (1600, 1536), (5000, 4096), (6144, 6144), (1 << 30, LARGEST)])
def test_the_largest_batch_that_fits_is_found_with_few_trials(room: int, expected: int) -> None:
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= room

    assert largest_batch(fits) == expected and len(tried) <= 10


def test_a_model_that_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"not even {SMALLEST:,} tokens fit"):
        largest_batch(lambda tokens: False)


def test_auto_is_resolved_before_training(tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", settings={"train.steps": 1, "train.batch_tokens": "auto", "train.validate_bleu": False})
    assert load_config(tmp_path / "run" / "config.yaml").train.batch_tokens == 4096
    said: list[str] = []
    auto = Config().replaced({"train.batch_tokens": "auto"})
    assert resolve_batch_tokens(auto, CPU, said.append).train.batch_tokens == 4096
    assert said == ["train.batch_tokens: 4,096, because only the memory of a GPU is measured"]
    assert resolve_batch_tokens(Config(), CPU, said.append) == Config() and len(said) == 1
    with pytest.raises(ConfigError, match="auto chooses the batch itself"):
        resolve_batch_tokens(auto, CPU, said.append, chosen=True)


def padded(lengths: tuple[int, ...]) -> PairBatch:
    layout, outer = Layout.padded(lengths), Layout.padded([length + 1 for length in lengths])
    values, target = torch.arange(layout.segments.numel()).view(len(lengths), -1), torch.arange(outer.segments.numel())
    target = target.view(len(lengths), -1)
    return PairBatch(torch.arange(len(lengths)), Source(values, layout), target, outer, target + 1)


def packed(lengths: tuple[int, ...]) -> PairBatch:
    inner, outer = Layout.pack(lengths, sum(lengths) + 5), Layout.pack([length + 1 for length in lengths], 40)
    values, target = torch.arange(sum(lengths) + 5)[None], torch.arange(40)[None]
    return PairBatch(torch.arange(len(lengths)), Source(values, inner), target, outer, target + 1)


def sentences(values: torch.Tensor, layout: Layout) -> Iterator[list[int]]:
    """The real tokens of each sentence, with their positions."""
    for row, segments, positions in zip(values, layout.segments, layout.positions, strict=True):
        for segment in range(1, int(segments.max()) + 1):
            yield [*row[segments == segment].tolist(), -1, *positions[segments == segment].tolist()]


@pytest.mark.parametrize("make", [padded, packed])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_parts_of_a_batch_are_its_pairs(make: Any, parts: int) -> None:
    batch = make((3, 1, 4, 2, 5))
    found = divided(batch, parts)
    assert len(found) == min(parts, 5)
    for values, layout in (
        (lambda each: each.source.values, lambda each: each.source.layout),
        (lambda each: each.target, lambda each: each.target_layout),
        (lambda each: each.labels, lambda each: each.target_layout),
    ):
        whole = list(sentences(values(batch), layout(batch)))
        assert [each for piece in found for each in sentences(values(piece), layout(piece))] == whole
    assert torch.cat([piece.rows for piece in found]).tolist() == [0, 1, 2, 3, 4]


def test_other_batches_stay_whole() -> None:
    class Other(PairBatch):
        pass

    batch = padded((1, 2))
    other = Other(batch.rows, batch.source, batch.target, batch.target_layout, batch.labels)
    assert divided(other, 4) == [other] and divided(batch, 1)[0] is batch


class Hungry(SmallTask):
    """Runs out of memory, in the middle of an update, if a batch has more rows than fit."""

    def __init__(self, room: int, error: RuntimeError | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.room, self.failures, self.error = room, 0, error or torch.OutOfMemoryError("CUDA out of memory")

    def losses(self, model: nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        losses = super().losses(model, batch, update)
        yield next(losses)  # its gradients are there already
        if len(batch.target) > self.room:
            self.failures += 1
            raise self.error
        yield from losses


class Notes(Sink):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_step_that_runs_out_of_memory_begins_again_in_halves(tmp_path: Path) -> None:
    """Without dropout, the weights are those of a run that has enough memory, but for the order of sums."""
    notes = Notes()
    _, plain = small_task.train(tmp_path / "plain", model=SmallModel(dropout=0.0), accumulate=2)
    hungry = Hungry(room=2)
    result, split = small_task.train(
        tmp_path / "split", model=SmallModel(dropout=0.0), task=hungry, log=Log([notes]), accumulate=2
    )
    assert result.update == 9 and result.skipped == 0 and hungry.failures >= 2
    for a, b in zip(plain.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    said = [text for text in notes.texts if "ran out of memory" in text]
    assert len(said) == hungry.failures == 2 and "in 2 parts" in said[0] and "in 4 parts" in said[1]


def test_a_resumed_run_continues_in_parts(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    small_task.train(whole, task=Hungry(room=2), steps=6)
    small_task.train(parts, task=Hungry(room=2), steps=3)
    hungry = Hungry(room=2)
    small_task.train(parts, task=hungry, steps=6, resume=True)
    assert hungry.failures == 0, "the checkpoint knows the number of parts"
    tensors = [checkpoint.weights(checkpoint.folder_of(run, 6)) for run in (whole, parts)]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_a_batch_that_cannot_be_divided_ends_with_advice(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"ran out of memory in step 1: lower train\.batch_tokens"):
        small_task.train(tmp_path, task=Hungry(room=0))


@pytest.mark.parametrize(
    "text", ["MPS backend out of memory (MPS allocated: 5 GB)", "DefaultCPUAllocator: can't allocate memory"]
)
def test_other_devices_say_it_in_words(text: str, tmp_path: Path) -> None:
    result, _ = small_task.train(tmp_path / "run", task=Hungry(room=2, error=RuntimeError(text)), steps=3)
    assert result.update == 3
    with pytest.raises(RuntimeError, match="another reason"):
        small_task.train(tmp_path / "other", task=Hungry(room=2, error=RuntimeError("another reason")), steps=3)
