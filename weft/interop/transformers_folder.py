"""Folders of Hugging Face transformers: MarianMT, which is post-norm, and Pegasus, its pre-norm twin, in both directions.

Both have the sines of all frequencies before the cosines, a bias of the output logits, and one id for padding that usually
is the start of a translation too.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import PAD
from weft.data.json_text import read_json
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import add_tokens
from weft.data.tokenizers.sentencepiece_model import MappedSentencePieceTokenizer
from weft.errors import ConfigError, RunError
from weft.interop.bart_layout import (
    CLASSES,
    TABLE,
    decoding,
    exported_generation,
    exported_ids,
    exported_settings,
    read_architecture,
    special_rows,
    write_json,
)
from weft.interop.foreign_files import find, licence_of, need, number, read_bytes, read_vocabulary, read_weights
from weft.interop.importing import ImportedModel
from weft.interop.tokenizer_files import Vocabulary, table, tokenizer_json, vocabulary
from weft.interop.transformer_weights import (
    BIAS,
    LONGEST,
    NEVER,
    PORTABLE,
    SINUSOIDS,
    TABLES,
    Architecture,
    Rows,
    Tensors,
    architecture,
    require_sinusoids,
    sines_first,
    sinusoids,
)
from weft.losses.cross_entropy import UNWRITTEN
from weft.runs.open_run import TrainedRun
from weft.runs.weight_files import named_weights, write_tensors

TAG = re.compile(r">>([\w-]+)<<")


def read(folder: Path) -> ImportedModel:
    """The model of a folder of MarianMT or Pegasus."""
    file = need(folder, "config.json")
    settings = read_json(file)
    shape = read_architecture(settings, file, CLASSES[settings["model_type"]][0])
    tensors, weights = read_weights(folder)
    source, target, rows = _tokenizers(folder, settings, file, shape)
    theirs = Tensors(tensors, str(weights))
    mapped = _tables(theirs, settings, shape, rows)
    order = sines_first(shape.dim)
    mapped |= TABLE.read(theirs, shape, order)
    position = _position(theirs, shape.dim)
    theirs.check_rest(("shared.weight", "embed_tokens.weight", "lm_head.weight"))
    fixed = bool((mapped[BIAS][:UNWRITTEN] == NEVER).all()) and not mapped[_first_table(shape)][:UNWRITTEN].any()
    shape = Architecture(**{**vars(shape), "zero_bos": fixed, "position": position})
    names = read_json(path) if (path := find(folder, "tokenizer_config.json")) else {}
    languages = tuple(names[key] if isinstance(names.get(key), str) else None for key in ("source_lang", "target_lang"))
    return ImportedModel(
        shape,
        mapped,
        source,
        target,
        program=f"transformers, {settings['model_type']}",
        name=folder.resolve().name,
        languages=(languages[0], languages[1]),
        decode=decoding(folder, settings),
        licence=licence_of(folder),
    )


def _tokenizers(
    folder: Path, settings: Mapping[str, Any], file: Path, shape: Architecture
) -> tuple[Tokenizer, Tokenizer, tuple[Rows, Rows]]:
    """The tokenizers of both sides, and the rows of their tables."""
    own = read_json(path) if (path := find(folder, "tokenizer_config.json")) else {}
    size = number(settings, "vocab_size", file)
    sizes = size, number(settings, "decoder_vocab_size", file, size)
    names = ("vocab.json", "target_vocab.json" if own.get("separate_vocabs") else "vocab.json")
    tables = [read_vocabulary(need(folder, name)) for name in names]
    sides = [special_rows(settings, each, size, file, TAG) for each, size in zip(tables, sizes, strict=True)]
    made = []
    for model, numbers, (rows, pieces, tags) in zip(("source.spm", "target.spm"), tables, sides, strict=True):
        codes = {code: rows.rows.index(numbers[code]) for code in tags}
        content = need(folder, model)
        try:
            made.append(MappedSentencePieceTokenizer.make(read_bytes(content), pieces, codes))
        except ValueError as error:
            raise RunError(f"{content}: not a SentencePiece model: {error}") from None
    if shape.share == "all" and not made[0].shares_ids(made[1]):
        raise RunError(f"{folder}: the model has one table of embeddings, but its vocabularies differ")
    tags = [code[2:-2] for code in sides[0][2]]
    source, target = add_tokens(made[0], made[1], tags, needs_tag=False) if tags else (made[0], made[1])
    return source, target, (sides[0][0], sides[1][0])


def _position(tensors: Tensors, dim: int) -> str:
    """The kind of sinusoids that a file has; those of Marian's class if it has none."""
    names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    found = [tensors.take(name)[:LONGEST] for name in names if name in tensors]
    for kind in SINUSOIDS:
        own = sinusoids(kind, dim)[:, torch.argsort(sines_first(dim))]
        if all(each.size(1) == dim and torch.allclose(each, own[: len(each)], atol=2e-3) for each in found):
            return kind
    raise RunError(f"{tensors.where}: the tensor {names[0]} holds no sinusoids, so this is another architecture")


def _first_table(shape: Architecture) -> str:
    """The table that embeds targets, by the name under which weft saves it."""
    return TABLES["source"] if shape.share == "all" else TABLES["target"]


