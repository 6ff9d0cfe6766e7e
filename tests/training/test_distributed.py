"""Real processes over gloo on this machine: training does not depend on the number of processes."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers import small_task
from tests.helpers.process_group import launch
from tests.helpers.tiny import once
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint

OPTIONS = {"steps": 8, "accumulate": 4, "double": True, "save_every": 8, "validate_every": 4}
SAME = {"accumulate": 8, "steps": 3, "save_every": 3}
FROZEN = {**OPTIONS, "freeze": ["rnn.*"], "steps": 3, "save_every": 3}


def training(run: Path, *flags: str, **options: object) -> list[str]:
    """A job that trains."""
    return [str(run), json.dumps({**OPTIONS, **options}), *flags]


def here(*job: str) -> str:
    """Runs a job in this process alone, and returns its output."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        small_task.run_jobs([list(job)])
    return said.getvalue()


def train_together(folder: Path) -> None:
    """All that two processes do in these tests, for starting them takes longest."""
    folder.mkdir()
    assert "stopped at step 3" in here(*training(folder / "moved", interrupt_at=9))
    jobs = [
        ["--gradients", str(folder), "4"],
        training(folder / "two", double=False),
        training(folder / "moved", "--resume", interrupt_at=20),  # the signal reaches only one process, but both stop
        training(folder / "frozen", **FROZEN),
        training(folder / "same", **SAME),
        training(folder / "bad", bad=[5]),
    ]
    assert all("stopped at step 6" in out for out in launch(small_task.__file__, jobs))


@pytest.fixture
def together(shared_folder: Path) -> Path:
    return once(shared_folder / "together", train_together)


def distance(first: Path, second: Path) -> float:
    a, b = read_tensors(first), read_tensors(second)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train"]


def seen(run: Path) -> list[list[int]]:
    return [json.loads(file.read_text()) for file in sorted(run.glob("seen-*.json"))]


def test_gradients_of_2_processes_with_2_micro_batches_equal_those_of_1_with_4(together: Path, tmp_path: Path) -> None:
    here("--gradients", str(tmp_path), "4")
    whole = tmp_path / "gradients-1-0.safetensors"
    first, second = (together / f"gradients-2-{rank}.safetensors" for rank in range(2))
    assert distance(whole, first) < 1e-12
    assert distance(first, second) == 0
    assert all(float(tensor.abs().max()) > 0 for tensor in read_tensors(whole).values())


def test_losses_in_float32_do_not_depend_on_the_number_of_processes(together: Path, tmp_path: Path) -> None:
    here(*training(tmp_path, double=False))
    assert losses(together / "two") == pytest.approx(losses(tmp_path), abs=1e-5)
    one, two = seen(tmp_path), seen(together / "two")
    assert one == [list(range(32))]
    assert sorted(two) == [list(range(0, 32, 2)), list(range(1, 32, 2))]


def test_1_2_and_8_processes_train_the_same_configuration(together: Path, tmp_path: Path) -> None:
    """Losses, weights, moving average, and what was read."""
    here(*training(tmp_path / "1", **SAME))
    launch(small_task.__file__, [training(tmp_path / "8", **SAME)], processes=8)
    for size, run in ((2, together / "same"), (8, tmp_path / "8")):
        assert losses(run) == pytest.approx(losses(tmp_path / "1"), abs=1e-12)
        for file in ("model.safetensors", "ema.safetensors"):
            assert distance(checkpoint.folder_of(tmp_path / "1", 3) / file, checkpoint.folder_of(run, 3) / file) < 1e-12
        assert sorted(seen(run)) == [list(range(rank, 24, size)) for rank in range(size)]


def test_a_run_goes_from_one_process_to_two_and_back(together: Path, tmp_path: Path) -> None:
    """Weights, moving average and data order are those of an uninterrupted run."""
    here(*training(tmp_path))
    run = shutil.copytree(together / "moved", tmp_path / "moved")
    here(*training(run, "--resume"))
    for file in ("model.safetensors", "ema.safetensors"):
        folders = (checkpoint.folder_of(tmp_path, 8), checkpoint.folder_of(run, 8))
        assert distance(folders[0] / file, folders[1] / file) < 1e-12
    assert sorted(number for part in seen(run) for number in part) == list(range(32))
    assert losses(run) == pytest.approx(losses(tmp_path), abs=1e-12)


def test_frozen_weights_stay_the_same_in_all_processes(together: Path, tmp_path: Path) -> None:
    here(*training(tmp_path, **FROZEN))
    folders = [checkpoint.folder_of(run, 3) for run in (tmp_path, together / "frozen")]
    assert distance(folders[0] / "model.safetensors", folders[1] / "model.safetensors") < 1e-12
    start, after = small_task.SmallModel().double().state_dict(), read_tensors(folders[1] / "model.safetensors")
    same = {name for name in after if torch.equal(start[name], after[name])}
    assert same == {name for name in start if name.startswith("rnn.")}
    assert not any("rnn." in name for name in read_tensors(folders[1] / "optimizer.safetensors"))


def test_a_loss_that_is_not_finite_in_one_process_skips_the_step_in_all(together: Path, tmp_path: Path) -> None:
    here(*training(tmp_path, bad=[5]))
    one, two = losses(tmp_path), losses(together / "bad")
    assert one[1] is None and two[1] is None and two.count(None) == 1  # log.jsonl has null for what is not finite
    assert [each for each in two if each] == pytest.approx([each for each in one if each], abs=1e-9)
    assert distance(*(checkpoint.folder_of(run, 8) / "model.safetensors" for run in (tmp_path, together / "bad"))) < 1e-9
