"""Several corpora: how often each is read, tags, noise, one score per direction, and exact resuming."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import tiny
from weft.config.sections import Config, load_config
from weft.data.batch import Position
from weft.data.batching import Batches
from weft.data.corpus_mixture import EpochQuota, Mixture, quotas
from weft.errors import ConfigError
from weft.runs.weight_files import read_tensors
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.base import build_task
from weft.tasks.translation.task import TranslationTask
from weft.training import checkpoint, train_run
from weft.training.training_loop import updates

SETTINGS = {**tiny.SETTINGS, "train.batch_tokens": 120, "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 2}}
NOISE = {"drop": 0.1, "blank": 0.2, "shuffle": 2}


def entry(kind: str, count: int, **options: Any) -> dict[str, Any]:
    return {"files": tiny.generated(kind, count), **options}


BOTH = [entry("reverse", 30, tag="rev", noise=NOISE), entry("copy", 8, tag="cp", weight=None)]
VALID = [{"files": tiny.generated(kind, 20, "valid"), "tag": tag} for kind, tag in (("reverse", "rev"), ("copy", "cp"))]


def prepared(run: Path, train: list[Any], **settings: Any) -> TranslationTask:
    config = load_config("transformer-tiny", []).replaced({**SETTINGS, "decode": {}, **settings, "data.train": train})
    run.mkdir(exist_ok=True)
    task = build_task(config, run)
    task.prepare()
    assert isinstance(task, TranslationTask)
    return task


def test_quotas_follow_sizes_temperature_or_weights() -> None:
    assert quotas([900, 100], [None, None], 1.0) == [900, 100]
    assert quotas([900, 100], [None, None], 2.0) == [750, 250]  # √900 : √100
    assert quotas([900, 100], [1.0, 3.0], 1.0) == [250, 750]
    assert quotas([10, 1], [1e6, 1.0], 1.0)[1] == 1  # each is read


def test_each_corpus_fills_its_quota_pass_by_pass() -> None:
    turns = EpochQuota([50, 8, 3], [30, 20, 11], seed=1)
    epochs = [turns.rows(np.arange(61, dtype=np.uint64), epoch) for epoch in range(6)]
    for number, (begin, size, quota) in enumerate([(0, 50, 30), (50, 8, 20), (58, 3, 11)]):
        mine = [rows[(rows >= begin) & (rows < begin + size)] for rows in epochs]
        assert [len(rows) for rows in mine] == [quota] * 6
        counts = np.bincount(np.concatenate(mine) - begin, minlength=size)
        assert counts.max() - counts.min() <= 1, f"corpus {number}: some rows are read more often"
    pieces = [turns.rows(part, 2) for part in np.array_split(np.arange(61, dtype=np.uint64), 4)]
    assert (np.concatenate(pieces) == epochs[2]).all()
    assert not (np.sort(epochs[0][:20]) == np.sort(epochs[1][:20])).all()


@pytest.mark.parametrize("packed", [False, True])
def test_what_was_seen_is_counted_at_any_position(packed: bool) -> None:
    turns, lengths = EpochQuota([50, 8], [40, 18], seed=1), np.full((58, 2), 3)
    batches = Batches(lengths, 12, seed=1, order=turns, window=20, packed=packed)
    counts = np.zeros(2, int)
    for rows, position in islice(batches.stream(Position()), 60):
        counts += [int((rows < 50).sum()), int((rows >= 50).sum())]
        assert turns.seen(batches, position).tolist() == counts.tolist(), position


def test_a_stream_can_be_entered_anywhere_and_shared_by_processes(tmp_path: Path) -> None:
    """With noise and drawn segmentations: the same bits, whoever asks and wherever it begins."""
    train = [entry("reverse", 60, noise={**NOISE, "subword": 0.3}), entry("copy", 8, noise={"subword": 0.5})]
    settings: dict[str, Any] = {"data.tokenizer": "bpe", "data.vocabulary": 300, "data.temperature": 3.0}
    task = prepared(tmp_path / "a", train, **settings)

    def flat(batch: Any) -> list[list[int]]:
        return [batch.source.values.tolist(), batch.target.tolist()]

    whole = list(islice(updates(task, Position(), 2, range(2)), 12))
    assert sum(update.after.epoch for update in whole) > 3
    for begin in range(1, 12):
        first = next(updates(prepared(tmp_path / "a", train, **settings), whole[begin].begin, 2, range(2)))
        assert [flat(batch) for _, batch in first.batches] == [flat(batch) for _, batch in whole[begin].batches]
    for mine in (range(1), range(1, 2)):
        for ours, all_ in zip(updates(task, Position(), 2, mine), whole, strict=False):
            assert [flat(batch) for _, batch in ours.batches] == [flat(batch) for place, batch in all_.batches if place in mine]
    texts = {str(flat(batch)) for update in whole for _, batch in update.batches}
    assert len(texts) == 24


def test_noise_stays_within_the_budget(tmp_path: Path) -> None:
    train = [entry("reverse", 200, noise={"subword": 0.6}), entry("copy", 100)]
    task = prepared(tmp_path / "a", train, **{"data.tokenizer": "bpe", "data.vocabulary": 300, "train.packed": True})
    assert isinstance(task.train, Mixture) and task.train.lengths.factors[0] > 1 == task.train.lengths.factors[1]
    grown = 0
    for batch, _ in islice(task.batches(Position()), 30):
        assert batch.source.values.size(1) == batch.target.size(1) == 120
        plain = sum(len(task.train.row("source", row)) for row in batch.rows.tolist())
        grown += int(batch.source.layout.mask.sum()) > plain
    assert grown > 20
    # Rows of the corpora, one after the other, without noise.
    rows = [(corpus, row) for corpus in task.train.corpora for row in range(len(corpus))]
    assert all(
        np.array_equal(task.train.row("target", at), rows[at][0].row("target", rows[at][1])) for at in (0, 199, 200, 299)
    )


def test_a_run_that_is_killed_between_corpora_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies in a late update in which the small corpus begins its next pass, and resumes in the middle of an epoch."""
    settings = {**SETTINGS, "train.steps": 8, "train.save_every": 2, "model.dropout": 0.1, "train.seed": 3, "task.r_drop": 2.0}

    def run(name: str, resume: bool = False) -> Path:
        data = {} if resume else {"data": BOTH, "valid": VALID, "set": settings}
        train_run.train("transformer-tiny", out=tmp_path / name, resume=resume, **data)  # type: ignore[arg-type]
        return tmp_path / name

    whole = run("whole")
    losses, died, read = TranslationTask.losses, list[int](), [0]

    def die(self: TranslationTask, model: Any, batch: Any, update: int) -> Any:
        before, after = read[-1], read[-1] + int((batch.rows >= 30).sum())
        if update > 4 and before // 8 < after // 8 and not died:  # it has 8 pairs
            died.append(update)
            raise SystemExit
        read.append(after)
        return losses(self, model, batch, update)

    monkeypatch.setattr(TranslationTask, "losses", die)
    with pytest.raises(SystemExit):
        run("killed")
    newest = checkpoint.latest(tmp_path / "killed")
    assert died and newest is not None and checkpoint.check(newest)["progress"]["position"][0] > 0  # not the first epoch
    killed = run("killed", resume=True)
    for file in sorted(checkpoint.folder_of(whole, 8).glob("*.safetensors")):
        ours, theirs = read_tensors(file), read_tensors(checkpoint.folder_of(killed, 8) / file.name)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours), file.name
    log = (killed / "train.log").read_text()
    assert "bleu/rev" in log and "loss/cp" in log and "seen so far: rev " in log
    served = Models([ModelLocation((str(killed),), ("xx", tag)) for tag in ("rev", "cp")], device="cpu").served
    assert [model.translator.config.decode.tag for model in served] == ["rev", "cp"]


