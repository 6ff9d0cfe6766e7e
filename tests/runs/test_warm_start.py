"""What a run takes from the one it starts from: an extended vocabulary, and a language model as the encoder of a classifier."""

from pathlib import Path

import pytest
import torch

import weft
from tests.helpers import tiny
from weft.bench.compare.training_jobs import Training
from weft.config.registry import build
from weft.data.batch import Source
from weft.data.tokenizers import Tokenizer
from weft.runs.open_run import open_run, run_config
from weft.runs.weight_files import read_tensors
from weft.training.gradual_unfreezing import layers_of

TEXTS = {
    "words": "a b zebra zebra crab",
    "characters": "xyxy zz",
    "bpe": "der Zug, der Zug, die Züge",
    "unigram": "zaza zaza zabra",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_an_extended_vocabulary_keeps_its_ids(kind: str) -> None:
    old: Tokenizer = build("weft.data:TOKENIZERS", kind)
    old.train(["the abba band, the bad cab", "a dab, a bad ace and the abacus cab"] * 3, 300)
    new = old.extended([TEXTS[kind]] * 4, 6)
    assert old.size < new.size <= old.size + 6
    assert [new.piece(number) for number in range(4, old.size)] == [old.piece(number) for number in range(4, old.size)]
    assert new.decode(new.encode(TEXTS[kind])) == TEXTS[kind]
    added = set(range(old.size, new.size))
    assert added & set(new.encode(TEXTS[kind])) and len(new.encode(TEXTS[kind])) <= len(old.encode(TEXTS[kind]))
    again = type(old)(**({"byte_fallback": True} if kind != "words" else {}))
    again.restore(new.dump())
    assert again.encode(TEXTS[kind]) == new.encode(TEXTS[kind])
    for number in added:
        assert max([*old.spelled(new.piece(number)), 0]) < old.size
    if kind == "bpe":
        assert old.decode(old.spelled(new.piece(old.size + 5))) == new.decode([old.size + 5])


def test_new_tokens_start_as_the_mean_of_the_old_ones(reverse_run: Path, tmp_path: Path) -> None:
    data = tmp_path / "new.tsv"
    data.write_text("a b qa\tqa b a\nb qa\tqa b\n" * 20)
    settings = {"start.extend": 3, "train.steps": 1, "train.schedule": {"kind": "constant", "rate": 1e-9}}
    weft.train(start=reverse_run, data=str(data), valid=str(data), out=tmp_path / "run", set=settings)
    old, new = (
        read_tensors(run / "model.safetensors")["encoder.front.table.weight"] for run in (reverse_run, tmp_path / "run")
    )
    assert len(new) == len(old) + 1
    assert torch.allclose(new[:-1], old, atol=1e-6)
    assert torch.allclose(new[-1], old.mean(0), atol=1e-6)  # a word that the old vocabulary could not write at all
    assert weft.load(tmp_path / "run").source.decode([len(old)]) == "qa"
    assert "with vectors for new tokens: encoder.front.table.weight" in (tmp_path / "run" / "train.log").read_text()
    weft.train(start=tmp_path / "run", out=tmp_path / "again", set={"train.steps": 1})
    assert len(read_tensors(tmp_path / "again" / "model.safetensors")["encoder.front.table.weight"]) == len(new)


def test_tags_move_behind_new_tokens(reverse_run: Path, tmp_path: Path) -> None:
    """The second run has a tag and a word more, and learns from rewards of texts whose sources all need a tag."""
    data = tmp_path / "new.tsv"
    data.write_text("a b qa\tqa b a\nb qa\tqa b\n" * 20)
    corpora = [{"files": tiny.generated(kind, 20), "tag": kind} for kind in ("reverse", "copy")]
    common = {"train.steps": 1, "train.batch_tokens": 64, "train.packed": False}
    quick, slow = ({"train.schedule": {"kind": "constant", "rate": rate}} for rate in (1e-2, 1e-9))
    weft.train(start=reverse_run, data=corpora, out=tmp_path / "tagged", set={**common, **quick})
    settings = {**common, **slow, "start.extend": 3, "task.reward": {"kind": "minimum_risk", "samples": 2}}
    weft.train(start=tmp_path / "tagged", data=[{"files": str(data), "tag": "new"}], out=tmp_path / "run", set=settings)
    old, new = (weft.load(tmp_path / run).source for run in ("tagged", "run"))
    assert (old.added, new.added, new.size) == (("reverse", "copy"), ("reverse", "copy", "new"), old.size + 2)
    before, after = (
        read_tensors(tmp_path / run / "model.safetensors")["encoder.front.table.weight"] for run in ("tagged", "run")
    )
    tags = [tokenizer.tags("reverse copy") for tokenizer in (old, new)]
    assert tags == [[old.size - 2, old.size - 1], [old.size - 1, old.size]]
    assert torch.allclose(after[tags[1]], before[tags[0]], atol=1e-6) and not torch.allclose(*after[tags[1]])
    assert torch.allclose(after[: old.size - 2], before[: old.size - 2], atol=1e-6)
    assert torch.allclose(after[-1], before.mean(0), atol=1e-6)


LM = {
    "data.tokenizer": "characters",
    "model.dim": 16,
    "model.heads": 2,
    "model.feedforward": 16,
    "model.decoder_layers": 2,
    "task.segment": 8,
    "train.steps": 2,
    "train.batch_tokens": 64,
    "train.device": "cpu",
    "train.tensorboard": False,
    "train.precision": "float32",
}


def test_new_data_is_not_validated_on_the_data_of_the_old_run(tmp_path: Path) -> None:
    """A classifier cannot even read what its language model was validated on."""
    text, labelled = tmp_path / "text.txt", tmp_path / "labelled.tsv"
    text.write_text("good dogs run\nbad cats sleep\n" * 20)
    labelled.write_text("good dogs\tyes\nbad cats\tno\n" * 8)
    settings = {key: LM[key] for key in LM if key.startswith("train.")} | {"train.validate_every": 0, "train.best_by": "loss"}
    weft.train("lm-tiny", data=str(text), valid=str(text), out=tmp_path / "lm", set=LM)
    weft.train("classifier-bytes", start=tmp_path / "lm", data=str(labelled), out=tmp_path / "run", set=settings)
    assert run_config(tmp_path / "run").data.valid == []
    training = Training("classifier-bytes", (str(labelled),), start=str(tmp_path / "lm"))
    assert training.config().data.valid == []


@pytest.mark.parametrize("able", [True, False])
def test_a_cpu_without_bf16_trains_in_float32(able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.training.prepare_run.computes_bf16", lambda device: able)
    told: list[str] = []
    tiny.train(tmp_path / "run", settings={"train.precision": "bf16", "train.steps": 1}, tell=told.append)
    assert run_config(tmp_path / "run").train.precision == ("bf16" if able else "float32")
    assert any("no arithmetic in bf16" in line for line in told) != able


def test_a_classifier_reads_with_a_language_model(tmp_path: Path) -> None:
    text, labelled = tmp_path / "text.txt", tmp_path / "labelled.tsv"
    text.write_text("good dogs run\nbad cats sleep\n" * 20)
    labelled.write_text("good dogs\tyes\nbad cats\tno\n" * 8)
    weft.train("lm-tiny", data=str(text), out=tmp_path / "lm", set=LM)
    settings = {
        **{key: LM[key] for key in LM if key.startswith("train.")},
        "train.unfreeze_every": 1,
        "train.layer_factor": 2.6,
        "task.pooling": "last_max_mean",
    }
    weft.train(
        "classifier-bytes", start=tmp_path / "lm", data=str(labelled), valid=str(labelled), out=tmp_path / "run", set=settings
    )
    assert "new: output.weight, output.bias" in (tmp_path / "run" / "train.log").read_text()
    trained, model = open_run(tmp_path / "lm"), open_run(tmp_path / "run").model
    model.load_state_dict({f"encoder.{name}": tensor for name, tensor in trained.model.state_dict().items()}, strict=False)
    tokens = torch.tensor([trained.task.tokenizer.encode("good cats")])  # type: ignore[attr-defined]
    with torch.no_grad():
        read, expected = model.eval().encoder(Source(tokens)).memory, trained.model.eval()(tokens).hidden  # type: ignore[operator]
    assert torch.equal(read, expected)
    assert weft.load(tmp_path / "run").translate("good dogs").text in ("yes", "no")
    lowest, *blocks, head = layers_of([name for name, _ in model.named_parameters()])
    assert head == ["output.weight", "output.bias"] and len(blocks) == 2 and all(".embedding." in name for name in lowest)
