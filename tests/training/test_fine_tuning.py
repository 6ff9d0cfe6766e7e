"""A run that starts from another one: what it takes, what stays frozen, and that resuming is exact in every mode."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from tests.helpers import tiny
from weft.config.registry import build
from weft.config.sections import Config, TrainSection, load_config
from weft.errors import ConfigError, RunError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.open_run import open_run, run_config
from weft.runs.run_folder import records
from weft.runs.warm_start import resolve_start, started_config
from weft.runs.weight_files import read_tensors
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.base import LOSS, Measure
from weft.training import checkpoint, train_run
from weft.training.auto.choose_settings import SettingsDraft
from weft.training.auto.fine_tuning import choose_fine_tuning, distance, excess_loss, rate_share
from weft.training.gradual_unfreezing import LayerGroups, layers_of
from weft.training.optimizer import take_step

STEPS = 6
TUNED: dict[str, Any] = {
    "train.steps": STEPS,
    "train.save_every": 1,
    "train.keep_last": STEPS + 1,  # and the start
    "train.validate_every": 0,
    "train.schedule": {"kind": "slanted_triangular", "rate": 0.01},
    "train.ema": 0.9,
    "model.dropout": 0.1,
}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unfreezing": {"train.unfreeze_every": 2, "train.layer_factor": 2.6},
    "adapters": {"model.lora": {"rank": 4}, "train.unfreeze_every": 2},
    "adapters of layers": {"model.lora": {"rank": 4, "embedding_rank": 0}},
    "rewarded adapters": {
        "model.lora": {"rank": 4},
        "train.batch_tokens": 64,
        "task.reward": {"kind": "reinforce", "samples": 2, "baseline": "moving", "teacher_weight": 0.5},
    },
    "mixed": {
        "data.train": [
            {"files": tiny.generated("copy", 9), "weight": 1, "tag": "new", "noise": {"drop": 0.2, "blank": 0.2, "shuffle": 2}},
            {"files": tiny.generated("reverse", 50), "weight": 1},
        ],
        "train.batch_tokens": 64,
        "train.unfreeze_every": 2,
        "task.r_drop": 1.0,
    },
}


@pytest.fixture(scope="module")
def tuned(reverse_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run that starts from `reverse_run`, with a checkpoint after each step. Each mode is trained once."""
    folder = tmp_path_factory.mktemp("tuned")

    def run(mode: str) -> Path:
        if not (folder / mode).exists():
            tune(reverse_run, folder / mode, MODES[mode])
        return folder / mode

    return run


