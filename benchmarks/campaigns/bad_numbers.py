"""Numbers that are not finite, in every kind of training: the step is skipped and counted, and nothing stays of it.

    python benchmarks/campaigns/bad_numbers.py --out DIR                    # all cases, resumable: repeat the command
    python benchmarks/campaigns/bad_numbers.py --out DIR --only 'reward*'   # some cases

The trainings are those of benchmarks/golden.py, shortened. In each, one update goes wrong in several ways, drawn from `--seed`:
NaN or infinity in a loss, in a gradient, in the output of a module; a huge output in bf16; a loss that is a million times too
large. The rest of the run must equal, bit for bit, that of a run whose optimisers were not called in that update: weights,
buffers, states of the optimisers, moving average, and what a task carries along. A last training goes wrong in every update
from then on: it must end with an error that names a checkpoint, and continue from there.

Every line of DIR/results.jsonl is one training with its verdict; the last lines of the output count them.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import random
import shutil
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from golden_cases import GROUPS, Case
from golden_runs import Golden
from torch import Tensor, nn

from weft.errors import RunError
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint, update_step
from weft.training.update_step import UpdateStep

STEPS, WRONG = 8, 4
"""Updates of a training, and the one that goes wrong."""

PRECISIONS = ("float32", "bf16")

SETTINGS: dict[str, Any] = {
    "train.steps": STEPS,
    "train.save_every": 3,
    "train.validate_every": STEPS,
    "train.validate_sentences": 4,
    "train.keep_last": 9,
    "train.ema": 0.9,
    "train.max_bad_steps": 3,
}

EXTRA = ("encoder_self lsh", "encoder_self routing", "encoder_self performer", "encoder_self rfa", "decoder_self routing")
"""Mechanisms with buffers that change in training."""

LEFT_OUT = ("answers ?*", "generated *", "tokenizer *", "transformer-tiny, long", "transformer-base", "auto", "demo-dates")
"""Cases whose updates are those of others."""

KEPT = ("answers 1", "generated copy")


def cases() -> dict[str, Case]:
    """The trainings, by name: `SETTINGS` and, for bytenet, its batch norm, are written over those of golden.py."""
    known = {name: case for group in GROUPS.values() for name, case in group().items()}
    names = [name for kind, group in GROUPS.items() if kind != "mechanisms" for name in group()]
    chosen = [name for name in names if name in KEPT or not any(fnmatch.fnmatch(name, each) for each in LEFT_OUT)]
    found = {name: known[name] for name in (*chosen, *EXTRA)}
    found["bytenet, batch norm"] = replace(
        known["bytenet"], settings={**known["bytenet"].settings, "model.block_norm": "sub_batch"}
    )
    return found


@dataclass(frozen=True)
class Fault:
    """Faults in update `WRONG`, or with `lasting` in all from then on.

    place: loss, gradient or output · value: what is written there, or for `spike` the factor · share: which of the losses,
    parameters or modules, as a share of their number
    """

    place: str
    value: float = float("nan")
    share: float = 0.0
    lasting: bool = False

    def on(self, update: int) -> bool:
        return update == WRONG or (self.lasting and update > WRONG)


def faults(name: str, seed: int) -> dict[str, Fault]:
    """The faults of a case, by name."""
    drawn = random.Random(f"{seed} {name}")
    nan, infinite = float("nan"), drawn.choice([float("inf"), float("-inf")])
    return {
        "loss": Fault("loss", drawn.choice([nan, infinite]), drawn.random()),
        "gradient": Fault("gradient", drawn.choice([nan, infinite]), drawn.random()),
        "first output": Fault("output", nan),
        "some output": Fault("output", infinite, drawn.random()),
        "spike": Fault("spike", 1e6),
        "overflow in bf16": Fault("output", 3e38, drawn.random()),
        "all from then on": Fault("loss", nan, 0.0, lasting=True),
    }


class Injection:
    """A training in which a fault happens; without one, it happens to nothing, and update `WRONG` is left out.

    carried: whether what the task carries is put back as it was before the update that is left out
    """

    def __init__(self, fault: Fault | None, *, carried: bool = False) -> None:
        self.fault, self.carried = fault, carried
        self.update, self.calls, self.target, self.active = 0, 0, -1, False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside the block, trainings go wrong."""
        forward, finish = update_step.forward_backward, UpdateStep.finish
        hook = nn.modules.module.register_module_forward_hook(self._output)
        update_step.forward_backward = lambda *given: self._pass(forward, *given)
        UpdateStep.finish = lambda step, update, *given: self._finish(finish, step, update, *given)
        try:
            yield
        finally:
            update_step.forward_backward, UpdateStep.finish = forward, finish
            hook.remove()

    def _pass(self, forward: Callable[..., Any], task: Any, model: nn.Module, batch: Any, update: int, cast: Any) -> Any:
        self.update, self.task, fault = update, task, self.fault
        if fault is None and update == WRONG:
            self.before = state_of(task)
            self.buffers = [buffer.clone() for buffer in model.buffers()]
        if fault is None or not fault.on(update):
            if self.target < 0:  # counts the calls of an earlier update
                self.active, self.calls = True, 0
                try:
                    return forward(task, model, batch, update, cast)
                finally:
                    self.active = False
            return forward(task, model, batch, update, cast)
        if fault.place in ("loss", "spike"):
            return forward(Wrapped(task, fault), model, batch, update, cast)
        if fault.place == "output":
            self.target, self.calls, self.active = int(fault.share * max(1, self.calls)), 0, True
        try:
            return forward(task, model, batch, update, cast)
        finally:
            self.active = False

    def _output(self, module: nn.Module, given: Any, output: Any) -> Any:
        """Counts the outputs of modules that are numbers, and writes the value into the target."""
        if not self.active or not isinstance(output, Tensor) or not output.is_floating_point() or not output.numel():
            return None
        self.calls += 1
        if self.fault is None or not self.fault.on(self.update) or self.calls - 1 != self.target:
            return None
        wrong = torch.zeros_like(output)
        wrong.view(-1)[0] = self.fault.value
        return output + wrong

    def _finish(self, finish: Callable[..., Tensor], step: UpdateStep, update: int, *given: Any) -> Tensor:
        if self.fault is None and update == WRONG:
            return self._leave_out(step, update)
        if self.fault is not None and self.fault.place == "gradient" and self.fault.on(update):
            parameters = [each for group in step.groups.values() for each in group if each.grad is not None]
            parameters[int(self.fault.share * len(parameters))].grad.view(-1)[-1] = self.fault.value
        return finish(step, update, *given)

    def _leave_out(self, step: UpdateStep, update: int) -> Tensor:
        """The update without a call of its optimisers."""
        sums = step.meter.take()
        for optimizer in step.state.optimizers.values():
            optimizer.zero_grad()
        for buffer, before in zip(step.model.buffers(), self.buffers, strict=True):
            buffer.data.copy_(before)
        if self.carried:
            put_back(self.task, self.before)
        if step.state.ema is not None:
            step.state.ema.update(update, update)
        step.meter.end_update(sums, torch.zeros(()), torch.ones(()))
        return sums


