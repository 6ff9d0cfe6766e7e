"""The trainings of golden.py: every task, model family and objective, with settings that train in about a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import golden_data as made

Options = Mapping[str, Any]

TRAIN: dict[str, Any] = {
    "train.steps": 24,
    "train.save_every": 12,
    "train.validate_every": 12,
    "train.validate_sentences": 20,
    "train.keep_last": 4,
    "train.log_every": 1,
    "train.batch_tokens": 400,
    "train.precision": "float32",
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 5},
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}
WORDS = {"data.tokenizer": "words", "data.vocabulary": 100}
BPE = {"data.tokenizer": "bpe", "data.vocabulary": 330}
STACK = {"dim": 32, "heads": 2, "feedforward": 64}
SMALL = {**{f"model.{key}": value for key, value in STACK.items()}, "model.encoder_layers": 2, "model.decoder_layers": 2}
RNN = {"model.dim": 32, "model.embedding": 16, "model.encoder_dim": 64}
ONE_PASS = {f"model.{side}.{key}": value for side in ("encoder", "decoder") for key, value in {**STACK, "layers": 1}.items()}
LEVEL = {"kind": "rnn", "dim": 16, "dropout": 0.1}

BEAM: dict[str, Options] = {"greedy": {"beam": 1}, "beam": {"beam": 4, "n_best": 4}}
SEARCHES: dict[str, Options] = {
    **BEAM,
    "length penalty": {"beam": 4, "length_penalty": 0.6, "min_length": 3},
    "first": {"beam": 4, "stop": "first"},
    "coverage": {"search": {"kind": "beam", "width": 3, "coverage_penalty": 0.3}},
    "no repeats": {"beam": 3, "no_repeat_ngram": 2},
    "sample": {"sample": True, "seed": 5, "n_best": 2},
    "top k": {"sample": True, "seed": 6, "top_k": 5, "temperature": 0.7},
    "top p": {"sample": True, "seed": 7, "top_p": 0.8},
    "noisy": {"search": {"kind": "noisy"}},
    "mbr": {"search": {"kind": "sample", "seed": 3}, "rerank": {"kind": "mbr", "candidates": 8}},
    "mbr of a beam": {"beam": 4, "rerank": {"kind": "mbr", "candidates": 4, "utility": "bleu"}, "n_best": 2},
    "small batches": {"beam": 4, "batch_tokens": 30},
    "two processes": {"beam": 4, "workers": 2},
    "C++": {"beam": 4, "compile": True},
    "C++ greedy": {"beam": 1, "compile": True},
    "int8": {"beam": 4, "precision": "int8"},
    "int8 greedy": {"beam": 1, "precision": "int8"},
    "int8 C++": {"beam": 4, "precision": "int8", "compile": True},
    "int8 C++ greedy": {"beam": 1, "precision": "int8", "compile": True},
    "bf16": {"beam": 4, "precision": "bf16"},
    "fast": {"fast": True},
    "unsplit": {"beam": 2, "sentences": "off", "protect": "off"},
}
FAST: dict[str, Options] = {name: SEARCHES[name] for name in ("greedy", "beam", "sample", "C++", "int8", "int8 C++", "fast")}

Files = Callable[[Path], tuple[Any, Any]]
"""Writes data into a folder and returns what to train and what to validate on."""


def table(write: Callable[[Path, str, int, int], str], count: int = 300) -> Files:
    def files(folder: Path) -> tuple[str, str]:
        return write(folder, f"{write.__name__}-train", count, 1), write(folder, f"{write.__name__}-valid", 50, 2)

    return files


PAIRS = table(made.pairs)


def generated(kind: str, options: str = "", count: int = 200) -> Files:
    return lambda folder: (f"generated:{kind}?count={count}{options}", f"generated:{kind}?count=40&split=valid{options}")


def text(folder: Path) -> tuple[str, str]:
    found = [made.write_lines(folder / f"text-{seed}.txt", made.sentences(300, seed)) for seed in (4, 5)]
    return found[0], found[1]


def unpaired(folder: Path) -> tuple[list[str], list[str]]:
    first = made.write_lines(folder / "unpaired.en", made.sentences(300, 6))
    second = made.write_lines(folder / "unpaired.xx", map(made.translation, made.sentences(320, 7)))
    return [f"en={first}", f"xx={second}"], []


def corpora(folder: Path) -> tuple[list[Any], list[Any]]:
    """Several corpora with weights, tags and noise, and two validation sets."""
    noise = {"drop": 0.1, "blank": 0.1, "shuffle": 2}
    first, second = made.pairs(folder, "first", 120, 21), made.pairs(folder, "second", 200, 22)
    train = [{"files": first, "weight": 2, "tag": "new", "noise": noise}, {"files": second, "weight": 1, "tag": "old"}]
    return train, [
        {"files": made.pairs(folder, f"valid-{tag}", 25, seed), "tag": tag} for tag, seed in (("new", 23), ("old", 24))
    ]


def ciphers(folder: Path) -> tuple[str, str]:
    return made.letters(folder, "letters", 8000, 1), ""


INPUTS = [
    *made.sentences(44, 3),
    "",
    "The dog sees a cat. The old man hears a bird at the river. A king likes the market!",
    "the cat finds https://example.org/a?b=1 and {name} at the house",
    "an unknown xylophone 42 plays",
    "dog",
    " ".join(made.sentences(12, 9)),
]


@dataclass(frozen=True)
class Case:
    """One training. start: the case that it starts from · inputs: texts, or a folder of files · use: how the run answers."""

    recipe: str
    files: Files
    settings: Options = field(default_factory=dict)
    searches: Mapping[str, Options] = field(default_factory=lambda: BEAM)
    inputs: list[str] | str = field(default_factory=lambda: INPUTS)
    start: str = ""
    use: str = "translate"


def translation(recipe: str = "transformer-tiny", settings: Options | None = None, **options: Any) -> Case:
    sizes = SMALL if recipe.startswith("transformer") else {}
    return Case(recipe, options.pop("files", PAIRS), {**WORDS, **sizes, **(settings or {})}, **options)


def _families() -> dict[str, Case]:
    base = {f"model.base.{key.partition('.')[2]}": value for key, value in RNN.items()}
    stack = {f"model.base.{key.partition('.')[2]}": value for key, value in SMALL.items()}
    sets = {"model.dim": 16, "model.dilations": [1, 2], "model.encoder_sets": 1, "model.decoder_sets": 1}
    convolutions = {"model.dim": 16, "model.channels": 24, "model.encoder_layers": 2, "model.decoder_layers": 2}
    return {
        "transformer-tiny": translation(searches=SEARCHES),
        "transformer-tiny, long": translation(settings={**BPE, "train.steps": 200, "train.save_every": 100}, searches=SEARCHES),
        "transformer-tiny, bf16": translation(settings={"train.precision": "bf16"}),
        "transformer-small": translation("transformer-small", BPE, searches=FAST),
        "transformer-base": translation("transformer-base", BPE, searches=FAST),
        "rnn-bahdanau": translation("rnn-bahdanau", RNN, searches=SEARCHES),
        "rnn-luong": translation("rnn-luong", {"model.dim": 32, "model.embedding": 16}, searches=FAST),
        "rnn-fixed": translation("rnn-fixed", {"model.dim": 32, "model.embedding": 16}),
        "rnn-g2p": translation("rnn-g2p", {"model.dim": 32, "model.embedding": 16}),
        "rnn-scan": translation("rnn-scan", {"model.dim": 32, "model.embedding": 16}),
        "rnn-hard": translation("rnn-hard", RNN),
        "convs2s": translation("convs2s", convolutions, searches=FAST),
        "bytenet": translation("bytenet", sets, searches=FAST),
        "bytenet-characters": translation(
            "bytenet-characters", {**sets, "data.tokenizer": "characters", "data.vocabulary": 330}
        ),
        "pointer": translation("pointer", base, searches=FAST),
        "pointer-transformer": translation("pointer-transformer", stack, searches=FAST),
        "reformer": translation("reformer", SMALL),
        "mixed-cnn": translation("mixed-cnn", SMALL),
        "mixed-rnn": translation("mixed-rnn", SMALL),
        "demo-dates": Case("demo-dates", generated("dates"), SMALL, inputs=["Dienstag, 3. März 2026", "1 June 1999"]),
        "auto": Case("auto", PAIRS, {"train.steps": 24}),
    }


def _objectives() -> dict[str, Case]:
    sampling = {"kind": "steps", "decay": {"kind": "linear", "start": 0.9, "slope": 0.02}}
    rewards = {
        "minimum risk": {"kind": "minimum_risk"},
        "reinforce": {"kind": "reinforce", "samples": 2, "baseline": "moving", "teacher_weight": 0.5},
        "self-critical": {"kind": "self_critical"},
    }
    tuned = {"train.steps": 12, "train.save_every": 6, "train.schedule": {"kind": "slanted_triangular", "rate": 0.01}}
    few = {**tuned, "train.batch_tokens": 100}
    plain = {"train.schedule": {"kind": "inverse_sqrt", "warmup": 4}, "train.optimizer": {"kind": "adam"}}
    return {
        "several corpora": translation(files=corpora, settings={"train.ema": 0.9}, searches={"tag": {"tag": "new", "beam": 2}}),
        "ema and the best": translation(settings={"train.ema": 0.9, "train.best_by": "chrf", "train.keep_best": True}),
        "average of checkpoints": translation(settings={"train.average_last": 2, "train.save_every": 6, **plain}),
        "accumulated": translation(settings={"train.accumulate": 3}),
        "packed": translation(settings={"train.packed": True}),
        "rounded": translation(settings={"train.rounded": True}),
        "penalties": translation("rnn-bahdanau", {**RNN, "task.guided_weight": 1, "task.coverage_weight": 0.5}),
        "doubly stochastic": translation("rnn-luong", {"model.dim": 32, "task.doubly_stochastic_weight": 1.0}),
        "R-Drop": translation(settings={"task.r_drop": 1.0}),
        "unlikelihood": translation(settings={"task.unlikelihood": 1.0}),
        "hard attention": translation("rnn-hard", {**RNN, "task.draws": 1, "task.reinforce_baseline": "moving"}),
        **{
            f"scheduled sampling, {kind}": translation(settings={"task.sampling": {**sampling, "kind": kind}})
            for kind in ("steps", "two_pass", "parallel")
        },
        "free running": translation("rnn-luong", {"model.dim": 32, "task.sampling": {"kind": "free"}}),
        **{
            f"reward, {name}": translation(settings={"task.reward": reward, **few}, start="transformer-tiny")
            for name, reward in rewards.items()
        },
        "fine-tuned": translation(settings={**tuned, "train.ema": 0.9}, start="transformer-tiny"),
        "unfrozen": translation(
            settings={**tuned, "train.unfreeze_every": 2, "train.layer_factor": 2.6}, start="transformer-tiny"
        ),
        "LoRA": translation(settings={**tuned, "model.lora": {"rank": 4}}, start="transformer-tiny", searches=FAST),
        "new words": translation(settings={**tuned, "start.extend": 20}, start="transformer-tiny, long"),
        "frozen": translation(settings={"train.freeze": ["encoder.*"], **tuned}, start="transformer-tiny"),
        "taught": translation(settings={"data.teacher": "{transformer-tiny}", **tuned}),
        "word vectors": translation(settings={"start.vectors": "{data}/words.vec", **tuned}),
        "separate vocabularies": translation(settings={"data.shared_vocabulary": False, "model.share_embeddings": "none"}),
        "held out": Case("transformer-tiny", lambda folder: (PAIRS(folder)[0], ()), {**WORDS, **SMALL, "data.hold_out": 20}),
        **{
            f"tokenizer {kind}": translation(settings={"data.tokenizer": kind, "data.vocabulary": 320, "train.steps": 12})
            for kind in ("bpe", "unigram", "characters", "bytes")
        },
    }


def _one_pass() -> dict[str, Case]:
    searches: dict[str, dict[str, Options]] = {
        "nat-ctc": {"path": {}, "beam": {"search": "ctc_beam"}},
        "nat-mask-predict": {"refined": {"search": {"kind": "refine", "iterations": 3, "lengths": 3}}, "usual": {}},
        "nat-length": {"one pass": {}},
        "nat-blanks": {"one pass": {}},
        "nat-fertility": {"one pass": {}},
    }
    return {name: translation(name, ONE_PASS, searches=chosen) for name, chosen in searches.items()}


def _language_models() -> dict[str, Case]:
    spans = {"task.segment": 16, "train.batch_tokens": 128}
    small = {**{f"model.{key}": value for key, value in STACK.items()}, "model.decoder_layers": 2, **spans}
    memory = {**small, "task.memory": 16}
    state = {**small, "model.decoder_self": {"kind": "recurrent"}, "task.carry": "state"}
    recurrent = {"model.dim": 24, "model.embedding": 16, **BPE, **spans}
    searches: dict[str, Options] = {"greedy": {"beam": 1}, "beam": {"beam": 3}, "sample": {"seed": 3, "count": 3, "top_k": 8}}
    usual: dict[str, Any] = {"searches": searches, "inputs": ["the red dog", "the", ""], "use": "generate"}
    return {
        "lm-tiny": Case("lm-tiny", text, memory, **usual),
        "lm-shakespeare-xl": Case("lm-shakespeare-xl", text, memory, **usual),
        "lm-shakespeare-transformer": Case("lm-shakespeare-transformer", text, small, **usual),
        "lm-words": Case("lm-words", text, {**memory, "data.vocabulary": 100}, **usual),
        "lm-rnn-attention": Case("lm-rnn-attention", text, recurrent, **usual),
        "carried state": Case("lm-tiny", text, state, **usual),
        "lm of the translator": Case("lm-tiny", text, {**memory, "data.tokenizer_of": "{transformer-tiny, long}"}, **usual),
    }


def _other_tasks() -> dict[str, Case]:
    composed = {"kind": "composed", "front": {"kind": "sentences", "encoder": LEVEL}, "encoder": LEVEL}
    spelt = {"kind": "words", "spelling": "cnn", "spelling_width": 12, "piece_width": 8, "word_dropout": 0.1}
    tagger = {"model.front": spelt, "model.encoder.dim": 16, "model.encoder.embedding": 20}
    lstm = {"model.front": {**spelt, "spelling": "lstm"}, "model.encoder.dim": 16, "model.encoder.embedding": 20}
    usual: dict[str, Options] = {"usual": {}, "three": {"n_best": 3}}
    classes = {"files": table(made.labelled), "searches": usual}
    pooling = {"kind": "classification", "pooling": {"kind": "self_attentive", "rows": 2}, "diversity_weight": 0.1}
    tags = {"files": table(made.tagged), "searches": {"usual": {}}}
    isab = {"model.encoder_self": {"kind": "isab", "points": 4}}
    return {
        "classifier": Case("classifier", settings={"model.encoder.dim": 16, "model.encoder.heads": 2, **BPE}, **classes),
        "classifier-bytes": Case("classifier-bytes", settings={"train.batch_tokens": 800, "train.steps": 6}, **classes),
        "set-transformer": Case("set-transformer", settings={**SMALL, **isab}, **classes),
        "self-attentive": Case("transformer-tiny", settings={**WORDS, **SMALL, "task": pooling}, **classes),
        "han": Case(
            "han",
            table(made.documents, 80),
            {**WORDS, "model": composed, "train.best_by": "loss"},
            {"usual": {}},
        ),
        "tagger": Case("tagger", settings=lstm, **tags),
        "tagger-crf": Case("tagger-crf", settings=tagger, **tags),
        "unsupervised": Case(
            "unsupervised",
            unpaired,
            {
                **WORDS,
                **SMALL,
                "data.hold_out": 8,
                "task.denoising_steps": 8,
                "task.dictionary_steps": 6,
                "train.steps": 18,
                "train.save_every": 9,
                "train.validate_every": 9,
            },
            {"usual": {"beam": 2}, "back": {"into": "en"}},
        ),
    }


def _images_and_sound() -> dict[str, Case]:
    sound = {"kind": "transcription", "mels": 8, "tempo": 0.1, "pitch": 0.1, "time_masks": 1, "frequency_masks": 1}
    heard = {
        "kind": "composed",
        "front": {"kind": "frames", "convolutions": 1, "channels": 8},
        "encoder": LEVEL,
        "decoder": {"kind": "rnn", "dim": 16, "attention": {"kind": "location_aware", "width": 5}},
    }
    live = {
        **heard,
        "encoder": {**LEVEL, "bidirectional": False},
        "decoder": {"kind": "rnn", "dim": 16, "attention": {"kind": "monotonic"}, "bridge": "zeros"},
    }
    hears = {**WORDS, "data.max_length": 400, "train.batch_tokens": 1500, "model": heard}
    tones = {"files": table(made.recordings, 60), "inputs": "recordings-valid/*.wav"}
    seen = {
        "kind": "composed",
        "front": {"kind": "convolutions", "channels": [8, 16]},
        "encoder": {"kind": "identity", "dim": 16},
    }
    looks = {**WORDS, "task": {"kind": "captioning", "size": 16, "flip": True, "crop": 0.1}, "data.max_length": 20}
    shapes = {"files": table(made.pictures, 60), "inputs": "pictures-valid/*.png"}
    decoder = {"kind": "rnn", "style": "bahdanau", "attention": "additive", "dim": 16}
    return {
        "captioner": Case(
            "captioner",
            settings={**looks, "model": {**seen, "decoder": {**STACK, "kind": "transformer", "layers": 1}}},
            **shapes,
        ),
        "show-attend-tell": Case(
            "show-attend-tell", settings={**looks, "model": {**seen, "decoder": decoder}, "train.best_by": "loss"}, **shapes
        ),
        "speech": Case(
            "speech-digits", settings={**hears, "task": {**sound, "ctc_weight": 0.5}, "train.best_by": "loss"}, **tones
        ),
        "speech, attention": Case("speech-digits", settings={**hears, "task": sound}, **tones),
        "speech, live": Case(
            "speech-digits", settings={**hears, "model": live, "task": {**sound, "scaling": "fixed"}}, **tones
        ),
        "speech, CTC": Case("speech-digits", settings={**hears, "task": {**sound, "ctc_weight": 1}}, **tones),
    }


def _studies() -> dict[str, Case]:
    """Tasks, rules and generators that moved into a package of their own."""
    machine = {"model.encoder.dim": 8, "model.encoder.slots": 6, "model.encoder.slot_width": 6, "train.steps": 8}
    usual: dict[str, Options] = {"usual": {}}
    letters = {"data.tokenizer": {"kind": "characters", "byte_fallback": False}, "data.vocabulary": 14, "model.width": 16}
    cipher = {**letters, "task.extent": 20, "model.dim": 16, "train.batch_tokens": 640}
    bits = ["01101001 | _", "01101001 11111111 | _ _"]
    rules: dict[str, Options] = {"rules": {}, "free": {"rules": []}, "same length": {"rules": ["same_length"], "beam": 3}}
    lines = ["天地", "山外山", "风云日月", "花，鸟"]
    kinds = ("copy", "reverse", "sort", "addition", "recall", "distant_copy", "verdict")
    short = {"train.steps": 4, "train.save_every": 2}
    question = ["Mary went to the kitchen. Where is Mary?"]
    asked = {"model.dim": 8, "task.linear_start": 6}
    return {
        "bits copy": Case("ntm-copy", generated("bits_copy"), machine, usual, bits),
        "bits repeat": Case("ntm-copy", generated("bits_repeat"), machine, usual, bits),
        "bits recall": Case("ntm-copy", generated("bits_recall"), {**machine, "task.width": 6}, usual, ["100001 | _"]),
        "listops": Case("listops", generated("listops", "&longest=40", 60), {**SMALL, **short}, usual),
        "cipher-shift": Case("cipher-shift", ciphers, {**cipher, "task.key": [3]}, use="evaluate"),
        "cipher-vigenere": Case("cipher-vigenere", ciphers, {**cipher, "task.extent": 21}, use="evaluate"),
        "couplets": Case("couplets-tiny", table(made.couplets), {**SMALL, "data.vocabulary": 100}, rules, lines),
        **{
            f"answers {task}": Case("memory-network", generated("babi", f"&task={task}", 400), asked, usual, question)
            for task in range(1, 21)
        },
        **{f"generated {kind}": translation(files=generated(kind, "", 60), settings={**short, **BPE}) for kind in kinds},
    }


MECHANISMS = (
    *(
        "full",
        "xl_relative",
        "local",
        "strided",
        "fixed",
        "global",
        "random",
        "longformer",
        "bigbird",
        "joined",
        "mixed",
        "parts",
    ),
    *("synthesizer", "linear", "performer", "rfa", "gated_rfa", "efficient", "linformer", "compressed", "additive"),
    *("additive_normed", "dot", "general", "concat", "location", "local_m", "local_p", "key_value", "hard", "monotonic"),
    *("location_aware", "recurrent", "convolution", "lsh", "routing", "sinkhorn", "fnet", "aft", "gmlp", "mlp_mixer", "isab"),
)


def _mechanisms() -> dict[str, Case]:
    """Every mechanism in every slot. Where it is refused, the message counts."""
    short = {"train.steps": 4, "train.save_every": 2, "train.validate_every": 0, "train.validate_bleu": False}
    return {
        f"{slot} {kind}": translation(settings={**short, f"model.{slot}": {"kind": kind}}, inputs=INPUTS[:6])
        for kind in MECHANISMS
        for slot in ("encoder_self", "decoder_self", "cross")
    }


GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "families": _families,
    "objectives": _objectives,
    "one pass": _one_pass,
    "language models": _language_models,
    "other tasks": _other_tasks,
    "images and sound": _images_and_sound,
    "studies": _studies,
    "mechanisms": _mechanisms,
}
