"""BLEU's tokenizer follows the target language, or the script if that is not given; best_by may be chrF."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.errors import ConfigError
from weft.evaluation import metrics
from weft.evaluation import metrics as tokenization
from weft.evaluation.metrics import choose_tokenization, make_metrics, score
from weft.evaluation.report import evaluate
from weft.training import train_run

CHINESE = ["一只棕色的狗在草地上跑步。", "两个孩子在海边玩耍。", "他们正在看一本书。", "天空是蓝色的。"]
NEARLY = ["一只棕色的狗在草地上奔跑。", "两个孩子在海边玩耍。", "他们在看一本书。", "天空是蓝色的。"]


@pytest.mark.parametrize(
    ("language", "texts", "name"),
    [
        (None, ["A dog runs.", "Ein Hund läuft."], "13a"),
        (None, CHINESE, "zh"),
        (None, ["这 是 分 好 词 的 句子"], "13a"),  # split into words already
        (None, ["สุนัขวิ่งอยู่บนหญ้า"], "char"),
        (None, ["개가 잔디밭을 달린다."], "13a"),
        (None, [], "13a"),
        ("zh-Hans", ["A dog."], "zh"),
        ("zh_CN", [], "zh"),
        ("de", CHINESE, "13a"),
        ("th", [], "char"),
    ],
)
def test_the_tokenizer_follows_language_and_script(language: str | None, texts: list[str], name: str) -> None:
    chosen = choose_tokenization("auto", language, texts)
    assert chosen.name == name
    assert (name in chosen.note) == (name != "13a")
    assert choose_tokenization("intl", language, texts).name == "intl"


@pytest.mark.parametrize(
    ("language", "wish", "instead", "package"), [("ja", "ja-mecab", "char", "ja"), ("ko", "ko-mecab", "13a", "ko")]
)
def test_a_missing_package_is_named_and_replaced_only_if_the_choice_was_free(
    language: str, wish: str, instead: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu.metrics import bleu

    real = bleu._get_tokenizer
    monkeypatch.setattr(bleu, "_get_tokenizer", lambda name: _missing() if name == wish else real(name))
    chosen = choose_tokenization("auto", language, [])
    if language == "ja":
        assert choose_tokenization("auto", None, ["犬が草の上を走っています。"]).name == instead
    assert chosen.name == instead and f"pip install 'sacrebleu[{package}]'" in chosen.note
    with pytest.raises(ConfigError, match=re.escape(f"{wish} needs a package: pip install 'sacrebleu[{package}]'")):
        make_metrics(["bleu"], tokenize=wish)
    monkeypatch.setattr(bleu, "_get_tokenizer", real)
    monkeypatch.setattr(tokenization, "Bleu", lambda tokenize: None)  # as if the package were installed
    assert choose_tokenization("auto", language, []).name == wish


def _missing() -> None:
    raise RuntimeError("not installed")


def test_a_tokenizer_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.metrics import bleu

    def offline(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(bleu, "_get_tokenizer", offline)
    with pytest.raises(ConfigError, match=r"flores200 downloads its model .* no network"):
        metrics.Bleu(tokenize="flores200")


def test_bleu_of_chinese_is_not_zero_and_says_how_it_was_computed() -> None:
    usual, chinese = (score(NEARLY, CHINESE, make_metrics(["bleu"], tokenize=name))["BLEU"] for name in ("13a", "zh"))
    assert usual.value < 10 < 60 < chinese.value
    assert "tok:zh" in chinese.signature
    found = evaluate(
        NEARLY, CHINESE, system="a", data="b", sources=CHINESE, metrics=make_metrics(["bleu"], tokenize="zh"), samples=10
    )
    assert found.lengths[0].bleu == pytest.approx(chinese.value)


@pytest.fixture(scope="module")
def chinese_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two steps on Chinese, chosen by chrF."""
    folder = tmp_path_factory.mktemp("chinese")
    file = folder / "pairs.tsv"
    file.write_text("".join(f"{' '.join(text)}\t{text}\n" for text in CHINESE * 3))
    messages: list[str] = []
    settings = tiny.SETTINGS | {
        "data.tokenizer": "characters",
        "data.vocabulary": 400,
        "train.steps": 2,
        "train.validate_every": 1,
        "train.best_by": "chrf",
        "train.keep_best": True,
        "decode.max_length": 16,
    }
    result = train_run.train(
        "transformer-tiny", data=str(file), valid=str(file), out=folder / "run", set=settings, tell=messages.append
    )
    assert any("sacreBLEU's tokenizer zh, because the references are in Chinese script" in text for text in messages)
    assert "chrf2" in result.scores and result.weights == "best"
    return folder / "run", str(file)


def test_training_and_evaluating_choose_by_script_and_say_so(weft: tiny.Shell, chinese_run: tuple[Path, str]) -> None:
    run, file = chinese_run
    out = weft("evaluate", run, "--data", file, "--json", "--samples", "2")
    assert "tok:zh" in out and "Chinese script" in weft.err
    assert "tok:char" in weft("evaluate", run, "--data", file, "--json", "--tokenize", "char", "--samples", "2")
    assert "Chinese" not in weft.err
    weft.fails("evaluate", run, "--data", file, "--tokenize", "zhh", says=["no tokenizer 'zhh'", "'zh'"])


def test_a_wrong_tokenizer_is_refused_before_anything_is_read(weft: tiny.Shell, tmp_path: Path) -> None:
    given = ["--data", tiny.generated("reverse", 10), "--out", tmp_path / "run", "--set", "train.tokenize=zhh"]
    weft.fails("train", "transformer-tiny", *given, says=["train.tokenize: BLEU has no tokenizer 'zhh'"])
    assert not (tmp_path / "run").exists()
