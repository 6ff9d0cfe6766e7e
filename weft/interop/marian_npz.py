"""Models of Marian (npz) with their vocabularies, in both directions, and as the binary that Bergamot (Firefox) runs.

Matrices are [in, out], vectors [1, n]. A translation starts from a vector of zeros, without an id, so BOS is a row of zeros and
PAD and BOS cannot be written (model.zero_bos). The sines of all frequencies come before the cosines, and the frequencies are
those of Tensor2Tensor (model.position: tensor2tensor). Marian itself computes them; other programs that read npz files take
other ones unless the file has a table Wpos, so an exported file has it.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.array_files import read_arrays
from weft.data.batch import BOS, PAD
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.sentencepiece_model import MappedSentencePieceTokenizer, SentencePieceTokenizer
from weft.errors import ConfigError, RunError
from weft.interop.foreign_files import find, licence_of, read_bytes, read_text, read_yaml
from weft.interop.importing import ImportedModel
from weft.interop.tokenizer_files import vocabulary
from weft.interop.transformer_weights import (
    BIAS,
    LONGEST,
    PORTABLE,
    TABLES,
    Architecture,
    NameTable,
    Rows,
    Tensors,
    architecture,
    require_sinusoids,
    sines_first,
    sinusoids,
)
from weft.runs.open_run import TrainedRun
from weft.runs.weight_files import named_weights

SETTINGS = "special:model.yml"


def _attention(prefix: str, letters: str) -> list[tuple[str, str]]:
    return [(f"{prefix}_W{letter}", f"{prefix}_b{letter}") for letter in letters]


def _norm(name: str, suffix: str) -> list[tuple[str, str]]:
    return [(f"{name}_ln_scale{suffix}", f"{name}_ln_bias{suffix}")]


def name_table(norm: str) -> NameTable:
    """Marian's names; those of norms say where the norm is."""
    suffix = "_pre" if norm == "pre" else ""
    return NameTable(
        "{side}_l{layer}_",
        {
            "self": _attention("self", "qkv"),
            "self_out": _attention("self", "o"),
            "self_norm": _norm("self_Wo", suffix),
            "cross": _attention("context", "q"),
            "memory": _attention("context", "kv"),
            "cross_out": _attention("context", "o"),
            "cross_norm": _norm("context_Wo", suffix),
            "up": [("ffn_W1", "ffn_b1")],
            "down": [("ffn_W2", "ffn_b2")],
            "network_norm": _norm("ffn_ffn", suffix),
        },
        ("{side}_top_ln_scale", "{side}_top_ln_bias"),
        first=1,
        transposed=True,
    )


ACTIVATIONS = {"relu": "relu", "swish": "silu"}
"""Marian's gelu is an approximation, x · σ(1.702 x), which weft has not."""

POSITION = "tensor2tensor"

TASKS = {"post": ("", "dan", ""), "pre": ("n", "da", "n")}
"""transformer-preprocess, -postprocess and -postprocess-top by the place of the norms."""

EXPECTED = {
    "type": "transformer",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-train-position-embeddings": False,
    "transformer-train-positions": False,
    "transformer-decoder-dim-ffn": 0,
    "transformer-no-bias": False,
    "transformer-no-affine": False,
    "transformer-rnn-projection": False,
    "transformer-tied-layers": [],
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "factors-combine": "sum",
    "lemma-dim-emb": 0,
    "ulr": False,
}
"""Settings that must have these values, if a model has them."""


