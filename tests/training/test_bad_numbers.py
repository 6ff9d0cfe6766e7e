"""Numbers that are not finite: what training leaves of them, which is nothing, and what a search says about them."""

from __future__ import annotations

import copy
import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from tests.helpers import tiny
from tests.helpers.small_task import WIDTH, SmallModel, SmallTask, train
from weft.decoding.predictor import Prediction
from weft.errors import RunError
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint
from weft.training.compile_and_cuda_graphs import CudaGraphSteps
from weft.training.optimizer import RunningBuffers
from weft.training.update_step import UpdateStep
from weft_studies.deciphering.cipher_gan import straight_through_sample

CAMPAIGNS = Path(__file__).parents[2] / "benchmarks" / "campaigns"


class Normed(SmallModel):
    """A model whose training passes change buffers, by numbers that may be NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.bad_at, self.passes = -1, 0

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = super().forward(tokens)
        self.passes += self.training
        if self.passes == self.bad_at:
            hidden = hidden * float("nan")
        return self.norm(hidden.transpose(1, 2)).transpose(1, 2)


def test_what_a_skipped_step_writes_into_buffers_is_undone(tmp_path: Path) -> None:
    model = Normed()
    model.bad_at = 4 + 3 + 3 + 1  # the first pass of the fourth update; every third has a pass more
    result, _ = train(tmp_path, steps=6, model=model, save_every=1, keep_last=9)
    assert result.skipped == 1
    before, bad, after = (read_tensors(checkpoint.folder_of(tmp_path, step) / "model.safetensors") for step in (3, 4, 5))
    names = [name for name in before if name.startswith("norm.")]
    assert len(names) == 5 and all(torch.equal(before[name], bad[name]) for name in names)
    assert not torch.equal(before["norm.running_mean"], after["norm.running_mean"])
    assert all(tensor.isfinite().all() for tensor in after.values())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_bad_micro_batch_skips_its_update_also_with_gradients_that_stay_where_they_are(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded steps, here repeated instead, keep the addresses of gradients, so what is in them has to be set to zero."""

    class Repeated(CudaGraphSteps):
        def __init__(self, work: Any) -> None:
            self.work = work

        def __call__(self, batch: Any, update: int) -> Any:
            return self.work(batch, update)

    bad, options = frozenset({4}), {"steps": 5, "accumulate": accumulate, "save_every": 1, "keep_last": 9}
    train(tmp_path / "usual", task=SmallTask(bad=bad), **options)
    monkeypatch.setattr(UpdateStep, "_forget_graphs", lambda step: setattr(step, "work", Repeated(step._eager)))
    result, _ = train(tmp_path / "recorded", task=SmallTask(bad=bad), **options)
    assert result.skipped == 1
    skipped = 4 // accumulate + 1
    weights = {
        (run, step): read_tensors(checkpoint.folder_of(tmp_path / run, step) / "model.safetensors")
        for run in ("usual", "recorded")
        for step in (skipped - 1, skipped, 5)
    }
    names = [name for name in weights["usual", 5] if name != "features"]
    assert all(torch.equal(weights["recorded", skipped - 1][name], weights["recorded", skipped][name]) for name in names)
    assert all(torch.equal(weights["usual", 5][name], weights["recorded", 5][name]) for name in names)


def test_an_update_that_begins_again_counts_its_passes_once() -> None:
    model = Normed().train()
    buffers = RunningBuffers(model)
    tokens = torch.arange(4, 16).view(2, 6)
    buffers.keep()
    model(tokens)
    changed = model.norm.running_mean.clone()
    buffers.restore(torch.ones(()))
    assert torch.equal(model.norm.running_mean, torch.zeros(WIDTH)) and model.norm.num_batches_tracked == 0
    assert changed.abs().max() > 0


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """A rate beyond float32 makes them infinite, though losses and gradients of the step are finite."""
    with pytest.raises(RunError, match=r"step 1: some weights are not finite.*There is no checkpoint yet.*larger eps"):
        train(tmp_path, steps=6, save_every=1, max_bad_steps=5, schedule={"kind": "constant", "rate": 1e39})
    assert not checkpoint.steps(tmp_path) and not (tmp_path / "model.safetensors").exists()


def test_samples_of_chances_that_are_not_finite_end_nothing() -> None:
    chances = torch.full((2, 3, 4), 0.25)
    chances[0, 1, 2] = math.nan
    drawn = straight_through_sample(chances)
    assert drawn[0, 1].isnan().any() and drawn[1].isfinite().all()


@pytest.fixture(scope="module")
def damaged(reverse_run: Path) -> weft.Translator:
    """A translator that computes NaN for sources with the letter h."""
    translator = weft.load(reverse_run, device="cpu")
    assert isinstance(translator, weft.Translator)
    model = translator.model
    model.encoder = copy.deepcopy(model.encoder)  # the table is tied to that of targets
    table = next(each for each in model.encoder.modules() if isinstance(each, nn.Embedding))  # type: ignore[union-attr]
    with torch.no_grad():
        table.weight[translator.task.source.encode("h")[0]] = math.nan  # type: ignore[attr-defined]
    return translator


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3},
    "sample": {"sample": True, "n_best": 2},
    "noisy": {"search": {"kind": "noisy"}},
    "mbr": {"beam": 3, "rerank": {"kind": "mbr", "candidates": 3}},
    "C++": {"beam": 3, "compile": True},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_text_without_a_number_has_no_score_and_the_others_of_its_batch_stay(damaged: weft.Translator, search: str) -> None:
    texts = ["a b c", "h a b", "d c"]
    spoilt = damaged.translate(texts, **SEARCHES[search])
    alone = damaged.translate(["a b c", "d c"], **SEARCHES[search])
    assert [math.isnan(each.score) for each in spoilt] == [False, True, False]
    assert [each.text for each in (spoilt[0], spoilt[2])] == [each.text for each in alone]


def test_a_score_that_is_no_number_is_null_in_json() -> None:
    assert json.dumps(Prediction("", math.nan).document()) == '{"text": "", "score": null, "tokens": []}'


def test_a_text_without_a_number_is_said_on_the_command_line(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    import shutil

    from weft.runs.weight_files import read_metadata, write_tensors

    run = Path(shutil.copytree(reverse_run, tmp_path / "run"))
    tensors = read_tensors(run / "model.safetensors")
    broken = {name: torch.full_like(each, math.nan) for name, each in tensors.items()}
    write_tensors(run / "model.safetensors", broken, read_metadata(run / "model.safetensors"))
    out = weft("translate", run, "--json", stdin="a b\nc\n")
    assert [json.loads(line)["score"] for line in out.splitlines()] == [None, None]
    assert weft.err.count("not finite (NaN or infinity)") == 1


@pytest.mark.parametrize(("case", "fault"), [("encoder_self routing", "loss"), ("lm-tiny", "some output")])
def test_the_campaign_skips_a_bad_update(case: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CAMPAIGNS))
    bad_numbers = importlib.import_module("bad_numbers")
    chosen = bad_numbers.faults(case, 1)[fault]
    monkeypatch.setattr(bad_numbers, "faults", lambda name, seed: {fault: chosen})
    monkeypatch.setattr(bad_numbers, "PRECISIONS", ("float32",))
    campaign = bad_numbers.Campaign(tmp_path, 1)
    campaign.measure(case)
    assert campaign.done[case, fault]["verdict"].startswith("skipped: the rest is equal")
