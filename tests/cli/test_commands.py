"""The command line as a user types it: every command on the way from a file of pairs to translations."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.attention import ATTENTIONS
from weft.attention.base import Site
from weft.config.registry import build, load
from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.runs.weight_files import read_metadata, read_tensors
from weft.training.checkpoint import steps

LINES = ["a b c", "d e", "", "f"]
REVERSED = ["c b a", "e d", "", "f"]


@pytest.fixture
def test_pairs(tmp_path: Path) -> str:
    """100 unseen pairs in two text files."""
    pairs = list(open_pairs(tiny.generated("reverse", 100, "test")))
    for side, name in enumerate(("test.src", "test.trg")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return f"{tmp_path / 'test.src'},{tmp_path / 'test.trg'}"


@pytest.fixture
def copied(reverse_run: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    return Path(shutil.copytree(reverse_run, tmp_path / "runs" / "copied"))


@pytest.mark.parametrize("form", ["text", "gz", "tsv", "jsonl", "csv", "po", "tmx"])
def test_training_from_files_of_every_form(weft: tiny.Shell, tmp_path: Path, form: str) -> None:
    pairs = list(open_pairs(tiny.generated("reverse", 200)))
    source, target = ("".join(f"{pair[side]}\n" for pair in pairs) for side in (0, 1))
    match form:
        case "text":
            (tmp_path / "a.en").write_text(source)
            (tmp_path / "a.de").write_text(target)
            data = f"{tmp_path}/a.en,{tmp_path}/a.de"
        case "gz":
            (tmp_path / "a.en.gz").write_bytes(gzip.compress(source.encode()))
            (tmp_path / "a.de.gz").write_bytes(gzip.compress(target.encode()))
            data = f"{tmp_path}/a.en.gz,{tmp_path}/a.de.gz"
        case "tsv":
            (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
            data = f"{tmp_path}/a.tsv"
        case "csv":
            (tmp_path / "a.csv").write_text("".join(f'"{target}",{source}\n' for source, target in [("src", "trg"), *pairs]))
            data = f"{tmp_path}/a.csv#src,trg"
        case "po":
            messages = [f'msgctxt "{n}"\nmsgid "{source}"\nmsgstr "{target}"\n\n' for n, (source, target) in enumerate(pairs)]
            (tmp_path / "a.po").write_text("".join([*messages, '#, fuzzy\nmsgid "a b"\nmsgstr "x"\n']))
            data = f"{tmp_path}/a.po"
        case "tmx":
            sides = [f'<tuv xml:lang="{code}"><seg>{{}}</seg></tuv>' for code in ("en", "de", "fr")]
            units = [f"<tu>{sides[0].format(source)}{sides[1].format(target)}</tu>" for source, target in pairs]
            text = f'<tmx version="1.4"><header srclang="en"/><body>{"".join(units)}<tu>{sides[2]}</tu></body></tmx>'
            (tmp_path / "a.tmx").write_text(text)
            data = f"{tmp_path}/a.tmx#en,de"
        case _:
            lines = (json.dumps({"source": source, "target": target}) for source, target in pairs)
            (tmp_path / "a.jsonl").write_text("\n".join(lines))
            data = f"{tmp_path}/a.jsonl"
    run = tmp_path / "run"
    weft("train", "transformer-tiny", "--data", data, "--out", run, *tiny.sets({"train.steps": 2}))
    assert "200 pairs read, 200 kept" in weft.err
    assert f"weft translate {run}" in weft.err
    left_out = {"po": "left out: 1 fuzzy", "tmx": "left out: 1 without a text in en"}
    assert left_out.get(form, "") in weft.err
    weft("translate", run, stdin="a b\n")


def test_training_again_resuming_and_averaging(
    weft: tiny.Shell, tmp_path: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--set", "train.steps=3", "train.save_every=1", "train.keep_last=2", "--set", "model.dropout=0.25"]
    weft("train", copied / "config.yaml", *few)
    again = Path("runs/copied-2")
    config = load_config(again / "config.yaml")
    assert (config.train.steps, config.train.save_every, config.model["dropout"]) == (3, 1, 0.25)
    assert config.model["dim"] == 32 and config.data.train == load_config(copied / "config.yaml").data.train
    assert "done: step 3" in weft.err

    weft("train", "--resume", again, "--set", "train.steps=5", "train.keep_best=false")
    assert "resuming after step 3" in weft.err
    assert steps(again)[-1] == 5
    assert load_config(again / "config.yaml").train.steps == 5

    out = weft("average", again, "--last", "2")
    assert "steps 4, 5" in out
    assert read_metadata(again / "model.safetensors")["averaged"] == "4,5"
    weft("average", again, "--last", "2", "--out", tmp_path / "mean")
    assert read_tensors(tmp_path / "mean" / "model.safetensors").keys() == read_tensors(again / "model.safetensors").keys()
    assert weft("translate", tmp_path / "mean", stdin="a\n") == weft("translate", again, stdin="a\n")


def test_translating_files_and_standard_input(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    (tmp_path / "in.txt").write_text(text)
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(text.encode()))
    wanted = "".join(f"{line}\n" for line in REVERSED)
    assert weft("translate", reverse_run, stdin=text) == wanted
    assert weft("translate", reverse_run, "-", stdin=text.replace("\n", "\r\n")) == wanted
    assert weft("translate", reverse_run, stdin=text.removesuffix("\n")) == wanted
    assert weft("translate", reverse_run, tmp_path / "in.txt", "--beam", "4") == wanted
    assert weft("translate", reverse_run, tmp_path / "in.txt.gz", "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text() == wanted
    assert weft("translate", reverse_run, stdin="") == ""


def test_translating_to_json(weft: tiny.Shell, reverse_run: Path) -> None:
    found = [json.loads(line) for line in weft("translate", reverse_run, "--json", stdin="a b c\n\n").splitlines()]
    assert [each["text"] for each in found] == ["c b a", ""]
    assert found[0].keys() == {"source", "text", "score", "tokens"}
    [best] = [json.loads(line) for line in weft("translate", reverse_run, "--n-best", "3", stdin="a b c\n").splitlines()]
    assert len(best["alternatives"]) == 2
    assert best["score"] >= best["alternatives"][0]["score"] >= best["alternatives"][1]["score"]


def test_translating_with_prefixes_settings_and_several_runs(
    weft: tiny.Shell, reverse_run: Path, other_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("q\n\n")
    first, second = weft("translate", reverse_run, "--prefix", tmp_path / "prefixes", stdin="a b\na b\n").splitlines()
    assert first.startswith("q ")
    assert second == "b a"
    assert weft("translate", reverse_run, "--set", "decode.max_length=2", "decode.beam=2", stdin="a b c\n") == "c b\n"
    assert weft("translate", reverse_run, "--set", "max_length=2", stdin="a b c\n") == "c b\n"
    assert weft("translate", f"{reverse_run},{other_run}", stdin="a b c\n") == "c b a\n"


def test_a_run_may_have_a_comma_in_its_name(weft: tiny.Shell, copied: Path, tmp_path: Path) -> None:
    copied.rename(tmp_path / "one,two")
    assert weft("translate", tmp_path / "one,two", stdin="a b c\n") == "c b a\n"


def test_long_lines_are_said_on_standard_error(weft: tiny.Shell, reverse_run: Path) -> None:
    assert weft("translate", reverse_run, "--set", "decode.max_source=3", stdin="a\nb c d\n") == "a\nc b d\n"
    assert "weft: line 2 has 3 tokens" in weft.err


def test_evaluating(weft: tiny.Shell, reverse_run: Path, test_pairs: str, tmp_path: Path) -> None:
    found = json.loads(weft("evaluate", reverse_run, "--data", test_pairs, "--json", "-o", tmp_path / "out.txt"))
    assert {name.lower().rstrip("2") for name in found["metrics"]} >= {"bleu", "chrf", "ter", "exact", "accuracy"}
    references = (tmp_path / "test.trg").read_text().splitlines()
    right = sum(
        line == wanted for line, wanted in zip((tmp_path / "out.txt").read_text().splitlines(), references, strict=True)
    )
    assert right >= 90
    table = weft("evaluate", reverse_run, "--data", test_pairs)
    for word in ("BLEU", "chrF", "TER"):
        assert word in table


def test_evaluating_against_another_run(weft: tiny.Shell, reverse_run: Path, other_run: Path, test_pairs: str) -> None:
    arguments = ["evaluate", reverse_run, "--data", test_pairs, "--against", other_run, "--samples", "50"]
    for test in ("randomisation", "bootstrap"):
        found = json.dumps(json.loads(weft(*arguments, "--test", test, "--json")))
        assert str(other_run) in found
    assert "BLEU" in weft(*arguments)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("models", ["transformer", "composed"]),
        ("fronts", ["tokens", "frames", "patches", "frontends"]),
        ("encoders", ["transformer", "rnn", "bytenet", "convs2s"]),
        ("decoders", ["transformer", "rnn", "bytenet", "convs2s"]),
        ("searches", ["greedy", "beam", "sample", "sampling.py"]),
        ("attentions", ["full", "linear", "additive", "local"]),
        ("mixers", ["recurrent", "convolution"]),
        ("poolings", ["mean"]),
        ("tasks", ["translation"]),
        ("recipes", ["transformer-small", "transformer-tiny", "demo-dates"]),
        ("losses", ["cross_entropy", "losses"]),
        ("optimizers", ["adam", "adamw"]),
        ("schedules", ["cosine", "noam", "slanted_triangular"]),
        ("tokenizers", ["bpe", "unigram", "words", "characters", "bytes"]),
    ],
)
def test_listing(weft: tiny.Shell, what: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = weft("list", what)
    assert all(name in listed for name in names)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_the_list_says_of_a_mechanism_what_it_is_when_built(kind: str) -> None:
    """A class that leaves a fact to its instances would be listed wrongly."""
    listed = load(ATTENTIONS, kind)
    for use in listed.uses:
        built = build("weft.attention:ATTENTIONS", kind, Site(use, 16, 2))
        assert bool(built.weights_sum) == bool(listed.weights_sum)


def test_listing_everything(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    everything = weft("list")
    assert all(what in everything for what in ("models", "attentions", "recipes", "transformer-small", "weft/attention/mixers"))


def test_a_list_breaks_no_file_name_in_a_narrow_window(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = weft("list", "attentions")
    assert all(name in listed for name in ("weft/attention", " location_aware.py", " encoder ", " weights "))


def test_a_new_configuration_can_be_trained(weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weft("new", "mine.yaml", "--recipe", "transformer-tiny", *tiny.sets({"train.steps": 2}))
    assert "# " in Path("mine.yaml").read_text()
    weft("train", "mine.yaml", "--data", tiny.generated("copy", 50))
    assert Path("runs/mine/model.safetensors").exists()
    before = Path("mine.yaml").read_text()
    weft.fails("new", "mine.yaml", says=["exists already"])
    assert Path("mine.yaml").read_text() == before


def test_without_validation_data_the_last_weights_are_published(weft: tiny.Shell, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"train.steps": 6, "train.validate_every": 2, "train.save_every": 3, "train.patience": 1}
    weft("train", "transformer-tiny", "--data", tiny.generated("copy", 50), "--out", run, *tiny.sets(settings))
    assert "last weights" in weft.err and "step 6" in weft.err
    published, newest = (
        read_tensors(run / "model.safetensors"),
        read_tensors(run / "checkpoints/step-00000006/model.safetensors"),
    )
    assert all((published[name] == newest[name]).all() for name in newest)


def test_exit_statuses(weft: tiny.Shell, tmp_path: Path) -> None:
    weft("--version")
    assert weft.out.startswith("weft ")
    assert "translate" in weft("--help")
    for usage in (["nonsense"], ["train", "--nonsense"], ["translate"], ["list", "nonsense"], ["average", "x", "--last", "0"]):
        weft(*usage, status=2)
    weft.fails("translate", tmp_path / "missing", says=["there is no such run folder"])
    weft.fails("train", says=["name a recipe"])
    weft.fails("train", "transformer-tiny", "--resume", tmp_path, says=["one of these"])
    weft.fails("train", "--resume", tmp_path, "--out", tmp_path / "x", says=["remove --out"])