def read(file: Path) -> ImportedModel:
    """The model of an npz file, with the vocabularies beside it."""
    arrays = read_arrays(file)
    if SETTINGS not in arrays:
        raise RunError(f"{file}: {SETTINGS} is missing, so this is no model of Marian")
    text = arrays.pop(SETTINGS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    settings = read_yaml(text, f"{file}, {SETTINGS}")
    if strange := next((name for name, value in arrays.items() if value.dtype.kind not in "fiu"), None):
        raise RunError(f"{file}: {strange} holds no numbers")
    tensors = Tensors({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}, str(file))
    shape = _architecture(settings, tensors, file)
    source, target, rows, kind = _vocabularies(file, shape)
    mapped = _tables(tensors, shape, rows) | name_table(shape.norm).read(tensors, shape, sines_first(shape.dim))
    _check_positions(tensors, shape)
    tensors.check_rest()
    return ImportedModel(
        shape,
        mapped,
        source,
        target,
        program="Marian",
        name=file.resolve().stem,
        tokenizer={"kind": kind},
        decode={"search": {"kind": "beam", "width": 4}},
        licence=licence_of(file.parent),
    )


def _architecture(settings: Mapping[str, Any], tensors: Tensors, file: Path) -> Architecture:
    for key, meant in EXPECTED.items():
        if settings.get(key, meant) not in (meant, [meant]):
            raise RunError(f"{file}: {key}: {settings[key]!r}: weft has no such model")
    tasks = tuple(str(settings.get(f"transformer-{key}", "")) for key in ("preprocess", "postprocess", "postprocess-top"))
    places = [norm for norm, each in TASKS.items() if tuple(task.replace("d", "") for task in tasks) == _plain(each)]
    if not places:
        raise RunError(f"{file}: transformer-preprocess, -postprocess and -postprocess-top are {tasks}; weft has {TASKS}")
    if str(settings.get("transformer-postprocess-emb", "d")) not in ("d", ""):
        raise RunError(f"{file}: transformer-postprocess-emb: {settings['transformer-postprocess-emb']}: weft has no such norm")
    activation = settings.get("transformer-ffn-activation", "relu")
    if activation not in ACTIVATIONS:
        raise RunError(f"{file}: transformer-ffn-activation: {activation}: weft has {' and '.join(ACTIVATIONS)}")
    numbers = {}
    for key in ("dim-emb", "transformer-heads", "transformer-dim-ffn", "enc-depth", "dec-depth"):
        if type(settings.get(key)) is not int:
            raise RunError(f"{file}: {SETTINGS} has no number {key}")
        numbers[key] = int(settings[key])
    output = "decoder_ff_logit_out_W" in tensors or "decoder_ff_logit_out_Wt" in tensors
    share = "all" if "Wemb" in tensors and not output else "none" if output else "output"
    return Architecture(
        dim=numbers["dim-emb"],
        heads=numbers["transformer-heads"],
        feedforward=numbers["transformer-dim-ffn"],
        encoder_layers=numbers["enc-depth"],
        decoder_layers=numbers["dec-depth"],
        norm=places[0],
        activation=ACTIVATIONS[activation],
        share=share,
        position=POSITION,
        zero_bos=True,
    )


def _plain(tasks: Sequence[str]) -> tuple[str, ...]:
    """The tasks without dropout, which a trained model does not need."""
    return tuple(task.replace("d", "") for task in tasks)


def _check_positions(tensors: Tensors, shape: Architecture) -> None:
    """Refuses positions that are not the sinusoids that Marian computes."""
    if "Wpos" in tensors:
        found, own = tensors.take("Wpos")[:LONGEST], _positions(shape)
        if found.size(1) != shape.dim or not torch.allclose(found, own[: len(found)], atol=1e-3):
            raise RunError(f"{tensors.where}: the tensor Wpos holds other positions than sinusoids; weft has no such model")


def _positions(shape: Architecture) -> Tensor:
    """[LONGEST, D]"""
    return sinusoids(POSITION, shape.dim)[:, torch.argsort(sines_first(shape.dim))].contiguous()


def _tables(tensors: Tensors, shape: Architecture, rows: tuple[Rows, Rows]) -> dict[str, Tensor]:
    order = sines_first(shape.dim)
    sizes = [max(row for row in side.rows if row is not None) + 1 for side in rows]
    shared = "Wemb" in tensors
    source = tensors.take("Wemb" if shared else "encoder_Wemb", sizes[0], shape.dim)
    mapped = {TABLES["source"]: rows[0].table(source, order)}
    if shape.share != "all":
        target = tensors.take("Wemb" if shared else "decoder_Wemb", sizes[1], shape.dim)
        mapped[TABLES["target"]] = rows[1].table(target, order)
    if shape.share == "none":
        turned = "decoder_ff_logit_out_Wt" in tensors
        output = tensors.take("decoder_ff_logit_out_Wt") if turned else tensors.take("decoder_ff_logit_out_W").t()
        if tuple(output.shape) != (sizes[1], shape.dim):
            raise RunError(f"{tensors.where}: the output layer has shape {list(output.shape)}, not {[sizes[1], shape.dim]}")
        mapped[TABLES["output"]] = rows[1].table(output, order)
    bias = torch.zeros(sizes[1])
    if "decoder_ff_logit_out_b" in tensors:
        bias = tensors.take("decoder_ff_logit_out_b", 1, sizes[1])[0]
    mapped[BIAS] = rows[1].bias(bias)
    return mapped


def _vocabularies(file: Path, shape: Architecture) -> tuple[Tokenizer, Tokenizer, tuple[Rows, Rows], str]:
    """The tokenizers of both sides, the rows of their tables, and data.tokenizer.kind."""
    names = [path.name for path in (find_vocabulary(file.parent, side) for side in ("source", "target"))]
    paths = [file.parent / name for name in names]
    models = [path for path in paths if path.suffix == ".spm"]
    if len(models) == 2:
        loaded: list[SentencePieceTokenizer] = []
        for path in dict.fromkeys(models):
            tokenizer = SentencePieceTokenizer(model=str(path))
            tokenizer.train([], 0)
            loaded.append(tokenizer)
        source, target = loaded[0], loaded[-1]
        return source, target, (_rows(source), _rows(target)), "sentencepiece"
    sides = [read_pieces(path) for path in paths]
    made, rows = [], []
    for side, pieces in zip(("source", "target"), sides, strict=True):
        model = find(file.parent, f"{side}.spm")
        if model is None:
            raise RunError(f"{file.parent}: {side}.spm is missing, the SentencePiece model that splits texts for {names[0]}")
        first = [pieces["</s>"], pieces["<unk>"]]
        rest = sorted((row, piece) for piece, row in pieces.items() if row not in first)
        try:
            made.append(MappedSentencePieceTokenizer.make(read_bytes(model), [piece for _, piece in rest], {}))
        except ValueError as error:
            raise RunError(f"{model}: not a SentencePiece model: {error}") from None
        rows.append(Rows([None, None, *first, *(row for row, _ in rest)], frozenset({PAD, BOS})))
    return made[0], made[1], (rows[0], rows[1]), "mapped_sentencepiece"


def find_vocabulary(folder: Path, side: str) -> Path:
    """The vocabulary of one side: those that decoder.yml names, or one of the usual names."""
    path = find(folder, "decoder.yml")
    if path is not None:
        listed = read_yaml(read_text(path), str(path)).get("vocabs", [])
        named = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        if len(named) == 2 and (found := find(folder, Path(named[side == "target"]).name)):
            return found
    usual = (f"vocab.{side}.spm", "vocab.spm", f"vocab.{side}.yml", "vocab.yml", "opus.spm32k-spm32k.vocab.yml")
    found = find(folder, *usual) or next(iter(sorted(folder.glob("*.vocab.yml"))), None)
    if found is None:
        raise RunError(f"{folder}: the vocabulary is missing: none of decoder.yml, {', '.join(usual[:4])} was found")
    return found


LINE = re.compile(r"""^(?:\? )?(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|(.*\S|))\s*$""")
INTEGER = re.compile(r"\s*\d{1,9}\s*")
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}


