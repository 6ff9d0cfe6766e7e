"""The training loop: failed steps, stopping, validation and published weights."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.small_task import SmallModel, SmallTask, train
from weft.data.batch import Batch
from weft.errors import ConfigError, DataError, DeviceError, Interrupted, RunError
from weft.runs.device_and_precision import choose_device
from weft.runs.weight_files import load_weights, read_metadata, read_tensors
from weft.tasks.base import LOSS, Measure
from weft.training import checkpoint
from weft.training.distributed import World
from weft.training.ema import Ema
from weft.training.log import Log, Sink, open_log
from weft.training.training_loop import updates


def records(run: Path, event: str) -> list[dict[str, float]]:
    return [line for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if line["event"] == event]


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def model_at(run: Path, step: int) -> dict[str, Tensor]:
    return read_tensors(checkpoint.folder_of(run, step) / "model.safetensors")


def test_training_lowers_the_loss_and_logs_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, 60, tensorboard=False, terminal=False)
    result, _ = train(tmp_path, steps=60, log=log, validate_every=20, save_every=30, log_every=10)
    seen = records(tmp_path, "train")
    assert [line["step"] for line in seen] == [10, 20, 30, 40, 50, 60]
    assert {"loss", "loss_critic", "lr", "tokens_per_second", "grad_norm", "seconds", "seconds_left", "tokens"} <= seen[
        0
    ].keys()
    assert seen[-1]["loss"] < seen[0]["loss"]
    assert seen[0]["tokens"] == 1  # a metric is divided by the count of its optimiser
    assert [line["step"] for line in records(tmp_path, "validation")] == [20, 40, 60]
    assert result.stopped == "steps" and result.update == 60


def test_accumulation_equals_one_large_batch(tmp_path: Path) -> None:
    """Four micro-batches of uneven size give the loss per token of all four, not the mean of four means."""

    class Together(SmallTask):
        def losses(self, model, batch, update):  # type: ignore[no-untyped-def]
            if int(batch.rows[0]) == 0:
                for number in range(4):
                    yield from super().losses(model, self.fetch(number), update)

        def fetch(self, number: int) -> Batch:
            return next(self.batches(checkpoint.Position(0, number // 5, number % 5)))[0]

    options = {"steps": 1, "precision": "float32", "clip": 0.0, "accumulate": 4}
    train(tmp_path / "a", model=SmallModel(dropout=0).double(), **options)
    train(tmp_path / "b", model=SmallModel(dropout=0).double(), task=Together(), **options)
    first, second = model_at(tmp_path / "a", 1), model_at(tmp_path / "b", 1)
    assert max(float((first[name] - second[name]).abs().max()) for name in first) < 1e-12


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    log = open_log(tmp_path, 6, tensorboard=False, terminal=False)
    result, _ = train(tmp_path, steps=6, task=SmallTask(bad=frozenset({3})), save_every=1, keep_last=9, log=log)
    assert result.skipped == 1
    weights = {name: tensor for name, tensor in model_at(tmp_path, 3).items() if name != "features"}
    after = model_at(tmp_path, 4)
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())
    optimizer = [read_tensors(checkpoint.folder_of(tmp_path, step) / "optimizer.safetensors") for step in (3, 4)]
    assert same(*optimizer)
    assert not same(model_at(tmp_path, 4), model_at(tmp_path, 5))
    assert all(torch.isfinite(tensor).all() for tensor in model_at(tmp_path, 6).values())
    assert [line["loss"] is None for line in records(tmp_path, "train")] == [False, False, False, True, False, False]


def test_a_skipped_step_leaves_nothing_in_the_logged_loss(tmp_path: Path) -> None:
    log = open_log(tmp_path, 4, tensorboard=False, terminal=False)
    train(tmp_path, steps=4, task=SmallTask(bad=frozenset({1})), log_every=4, log=log)
    (line,) = records(tmp_path, "train")
    assert 1 < line["loss"] < 50
    assert line["skipped"] == 1
    assert line["tokens"] == 1


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_gradients_are_clipped_to_their_norm_for_each_optimiser(tmp_path: Path, clip: float) -> None:
    train(tmp_path, steps=1, clip=clip, optimizer={"kind": "adam", "betas": (0.9, 0.98)})
    state = read_tensors(checkpoint.folder_of(tmp_path, 1) / "optimizer.safetensors")
    for group in ("model", "critic"):
        moments = [tensor for name, tensor in state.items() if name.startswith(f"{group}/") and name.endswith("/exp_avg")]
        norm = float(torch.cat([tensor.flatten() for tensor in moments]).norm()) / 0.1  # one step: a tenth of the gradient
        assert (norm == pytest.approx(clip, rel=1e-3)) if clip else norm > 0.1


def test_resuming_removes_partial_files_of_a_killed_process(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / ".tmp-step-00000002"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    train(tmp_path, steps=2, save_every=2, resume=True)
    assert not half.exists()


def test_several_bad_steps_in_a_row_stop_the_run_and_name_the_last_good_checkpoint(tmp_path: Path) -> None:
    bad = frozenset({5, 6, 7, 8})
    with pytest.raises(RunError, match=r"not finite in 3 steps in a row.*last good checkpoint is .*step-00000006"):
        train(tmp_path, steps=20, task=SmallTask(bad=bad), max_bad_steps=3, save_every=3, validate_every=0)
    assert all(torch.isfinite(tensor).all() for tensor in model_at(tmp_path, 6).values())


def test_bad_steps_that_are_not_in_a_row_do_not_stop_it(tmp_path: Path) -> None:
    result, _ = train(tmp_path, steps=9, task=SmallTask(bad=frozenset({1, 2, 4, 5, 7})), max_bad_steps=3)
    assert result.skipped == 5


def test_a_row_of_bad_steps_is_counted_across_a_resume(tmp_path: Path) -> None:
    bad = frozenset({3, 4, 5, 6})
    with pytest.raises(Interrupted):
        train(tmp_path, steps=20, task=SmallTask(bad=bad, interrupt_at=4), max_bad_steps=4, validate_every=0)
    with pytest.raises(RunError, match="not finite in 4 steps in a row"):
        train(tmp_path, steps=20, task=SmallTask(bad=bad), max_bad_steps=4, validate_every=0, resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_says_how_to_continue(tmp_path: Path, number: int) -> None:
    class Stopping(SmallTask):
        def losses(self, model, batch, update):  # type: ignore[no-untyped-def]
            if int(batch.rows[0]) == 4:
                os.kill(os.getpid(), number)
            return super().losses(model, batch, update)

    former = signal.getsignal(number)
    with pytest.raises(Interrupted, match=rf"stopped at step 5 of 9; continue with `weft train --resume {tmp_path}`"):
        train(tmp_path, task=Stopping(), validate_every=0, save_every=100)
    assert checkpoint.steps(tmp_path) == [5]
    assert signal.getsignal(number) is former


def test_patience_stops_and_the_best_is_published(tmp_path: Path) -> None:
    task = SmallTask()
    task.scores = [3.0, 2.0, 2.5, float("nan"), 2.1]
    result, model = train(tmp_path, task=task, steps=100, patience=3, save_every=100, keep_last=1, ema=0.0)
    assert (result.update, result.stopped, result.weights, result.scores) == (10, "patience", "best", {"loss": 2.0})
    assert checkpoint.steps(tmp_path) == [4, 10]
    published = read_tensors(tmp_path / "model.safetensors")
    assert same(published, model_at(tmp_path, 4))
    assert same(published, {name: tensor for name, tensor in model.state_dict().items() if name in published})
    assert read_metadata(tmp_path / "model.safetensors")["step"] == "4"


class Watching(Sink):
    """Remembers what a status line would show."""

    def __init__(self) -> None:
        self.shown: list[int | str] = []

    def step(self, step: int) -> None:
        self.shown.append(step)

    def phase(self, text: str) -> None:
        self.shown.append(text)


def test_every_step_and_what_happens_between_them_is_shown(tmp_path: Path) -> None:
    watching = Watching()
    train(tmp_path, steps=4, validate_every=2, save_every=2, log_every=100, log=Log([watching]))
    between = ["validating", "saving a checkpoint"]
    assert watching.shown == ["computing the first step", 1, 2, *between, 3, 4, *between, "publishing the model"]


def test_the_time_limit_ends_training_like_the_last_step(tmp_path: Path) -> None:
    log = open_log(tmp_path, 100, tensorboard=False, terminal=False)
    result, _ = train(tmp_path, steps=100, seconds=1e-9, validate_every=0, save_every=50, log=log)
    assert (result.update, result.stopped) == (1, "time")
    assert checkpoint.steps(tmp_path) == [1]
    [summary] = records(tmp_path, "summary")
    assert summary["stopped"] == "time" and summary["loss"] == result.scores["loss"]
    assert summary["peak_memory"] > 10_000_000 and summary["seconds"] > 0
    again, _ = train(tmp_path, steps=100, seconds=1e-9, resume=True)
    assert (again.update, again.stopped) == (1, "time")
    more, _ = train(tmp_path, steps=3, seconds=1e9, resume=True)
    assert (more.update, more.stopped) == (3, "steps")


def test_patience_is_counted_across_a_resume(tmp_path: Path) -> None:
    task = SmallTask(interrupt_at=6)
    task.scores = [2.0, 2.5, 2.5]
    with pytest.raises(Interrupted):
        train(tmp_path, task=task, steps=100, patience=3)
    again = SmallTask()
    again.scores = [2.5]
    result, _ = train(tmp_path, task=again, steps=100, patience=3, resume=True)
    assert (result.update, result.stopped) == (8, "patience")


def test_a_higher_bleu_is_better(tmp_path: Path) -> None:
    class Scored(SmallTask):
        measures = (LOSS, Measure("bleu", "BLEU"))

        def evaluate(self, model):  # type: ignore[no-untyped-def]
            return {"loss": 1.0, "bleu": bleu.pop(0)}

    bleu = [10.0, 12.0, 11.0]
    result, _ = train(tmp_path, task=Scored(), steps=6, best_by="bleu")
    assert result.scores["bleu"] == 12.0
    bleu.append(1.0)
    with pytest.raises(ConfigError, match=r"train.best_by: the task does not measure 'exact'; it measures loss, bleu"):
        train(tmp_path / "b", task=Scored(), steps=1, best_by="exact")


def test_the_average_of_the_last_checkpoints_is_published_and_scored(tmp_path: Path) -> None:
    result, model = train(
        tmp_path, steps=6, save_every=2, validate_every=0, keep_best=False, average_last=3, ema=0.0, keep_last=1
    )
    assert result.weights == "average"
    mean = torch.stack([model_at(tmp_path, step)["out.bias"].double() for step in (2, 4, 6)]).mean(0).float()
    assert torch.equal(read_tensors(tmp_path / "model.safetensors")["out.bias"], mean)
    assert result.scores == SmallTask().evaluate(model.eval())


@pytest.mark.parametrize(("ema", "weights"), [(0.0, "last"), (0.5, "ema")])
def test_without_a_best_the_newest_weights_are_published(tmp_path: Path, ema: float, weights: str) -> None:
    result, _ = train(tmp_path, keep_best=False, ema=ema)
    assert result.weights == weights
    published = read_tensors(tmp_path / "model.safetensors")
    assert same(published, checkpoint.weights(checkpoint.folder_of(tmp_path, 9)))
    assert same(published, model_at(tmp_path, 9)) == (ema == 0)
    fresh = SmallModel()
    assert load_weights(fresh, tmp_path / "model.safetensors")["weights"] == weights
    assert result.scores == SmallTask().evaluate(fresh.eval())


def test_the_model_is_published_while_training_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, task=SmallTask(interrupt_at=3))
    assert read_metadata(tmp_path / "model.safetensors")["weights"] == "best"


def test_scores_are_those_of_the_moving_average(tmp_path: Path) -> None:
    class Noting(SmallTask):
        def evaluate(self, model):  # type: ignore[no-untyped-def]
            noted.append(model.out.bias.detach().clone())
            return super().evaluate(model)

    noted: list[Tensor] = []
    train(tmp_path, task=Noting(), steps=3, validate_every=0, save_every=3)
    folder = checkpoint.folder_of(tmp_path, 3)
    assert torch.equal(noted[0], read_tensors(folder / "ema.safetensors")["out.bias"])
    assert not torch.equal(noted[0], read_tensors(folder / "model.safetensors")["out.bias"])


def test_the_moving_average_follows_its_formula_and_is_swapped_bit_for_bit() -> None:
    model = SmallModel()
    ema = Ema(model, 0.5)
    start = model.out.bias.detach().clone()
    with torch.no_grad():
        model.out.bias.add_(1.0)
    ema.update(1, 1)  # (1 + 1) / (10 + 1) is below 0.5
    assert torch.allclose(ema.average["out.bias"], start + 9 / 11)
    ema.update(1000, 1000)
    assert torch.allclose(ema.average["out.bias"], start + 1 - (2 / 11) * 0.5)
    own, average = model.out.bias.detach().clone(), ema.average["out.bias"].clone()
    with ema.applied():
        assert torch.equal(model.out.bias, average)
    assert torch.equal(model.out.bias, own) and torch.equal(ema.average["out.bias"], average)


def test_buffers_are_refreshed_after_each_update_by_the_same_numbers(tmp_path: Path) -> None:
    train(tmp_path / "a", steps=2, save_every=1)
    train(tmp_path / "b", steps=2, save_every=1)
    first, second = model_at(tmp_path / "a", 1)["features"], model_at(tmp_path / "a", 2)["features"]
    assert not torch.equal(first, second)
    assert torch.equal(second, model_at(tmp_path / "b", 2)["features"])


def test_running_out_of_memory_says_what_to_lower(tmp_path: Path) -> None:
    class Large(SmallTask):
        def losses(self, model, batch, update):  # type: ignore[no-untyped-def]
            if int(batch.rows[0]) == 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().losses(model, batch, update)

    message = r"ran out of memory in step 5: lower train.batch_tokens \(now 4096\).*train.accumulate \(now 1\).*step-00000003"
    with pytest.raises(DeviceError, match=message):
        train(tmp_path, task=Large(), validate_every=0)
    assert checkpoint.steps(tmp_path) == [3]


def test_bf16_autocast_covers_the_forward_pass_and_keeps_float32_weights(tmp_path: Path) -> None:
    class Noting(SmallTask):
        def losses(self, model, batch, update):  # type: ignore[no-untyped-def]
            noted.append(torch.is_autocast_enabled("cpu"))
            yield from super().losses(model, batch, update)
            noted.append(torch.is_autocast_enabled("cpu"))

    noted: list[bool] = []
    train(tmp_path, task=Noting(), steps=1, precision="bf16")
    assert noted == [True, True]
    assert not torch.is_autocast_enabled("cpu")
    assert {tensor.dtype for tensor in model_at(tmp_path, 1).values()} == {torch.float32}


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "gpu", "cpu:7"])
def test_an_unknown_device_is_refused_with_those_that_are_there(name: str) -> None:
    with pytest.raises(DeviceError, match=rf"train.device: there is no device '{name}'; this machine has cpu"):
        choose_device(name)
    assert choose_device("cpu") == torch.device("cpu")


def test_accumulation_must_be_divisible_by_the_number_of_processes() -> None:
    world = World(1, 4, torch.device("cpu"))
    assert list(world.share(8)) == [1, 5]
    with pytest.raises(ConfigError, match=r"6 micro-batches per step cannot be divided among 4 processes.*such as 8"):
        world.share(6)


def test_an_error_while_batches_are_made_reaches_the_user(tmp_path: Path) -> None:
    class Broken(SmallTask):
        def batches(self, position):  # type: ignore[no-untyped-def]
            for number, item in enumerate(super().batches(position)):
                if number == 3:
                    raise DataError("line 7 is broken")
                yield item

    with pytest.raises(DataError, match="line 7 is broken"):
        train(tmp_path, task=Broken())


def test_a_stream_that_ends_is_an_error() -> None:
    class Short(SmallTask):
        def batches(self, position):  # type: ignore[no-untyped-def]
            return iter([next(super().batches(position))])

    with pytest.raises(DataError, match="must be endless"):
        list(updates(Short(), checkpoint.Position(), 2, range(2)))


def test_a_task_is_told_the_number_of_the_update_also_after_a_resume(tmp_path: Path) -> None:
    class Counting(SmallTask):
        def losses(self, model, batch, update):  # type: ignore[no-untyped-def]
            told.append(update)
            return super().losses(model, batch, update)

    told: list[int] = []
    with pytest.raises(Interrupted):
        train(tmp_path, task=Counting(interrupt_at=3), steps=3, accumulate=2, validate_every=0)
    train(tmp_path, task=Counting(), steps=3, accumulate=2, validate_every=0, resume=True)
    assert told == [1, 1, 2, 2, 3, 3]


def test_averaging_more_checkpoints_than_there_are_is_said_and_recorded(tmp_path: Path) -> None:
    log = Log()
    notes: list[str] = []
    log.note = notes.append  # type: ignore[method-assign]
    train(tmp_path, steps=4, save_every=2, validate_every=0, keep_best=False, average_last=9, log=log)
    assert notes == ["train.average_last is 9, but there are only 2 checkpoints: averaged these"]
    assert read_metadata(tmp_path / "model.safetensors")["averaged"] == "2,4"