def _tables(tensors: Tensors, settings: Mapping[str, Any], shape: Architecture, rows: tuple[Rows, Rows]) -> dict[str, Tensor]:
    """The embeddings, the output layer and its bias."""
    order, (above, below) = sines_first(shape.dim), rows
    sizes = (len_of(above), len_of(below))
    encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"

    def first(*names: str) -> str:
        return next((name for name in names if name in tensors), names[0])

    source = (
        first("model.shared.weight", encoder, "lm_head.weight")
        if shape.share == "all"
        else first(encoder, "model.shared.weight")
    )
    mapped = {TABLES["source"]: above.table(tensors.take(source, sizes[0], shape.dim), order)}
    if shape.share != "all":
        target = first(decoder, "model.shared.weight")
        mapped[TABLES["target"]] = below.table(tensors.take(target, sizes[1], shape.dim), order)
    if shape.share == "none":
        mapped[TABLES["output"]] = below.table(tensors.take("lm_head.weight", sizes[1], shape.dim), order)
    bias = torch.zeros(sizes[1])
    if "final_logits_bias" in tensors:
        bias = tensors.take("final_logits_bias").flatten()
        if bias.numel() != sizes[1]:
            raise RunError(f"{tensors.where}: final_logits_bias has {bias.numel()} numbers, not {sizes[1]}")
    mapped[BIAS] = below.bias(bias)
    return mapped


def len_of(rows: Rows) -> int:
    """The number of rows of the other program's table."""
    return 1 + max(row for row in rows.rows if row is not None)


def export(run: TrainedRun, out: Path) -> list[str]:
    """Writes a folder of MarianMT (post-norm) or Pegasus (pre-norm), and returns what to say about it."""
    shape = architecture(run.config, "transformers")
    require_sinusoids(shape, "transformers")
    kind = "marian" if shape.norm == "post" else "pegasus"
    if kind == "pegasus" and shape.share != "all":
        raise ConfigError(
            f"model.share_embeddings: {shape.share}: the pre-norm model of transformers, Pegasus, has one table; {PORTABLE}"
        )
    task: Any = run.task
    sides = [vocabulary(each, "transformers") for each in (task.source, task.target)]
    ids = [exported_ids(shape, len(side.pieces)) for side in sides]
    weights = named_weights(run.model)
    tensors = TABLE.write(weights, shape, sines_first(shape.dim)) | _written_tables(weights, shape, ids)
    if kind == "pegasus" or shape.position != "sinusoidal":  # which MarianMT computes if the file has none
        positions = sinusoids(shape.position, shape.dim)[:, torch.argsort(sines_first(shape.dim))]
        tensors |= {f"model.{side}.embed_positions.weight": positions.clone() for side in ("encoder", "decoder")}
    write_tensors(out / "model.safetensors", tensors)
    write_json(out / "config.json", exported_settings(run, shape, kind, ids))
    write_json(out / "generation_config.json", exported_generation(run, ids[1]))
    _write_tokenizer(run, out, sides, ids)
    return [f"transformers: AutoModelForSeq2SeqLM.from_pretrained({str(out)!r}) is a {CLASSES[kind][1]}"]


def _written_tables(weights: Mapping[str, Tensor], shape: Architecture, ids: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    back = torch.argsort(sines_first(shape.dim))

    def table(name: str, side: int) -> Tensor:
        return weights[TABLES[name]][torch.tensor(ids[side])][:, back].contiguous()

    bias = weights.get(BIAS, torch.zeros(len(ids[1])))
    tensors = {"final_logits_bias": bias[torch.tensor(ids[1])][None]}
    if shape.share == "all":
        return tensors | {"model.shared.weight": table("source", 0)}
    return tensors | {
        "model.encoder.embed_tokens.weight": table("source", 0),
        "model.decoder.embed_tokens.weight": table("target", 1),
        "lm_head.weight": table(
            "output" if shape.share == "none" else "target", 1
        ),  # before 5.18, transformers does not tie it
    }


def _write_tokenizer(run: TrainedRun, out: Path, sides: Sequence[Vocabulary], ids: Sequence[Sequence[int]]) -> None:
    """The files of MarianTokenizer for SentencePiece models, otherwise tokenizer.json."""
    data = run.config.data
    shared = sides[0].pieces == sides[1].pieces
    settings: dict[str, Any] = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 512}
    if sides[0].model is None or sides[1].model is None:
        if not shared:
            raise ConfigError(
                "data.shared_vocabulary: false: transformers has such tokenizers for SentencePiece only; set it to true"
            )
        (out / "tokenizer.json").write_text(tokenizer_json(sides[0], ids[0]), "utf-8")
        write_json(
            out / "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
        )
        return
    for name, side in zip(("source.spm", "target.spm"), sides, strict=True):
        assert side.model is not None
        (out / name).write_bytes(side.model)
    for name, side, numbers in zip(("vocab.json", "target_vocab.json"), sides if not shared else sides[:1], ids):
        write_json(out / name, table(side, numbers))
    if PAD in ids[0]:
        settings["bos_token"] = "<s>"
    languages = {"source_lang": data.source_language, "target_lang": data.target_language}
    write_json(
        out / "tokenizer_config.json",
        {**settings, "tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared, **languages},
    )
