"""Exported runs in the programs that read them: the same numbers, and back again bit for bit."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file

import weft
from tests.helpers.foreign_models import ROTARY, TEXTS, pieces_of, random_run
from weft.data.batch import BOS, EOS, SPECIALS, UNK, Layout, Source
from weft.decoding.score_given_targets import score_texts
from weft.errors import ConfigError, RunError
from weft.interop.bart_layout import exported_ids
from weft.interop.exporting import export_run
from weft.interop.importing import import_model
from weft.interop.transformer_weights import architecture
from weft.runs.open_run import open_run
from weft.runs.weight_files import read_tensors

pytest.importorskip("sentencepiece")
PLAIN: dict[str, Any] = {"max_length": 20, "max_ratio": 100.0, "sentences": "off", "protect": "off"}
STOP = {"search": {"kind": "beam", "width": 4, "stop": "length"}}
LINES = TEXTS[::5]
PORTABLE: dict[str, Any] = {"norm": "post", "position": "tensor2tensor"}
KINDS: dict[str, dict[str, Any]] = {
    "portable": PORTABLE,
    "pre-norm": {},
    "post-norm, bpe": {"norm": "post", "tokenizer": {"kind": "sentencepiece", "algorithm": "bpe"}},
    "separate": {**PORTABLE, "shared": False, "share_embeddings": "output"},
    "untied, silu": {**PORTABLE, "share_embeddings": "none", "activation": "silu"},
    "rotary": ROTARY,
    "rotary, swiglu": {**ROTARY, "activation": "swiglu"},
    "gelu": {"activation": "gelu", "zero_bos": False, "tokenizer": {"kind": "bpe"}, "size": 340},
}
SINUSOIDS = [kind for kind in KINDS if "rotary" not in kind]


@pytest.mark.parametrize("kind", KINDS)
def test_ctranslate2_gives_the_same_scores(kind: str, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    run = random_run(tmp_path / "run", **KINDS[kind])
    export_run(run, "ctranslate2", tmp_path / "out")
    ours, theirs = weft.load(run), ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")

    def pieces(tokenizer: Any, text: str) -> list[str]:
        return [SPECIALS[i] if i < 4 else tokenizer.piece(i) for i in tokenizer.encode(text)]

    pairs = list(zip(LINES, reversed(LINES)))
    scored = theirs.score_batch([pieces(ours.source, a) for a, _ in pairs], [pieces(ours.target, b) for _, b in pairs])
    for (source, target), found in zip(pairs, scored, strict=True):
        expected = score_texts(ours.model, [*ours.source.encode(source), EOS], [target], ours.target, [])[0][0]
        assert abs(sum(found.log_probs) - expected) < 1e-4


def test_ctranslate2_quantises_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = random_run(tmp_path / "run", **ROTARY)
    export_run(run, "ctranslate2", tmp_path / "full")
    export_run(run, "ctranslate2", tmp_path / "eight", quantization="int8")
    assert (tmp_path / "eight" / "model.bin").stat().st_size < 0.5 * (tmp_path / "full" / "model.bin").stat().st_size
    with pytest.raises(ConfigError, match="int3"):
        export_run(run, "ctranslate2", tmp_path / "other", quantization="int3")


@pytest.mark.parametrize("kind", SINUSOIDS)
def test_transformers_gives_the_same_beams(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = random_run(tmp_path / "run", **KINDS[kind])
    export_run(run, "transformers", tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(theirs).__name__ == ("MarianMTModel" if "norm" in KINDS[kind] else "PegasusForConditionalGeneration")
    inputs = tokenizer(LINES, return_tensors="pt", padding=True, return_token_type_ids=False)
    early = Version(transformers.__version__) < Version("5.18")  # its beams count with the size of the source's vocabulary
    beams, search = ({"num_beams": 1}, {"beam": 1}) if early and kind == "separate" else ({}, STOP)
    found = tokenizer.batch_decode(theirs.generate(**inputs, max_length=21, **beams), skip_special_tokens=True)
    assert found == [each.text.strip() for each in weft.load(run).translate(LINES, **PLAIN, **search)]


@pytest.mark.parametrize(
    ("format", "kind"),
    [*(("transformers", kind) for kind in ("portable", "pre-norm", "post-norm, bpe")), ("marian", "portable")],
)
def test_there_and_back_is_the_same_bit_for_bit(format: str, kind: str, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", **KINDS[kind])
    export_run(run, format, tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "back")
    before, after = (read_tensors(folder / "model.safetensors") for folder in (run, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = weft.load(tmp_path / "back").translate(LINES, **PLAIN, **STOP)
    ours = weft.load(run).translate(LINES, **PLAIN, **STOP)
    assert [each.text.strip() for each in again] == [each.text.strip() for each in ours]


@pytest.mark.parametrize("kind", ["portable", "separate", "untied, silu"])
def test_ctranslate2_reads_the_npz_as_one_of_marian(kind: str, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    run = random_run(tmp_path / "run", **KINDS[kind])
    export_run(run, "marian", tmp_path / "out")
    ours, names = weft.load(run), []
    for side in ("source", "target"):
        file = next(file for name in ("vocab.spm", f"vocab.{side}.spm") if (file := tmp_path / "out" / name).is_file())
        pieces = pieces_of(file.read_bytes())
        names.append(tmp_path / f"{side}.yml")
        names[-1].write_text("".join(f"{json.dumps(piece, ensure_ascii=False)}: {n}\n" for n, piece in enumerate(pieces)))
    converter = ctranslate2.converters.MarianConverter(str(tmp_path / "out" / "model.npz"), list(map(str, names)))
    converter.convert(str(tmp_path / "converted"))
    theirs = ctranslate2.Translator(str(tmp_path / "converted"), compute_type="float32")
    for source, target in zip(LINES[:8], LINES[8:16]):
        pieces = [[SPECIALS[i] if i < 4 else side.piece(i) for i in side.encode(text)] for side, text in ((ours.source, source), (ours.target, target))]  # fmt: skip  # noqa: E501
        found = theirs.score_batch([pieces[0]], [pieces[1]])[0]
        expected = score_texts(ours.model, [*ours.source.encode(source), EOS], [target], ours.target, [])[0][0]
        assert abs(sum(found.log_probs) - expected) < 1e-4


@pytest.mark.parametrize("kind", ["portable", "separate", "untied, silu"])
def test_marian_itself_gives_the_same_scores(kind: str, tmp_path: Path) -> None:
    pymarian = pytest.importorskip("pymarian")
    run = random_run(tmp_path / "run", **KINDS[kind])
    export_run(run, "marian", tmp_path / "out")
    options = "--quiet --cpu-threads 1 --n-best --word-scores --no-spm-decode --mini-batch 1 --maxi-batch 1"
    marian = pymarian.Translator(f"-c {tmp_path / 'out' / 'decoder.yml'} {options}")
    ours = weft.load(run)
    numbers = {ours.target.piece(i): i for i in range(4, ours.target.size)}
    for entry in marian.translate("\n".join(LINES)).split("\n"):
        number, text, words = entry.split(" ||| ")[:3]
        source = [*ours.source.encode(LINES[int(number)]), EOS]
        target = [numbers[piece] for piece in text.split()]
        with torch.inference_mode():
            state = ours.model.decoder.init_state(
                ours.model.encode(Source(torch.tensor([source]), Layout.padded([len(source)])))
            )
            expected = ours.model.decoder(torch.tensor([[BOS, *target]]), state).logits[0].log_softmax(-1)
        theirs = torch.tensor([float(score) for score in words.split()[1:]])
        ids = torch.tensor([*target, EOS])[: len(theirs)]  # a text that was cut has no end
        assert (expected[torch.arange(len(ids)), ids] - theirs).abs().max() < 1e-4


def test_the_binary_for_bergamot_has_the_arrays_of_the_npz(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", **PORTABLE, size=63)
    for format in ("marian", "bergamot"):
        export_run(run, format, tmp_path / format)
    content = (tmp_path / "bergamot" / "model.bin").read_bytes()
    version, count = struct.unpack_from("<2Q", content)
    heads = [struct.unpack_from("<4Q", content, 16 + 32 * number) for number in range(count)]
    at, names, shapes = 16 + 32 * count, [], []
    for length, *_ in heads:
        names.append(content[at : at + length - 1].decode())
        at += length
    for _, _, dimensions, _ in heads:
        shapes.append(struct.unpack_from(f"<{dimensions}i", content, at))
        at += 4 * dimensions
    at += 8 + struct.unpack_from("<Q", content, at)[0]
    assert version == 1 and at % 256 == 0
    with np.load(tmp_path / "marian" / "model.npz") as expected:
        assert {*names} == {*expected.files} - {"Wpos"}
        size_of_table = len(expected["Wemb"]) + -len(expected["Wemb"]) % 8
        assert size_of_table > len(expected["Wemb"])
        for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
            array = np.frombuffer(content, {0x404: np.float32, 0x101: np.int8}[kind], int(np.prod(shape)), at)
            if name == "special:model.yml":
                assert f"dim-vocabs: [{size_of_table}, {size_of_table}]".encode() in array.tobytes()
            elif name == "Wemb":  # filled up with tokens that are never written
                assert shape[0] == size_of_table
                assert np.array_equal(array.reshape(shape)[: len(expected[name])], expected[name])
            elif name == "decoder_ff_logit_out_b":
                assert (array[expected[name].size :] < -99).all()
            else:
                assert np.array_equal(array.reshape(shape), expected[name]), name
            at += size
    assert at == len(content) and (tmp_path / "bergamot" / "vocab.spm").is_file()


def test_vocabularies_in_yaml_are_read_line_by_line(tmp_path: Path) -> None:
    from weft.interop.marian_npz import read_pieces

    pieces = {"</s>": 0, "<unk>": 1, "y": 2, "no": 3, "~": 4, '"': 5, "'": 6, "\u2028": 7, "a: b": 8, ":": 9, "▁é": 10}
    lines = [
        "</s>: 0",
        "<unk>: 1",
        "y: 2",
        "no: 3",
        "~: 4",
        '"\\"": 5',
        "'''': 6",
        '? "\\u2028"',
        ": 7",
        '"a: b": 8',
        '":": 9',
        "▁é: 10",
    ]
    (tmp_path / "vocab.yml").write_text("\n".join(lines) + "\n", "utf-8")
    assert read_pieces(tmp_path / "vocab.yml") == pieces
    (tmp_path / "vocab.yml").write_text("</s>: 0\n<unk>: x\n", "utf-8")
    with pytest.raises(RunError, match="line 2"):
        read_pieces(tmp_path / "vocab.yml")


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_with_any_batch_length_and_cache(kind: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = random_run(tmp_path / "run", **KINDS[kind])
    export_run(path, "onnx", tmp_path / "out")
    run = open_run(path)
    model, shape = run.model.eval(), architecture(run.config, "ONNX")
    ids = [exported_ids(shape, size) for size in (run.sizes.source, run.sizes.target)]
    numbers = [torch.tensor([each.index(i) if i in each else 0 for i in range(max(each) + 1)]) for each in ids]
    encoder, decoder = (onnxruntime.InferenceSession(tmp_path / "out" / "onnx" / f"{name}.onnx") for name in ("encoder_model", "decoder_model_merged"))  # fmt: skip  # noqa: E501
    names = [each.name for each in decoder.get_outputs()]
    for rows, sources, targets in ((1, 5, 6), (7, 11, 4), (2, 40, 33)):
        layout = Layout.padded([max(1, sources - row) for row in range(rows)])
        source = torch.where(layout.mask, torch.randint(4, run.sizes.source, (rows, sources)), 0)
        target = torch.randint(4, run.sizes.target, (rows, targets))
        target[:, 0] = BOS
        with torch.inference_mode():
            state = model.decoder.init_state(model.encode(Source(source, layout)))
            expected = model.decoder(target, state).logits[..., ids[1]].numpy()
        read, fed, mask = numbers[0][source].numpy(), numbers[1][target].numpy(), layout.mask.long().numpy()
        memory = encoder.run(None, {"input_ids": read, "attention_mask": mask})[0]
        for steps in ([targets], [1] * targets, [1, targets - 1]):
            width = (rows, shape.heads, 0, shape.dim // shape.heads)
            past = {each.name: np.zeros(width, np.float32) for each in decoder.get_inputs() if each.name.startswith("past")}
            at, found = 0, []
            for count in steps:
                inputs = {"input_ids": fed[:, at : at + count], "encoder_hidden_states": memory, "encoder_attention_mask": mask}
                outputs = dict(zip(names, decoder.run(None, {**inputs, "use_cache_branch": np.array([at > 0]), **past})))
                past = {name.replace("present", "past_key_values"): each for name, each in outputs.items() if name != "logits"}
                found.append(outputs["logits"])
                at += count
            assert np.abs(np.concatenate(found, 1) - expected).max() < 1e-4


@pytest.mark.parametrize("kind", ["portable", "post-norm, bpe", "rotary"])
def test_tokenizer_json_splits_and_joins_alike(kind: str, tmp_path: Path) -> None:
    import tokenizers

    pytest.importorskip("onnx")
    path = random_run(tmp_path / "run", **KINDS[kind])
    export_run(path, "onnx", tmp_path / "out")
    run, theirs = weft.load(path), tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ids = exported_ids(architecture(run.config, "ONNX"), run.source.size)
    for line in [*TEXTS, "½ ﬁne  two", "水 x 🙂", "a<b>c"]:
        found = theirs.encode(line).ids
        assert [ids[i] for i in found] == [*run.source.encode(line), EOS], line
        if run.source.decode(run.source.encode(line)) == line:
            assert theirs.decode(found) == line


def test_argos_package(tmp_path: Path) -> None:
    import zipfile

    pytest.importorskip("ctranslate2")
    export_run(random_run(tmp_path / "run"), "argos", tmp_path / "out")
    (file,) = tmp_path.glob("out/*.argosmodel")
    with zipfile.ZipFile(file) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        facts = json.loads(archive.read("translate-en_de-1_0/metadata.json"))
    assert names >= {"metadata.json", "sentencepiece.model", "model/model.bin", "model/config.json"}
    assert (facts["from_name"], facts["to_name"]) == ("English", "German")


def test_a_package_for_argos_never_writes_unk(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    run = random_run(tmp_path / "run", **PORTABLE)
    tensors = load_file(run / "model.safetensors")
    tensors["decoder.output.bias"][UNK] += 30.0
    save_file(tensors, run / "model.safetensors", {"by": "train", "weights": "last", "step": "1"})
    read = [["▁The", "▁red"]]
    for format, unknown in (("ctranslate2", True), ("argos", False)):
        export_run(run, format, tmp_path / format)
        for file in tmp_path.glob("argos/*.argosmodel"):
            shutil.unpack_archive(file, tmp_path, "zip")
        folder = tmp_path / (format if unknown else "translate-en_de-1_0/model")
        written = ctranslate2.Translator(str(folder)).translate_batch(read, max_decoding_length=5)[0].hypotheses[0]
        assert ("<unk>" in written) == unknown


def test_peft_reads_the_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    run, pairs = random_run(tmp_path / "run", norm="post"), tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, reversed(TEXTS))), "utf-8")
    settings = {"train.steps": 3, "train.validate_every": 0, "model.lora.rank": 4, "model.lora.embedding_rank": 0}
    settings |= {"data.cache": str(tmp_path / "cache"), "train.schedule.warmup": 0, "train.schedule.rate": 0.01}
    weft.train(start=run, data=str(pairs), out=tmp_path / "tuned", set=settings, tell=lambda text: None)
    export_run(run, "transformers", tmp_path / "base")
    export_run(tmp_path / "tuned", "peft", tmp_path / "adapter")
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    ours = weft.load(tmp_path / "tuned").model.eval()
    shape = architecture(open_run(run).config, "peft")
    ids = exported_ids(shape, ours.decoder.output.out_features)
    source, target = torch.tensor([[9, 12, 30, EOS]]), torch.tensor([[BOS, 7, 8, 40]])
    read, fed = (torch.tensor([[ids.index(int(i)) for i in row] for row in rows]) for rows in (source, target))
    with torch.inference_mode():
        expected = ours.decoder(target, ours.decoder.init_state(ours.encode(Source(source, Layout.padded([4]))))).logits
        found = theirs(input_ids=read, decoder_input_ids=fed, use_cache=False).logits
    assert (found - expected[..., ids]).abs().max() < 1e-4
    with pytest.raises(ConfigError, match=r"model\.lora"):
        export_run(run, "peft", tmp_path / "none")


@pytest.mark.parametrize(
    ("format", "options", "reason"),
    [
        ("transformers", ROTARY, r"position: rotary.*transformer-portable"),
        ("marian", ROTARY, r"position: rotary.*transformer-portable"),
        ("marian", {**PORTABLE, "zero_bos": False}, r"model\.zero_bos"),
        ("marian", {**PORTABLE, "tokenizer": {"kind": "bpe"}, "size": 340}, r"data\.tokenizer"),
        ("marian", {**PORTABLE, "activation": "gelu"}, r"model\.activation: gelu"),
        ("marian", {"position": "tensor2tensor"}, r"model\.norm: pre"),
        ("marian", {"norm": "post"}, r"model\.position: sinusoidal"),
        ("argos", ROTARY, r"data\.tokenizer"),
        ("ctranslate2", {"encoder_self": {"kind": "linear"}}, r"model\.encoder_self: linear"),
        ("ctranslate2", {"encoder_self": {"kind": "full", "position": "alibi"}}, r"encoder_self\.position: alibi"),
        ("onnx", {"wiring": "mix"}, r"model\.wiring: mix"),
        ("onnx", {"position_join": "concatenate"}, r"model\.position_join: concatenate"),
        ("onnx", {"tokenizer": {"kind": "words"}}, r"data\.tokenizer"),
        ("transformers", {"share_embeddings": "output"}, r"model\.share_embeddings"),
        ("gguf", {}, r"--to gguf"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_option(
    format: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    with pytest.raises(ConfigError, match=reason):
        export_run(random_run(tmp_path / "run", **options), format, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".tmp-*"))