def tune(start: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> None:
    settings = {**TUNED, "data.train": [tiny.generated("copy", 300)], **(settings or {})}
    data = {"data": settings.pop("data.train"), "valid": tiny.generated("copy", 20, "valid"), **options}
    train_run.train(start=start, out=out, set=settings, **data)


def state(run: Path, step: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint."""
    files = sorted(checkpoint.folder_of(run, step).glob("*.safetensors"))
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in read_tensors(file).items()}


@pytest.mark.parametrize(("mode", "saved"), [*((mode, 3) for mode in MODES), ("plain", 0)])
def test_a_run_that_was_killed_in_any_mode_ends_with_the_same_bits(mode: str, saved: int, tuned: Any, tmp_path: Path) -> None:
    """Killed in the middle of the second stage of unfreezing, or before the first checkpoint."""
    whole, killed = tuned(mode), tmp_path / "killed"
    shutil.copytree(whole, killed)
    for step in range(saved + 1 if saved else 0, STEPS + 1):
        shutil.rmtree(checkpoint.folder_of(killed, step))
    if not saved:
        (killed / "model.safetensors").unlink()
    train_run.train(out=killed, resume=True)
    first, second = state(whole, STEPS), state(killed, STEPS)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()


def test_weights_without_a_checkpoint_are_not_trained_over(tuned: Any, tmp_path: Path) -> None:
    """As `weft merge` leaves them, or after checkpoints were removed."""
    shutil.copytree(tuned("plain"), tmp_path / "run")
    for step in range(STEPS + 1):
        shutil.rmtree(checkpoint.folder_of(tmp_path / "run", step))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="it has weights but no checkpoint"):
        train_run.train(out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_new_data_is_not_replaced_by_the_texts_of_an_old_teacher(tuned: Any, tmp_path: Path) -> None:
    shutil.copytree(tuned("plain"), tmp_path / "taught")
    file = tmp_path / "taught" / "config.yaml"
    file.write_text(file.read_text().replace("teacher: null", f"teacher: {tuned('plain')}"))
    for new, teacher in ((True, None), (False, str(tuned("plain")))):
        assert started_config(tmp_path / "taught", None, new_data=new).data.teacher == teacher


def test_tokens_are_added_to_a_vocabulary_that_is_there() -> None:
    with pytest.raises(ConfigError, match=r"start.extend: there is no vocabulary to add tokens to"):
        resolve_start(load_config("transformer-tiny", ["start.extend=5"]))


def test_layers_are_unfrozen_from_the_top(tuned: Any) -> None:
    names = list(dict(open_run(tuned("unfreezing")).model.named_parameters()))
    lowest, encoder, decoder = layers_of(names)
    assert lowest == ["encoder.front.table.weight"]
    assert all(name.startswith("encoder.") for name in encoder) and all(name.startswith("decoder.") for name in decoder)
    for step in range(2, STEPS + 1):
        before, after = (state(tuned("unfreezing"), each) for each in (step - 1, step))
        for file in ("model", "ema"):
            moved = {name for name in names if not torch.equal(before[f"{file}/{name}"], after[f"{file}/{name}"])}
            active = {1: decoder, 2: decoder + encoder, 3: names}[(step + 1) // 2]
            assert moved == set(active), f"step {step}, {file}"
    log = (tuned("unfreezing") / "train.log").read_text()
    assert all(f"step {2 * stage - 1}: {stage} of 3 layers are trained" in log for stage in (1, 2, 3))


def test_layers_of_a_network_with_a_head() -> None:
    names = ["encoder.front.table", "encoder.layers.0.a", "encoder.layers.1.b", "encoder.norm", "pooling.x", "output.weight"]
    assert layers_of(names) == [
        ["encoder.front.table"],
        ["encoder.layers.0.a"],
        ["encoder.layers.1.b", "encoder.norm"],
        ["pooling.x", "output.weight"],
    ]


@pytest.mark.parametrize("kind", ["language_model", "rnn_language_model"])
@pytest.mark.parametrize("share", [True, False])
def test_the_output_layer_of_a_language_model_is_its_highest(kind: str, share: bool) -> None:
    """Even if it is the table of embeddings as well, and whatever the order in which a model names them."""
    layers = {"language_model": "decoder_layers", "rnn_language_model": "layers"}[kind]
    spec = {"kind": kind, "dim": 8, layers: 2, "share_embeddings": share}
    model = build_model(spec, Sizes(9, 9, shared=True))
    groups = LayerGroups(model, TrainSection(layer_factor=2)).rated(list(model.parameters()))
    scales = {id(weight): group["scale"] for group in groups for weight in group["params"]}
    named = dict(model.named_parameters(remove_duplicate=False))
    assert len(scales) == len(list(model.parameters()))
    assert scales[id(named["decoder.output.weight"])] == 1
    assert (scales[id(named["decoder.embedding.table.weight"])] == 1) == share


def test_frozen_weights_keep_their_bits(reverse_run: Path, tmp_path: Path) -> None:
    tune(reverse_run, tmp_path / "run", {"train.steps": 2, "train.freeze": ["encoder.*", "*norm*"]})
    before, after = read_tensors(reverse_run / "model.safetensors"), read_tensors(tmp_path / "run" / "model.safetensors")
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith("encoder.") or "norm" in name}
    trained, every = (sum(after[name].numel() for name in names) for names in (after.keys() - same, after))
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"step 1: 1 of 1 layers are trained, {trained:,} of {every:,} weights" in log


def test_a_pattern_that_matches_nothing_is_an_error(reverse_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.freeze: no name matches 'encodr\.\*'; there are \d+, among them encoder"):
        tune(reverse_run, tmp_path / "run", {"train.freeze": ["encodr.*"]})
    with pytest.raises(ConfigError, match="leaves no weights to train"):
        tune(reverse_run, tmp_path / "run", {"train.freeze": ["*"]})


def test_groups_with_a_scale_of_one_are_the_plain_optimiser() -> None:
    models = [two_layers(), two_layers()]
    weights = [list(model.parameters()) for model in models]
    groups = LayerGroups(models[1], TrainSection(layer_factor=2.6)).rated(weights[1])
    assert [group["scale"] for group in groups] == [1 / 2.6, 1.0]
    assert LayerGroups(models[0], TrainSection()).rated(weights[0]) == [{"params": weights[0], "scale": 1.0}]
    for model, given in zip(models, [weights[0], [{**group, "scale": 1.0} for group in groups]], strict=True):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        take_step(build("weft.training:OPTIMIZERS", "adamw", given), 0.1, torch.zeros(()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(3, 3) for _ in range(2))})})


def test_the_config_says_where_a_run_comes_from(tuned: Any, reverse_run: Path) -> None:
    base, config = run_config(reverse_run), run_config(tuned("plain"))
    assert config.start.run == str(reverse_run) and config.start.weights is not None
    assert config.data.tokenizer == base.data.tokenizer
    assert {**config.model, "dropout": 0.0} == base.model
    assert (
        "from " in (tuned("plain") / "train.log").read_text()
        and "100.0 % of the numbers" in (tuned("plain") / "train.log").read_text()
    )


def test_a_recipe_changes_everything_but_the_model(reverse_run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    out = tmp_path / "run"
    data = ["--data", tiny.generated("copy", 100), "--valid", tiny.generated("copy", 10, "valid")]
    sets = ["train.steps=1", "train.device=cpu", "train.tensorboard=false", "train.precision=float32", "decode.beam=1"]
    weft("train", "transformer-small", "--from", reverse_run, *data, "--out", out, "--set", *sets)
    config = run_config(out)
    assert config.model == run_config(reverse_run).model
    assert config.train.schedule == load_config("transformer-small", ["train.steps=1"]).train.schedule | {"warmup": 0}
    weft.fails("train", "auto", "--from", reverse_run, *data, "--out", tmp_path / "no", says=["auto chooses a model"])
    weft.fails("train", "transformer-small", "--set", "model.lora.rank=2", *data, "--out", tmp_path / "no", says=["--from RUN"])


def test_new_data_is_not_validated_on_the_old(reverse_run: Path, tmp_path: Path) -> None:
    train_run.train(start=reverse_run, out=tmp_path / "run", data=tiny.generated("copy", 50), set={"train.steps": 1})
    assert run_config(tmp_path / "run").data.valid == []
    with pytest.raises(RunError, match="nowhere: there is no such run folder"):
        train_run.train(start=tmp_path / "nowhere", out=tmp_path / "no")
    train_run.train(start=reverse_run, out=tmp_path / "more", set={"train.steps": 1, "train.validate_bleu": False})
    assert run_config(tmp_path / "more").data == run_config(reverse_run).data


def test_weights_that_do_not_fit_are_an_error(reverse_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no weight of .* fits this model"):
        tune(reverse_run, tmp_path / "run", {"model.dim": 24, "model.feedforward": 24})
    with pytest.raises(ConfigError, match=r"data.tokenizer: .* differs from that of"):
        tune(reverse_run, tmp_path / "run", {"data.tokenizer": "characters"})
    with pytest.raises(ConfigError, match=r"data.vocabulary: 300 differs .*start.extend adds tokens"):
        tune(reverse_run, tmp_path / "run", {"data.vocabulary": 300})


def test_adapters_are_saved_small_and_start_as_the_run_they_adapt(tuned: Any, reverse_run: Path) -> None:
    run = tuned("adapters")
    saved, base = read_tensors(run / "model.safetensors"), read_tensors(reverse_run / "model.safetensors")
    assert saved and all(".lora_" in name for name in saved)
    assert all(".lora_" in name for name in state(run, 1) if name.startswith(("model/", "ema/")))
    merged = dict(open_run(run).model.named_parameters())
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert "encoder.front.table.weight" in changed and not any("norm" in name for name in changed)
    assert {name for name in saved if "table" in name} == {f"encoder.front.table.lora_{factor}" for factor in "ab"}
    assert run_config(run).model["lora"]["embedding_rank"] == 4
    assert sum(tensor.numel() for tensor in saved.values()) < sum(tensor.numel() for tensor in base.values()) / 2


def test_adapters_of_runs_that_know_no_embedding_rank_load_and_resume(tuned: Any, tmp_path: Path) -> None:
    whole, old = tuned("adapters of layers"), tmp_path / "old"
    assert not any("table" in name for name in read_tensors(whole / "model.safetensors"))
    shutil.copytree(whole, old)
    for file in old.glob("**/config.yaml"):
        file.write_text("".join(line for line in file.read_text().splitlines(True) if "embedding_rank" not in line))
    first, second = (open_run(run).model.state_dict() for run in (whole, old))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for step in range(4, STEPS + 1):
        shutil.rmtree(checkpoint.folder_of(old, step))
    train_run.train(out=old, resume=True)
    assert (whole / "model.safetensors").read_bytes() == (old / "model.safetensors").read_bytes()


def test_a_vocabulary_that_grows_has_embeddings_that_are_trained_themselves(reverse_run: Path) -> None:
    assert resolve_start(_started(reverse_run, {"start.extend": 3})).model["lora"]["embedding_rank"] == 0
    assert resolve_start(_started(reverse_run, {})).model["lora"]["embedding_rank"] == 4
    assert resolve_start(_started(reverse_run, {"model.lora.embedding_rank": 2})).model["lora"]["embedding_rank"] == 2


def _started(base: Path, changes: dict[str, Any]) -> Config:
    return run_config(base).replaced({"start.run": str(base), "model.lora": {"rank": 4}, **changes})


def test_merged_adapters_need_no_other_run(tuned: Any, reverse_run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    weft("merge", tuned("adapters"), "--out", tmp_path / "merged")
    first, second = (open_run(run).model.state_dict() for run in (tuned("adapters"), tmp_path / "merged"))
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert not any(".lora_" in name for name in read_tensors(tmp_path / "merged" / "model.safetensors"))
    weft.fails("merge", reverse_run, "--out", tmp_path / "no", says=["no adapters"])


def test_adapters_refuse_other_weights_than_they_were_trained_on(reverse_run: Path, other_run: Path, tmp_path: Path) -> None:
    shutil.copytree(reverse_run, tmp_path / "base")
    tune(tmp_path / "base", tmp_path / "run", {**MODES["adapters"], "train.steps": 1})
    weft.load(tmp_path / "run")
    shutil.copyfile(other_run / "model.safetensors", tmp_path / "base" / "model.safetensors")
    with pytest.raises(RunError, match="the weights have changed since"):
        weft.load(tmp_path / "run")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(RunError, match="base"):
        weft.load(tmp_path / "run")
    assert weft.load(tmp_path / "run", set=[f"start.run={reverse_run}"]).translate("a b").text


def test_a_server_holds_the_weights_of_an_adapted_run_once(tuned: Any, reverse_run: Path) -> None:
    served = Models([ModelLocation((str(run),)) for run in (reverse_run, tuned("adapters"))], device="cpu").served
    first, second = (dict(model.translator.model.named_parameters()) for model in served)
    shared = {name for name in first if first[name] is second[name]}
    assert any("norm" in name for name in shared) and "decoder.layers.0.network.up.weight" not in shared
    assert "encoder.front.table.weight" not in shared
    assert [model.name for model in served] == [reverse_run.name, "adapters"]


def test_a_run_is_tuned_gently_by_default(reverse_run: Path, tmp_path: Path) -> None:
    """With the rate of the first training, a few steps on other data would undo it, and the best of them would be published."""
    new, said = tmp_path / "new", list[str]()
    result = train_run.train(
        start=reverse_run,
        data=tiny.generated("reverse", 120),
        valid=tiny.generated("reverse", 60, "valid"),
        out=new,
        set={"train.steps": 20, "train.validate_sentences": 20},
        tell=said.append,
    )
    first, second = run_config(reverse_run).train, run_config(new).train
    assert second.schedule["rate"] == pytest.approx(0.03 * first.schedule["rate"]) and second.schedule["warmup"] == 2
    assert (second.steps, second.validate_every) == (20, 2) and second.keep_best
    assert any(line.startswith("tuning:") and "at the start, which stays if nothing is better" in line for line in said)
    validations = [line for line in records(new) if line["event"] == "validation"]
    assert validations[0]["step"] == 0
    measure = LOSS if second.best_by == "loss" else Measure(second.best_by, second.best_by)
    scores = [line[measure.key] for line in validations]
    best = max(scores) if measure.higher_is_better else min(scores)
    assert result.scores[measure.key] == best, "never worse than the start"


def test_a_start_that_nothing_improves_on_stays_and_is_said(reverse_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    settings = {"train.steps": 4, "train.validate_every": 2, "train.schedule.rate": 1.0, "train.schedule.warmup": 0}
    data = {"data": tiny.generated("copy", 60), "valid": tiny.generated("reverse", 30, "valid")}
    train_run.train(start=reverse_run, out=new, set={**settings, "train.best_by": "loss", "train.ema": 0}, **data)
    assert "no step was better by loss than the run it started from" in (new / "train.log").read_text()
    kept, start = (open_run(run).model.state_dict() for run in (new, reverse_run))
    assert all(torch.equal(kept[name], start[name]) for name in start)


def test_weights_that_are_worse_than_the_start_are_called_so(reverse_run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    settings = {"train.steps": 4, "train.schedule.rate": 1.0, "train.keep_best": False, "train.best_by": "loss", "train.ema": 0}
    data = {"data": tiny.generated("copy", 60), "valid": tiny.generated("reverse", 30, "valid")}
    train_run.train(start=reverse_run, out=new, set=settings, **data)
    assert (
        "the published weights are not better than the run that training started from: loss" in (new / "train.log").read_text()
    )


@pytest.mark.parametrize("recipe", [None, "transformer-tiny"])
def test_nothing_is_held_out_if_there_is_validation_data(recipe: str | None, reverse_run: Path, tmp_path: Path) -> None:
    base = shutil.copytree(reverse_run, tmp_path / "base")
    file = base / "config.yaml"
    file.write_text(file.read_text().replace("hold_out: 0", "hold_out: 20"))
    assert started_config(base, recipe, new_data=True, new_valid=True).data.hold_out == 0
    assert started_config(base, recipe, new_data=True).data.hold_out == 20
    assert started_config(base, recipe, ["data.hold_out=5"], new_data=True, new_valid=True).data.hold_out == 5


def test_a_time_does_not_plan_a_single_step(reverse_run: Path, tmp_path: Path) -> None:
    train_run.train(
        start=reverse_run, data=tiny.generated("copy", 300), out=tmp_path / "new", time="1m", set={"train.steps": 3}
    )
    config = run_config(tmp_path / "new")
    assert config.train.steps == 3 and config.train.budget == "steps" and 30 < config.train.seconds <= 60
    assert config.data.hold_out == 25, "validation data is held out, because there is none"


@pytest.mark.parametrize(("kind", "far"), [("reverse", False), ("copy", True)])
def test_far_data_gets_a_higher_rate_and_more_steps(kind: str, far: bool, reverse_run: Path, tmp_path: Path) -> None:
    """A model that reverses words sees copies, whose tokens cost it several nats; or more of what it was trained on."""
    base = load_config(reverse_run / "config.yaml").replaced(
        {"start.run": str(reverse_run), "data.train": [tiny.generated(kind, 300, "test")], "data.valid": [], "train.steps": 9}
    )
    choice = SettingsDraft(base, set())
    choose_fine_tuning(choice)
    peaks = [run.train.schedule["rate"] for run in (choice.config, base)]
    assert (peaks[0] == peaks[1]) if far else (peaks[0] < 0.1 * peaks[1])
    assert "nats more than those of the old validation data" in choice.reasons["tuning"]
    steps = choice.config.train.steps, run_config(reverse_run).train.steps
    assert (steps[0] >= min(300, steps[1])) if far else (steps[0] < 300)


def test_the_distance_grows_with_the_excess_loss() -> None:
    found = [distance(excess) for excess in (None, -1.0, 0.3, 1.15, 2.0, 9.0)]
    assert found == pytest.approx([0, 0, 0, 0.5, 1, 1])


def test_the_rate_grows_with_the_new_data() -> None:
    shares = [rate_share(pairs) for pairs in (0, 100, 1_000, 10_000, 30_000, 1_000_000)]
    assert shares == sorted(shares) and shares[0] == 0.03 and shares[-1] == shares[-2] == 0.3


def test_new_data_is_measured_with_its_tags(tmp_path: Path) -> None:
    """The settings of fine-tuning follow from the loss of the old model, which has to know in which language to answer."""
    files = {tag: tmp_path / f"{tag}.jsonl" for tag in ("same", "back")}
    for tag, file in files.items():
        words = ["a b c", "d e f g", "b c d", "e e a"] * 5
        pairs = [{"source": text, "target": text if tag == "same" else text[::-1]} for text in words]
        file.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    parts = [{"files": [str(file)], "tag": tag} for tag, file in files.items()]
    base = {**tiny.SETTINGS, "train.steps": 2, "data.valid": parts}
    weft.train("transformer-tiny", data=parts, out=tmp_path / "both", set=base)
    config = run_config(tmp_path / "both").replaced({"start.run": str(tmp_path / "both")})
    losses = []
    for tag in ("back", "same"):
        tagged = [{"files": [str(files["back"])], "tag": tag}]
        losses.append(excess_loss(config.replaced({"data.train": tagged, "data.valid": tagged}), 20))
    assert losses[0] != losses[1] and all(isinstance(loss, float) for loss in losses)