def test_tags_reach_the_model_and_have_to_be_named(weft: tiny.Shell, tmp_path: Path) -> None:
    task = prepared(tmp_path / "a", BOTH)
    batch, _ = next(iter(task.batches(Position())))
    first = {task.source.tokens([token])[0] for token in batch.source.values[:, 0].tolist()}
    assert first == {"<rev>", "<cp>"}
    assert task.source.size == max(task.source.tags("rev cp blank")) + 1
    with pytest.raises(ConfigError, match="trained with tags"):
        task.source.tags(None)
    with pytest.raises(ConfigError, match="did you mean 'rev'"):
        task.source.tags("ref")
    data = f'{{files: "{tiny.generated("reverse", 20)}", tag: rev}}'
    weft("train", "transformer-tiny", "--data", data, "--out", tmp_path / "b", *tiny.sets({"train.steps": 1}))
    assert 'b "a sentence" --tag rev\n' in weft.err


def test_errors_name_the_entry(tmp_path: Path) -> None:
    def config(train: Any) -> Config:
        return load_config("transformer-tiny", []).replaced({"data.train": train})

    with pytest.raises(ConfigError, match="some corpora have a weight"):
        prepared(tmp_path, [entry("copy", 9, weight=1), entry("copy", 9)])
    with pytest.raises(ConfigError, match=r"data.train.0.weigth: there is no such option; did you mean 'weight'"):
        config([{"files": "a", "weigth": 1}])
    with pytest.raises(ConfigError, match=r"data.valid: no training data has the tag cpp; did you mean 'cp'"):
        prepared(tmp_path, BOTH, **{"data.valid": [{"files": tiny.generated("copy", 9), "tag": "cpp"}]})
    with pytest.raises(ConfigError, match=r"a max_length of 99, above data.max_length"):
        prepared(tmp_path / "long", [entry("copy", 9, max_length=99)], **{"data.max_length": 20})
    with pytest.raises(ConfigError, match="held-out pairs have no tags"):
        prepared(tmp_path, BOTH, **{"data.hold_out": 2})
    assert {path.name for path in tmp_path.iterdir()} == {"long"}