def read_pieces(file: Path) -> dict[str, int]:
    """A vocabulary in YAML, read line by line: a general parser takes `y`, `no` and `~` for other things than text."""
    pieces: dict[str, int] = {}
    waiting: str | None = None
    for count, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip() or line.startswith(("#", "---")):
            continue
        if waiting is None and line.startswith("? "):
            waiting = line
            continue
        key, colon, value = (waiting, ":", line.lstrip()[1:]) if waiting is not None else line.rpartition(":")
        waiting = None
        match = LINE.match(key)
        if not colon or match is None or not INTEGER.fullmatch(value):
            raise RunError(f"{file}, line {count}: not a piece and its id: {line[:60]!r}")
        double, single, plain = match.groups()
        text = _unescaped(double) if double is not None else single.replace("''", "'") if single is not None else plain
        pieces[text] = int(value)
    if missing := {"</s>", "<unk>"} - pieces.keys():
        raise RunError(f"{file}: the vocabulary has no {' and no '.join(sorted(missing))}")
    if sorted(pieces.values()) != list(range(len(pieces))):
        raise RunError(f"{file}: the ids of a vocabulary must be 0, 1, 2, …, each once")
    return pieces


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if code[0] in "xuU" and len(code) > 1 else ESCAPED.get(code, code)

    return ESCAPE.sub(plain, text)


