"""Imported models against the programs they come from: the same ids, logits and beams."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.helpers.foreign_models import HARD, TEXTS, m2m100_folder, marian_folder
from weft.data.batch import BOS, EOS, UNK, Layout, Source
from weft.errors import RunError
from weft.interop import bart_layout, transformers_folder, transformers_m2m100
from weft.interop.importing import import_model
from weft.interop.transformer_weights import Rows
from weft.runs.translator import Translator

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
PLAIN: dict[str, Any] = {"max_length": 20, "max_ratio": 100.0, "sentences": "off", "protect": "off"}
KINDS: dict[str, dict[str, Any]] = {
    "swish": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "separate vocabularies": {"separate": True},
    "separate and untied": {"separate": True, "tie_word_embeddings": False},
    "untied": {"tie_word_embeddings": False},
    "tc-big": {"activation_function": "relu", "eos_first": False, "codes": (">>fra<<", ">>deu<<")},
}


def logits_differ(
    theirs: Any, ours: Translator, rows: tuple[Rows, Rows], start: int, lines: list[str], tags: list[int]
) -> float:
    """The largest difference of logits, with random targets."""
    worst, model = 0.0, ours.model
    for line in lines:
        ids = [*tags, *ours.source.encode(line), EOS]
        target = torch.randint(4, len(rows[1].rows), (9,)).tolist()
        fed = [start, *(int(rows[1].rows[i] or 0) for i in target)]
        read = torch.tensor([[rows[0].rows[i] for i in ids]])
        with torch.inference_mode():
            a = theirs(input_ids=read, decoder_input_ids=torch.tensor([fed]), use_cache=False).logits[0]
            memory = model.encode(Source(torch.tensor([ids]), Layout.padded([len(ids)])))
            b = model.decoder(torch.tensor([[BOS, *target]]), model.decoder.init_state(memory)).logits[0]
        known = [i for i, row in enumerate(rows[1].rows) if row is not None and i not in rows[1].never]
        worst = max(worst, float((a[:, [rows[1].rows[i] for i in known]] - b[:, known]).abs().max()))
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_marian_gives_the_same_ids_logits_and_beams(kind: str, tmp_path: Path) -> None:
    marian_folder(tmp_path / "theirs", **KINDS[kind])
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    imported = import_model(tmp_path / "theirs", tmp_path / "run")
    assert imported.licence == "apache-2.0"
    assert json.loads((tmp_path / "run" / "origin.json").read_text())["license"] == "apache-2.0"
    ours, lines = weft.load(tmp_path / "run"), TEXTS[::4] + HARD
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    shape = bart_layout.read_architecture(settings, tmp_path, "post")
    _, _, rows = transformers_folder._tokenizers(tmp_path / "theirs", settings, tmp_path, shape)
    for line in lines:
        assert [rows[0].rows[i] for i in [*ours.source.encode(line), EOS]] == tokenizer(line).input_ids, line
    assert logits_differ(theirs, ours, rows, settings["decoder_start_token_id"], lines[:12], []) < 1e-5
    bad = [[settings["pad_token_id"]], [tokenizer.unk_token_id]]
    found = theirs.generate(
        **tokenizer(lines, return_tensors="pt", padding=True), num_beams=4, max_length=21, bad_words_ids=bad
    )
    expected = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert [each.text for each in ours.translate(lines, **PLAIN)] == expected


def test_language_codes_are_tags(tmp_path: Path) -> None:
    marian_folder(tmp_path / "theirs", **KINDS["tc-big"])
    import_model(tmp_path / "theirs", tmp_path / "run")
    ours = weft.load(tmp_path / "run")
    assert ours.source.added == ("fra", "deu")
    assert ours.source.encode(">>fra<< A small bird.") == [*ours.source.tags("fra"), *ours.source.encode("A small bird.")]
    assert ours.source.encode(">>xyz<< A")[0] == UNK
    tagged = ours.translate("A small bird.", tag="fra", **PLAIN)
    assert tagged.text == ours.translate(">>fra<< A small bird.", **PLAIN).text


def test_a_bin_file_is_read_like_safetensors(tmp_path: Path) -> None:
    model = marian_folder(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "one")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "theirs" / "pytorch_model.bin")
    import_model(tmp_path / "theirs", tmp_path / "two")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (tmp_path / "two" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("nllb", [False, True])
def test_m2m100_and_nllb(nllb: bool, tmp_path: Path) -> None:
    theirs, tokenizer = m2m100_folder(tmp_path / "theirs", nllb=nllb)
    imported = import_model(tmp_path / "theirs", tmp_path / "run")
    assert (imported.licence or "").startswith("cc-by-nc-4.0") == nllb
    source, target = ("eng_Latn", "fra_Latn") if nllb else ("en", "fr")
    ours, tag = weft.load(tmp_path / "run"), f"{source} {target}"
    tokenizer.src_lang = source
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    _, table = transformers_m2m100._table(tmp_path / "theirs")
    rows, _, _ = bart_layout.special_rows(settings, table, settings["vocab_size"], tmp_path, transformers_m2m100.LANGUAGE)
    lines = TEXTS[::6] + [line for line in HARD if line == line.strip()]  # the library `tokenizers` keeps a space at the end
    tags = ours.source.tags(tag)
    for line in lines:
        assert [rows.rows[i] for i in [*tags, *ours.source.encode(line), EOS]] == tokenizer(line).input_ids, line
    assert logits_differ(theirs, ours, (rows, rows), settings["decoder_start_token_id"], lines[:12], tags) < 1e-5
    begin = table[target if nllb else f"__{target}__"]
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    found = theirs.generate(**inputs, num_beams=4, max_length=22, forced_bos_token_id=begin, bad_words_ids=[[1], [3]])
    expected = [text.removeprefix("__fr__").strip() for text in tokenizer.batch_decode(found, skip_special_tokens=True)]
    assert [each.text for each in ours.translate(lines, tag=tag, **PLAIN)] == expected
    with pytest.raises(weft.errors.ConfigError, match="two languages"):
        ours.translate("A", tag=source)


def test_a_tokenizer_without_languages_is_refused(tmp_path: Path) -> None:
    m2m100_folder(tmp_path / "theirs", nllb=True)
    file = tmp_path / "theirs" / "tokenizer.json"
    file.write_text(re.sub(r"(deu|eng|fra)_Latn", r"\1", file.read_text("utf-8")), "utf-8")
    with pytest.raises(RunError, match="its tokenizer has no languages, such as"):
        import_model(tmp_path / "theirs", tmp_path / "run")


def test_an_imported_model_is_an_ordinary_run(tmp_path: Path) -> None:
    marian_folder(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "run")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, reversed(TEXTS))), "utf-8")
    settings = {"train.batch_tokens": 512, "train.validate_every": 0, "train.save_every": 2, "train.schedule.warmup": 0}
    settings |= {"train.schedule.rate": 0.003, "data.cache": str(tmp_path / "cache")}

    def train(name: str, **changes: Any) -> Path:
        out = tmp_path / name
        weft.train(start=tmp_path / "run", data=str(pairs), out=out, set={**settings, **changes}, tell=lambda text: None)
        return out

    tuned = train("tuned", **{"train.steps": 4, "model.lora.rank": 4})
    assert not list(tuned.glob("origin.json"))
    again = train("again", **{"train.steps": 2, "model.lora.rank": 4})
    weft.train(out=again, resume=True, set={"train.steps": 4}, tell=lambda text: None)
    assert (again / "model.safetensors").read_bytes() == (tuned / "model.safetensors").read_bytes()
    before, after = weft.load(tmp_path / "run").score(str(pairs)), weft.load(tuned).score(str(pairs))
    assert after["loss"] < before["loss"]
    explained = weft.load(tmp_path / "run").explain("The red dog runs on.", **{"max_length": 6, "protect": "off"})
    assert explained is not None
    eight = weft.load(tmp_path / "run").translate(TEXTS[:4], precision="int8", **PLAIN)
    assert len(eight) == 4
