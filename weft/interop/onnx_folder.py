"""ONNX folders, laid out for onnxruntime and for transformers.js: an encoder, a decoder with a cache, and a tokenizer."""

from pathlib import Path
from typing import Any

import torch

from weft.errors import ConfigError
from weft.interop.bart_layout import LONGEST, exported_generation, exported_ids, exported_settings, write_json
from weft.interop.onnx_graph import IR, OPSET, GraphBuilder, TransformerGraph
from weft.interop.tokenizer_files import vocabulary
from weft.interop.tokenizer_json import table, tokenizer_json
from weft.interop.transformer_weights import BIAS, TABLES, architecture
from weft.runs.open_run import TrainedRun
from weft.runs.weight_files import named_weights
from weft.version import VERSION, install

PROGRAM = "ONNX"
MOST = 2_000_000_000
"""Bytes that one ONNX file may have."""


def export(run: TrainedRun, out: Path) -> list[str]:
    """Writes the folder, and returns what to say about it."""
    onnx = _package()
    shape = architecture(run.config, PROGRAM)
    task: Any = run.task
    sides = [vocabulary(each, PROGRAM) for each in (task.source, task.target)]
    ids = [exported_ids(shape, len(side.pieces)) for side in sides]
    weights = named_weights(run.model)
    if sum(weight.numel() * 4 for weight in weights.values()) > MOST:
        raise ConfigError(f"{run.folder}: the model has more than {MOST:,} bytes, which one ONNX file cannot hold")
    rows = [torch.tensor(each) for each in ids]
    tables = {"source": weights[TABLES["source"]][rows[0]]}
    tables["target"] = tables["source"] if shape.share == "all" else weights[TABLES["target"]][rows[1]]
    tables["output"] = weights[TABLES["output"]][rows[1]] if shape.share == "none" else tables["target"]
    bias = weights[BIAS][rows[1]] if shape.output_bias else torch.zeros(len(ids[1]))
    graphs = TransformerGraph(onnx.helper, shape, weights, tables, bias, LONGEST)
    (out / "onnx").mkdir()
    for name, parts in (("encoder_model", graphs.encoder()), ("decoder_model_merged", graphs.decoder())):
        _write(onnx, out / "onnx" / f"{name}.onnx", name, *parts)
    write_json(out / "config.json", exported_settings(run, shape, "marian", ids))
    write_json(out / "generation_config.json", exported_generation(run, ids[1]))
    return [f"onnxruntime and transformers.js read {out}", *_write_tokenizer(run, out, sides, ids)]


def _package() -> Any:
    try:
        import onnx
    except ImportError:
        raise ConfigError(f"the package `onnx` is missing: {install('interop')}") from None
    return onnx


def _write(onnx: Any, file: Path, name: str, graph: GraphBuilder, inputs: list[Any], outputs: list[Any]) -> None:
    constants = [onnx.numpy_helper.from_array(value, each) for each, value in graph.constants.items()]
    made = onnx.helper.make_graph(graph.nodes, name, inputs, outputs, constants)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(made, opset_imports=opset, producer_name="weft", producer_version=VERSION, ir_version=IR)
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString(deterministic=True))


def _write_tokenizer(run: TrainedRun, out: Path, sides: Any, ids: Any) -> list[str]:
    """tokenizer.json, which is all that transformers.js reads; SentencePiece models where one file cannot hold both sides."""
    settings = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 512}
    same = sides[0].pieces == sides[1].pieces and sides[0].model == sides[1].model
    if same and not hasattr(sides[0].tokenizer, "codes"):
        (out / "tokenizer.json").write_text(tokenizer_json(sides[0], ids[0]), "utf-8")
        write_json(out / "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
        return []
    for name, side, numbers in zip(("source", "target"), sides, ids, strict=True):
        write_json(out / f"vocab.{name}.json", table(side, numbers))
        if side.model is not None:
            (out / f"{name}.spm").write_bytes(side.model)
        else:
            (out / f"tokenizer.{name}.json").write_text(tokenizer_json(side, numbers), "utf-8")
    return ["the run has a tokenizer for each side, which transformers.js cannot read; onnxruntime needs none"]