def _rows(tokenizer: SentencePieceTokenizer) -> Rows:
    """The rows of a table whose ids are those of a SentencePiece model."""
    inner = tokenizer.processor
    ends = [inner.eos_id(), inner.unk_id()]
    if min(ends) < 0:
        raise RunError("the SentencePiece model has no </s> or no <unk>")
    return Rows([None, None, *ends, *tokenizer.numbers], frozenset({PAD, BOS}))


def export(run: TrainedRun, out: Path) -> list[str]:
    """Writes model.npz, its vocabularies and decoder.yml, and returns what to say about them."""
    arrays, vocabularies = _written(run, "Marian")
    arrays["Wpos"] = _positions(architecture(run.config, "Marian")).numpy()
    np.savez(out / "model.npz", **arrays)  # type: ignore[arg-type]
    shared = vocabularies[0] == vocabularies[1]
    names = ["vocab.spm"] * 2 if shared else ["vocab.source.spm", "vocab.target.spm"]
    for name, content in zip(names, vocabularies, strict=True):
        (out / name).write_bytes(content)
    search = run.config.decode.search
    penalty = search.get("length_penalty", 1.0)
    decoder = f"relative-paths: true\nmodels: [model.npz]\nvocabs: [{', '.join(names)}]\nbeam-size: {search.get('width', 1)}\n"
    (out / "decoder.yml").write_text(f"{decoder}normalize: {penalty}\nword-penalty: 0\n", "utf-8")
    return [f"marian-decoder -c {out / 'decoder.yml'}"]


def export_bergamot(run: TrainedRun, out: Path) -> list[str]:
    """Writes model.bin and its vocabulary for the engine of Bergamot, and returns what to say about them."""
    arrays, vocabularies = _written(run, "Bergamot", multiple=8)
    (out / "model.bin").write_bytes(_binary(arrays))
    shared = vocabularies[0] == vocabularies[1]
    for name, content in zip(["vocab.spm"] if shared else ["srcvocab.spm", "trgvocab.spm"], vocabularies):
        (out / name).write_bytes(content)
    return [f"Bergamot reads {out / 'model.bin'} with gemm-precision: float32 or int8shiftAll; it needs no shortlist"]


