"""What is wrong is said in a sentence, with where and what to do; nothing that was there before is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.runs.run_folder import RunLock

LETTERS = "abcdefghijklmnop"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with 40 good pairs in a.src and a.trg."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    lines = [" ".join(rng.choices(LETTERS, k=rng.randint(2, 6))) for _ in range(40)]
    for name in ("a.src", "a.trg"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.fixture
def train(weft: tiny.Shell, folder: Path) -> Train:
    return Train(weft, folder)


class Train:
    """`weft train` in the folder, with a few steps."""

    def __init__(self, weft: tiny.Shell, folder: Path) -> None:
        self.weft, self.folder = weft, folder

    def fails(self, *arguments: str, says: list[str], data: str = "a.src,a.trg", **settings: object) -> None:
        """Training fails, says so, and leaves nothing: the same folder can be used at once."""
        self.weft.fails(
            "train", "transformer-tiny", "--data", data, "--out", "run", *self._sets(settings), *arguments, says=says
        )
        assert not (self.folder / "run").exists()

    def works(self, *arguments: str, data: str = "a.src,a.trg", **settings: object) -> str:
        self.weft("train", "transformer-tiny", "--data", data, "--out", "run", *self._sets(settings), *arguments)
        return self.weft.err

    def _sets(self, settings: dict[str, object]) -> list[str]:
        return tiny.sets({"train.steps": 2, **{key.replace("__", "."): value for key, value in settings.items()}})


def test_a_failed_start_can_be_made_again(train: Train) -> None:
    train.fails(data="a.src,b.trg", says=["b.trg: there is no such file"])
    (train.folder / "run").mkdir()
    train.weft.fails("train", "transformer-tiny", "--data", "a.src,b.trg", "--out", "run", *tiny.sets())
    assert list((train.folder / "run").iterdir()) == []  # a folder that was there stays, as empty as it was
    train.works()


def test_files_of_different_length(train: Train) -> None:
    lines = (train.folder / "a.trg").read_text().splitlines(keepends=True)
    (train.folder / "b.trg").write_text("".join(lines[:20] + lines[21:]))
    train.fails(data="a.src,b.trg", says=["40", "39", "a.src", "b.trg"])


def test_files_that_are_not_there_or_not_files(train: Train) -> None:
    (train.folder / "empty").write_text("")
    (train.folder / "dir").mkdir()
    train.fails(data="a.src,empty", says=["empty is empty"])
    train.fails(data="empty,empty", says=["are empty"])
    train.fails(data="a.src,dir", says=["dir is a folder"])
    train.fails(data="a.src", says=["is not a known data format"])
    train.fails("--valid", "a.src,nowhere", says=["nowhere: there is no such file"])
    train.fails("--valid", "empty,empty", says=["are empty"])
    train.fails(data="generated:dats", says=["no such generator", "dates"])


def test_no_data_at_all(weft: tiny.Shell, folder: Path) -> None:
    weft.fails("train", "transformer-tiny", "--out", "run", says=["there is no training data", "--data"])
    assert not Path("run").exists()


def test_missing_columns(train: Train) -> None:
    (train.folder / "a.tsv").write_text("a b\tb a\nc\n")
    train.fails(data="a.tsv", says=["a.tsv, line 2", "1 columns"])
    train.fails(data="a.tsv#1,5", says=["there is no column 5"])
    (train.folder / "a.jsonl").write_text('{"source": "a", "target": "b"}\n{"source": "a", "traget": "b"}\n')
    train.fails(data="a.jsonl", says=["a.jsonl, line 2", "there is no 'target'", "traget"])
    (train.folder / "b.jsonl").write_text('{"source": "a", "target": "b"}\n{"sour\n')
    train.fails(data="b.jsonl", says=["b.jsonl, line 2", "not valid JSON"])


def test_a_header_or_ids_are_not_trained_on(train: Train) -> None:
    Path("a.tsv").write_text("source\ttarget\n" + "a b\tb a\n" * 20)
    train.fails(data="a.tsv", says=["looks like a header", "a.tsv#source,target"])
    Path("b.tsv").write_text("".join(f"{number}\ta b\tb a\n" for number in range(20)))
    train.fails(data="b.tsv", says=["seems to hold ids", "b.tsv#2,3"])


def test_a_wrong_encoding(train: Train, weft: tiny.Shell, reverse_run: Path) -> None:
    lines = (train.folder / "a.src").read_bytes().splitlines(keepends=True)
    (train.folder / "latin.src").write_bytes(b"".join([*lines[:6], "größe\n".encode("latin-1"), *lines[7:]]))
    train.fails(data="latin.src,a.trg", says=["latin.src, line 7", "not valid UTF-8"])
    (train.folder / "out.txt").write_text("precious\n")
    weft.fails("translate", reverse_run, "latin.src", says=["latin.src, line 7"])
    weft.fails("translate", reverse_run, stdin=b"a\n\xff\n", says=["standard input, line 2"])


def test_a_damaged_gz(train: Train) -> None:
    import gzip

    (train.folder / "a.src.gz").write_bytes(gzip.compress((train.folder / "a.src").read_bytes())[:-20])
    train.fails(data="a.src.gz,a.trg", says=["a.src.gz", "damaged or cut short"])
    (train.folder / "b.src.gz").write_bytes(b"not gz")
    train.fails(data="b.src.gz,a.trg", says=["b.src.gz"])


def test_a_line_of_100_000_words_is_left_out_and_counted(train: Train) -> None:
    for name in ("a.src", "a.trg"):
        with open(train.folder / name, "a") as file:
            file.write("a b c d e f g h i j " * 10_000 + "\n\n")
    told = train.works()
    assert "42 pairs read, 40 kept; left out: 1 with an empty side, 1 too long" in told


def test_nothing_is_left_to_train_on(train: Train) -> None:
    train.fails(says=["no pair is left", "40 too long"], data__max_length=1)
    (train.folder / "blank").write_text("\n")
    train.fails("--valid", "blank,blank", says=["blank: no pair is left", "1 with an empty side"])


def test_a_vocabulary_without_room(train: Train) -> None:
    train.fails(says=["a vocabulary of 3"], data__vocabulary=3)


def test_settings_that_are_not_right(train: Train) -> None:
    train.fails(says=["--set train.stepz", "'steps'"], train__stepz=5)
    train.fails(says=["train.steps"], train__steps=0)
    train.fails(says=["--set model.cross", "full"], model__cross="ful")
    train.fails(says=["a width of 32 cannot be divided among 5 heads"], model__heads=5)
    train.fails(says=["not valid YAML"], train__clip="[1")
    train.fails(says=["finite"], train__clip=".nan")
    train.fails(says=["finite"], train__schedule="{kind: constant, rate: .inf}")
    train.fails(says=["train.seed"], train__seed=1 << 70)
    train.fails(says=["there is no device 'gpu9'; this machine has cpu"], train__device="gpu9")
    train.fails(
        says=["train.best_by", "validate_bleu"], train__best_by="bleu", train__validate_bleu=False, data__valid="[a.src,a.trg]"
    )
    train.fails(says=["data.max_length", "at most 15"], model__position="learned", model__max_length=16, data__max_length=16)
    train.fails(says=["model.share_embeddings"], data__shared_vocabulary=False)
    train.fails(says=["model", "transformer"], model__kind="transformr")


def test_recipes_that_are_not_there(weft: tiny.Shell, folder: Path) -> None:
    weft.fails("train", "transformer-smal", "--data", "a.src,a.trg", says=["transformer-smal", "transformer-small"])
    weft.fails("train", "missing.yaml", "--data", "a.src,a.trg", says=["there is no such file or recipe"])
    weft.fails("train", ".", "--data", "a.src,a.trg", says=["weft: error: .: "])
    Path("bad.yaml").write_text("train:\n  steps: 5\n  stepz: 5\n")
    weft.fails("train", "bad.yaml", "--data", "a.src,a.trg", says=["bad.yaml, line 3", "steps"])
    assert not Path("runs").exists()


def test_a_folder_that_is_used_is_never_overwritten(weft: tiny.Shell, train: Train) -> None:
    Path("file").write_text("precious")
    Path("full").mkdir()
    Path("full/file").write_text("precious")
    start = ["train", "transformer-tiny", "--data", "a.src,a.trg", *tiny.sets({"train.steps": 2})]
    weft.fails(*start, "--out", "file", says=["is a file"])
    weft.fails(*start, "--out", "full", says=["not empty", "--resume"])
    weft.fails("train", "--resume", "full", says=["full"])
    weft.fails("train", "--resume", "nowhere", says=["nowhere"])
    assert Path("file").read_text() == Path("full/file").read_text() == "precious"
    train.works()
    before = Path("run/model.safetensors").read_bytes()
    weft.fails(*start, "--out", "run", says=["not empty", "weft train --resume run"])
    with RunLock(Path("run")):
        weft.fails("train", "--resume", "run", says=["in use by process"])
        weft.fails("average", "run", says=["in use by process"])
    assert Path("run/model.safetensors").read_bytes() == before


def test_a_run_that_cannot_be_resumed_stays_as_it_was(weft: tiny.Shell, train: Train) -> None:
    train.works()
    before = Path("run/config.yaml").read_text()
    for settings, says in [
        (["model.dim=64"], "model.dim 32 → 64"),
        (["data.tokenizer=characters"], "tokenizer"),
        (["train.accumulate=0"], "train.accumulate"),
        (["train.device=gpu"], "there is no device"),
        (["train.optimizer=sgdd"], "train.optimizer"),
    ]:
        weft.fails("train", "--resume", "run", "--set", "train.steps=4", *settings, says=[says])
        assert Path("run/config.yaml").read_text() == before
    weft("train", "--resume", "run", "--set", "train.steps=4")
    assert "done: step 4" in weft.err


def test_a_checkpoint_cut_short(weft: tiny.Shell, train: Train) -> None:
    train.works(train__save_every=1)
    file = Path("run/checkpoints/step-00000002/model.safetensors")
    file.write_bytes(file.read_bytes()[:-9])
    weft.fails("train", "--resume", "run", "--set", "train.steps=4", says=["cut short", "delete"])
    weft.fails("average", "run", says=["cut short"])
    shutil.rmtree(file.parent)
    weft("train", "--resume", "run", "--set", "train.steps=4")
    assert "resuming after step 1" in weft.err


def test_runs_that_are_not_whole(weft: tiny.Shell, reverse_run: Path, folder: Path) -> None:
    run = Path(shutil.copytree(reverse_run, "run"))
    model = (run / "model.safetensors").read_bytes()
    Path("out.txt").write_text("precious")
    for command in (
        ["translate", "run", "a.src", "-o", "out.txt"],
        ["evaluate", "run", "--data", "a.src,a.trg", "-o", "out.txt"],
    ):
        (run / "model.safetensors").write_bytes(model[:-5])
        weft.fails(*command, says=["model.safetensors", "cut short"])
        (run / "model.safetensors").unlink()
        weft.fails(*command, says=["there is no model.safetensors yet"])
        weft.fails(command[0], "nowhere", *command[2:], says=["nowhere: there is no such run folder"])
    assert Path("out.txt").read_text() == "precious"
    shutil.rmtree(run / "checkpoints")
    weft.fails("average", "run", says=["no checkpoint"])
    weft.fails("average", "nowhere", says=["nowhere: there is no such run folder"])


def test_run_folders_without_a_name(weft: tiny.Shell, reverse_run: Path) -> None:
    for name in ("", ",", f"{reverse_run},"):
        weft.fails("translate", name, says=["names no run folder"])


def test_nothing_is_written_over_what_is_read(weft: tiny.Shell, reverse_run: Path, folder: Path) -> None:
    before = Path("a.src").read_text()
    weft.fails("translate", reverse_run, "a.src", "-o", "./a.src", says=["would be overwritten"])
    weft.fails("translate", reverse_run, "a.src", "--prefix", "a.trg", "-o", "a.trg", says=["would be overwritten"])
    assert Path("a.src").read_text() == Path("a.trg").read_text() == before


def test_translating_what_cannot_be_translated(weft: tiny.Shell, reverse_run: Path, folder: Path) -> None:
    Path("one").write_text("a\n")
    for arguments, says in [
        (["nowhere.txt"], "nowhere.txt: there is no such file"),
        ([str(folder)], "is a folder"),
        (["one#1,2"], "one#1,2: inputs are whole lines, and columns are chosen in --data only. Give them alone: cut -f1,2 one"),
        (["a.src", "--prefix", "nowhere"], "nowhere: there is no such file"),
        (["a.src", "--prefix", "one"], "line 2 has no prefix"),
        (["one", "--prefix", "a.src"], "more prefixes than lines"),
        (["a.src", "-o", "nowhere/out.txt"], "nowhere/out.txt: No such file or directory"),
        (["a.src", "-o", "."], "Is a directory"),
        (["a.src", "-o", "/dev/full"], "/dev/full: No space left on device"),
        (["a.src", "--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["a.src", "--beam", "0"], "decode.beam"),
        (["a.src", "--set", "decode.baem=3"], "beam"),
        (["a.src", "--set", "train.steps=3"], "decoding settings"),
        (["a.src", "--set", "decode.beam=[1"], "not valid YAML"),
        (["a.src", "--set", "beam"], "decoding settings"),
        (["a.src", "--set", "decode.max_length=10000000000000", "decode.max_ratio=1e12"], "out of memory; lower"),
    ]:
        weft.fails("translate", reverse_run, *arguments, says=[says])


def test_evaluating_what_cannot_be_evaluated(weft: tiny.Shell, reverse_run: Path, folder: Path) -> None:
    Path("one").write_text("a\n")
    for arguments, says in [
        (["--data", "a.src,one"], "40"),
        (["--data", "a.src"], "is not a known data format"),
        (["--data", "a.src,a.trg", "--against", "nowhere"], "nowhere: there is no such run folder"),
        (["--data", "a.src,a.trg", "--tokenize", "nonsense"], "nonsense"),
        (["--data", "a.src,a.trg", "-o", "nowhere/out.txt"], "nowhere/out.txt"),
        (["--data", "a.src,a.trg", "--samples", "0"], "resample"),
    ]:
        weft.fails("evaluate", reverse_run, *arguments, says=[says])


def test_new_in_a_place_that_cannot_be_written(weft: tiny.Shell, folder: Path) -> None:
    weft.fails("new", "a.src/mine.yaml", says=["a.src"])
    weft.fails("new", "mine.yaml", "--recipe", "nonsense", says=["nonsense"])
    weft.fails("new", "mine.yaml", "--set", "train.stepz=3", says=["'steps'"])
    assert not Path("mine.yaml").exists()


def shell(command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONIOENCODING": "ascii"}
    return subprocess.run(["bash", "-c", command], input=stdin, capture_output=True, text=True, env=environment, timeout=60)


def test_standard_output_that_is_full_closed_or_ascii(reverse_run: Path, folder: Path) -> None:
    """In processes of their own: what happens to standard output at exit is part of it."""
    full = shell(f"weft translate {reverse_run} > /dev/full", "a b\n")
    assert full.returncode == 1
    assert full.stderr == "weft: error: standard output: No space left on device\n"
    closed = shell(f"set -o pipefail; weft translate {reverse_run} a.src | head -n 1 > /dev/null")
    assert "Traceback" not in closed.stderr and "Exception" not in closed.stderr
    listed = shell("weft list attentions > /dev/full")
    assert listed.returncode == 1
    assert listed.stderr == "weft: error: No space left on device\n"
    plain = shell(f"weft translate {reverse_run} --json", "a 雪\n")
    assert plain.returncode == 0, plain.stderr
    assert json.loads(plain.stdout)["text"]