class Wrapped:
    """A task one of whose losses goes wrong."""

    def __init__(self, task: Any, fault: Fault) -> None:
        self.task, self.fault = task, fault

    def losses(self, *given: Any) -> Iterator[Any]:
        spike = self.fault.place == "spike"
        for number, loss in enumerate(self.task.losses(*given)):
            wrong = spike or number == 0
            yield replace(loss, total=loss.total * self.fault.value) if wrong else loss


def state_of(task: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in task.extra_state().items()} if hasattr(task, "extra_state") else {}


def put_back(task: Any, state: Mapping[str, Tensor]) -> None:
    if hasattr(task, "load_extra_state"):
        task.load_extra_state(state)


def tensors(run: Path, step: int = STEPS) -> dict[str, Tensor]:
    """Everything in a checkpoint."""
    folder = checkpoint.folder_of(run, step)
    return {f"{file.stem}/{name}": each for file in folder.glob("*.safetensors") for name, each in read_tensors(file).items()}


def apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that differ in a bit."""
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if name not in found or name not in expected or not torch.equal(found[name], expected[name])]


def not_finite(found: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in found.items() if tensor.is_floating_point() and not tensor.isfinite().all()]


class Campaign:
    """All trainings in one folder."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed = out, seed
        self.golden = Golden(out / "work", None)
        self.all = cases()
        self.known = {name: case for group in GROUPS.values() for name, case in group().items()}
        self.file = out / "results.jsonl"
        lines = self.file.read_text("utf-8").splitlines() if self.file.exists() else []
        self.done = {(line["case"], line["fault"]): line for line in map(json.loads, lines)}

    def train(self, name: str, case: Case, injection: Injection, settings: Mapping[str, Any] = MappingProxyType({})) -> Path:
        """A training of a case, in a folder that is made anew."""
        run = self.golden.run(name)
        shutil.rmtree(run.parent, ignore_errors=True)
        changed = replace(case, settings={**case.settings, **SETTINGS, **settings})
        with injection.running():
            self.golden.train(name, changed)
        return run

    def starts(self, case: Case) -> None:
        """Trains the runs that a case starts from or uses."""
        used = [value[1:-1] for value in case.settings.values() if isinstance(value, str) and value[:1] == "{" != value[:6]]
        for name in filter(self.known.__contains__, (case.start, *used)):
            if not (self.golden.run(name) / "model.safetensors").exists():
                self.golden.train(name, replace(self.known[name], settings={**self.known[name].settings, "train.steps": 4}))

    def measure(self, name: str) -> None:
        """All trainings of a case that have not been done."""
        case = self.all[name]
        wanted = {fault: each for fault, each in faults(name, self.seed).items() if (name, fault) not in self.done}
        if not wanted:
            return
        with quiet():
            self.starts(case)
            expected: dict[str, list[dict[str, Tensor]]] = {}
            for precision in PRECISIONS:
                setting = {"train.precision": precision}
                moved, kept = (Injection(None, carried=each) for each in (False, True))
                expected[precision] = [tensors(self.train(f"{name} expected", case, moved, setting))]
                if state_of(moved.task):
                    expected[precision].append(tensors(self.train(f"{name} expected", case, kept, setting)))
        for fault, each in wanted.items():
            began = time.process_time()
            precision = "bf16" if "bf16" in fault else "float32"
            with quiet():
                try:
                    found = self.verdict(name, case, each, {"train.precision": precision}, expected[precision])
                except Exception as error:
                    found = {"verdict": f"FAILED: {type(error).__name__}: {str(error)[:300]}"}
            line = {"case": name, "fault": fault, "value": str(each.value), "share": each.share, **found}
            self.done[name, fault] = line
            with open(self.file, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{name} · {fault}: {found['verdict']} ({time.process_time() - began:.1f} s)", flush=True)

    def verdict(
        self, name: str, case: Case, fault: Fault, settings: Mapping[str, Any], expected: list[dict[str, Tensor]]
    ) -> dict[str, Any]:
        injection = Injection(fault)
        if fault.lasting:
            return self.ended(name, case, injection, settings)
        run = self.train(f"{name} wrong", case, injection, settings)
        found = tensors(run)
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
        skipped = max(line.get("skipped", 0) for line in lines)
        if wrong := not_finite(found):
            return {"verdict": f"FAILED: {wrong[:3]} are not finite", "skipped": skipped}
        if skipped == 0:
            return {"verdict": "harmless: all is finite, so the step counts", "skipped": 0}
        differing = min((apart(found, each) for each in expected), key=len)
        if skipped != 1 or differing:
            return {"verdict": f"FAILED: {skipped} steps are skipped, and {differing[:3]} differ", "skipped": skipped}
        if fault.place != "output" or fault.share:
            return {"verdict": "skipped: the rest is equal to the last bit", "skipped": skipped}
        again = run.parent / "again"
        shutil.copytree(run, again)
        for step in checkpoint.steps(again)[-1:]:
            shutil.rmtree(checkpoint.folder_of(again, step))
        self.resume(again)
        if differing := apart(tensors(again), found):
            return {"verdict": f"FAILED: resumed, {differing[:3]} differ", "skipped": skipped}
        return {"verdict": "skipped: the rest is equal to the last bit, also resumed", "skipped": skipped}

    def ended(self, name: str, case: Case, injection: Injection, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A training in which all goes wrong from an update on."""
        run = self.golden.run(f"{name} wrong")
        try:
            self.train(f"{name} wrong", case, injection, settings)
        except RunError as error:
            said = str(error)
        else:
            return {"verdict": "FAILED: training went on"}
        last = checkpoint.steps(run)[-1]
        if "in 3 steps in a row" not in said or f"step-{last:08d}" not in said:
            return {"verdict": f"FAILED: the error says {said[:200]}"}
        if wrong := not_finite(tensors(run, last)):
            return {"verdict": f"FAILED: in the last checkpoint, {wrong[:3]} are not finite"}
        self.resume(run)
        if wrong := not_finite(tensors(run)):
            return {"verdict": f"FAILED: resumed, {wrong[:3]} are not finite"}
        return {"verdict": "ended: the error names the last checkpoint, from which training continues"}

    @staticmethod
    def resume(run: Path) -> None:
        import weft

        weft.train(out=run, resume=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings and of results.jsonl")
    parser.add_argument("--only", default="*", help="pattern of the names of cases; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="N/M: every M-th case, beginning with the N-th")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(arguments.out.absolute() / "user-cache")
    torch.set_num_threads(1)
    campaign = Campaign(arguments.out.absolute(), arguments.seed)
    part, parts = map(int, arguments.part.split("/"))
    for name in campaign.all:
        if fnmatch.fnmatch(name, arguments.only) and zlib.crc32(name.encode()) % parts == part - 1:
            campaign.measure(name)
    report(campaign)


def report(campaign: Campaign) -> None:
    """Prints how often each fault had which end; exits with 1 if one failed."""
    counts = Counter((line["fault"], line["verdict"].partition(":")[0]) for line in campaign.done.values())
    for (fault, verdict), count in sorted(counts.items()):
        print(f"{count:5}  {fault}: {verdict}")
    failed = [line for line in campaign.done.values() if line["verdict"].startswith("FAILED")]
    print(f"{len(campaign.done)} trainings of {len({case for case, _ in campaign.done})} cases, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
