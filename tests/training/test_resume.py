"""A run that is stopped in any way and resumed ends with exactly the bits of an uninterrupted run."""

import json
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import small_task
from tests.helpers.process_group import kill, start
from tests.helpers.small_task import SmallTask, place_of, train
from weft.data.batch import Position
from weft.errors import Interrupted
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint


def tensors(run: Path, step: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, and of the published model."""
    files = [*checkpoint.folder_of(run, step).glob("*.safetensors"), run / "model.safetensors"]
    assert len(files) == 4  # model, optimizer, ema, published
    return {f"{file.parent.name == run.name}{file.name}/{name}": t for file in files for name, t in read_tensors(file).items()}


def differing(first: Path, second: Path, step: int) -> list[str]:
    a, b = tensors(first, step), tensors(second, step)
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def stopped(run: Path, after: int, accumulate: int = 1, **options: int) -> None:
    """Trains until Ctrl-C arrives in the step after which training stops."""
    task = SmallTask(interrupt_at=after * accumulate - 1)
    with pytest.raises(Interrupted, match=f"stopped at step {after} "):
        train(run, task=task, accumulate=accumulate, resume=True, **options)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_stopping_after_any_step_changes_nothing(tmp_path: Path, accumulate: int) -> None:
    train(tmp_path / "whole", steps=7, accumulate=accumulate)
    for after in range(1, 7):
        run = tmp_path / f"stopped-{after}"
        stopped(run, after, accumulate, steps=7)
        torch.rand(7)  # the state of global generators must not matter
        train(run, steps=7, accumulate=accumulate, resume=True)
        assert differing(tmp_path / "whole", run, 7) == [], f"stopped after step {after}"


def test_stopping_after_every_step_changes_nothing(tmp_path: Path) -> None:
    train(tmp_path / "whole", steps=6)
    for after in range(1, 6):
        stopped(tmp_path / "often", after, steps=6)
    train(tmp_path / "often", steps=6, resume=True)
    assert differing(tmp_path / "whole", tmp_path / "often", 6) == []


def test_dropout_is_on_in_these_tests(tmp_path: Path) -> None:
    train(tmp_path / "a", steps=3, seed=1)
    train(tmp_path / "b", steps=3, seed=2)
    assert differing(tmp_path / "a", tmp_path / "b", 3)


def test_late_and_early_resumes_cost_the_same(tmp_path: Path) -> None:
    """The stream starts at the saved position, wherever that is."""
    for update in (1, 1_000_000):
        run = tmp_path / str(update)
        train(run, steps=1)
        folder = checkpoint.folder_of(run, 1)
        state = json.loads((folder / "state.json").read_text())
        state["progress"] |= {"update": update, "position": list(place_of(update))}
        (folder / "state.json").write_text(json.dumps(state))
        task = SmallTask()
        result, _ = train(run, steps=update + 2, task=task, resume=True)
        assert result.update == update + 2
        assert task.asked == [place_of(update)]
        assert task.read == [update, update + 1]


def test_the_saved_position_is_that_of_the_next_update_not_of_the_prefetcher(tmp_path: Path) -> None:
    train(tmp_path, steps=4, accumulate=3)
    state = checkpoint.check(checkpoint.folder_of(tmp_path, 4))
    assert Position(*state["progress"]["position"]) == place_of(12)


def test_resuming_a_run_that_has_ended_only_publishes(tmp_path: Path) -> None:
    train(tmp_path, steps=3)
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    task = SmallTask()
    result, _ = train(tmp_path, steps=3, task=task, resume=True)
    assert task.read == []
    assert result.update == 3
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_checkpoint_that_a_killed_process_has_not_removed_is_removed_in_the_end(tmp_path: Path) -> None:
    train(tmp_path, steps=3, keep_last=1)
    shutil.copytree(checkpoint.folder_of(tmp_path, 3), checkpoint.folder_of(tmp_path, 1))
    train(tmp_path, steps=3, keep_last=1, resume=True)
    assert checkpoint.steps(tmp_path) == [3]


def test_resuming_before_the_first_checkpoint_begins_at_the_beginning(tmp_path: Path) -> None:
    train(tmp_path / "whole", steps=4)
    train(tmp_path / "resumed", steps=4, resume=True)
    assert differing(tmp_path / "whole", tmp_path / "resumed", 4) == []


def last_step(run: Path) -> int:
    """The last step in log.jsonl."""
    file = run / "log.jsonl"
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
    return max((json.loads(line).get("step", 0) for line in whole), default=0)


def test_killed_three_times_at_random_moments_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = {"steps": 40, "save_every": 2, "validate_every": 5}
    small_task.run_jobs([[str(tmp_path / "whole"), json.dumps(options)]])
    slowly = [str(tmp_path / "killed"), json.dumps({**options, "pause": 0.02}), "--resume"]
    draw = random.Random(5)
    for least in (draw.randint(2, 9), draw.randint(12, 20), draw.randint(23, 32)):
        process = start(small_task.__file__, [slowly], tmp_path)
        while last_step(tmp_path / "killed") < least:
            assert process.poll() is None, (tmp_path / "0.errors").read_text()
            time.sleep(0.01)
        time.sleep(draw.random() * 0.05)  # anywhere in a step, or in the middle of saving
        kill(process)
    small_task.run_jobs([[str(tmp_path / "killed"), json.dumps(options), "--resume"]])
    assert differing(tmp_path / "whole", tmp_path / "killed", 40) == []
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "killed" / "model.safetensors").read_bytes()
    logged = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if line["event"] == "train"] == list(range(1, 41))