def test_corpora_on_the_command_line_are_checked(weft: tiny.Shell, tmp_path: Path) -> None:
    for option, entry, message in (
        ("--data", "{files: a.tsv, wieght: 2}", "data.train.1.wieght: there is no such option; did you mean 'weight'"),
        ("--data", "{files: a.tsv, weight: 0}", "data.train.1.weight: input should be greater than 0 (given: 0)"),
        ("--valid", "{files: a.tsv, tag: 'a b!'}", "data.valid.0.tag"),
        ("--valid", "{files", "--valid {files"),
    ):
        weft.fails("train", "transformer-tiny", "--data", "b.tsv", option, entry, "--out", tmp_path / "run", says=[message])


def test_validation_data_of_one_name_is_scored_separately(tmp_path: Path) -> None:
    for name, target in (("a", "x"), ("b", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "val.tsv").write_text(f"w\t{target}\n" * 3)
    valid = [{"files": str(tmp_path / name / "val.tsv")} for name in "ab"]
    task = prepared(tmp_path / "run", [tiny.generated("copy", 9)], **{"data.valid": valid})
    assert {label: pairs[0] for label, pairs in task.valid_pairs.items()} == {"val.tsv": ("w", "x"), "val.tsv (2)": ("w", "y")}


def test_tasks_refuse_what_they_cannot_mix(tmp_path: Path) -> None:
    def prepare(recipe: str, train: list[Any]) -> None:
        build_task(load_config(recipe, []).replaced({"data.train": train}), tmp_path).prepare()

    with pytest.raises(ConfigError, match="captioning cannot mix corpora"):
        prepare("captioner", [{"files": "a.tsv", "weight": 1}, {"files": "b.tsv", "weight": 1}])
    with pytest.raises(ConfigError, match="fertilities are known"):
        prepare("nat-fertility", [entry("copy", 20, noise={"drop": 0.1})])
    with pytest.raises(ConfigError, match="captioning has no rewards"):
        build_task(load_config("captioner", ["task.reward=self_critical"]), tmp_path)


def test_plain_names_are_one_corpus_as_before(tmp_path: Path) -> None:
    names = [tiny.generated("copy", 9), tiny.generated("reverse", 9)]
    task = prepared(tmp_path / "a", names)
    assert not isinstance(task.train, Mixture) and task.turns is None and len(task.train) == 18
    assert task.corpus_passes(Position()) == ""
