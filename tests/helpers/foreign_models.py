"""Small random models of other programs, in their own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

TEXTS = [
    f"{a} {b} {c}{end}"
    for a in ("The red dog", "A small bird", "Zwei alte Pferde", "Une petite fille")
    for b in ("runs on", "sees the", "trinkt", "regarde une")
    for c in ("green grass", "12 stones", "kaltes Wasser", "maison bleue")
    for end in (".", "!", ", again?")
]
HARD = [
    "🙂 so schön 水!",
    "Привет, мир — hello",
    "https://x.example/a?b=1",
    ">>de<< The red dog.",
    ">>fra<< A small bird.",
    "  two  spaces ",
    "½ … “q”",
]


def sentencepiece_model(texts: list[str], size: int = 90, **options: Any) -> bytes:
    """A SentencePiece model with the special ids of Marian."""
    from io import BytesIO

    sentencepiece = pytest.importorskip("sentencepiece")
    model = BytesIO()
    settings = {"model_type": "unigram", "bos_id": -1, "eos_id": 0, "unk_id": 1, "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, minloglevel=2, **settings
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    import sentencepiece

    inner = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [inner.id_to_piece(number) for number in range(inner.get_piece_size())]


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights, large enough that texts differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name:
                continue
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.25)
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)


def marian_folder(
    folder: Path, *, separate: bool = False, codes: tuple[str, ...] = (), eos_first: bool = True, **changes: Any
) -> Any:
    """A random MarianMT model as transformers saves it, and the model."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True)
    models = [sentencepiece_model(TEXTS[:32] if separate else TEXTS), sentencepiece_model(TEXTS[16:], 80)]
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    tables = [pieces_of(model) for model in models]
    if not separate:
        tables = [list(dict.fromkeys([*tables[0], *tables[1]]))] * 2
    # Some pieces are in no table, and some codes are.
    tables = [[*(piece for piece in table if piece != "▁grass"), *codes] for table in tables]
    if not eos_first:
        tables = [[*table[2:40], "</s>", *table[40:], "<unk>"] for table in tables]
    tables = [[*table, "<pad>"] for table in tables]
    size = max(map(len, tables))
    tables = [[*table[:-1], *(f"<extra{n}>" for n in range(size - len(table))), "<pad>"] for table in tables]
    for name, table in zip(("vocab.json", "target_vocab.json"), tables[: 1 + separate]):
        (folder / name).write_text(json.dumps({piece: number for number, piece in enumerate(table)}), "utf-8")
    own = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(own), "utf-8")
    pad, eos = size - 1, tables[1].index("</s>")
    settings: dict[str, Any] = {
        "vocab_size": size, "decoder_vocab_size": size, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "max_position_embeddings": 64, "pad_token_id": pad, "eos_token_id": eos,
        "bos_token_id": 0,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None, "scale_embedding": True, "activation_function": "swish",
        "share_encoder_decoder_embeddings": not separate,
    }  # fmt: skip
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**settings, **changes})).eval()
    randomise(model)
    model.final_logits_bias = torch.randn(1, size, generator=torch.Generator().manual_seed(1)) * 0.5
    model.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [translation]\n---\n# A model\n", "utf-8")
    return model


def m2m100_folder(folder: Path, *, nllb: bool = False) -> tuple[Any, Any]:
    """A random M2M100 model, or one with the tokenizer of NLLB, as transformers saves them: the model and its tokenizer."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True)
    content = sentencepiece_model(TEXTS, 120, model_type="bpe", bos_id=1, eos_id=2, unk_id=0)
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(content)[3:]]
    if nllb:
        languages = ["deu_Latn", "eng_Latn", "fra_Latn"]
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder, extra_special_tokens=languages)
        tokenizer.save_pretrained(folder)
        size = len(tokenizer)
    else:
        table = {piece: number for number, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(table), "utf-8")
        tokenizer = transformers.M2M100Tokenizer(folder / "vocab.json", folder / "sentencepiece.bpe.model")
        size = len(pieces) + 108
    settings: dict[str, Any] = {
        "vocab_size": size, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "activation_function": "relu", "scale_embedding": True,
    }  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**settings)).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model, tokenizer


def random_run(
    folder: Path, tokenizer: dict[str, Any] | None = None, size: int = 90, shared: bool = True, **model: Any
) -> Path:
    """A run with random weights, by default of the portable kind."""
    from weft.config.registry import build
    from weft.config.sections import Config, save_config
    from weft.data.tokenizers.added_tokens import save_extended
    from weft.models.base import Sizes
    from weft.runs.migrations import write_format
    from weft.runs.open_run import initial_network
    from weft.runs.weight_files import named_weights, write_tensors

    kind = tokenizer or {"kind": "sentencepiece"}
    sides = []
    for texts in [TEXTS] if shared else [TEXTS[:40], TEXTS[20:]]:
        sides.append(build("weft.data:TOKENIZERS", kind))
        sides[-1].train(texts, size)
    small = {"kind": "transformer", "dim": 32, "heads": 4, "feedforward": 48, "encoder_layers": 2, "decoder_layers": 3}
    settings = {**small, "output_bias": True, "zero_bos": True, **model}
    data = {"data.tokenizer": kind, "data.vocabulary": size, "data.shared_vocabulary": shared}
    languages = {"data.source_language": "en", "data.target_language": "de"}
    config = Config().replaced({**data, **languages, "model": settings, "decode.search": {"kind": "beam", "width": 4}})
    folder.mkdir(parents=True)
    write_format(folder)
    save_extended(folder, sides[0], sides[-1])
    save_config(config, folder / "config.yaml")
    network = initial_network(config, folder, Sizes(sides[0].size, sides[-1].size, shared))
    fixed = {name: weight[:2].clone() for name, weight in network.named_parameters() if "table" in name or "output" in name}
    randomise(network, 3)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if settings["zero_bos"] and name in fixed:
                weight[:2] = fixed[name]
    write_tensors(folder / "model.safetensors", named_weights(network), {"by": "train", "weights": "last", "step": "1"})
    return folder


ROTARY: dict[str, Any] = {
    "tokenizer": {"kind": "bpe"},
    "size": 340,
    "position": "none",
    "encoder_self": {"kind": "full", "position": "rotary", "bias": False},
    "decoder_self": {"kind": "full", "position": "rotary", "bias": False},
    "cross": {"kind": "full", "bias": False},
    "output_bias": False,
    "zero_bos": False,
}
"""Options of `random_run` for a small model of the kind of transformer-small."""
