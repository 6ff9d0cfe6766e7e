"""Runs in other programs, and models of others in weft: equal texts, scores and speeds, on real data.

python benchmarks/interop.py import FOLDER LINES          a folder with the tokenizer and config.json of OPUS-MT; random weights
python benchmarks/interop.py runners RUN SOURCE TARGET    a trained run in CTranslate2, transformers, Marian and onnxruntime
Options: --sentences N (1,000), --beams N for the sentences that are searched in `import` (100), --work FOLDER.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch

import weft
from weft.data.batch import BOS, EOS, SPECIALS, Layout, Source
from weft.decoding.score_given_targets import score_texts
from weft.errors import ConfigError
from weft.interop import bart_layout, transformers_folder
from weft.interop.exporting import export_run
from weft.interop.importing import import_model

HARD = [
    "🙂 so 水!",
    "Привет, мир — hello",
    "https://x.example/a?b=1",
    ">>de<< A dog.",
    "½ … “q” ﬁ",
    "a\u200bb\tc",
    "ＡＢＣ  x ",
]
PLAIN: dict[str, Any] = {"sentences": "off", "protect": "off"}


def compare_import(folder: Path, lines: list[str], beams: int, work: Path) -> None:
    """Ids, logits and beams of a random model of the real shape."""
    import transformers

    theirs_folder = work / "theirs"
    shutil.copytree(folder, theirs_folder)
    config = transformers.MarianConfig.from_pretrained(theirs_folder)
    config.dtype = torch.float32
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(config).float().eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "embed_positions" not in name:
                weight.normal_(std=0.05 if weight.dim() > 1 else 0.02).add_(1.0 if "norm.weight" in name else 0.0)
    theirs.save_pretrained(theirs_folder)
    shutil.copy(folder / "config.json", theirs_folder / "config.json")
    start = time.perf_counter()
    import_model(theirs_folder, work / "run")
    print(f"imported {sum(p.numel() for p in theirs.parameters()):,} parameters in {time.perf_counter() - start:.1f} s")
    tokenizer = transformers.MarianTokenizer.from_pretrained(theirs_folder)
    ours = weft.load(work / "run", device="cpu")
    settings = json.loads((folder / "config.json").read_text())
    shape = bart_layout.read_architecture(settings, folder, "post")
    _, _, rows = transformers_folder._tokenizers(folder, settings, folder, shape)
    equal = sum([rows[0].rows[i] for i in [*ours.source.encode(x), EOS]] == tokenizer(x).input_ids for x in [*lines, *HARD])
    print(f"ids: {equal} of {len(lines) + len(HARD)} lines equal")
    known = [i for i, row in enumerate(rows[1].rows) if row is not None and i not in rows[1].never]
    order = torch.tensor([rows[1].rows[i] for i in known])
    exact = copy.deepcopy(theirs).double()
    for side in (exact.model.encoder, exact.model.decoder):
        side.embed_positions.weight.data = exact_positions(*side.embed_positions.weight.shape)
    worst, largest, ours64 = np.zeros(4), 0.0, copy.deepcopy(ours.model).double()
    for line in lines[:10]:
        ids = [*ours.source.encode(line), EOS]
        target = torch.randint(4, len(rows[1].rows), (12,)).tolist()
        fed = torch.tensor([[settings["decoder_start_token_id"], *(rows[1].rows[i] for i in target)]])
        read = torch.tensor([[rows[0].rows[i] for i in ids]])
        with torch.inference_mode():
            a, c = (each(input_ids=read, decoder_input_ids=fed, use_cache=False).logits[0] for each in (theirs, exact))
            b, d = (our_logits(each, ids, target) for each in (ours.model, ours64))
        a, b, c, d = a[:, order], b[:, known], c[:, order], d[:, known]
        worst = np.maximum(worst, [float((x - y).abs().max()) for x, y in ((a, b), (a, c), (b, c), (d, c))])
        largest = max(largest, float(a.abs().max()))
    print(f"logits, up to {largest:.1f}: weft and transformers differ by at most {worst[0]:.2e}; ", end="")
    print(f"in float64 the result is {worst[1]:.2e} from transformers and {worst[2]:.2e} from weft, ", end="")
    print(f"and the two differ by {worst[3]:.2e} there", flush=True)
    del exact, ours64
    theirs.generation_config.forced_eos_token_id = None  # it would cut random texts, which never end
    some, found = lines[:beams], []
    for at in range(0, beams, 50):
        inputs = tokenizer(some[at : at + 50], return_tensors="pt", padding=True)
        bad = [[settings["pad_token_id"]], [tokenizer.unk_token_id]]
        made = theirs.generate(**inputs, num_beams=4, max_length=11, bad_words_ids=bad)
        found += tokenizer.batch_decode(made, skip_special_tokens=True)
    texts = [each.text for each in ours.translate(some, max_length=10, max_ratio=100.0, **PLAIN)]
    print(f"beam 4: {sum(a == b for a, b in zip(found, texts))} of {beams} texts equal ({len(set(texts))} different ones)")


def our_logits(model: Any, ids: list[int], target: list[int]) -> torch.Tensor:
    """[T, V]: the logits of a model of weft for a source and a target."""
    memory = model.encode(Source(torch.tensor([ids]), Layout.padded([len(ids)])))
    logits: torch.Tensor = model.decoder(torch.tensor([[BOS, *target]]), model.decoder.init_state(memory)).logits[0]
    return logits


def exact_positions(count: int, dim: int) -> torch.Tensor:
    """[count, D]: the sinusoids of MarianMT in float64."""
    angles = torch.arange(count).double()[:, None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    return torch.cat([angles.sin(), angles.cos()], 1)


def timed(run: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def report(name: str, texts: list[str], ours: list[str], references: list[str], seconds: float) -> None:
    same = sum(a.strip() == b.strip() for a, b in zip(texts, ours, strict=True))
    bleu = sacrebleu.corpus_bleu(texts, [references]).score
    print(f"{name:28} {same:5} of {len(ours)} equal   BLEU {bleu:.2f}   {len(ours) / seconds:7.1f} sentences/s", flush=True)


def compare_runners(run: Path, sources: list[str], references: list[str], work: Path) -> None:
    """The same run in weft and in other programs, one thread each."""
    torch.set_num_threads(1)
    ours = weft.load(run, device="cpu")
    search: dict[str, Any] = {"search": {"kind": "beam", "width": 4, "stop": "length"}, **PLAIN, "workers": 1}
    ours.translate(sources[:8], **search)
    found, seconds = timed(lambda: ours.translate(sources, **search))
    texts = [each.text for each in found]
    report("weft, beam 4", texts, texts, references, seconds)
    found, seconds = timed(lambda: ours.translate(sources, **search, fast=True))
    report("weft --fast", [each.text for each in found], texts, references, seconds)
    first = {**search, "search": {"kind": "beam", "width": 4, "stop": "first"}}  # the rule of CTranslate2
    in_ctranslate2(run, ours, sources, references, [each.text for each in ours.translate(sources, **first)], work)
    for program in (in_transformers, in_marian):
        try:
            program(run, sources, references, texts, work)
        except ConfigError as error:
            print(f"{program.__name__.removeprefix('in_')}: refused: {error}")
    in_onnxruntime(run, ours, sources[:100], references[:100], work)


def in_ctranslate2(run: Path, ours: Any, sources: list[str], references: list[str], texts: list[str], work: Path) -> None:
    import ctranslate2

    def pieces(tokenizer: Any, text: str) -> list[str]:
        return [SPECIALS[i] if i < 4 else tokenizer.piece(i) for i in tokenizer.encode(text)]

    numbers = {ours.target.piece(i): i for i in range(4, ours.target.size)}
    read = [pieces(ours.source, text) for text in sources]
    for kind in ("float32", "int8"):
        export_run(run, "ctranslate2", work / kind, None if kind == "float32" else kind)
        theirs = ctranslate2.Translator(str(work / kind), compute_type=kind, intra_threads=1)
        options = {"beam_size": 4, "length_penalty": 1, "max_batch_size": 32, "disable_unk": True}
        options["return_end_token"] = True  # then the end counts as a token of the length, as in weft
        theirs.translate_batch(read[:8], **options)
        found, seconds = timed(lambda theirs=theirs, options=options: theirs.translate_batch(read, **options))
        joined = [ours.target.decode([numbers[piece] for piece in each.hypotheses[0] if piece in numbers]) for each in found]
        report(f"CTranslate2, {kind}", joined, texts, references, seconds)
        if kind == "float32":
            some = list(zip(sources[:100], references[:100]))
            scored = theirs.score_batch([pieces(ours.source, a) for a, _ in some], [pieces(ours.target, b) for _, b in some])
            worst = 0.0
            for (source, target), each in zip(some, scored, strict=True):
                expected = score_texts(ours.model, [*ours.source.encode(source), EOS], [target], ours.target, [])[0][0]
                worst = max(worst, abs(sum(each.log_probs) - expected) / len(each.log_probs))
            print(f"CTranslate2: log-probabilities per token of {len(some)} references differ by at most {worst:.1e}")


def in_transformers(run: Path, sources: list[str], references: list[str], texts: list[str], work: Path) -> None:
    import transformers

    export_run(run, "transformers", work / "transformers")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(work / "transformers").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "transformers")

    def translate() -> list[str]:
        made: list[str] = []
        for at in range(0, len(sources), 32):
            inputs = tokenizer(sources[at : at + 32], return_tensors="pt", padding=True, return_token_type_ids=False)
            made += tokenizer.batch_decode(theirs.generate(**inputs, num_beams=4), skip_special_tokens=True)
        return made

    found, seconds = timed(translate)
    report(f"transformers, {type(theirs).__name__[:12]}", found, texts, references, seconds)


def in_marian(run: Path, sources: list[str], references: list[str], texts: list[str], work: Path) -> None:
    import pymarian

    export_run(run, "marian", work / "marian")
    options = "--beam-size 4 --cpu-threads 1 --mini-batch 32 --maxi-batch 100 --max-length-factor 3 --quiet"
    theirs = pymarian.Translator(f"-c {work / 'marian' / 'decoder.yml'} {options}")
    theirs.translate(sources[:8])
    found, seconds = timed(lambda: theirs.translate(sources))
    report("Marian (pymarian), beam 4", found, texts, references, seconds)


def in_onnxruntime(run: Path, ours: Any, sources: list[str], references: list[str], work: Path) -> None:
    import onnxruntime
    import tokenizers

    export_run(run, "onnx", work / "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    parts = ("encoder_model", "decoder_model_merged")
    encoder, decoder = (onnxruntime.InferenceSession(work / "onnx" / "onnx" / f"{part}.onnx", options) for part in parts)
    tokenizer = tokenizers.Tokenizer.from_file(str(work / "onnx" / "tokenizer.json"))
    settings = json.loads((work / "onnx" / "generation_config.json").read_text())
    start, end = settings["decoder_start_token_id"], settings["eos_token_id"]
    never = [each[0] for each in settings["bad_words_ids"]]
    names = [each.name for each in decoder.get_outputs()]

    def greedy(text: str) -> str:
        ids = np.array([tokenizer.encode(text).ids])
        mask = np.ones_like(ids)
        memory = encoder.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        past = {
            each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
            for each in decoder.get_inputs()
            if each.name.startswith("past")
        }
        written: list[int] = []
        last = start
        while len(written) < min(256, 3 * ids.shape[1] + 10):
            inputs = {"input_ids": np.array([[last]]), "encoder_hidden_states": memory, "encoder_attention_mask": mask}
            made = dict(zip(names, decoder.run(None, {**inputs, "use_cache_branch": np.array([bool(written)]), **past})))
            past = {name.replace("present", "past_key_values"): each for name, each in made.items() if name != "logits"}
            scores = made["logits"][0, -1]
            scores[never] = -np.inf
            last = int(scores.argmax())
            if last == end:
                break
            written.append(last)
        return tokenizer.decode(written)

    expected = [each.text for each in ours.translate(sources, search={"kind": "greedy"}, workers=1, **PLAIN)]
    found, seconds = timed(lambda: [greedy(text) for text in sources])
    report("onnxruntime, greedy, one by one", found, expected, references, seconds)
    (work / "greedy.json").write_text(json.dumps({"sources": sources, "texts": expected}, ensure_ascii=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("import", "runners"))
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beams", type=int, default=100)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    texts = [path.read_text("utf-8").splitlines()[: given.sentences] for path in given.texts]
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        if given.what == "import":
            compare_import(given.model, texts[0], given.beams, work)
        else:
            compare_runners(given.model, texts[0], texts[1], work)


if __name__ == "__main__":
    main()