def _binary(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Marian's binary format: a version, a header per array, names, shapes, and the arrays at multiples of 256 bytes."""
    names = [name.encode() + b"\0" for name in arrays]
    parts = [array.tobytes() for array in arrays.values()]
    parts = [part + bytes(-len(part) % 256) for part in parts]
    head = struct.pack("<QQ", 1, len(arrays))
    for name, array, part in zip(names, arrays.values(), parts, strict=True):
        kind = 0x101 if array.dtype == np.int8 else 0x404  # float32
        head += struct.pack("<4Q", len(name), kind, array.ndim, len(part))
    head += b"".join(names) + b"".join(struct.pack(f"<{array.ndim}i", *array.shape) for array in arrays.values())
    gap = -(len(head) + 8) % 256
    return head + struct.pack("<Q", gap) + bytes(gap) + b"".join(parts)


def _written(run: TrainedRun, program: str, multiple: int = 1) -> tuple[dict[str, NDArray[Any]], list[bytes]]:
    """The arrays of a model, and the SentencePiece models of both sides. Raises ConfigError for what Marian has not.

    multiple: vocabularies are filled up to multiples of it with tokens that are never written, for products of int8
    """
    shape = architecture(run.config, program)
    require_sinusoids(shape, program)
    if shape.norm == "pre":
        raise ConfigError(
            f"model.norm: pre: Marian itself writes other texts with such models than it was trained to; {PORTABLE}"
        )
    if shape.position != POSITION:
        raise ConfigError(f"model.position: {shape.position}: Marian's sinusoids have other frequencies; {PORTABLE}")
    if not shape.zero_bos:
        raise ConfigError(f"model.zero_bos: false: Marian starts a translation from zeros and has no BOS; {PORTABLE}")
    if shape.activation not in ACTIVATIONS.values():
        raise ConfigError(f"model.activation: {shape.activation}: Marian has {' and '.join(ACTIVATIONS.values())}")
    task: Any = run.task
    sides = [vocabulary(each, program) for each in (task.source, task.target)]
    if any(not isinstance(side.tokenizer, SentencePieceTokenizer) or side.tags for side in sides):
        raise ConfigError(f"data.tokenizer: Marian reads SentencePiece models without added tokens; {PORTABLE}")
    order = [_exported_rows(side.tokenizer) for side in sides]
    order = [[*each, *[PAD] * (-len(each) % multiple)] for each in order]
    weights = named_weights(run.model)
    tensors = name_table(shape.norm).write(weights, shape, sines_first(shape.dim)) | _written_tables(weights, shape, order)
    arrays: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays[SETTINGS] = np.frombuffer(_settings(run, shape, [len(each) for each in order]).encode() + b"\0", np.int8)
    return arrays, [side.model or b"" for side in sides]


def _exported_rows(tokenizer: Tokenizer) -> list[int]:
    """weft's id for each id of the SentencePiece model."""
    assert isinstance(tokenizer, SentencePieceTokenizer)
    rows = _rows(tokenizer).rows
    own = {row: number for number, row in enumerate(rows) if row is not None}
    if sorted(own) != list(range(len(own))):
        raise ConfigError("data.tokenizer: the SentencePiece model has more control pieces than </s> and <unk>")
    return [own[row] for row in range(len(own))]


def _written_tables(weights: Mapping[str, Tensor], shape: Architecture, rows: Sequence[list[int]]) -> dict[str, Tensor]:
    back = torch.argsort(sines_first(shape.dim))

    def table(name: str, side: int) -> Tensor:
        return weights[TABLES[name]][torch.tensor(rows[side])][:, back].contiguous()

    tensors = {"decoder_ff_logit_out_b": weights[BIAS][torch.tensor(rows[1])][None]}
    if shape.share == "all":
        return tensors | {"Wemb": table("source", 0)}
    tensors |= {"encoder_Wemb": table("source", 0), "decoder_Wemb": table("target", 1)}
    return tensors | ({"decoder_ff_logit_out_W": table("output", 1).t().contiguous()} if shape.share == "none" else {})


def _settings(run: TrainedRun, shape: Architecture, sizes: Sequence[int]) -> str:
    """The settings that Marian and the converters of others read."""
    before, after, top = TASKS[shape.norm]
    activation = next(name for name, own in ACTIVATIONS.items() if own == shape.activation)
    shared = shape.share == "all"
    values: dict[str, Any] = {
        "version": "v1.12.0 exported by weft",
        "type": "transformer",
        "dim-vocabs": list(sizes),
        "dim-emb": shape.dim,
        "enc-depth": shape.encoder_layers,
        "dec-depth": shape.decoder_layers,
        "transformer-heads": shape.heads,
        "transformer-dim-ffn": shape.feedforward,
        "transformer-ffn-depth": 2,
        "transformer-decoder-dim-ffn": 0,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": activation,
        "transformer-preprocess": before,
        "transformer-postprocess": after,
        "transformer-postprocess-top": top,
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "transformer-train-position-embeddings": False,
        "transformer-train-positions": False,
        "transformer-guided-alignment-layer": "last",
        "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish",
        "transformer-aan-nogate": False,
        "transformer-dim-aan": 2048,
        "transformer-tied-layers": [],
        "tied-embeddings-all": shared,
        "tied-embeddings-src": False,
        "tied-embeddings": shape.share == "output",
        "input-types": [],
        "skip": False,
        "layer-normalization": False,
        "right-left": False,
        "max-length": run.config.decode.max_source,
        "enc-cell": "gru",
        "dec-cell": "gru",
        "enc-type": "bidirectional",
        "lemma-dim-emb": 0,
        "factors-combine": "sum",
        "ulr": False,
    }
    return "".join(f"{key}: {_scalar(value)}\n" for key, value in values.items())


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if value == "" else str(value)
