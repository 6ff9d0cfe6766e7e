"""ONNX folders, laid out for onnxruntime and for transformers.js: an encoder, a decoder with a cache, and a tokenizer.

The graphs are written operation by operation. Every length is free by construction: batches, sources, new tokens, and the
cache, which may be empty. Keys and values of the source are computed when `use_cache_branch` is false, and taken from the
cache otherwise.

Shapes: B rows · T new tokens · P cached tokens · S source tokens · H heads · D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import ConfigError
from weft.interop.bart_layout import exported_generation, exported_ids, exported_settings, write_json
from weft.interop.tokenizer_files import table, tokenizer_json, vocabulary
from weft.interop.transformer_weights import BIAS, LONGEST, PARTS, TABLES, Architecture, architecture
from weft.layers.embeddings_and_rotary_positions import rotation
from weft.runs.open_run import TrainedRun
from weft.runs.weight_files import named_weights
from weft.version import VERSION, install

PROGRAM = "ONNX"
MOST = 2_000_000_000
"""Bytes that one ONNX file may have."""

OPSET, IR = 18, 9
HIDDEN = float(np.finfo(np.float32).min)
"""The score of a masked key."""

KEYS_VALUES = ("key", "value")


class GraphBuilder:
    """Nodes of an ONNX graph. Methods append an operation and return the name of its result. helper: the module onnx.helper."""

    def __init__(self, helper: Any, numbering: list[int] | None = None) -> None:
        self.helper = helper
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._count = [0] if numbering is None else numbering

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The name of its result, or a list of names."""
        names = [self.fresh(kind.lower()) for _ in range(outputs)]
        self.nodes.append(self.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def rename(self, name: str, to: str) -> None:
        self.nodes.append(self.helper.make_node("Identity", [name], [to]))

    def constant(self, value: Any, dtype: Any = np.int64, name: str | None = None) -> str:
        array = np.ascontiguousarray(value.numpy() if isinstance(value, Tensor) else np.asarray(value, dtype))
        name = name or self.fresh("constant")
        self.constants[name] = array
        return name

    def fresh(self, stem: str) -> str:
        self._count[0] += 1
        return f"{stem}_{self._count[0]}"

    def branch(self) -> GraphBuilder:
        """A builder for a part of the graph, which shares names and constants."""
        inner = GraphBuilder(self.helper, self._count)
        inner.constants = self.constants
        return inner

    def size(self, x: str, axis: int) -> str:
        """[1]: the size of an axis."""
        return str(self.op("Gather", self.op("Shape", x), self.constant([axis]), axis=0))

    def scaled(self, x: str, factor: float) -> str:
        return str(self.op("Mul", x, self.constant(factor, np.float32)))


class TransformerGraph:
    """The graphs of one model. tables: source, target and output embeddings, in the ids of the folder."""

    def __init__(
        self,
        helper: Any,
        shape: Architecture,
        weights: Mapping[str, Tensor],
        tables: Mapping[str, Tensor],
        bias: Tensor,
    ) -> None:
        self.helper, self.shape, self.weights = helper, shape, weights
        self.tables, self.bias = tables, bias
        self.width = shape.dim // shape.heads

    def encoder(self) -> tuple[GraphBuilder, list[Any], list[Any]]:
        """(graph, inputs, outputs): input_ids [B, S], attention_mask [B, S] → last_hidden_state [B, S, D]."""
        graph = GraphBuilder(self.helper)
        zero, length = graph.constant([0]), graph.size("input_ids", 1)
        x = self._embed(graph, "encoder", "source", zero, length)
        hidden = self._hidden_keys(graph, "attention_mask")
        turn = self._turn(graph, zero, length)
        for layer in range(self.shape.encoder_layers):
            prefix = f"encoder.layers.{layer}"
            x = self._around(
                graph, prefix, "self_norm", x, lambda y, at=prefix: self._attend_self(graph, at, y, turn, hidden)[0]
            )
            x = self._around(graph, prefix, "network_norm", x, lambda y, at=prefix: self._feed(graph, at, y))
        graph.rename(self._top(graph, "encoder", x), "last_hidden_state")
        ids = [
            self._input("input_ids", "INT64", ["batch", "source"]),
            self._input("attention_mask", "INT64", ["batch", "source"]),
        ]
        return graph, ids, [self._input("last_hidden_state", "FLOAT", ["batch", "source", self.shape.dim])]

    def decoder(self) -> tuple[GraphBuilder, list[Any], list[Any]]:
        """(graph, inputs, outputs): the next tokens, the source and the cache → logits [B, T, V] and the longer cache."""
        graph, heads = GraphBuilder(self.helper), self.shape.heads
        cached, length = graph.size(_past(0, "decoder", "key"), 2), graph.size("input_ids", 1)
        end = graph.op("Add", cached, length)
        x = self._embed(graph, "decoder", "target", cached, end)
        turn = self._turn(graph, cached, end)
        own, source = self._future(graph, cached, end), self._hidden_keys(graph, "encoder_attention_mask")
        outputs = [self._input("logits", "FLOAT", ["batch", "target", len(self.tables["output"])])]
        for layer in range(self.shape.decoder_layers):
            prefix = f"decoder.layers.{layer}"

            def attend_self(y: str, at: str = prefix, layer: int = layer) -> str:
                past = [_past(layer, "decoder", each) for each in KEYS_VALUES]
                context, *grown = self._attend_self(graph, at, y, turn, own, past)
                for name, each in zip(grown, KEYS_VALUES, strict=True):
                    graph.rename(name, f"present.{layer}.decoder.{each}")
                return context

            x = self._around(graph, prefix, "self_norm", x, attend_self)
            x = self._around(
                graph, prefix, "cross_norm", x, lambda y, at=prefix, n=layer: self._attend_source(graph, at, n, y, source)
            )
            x = self._around(graph, prefix, "network_norm", x, lambda y, at=prefix: self._feed(graph, at, y))
        x = self._top(graph, "decoder", x)
        table = "table" if self.shape.share != "none" else graph.constant(self.tables["output"], name="output")
        logits = graph.op("MatMul", x, graph.op("Transpose", table, perm=[1, 0]))
        graph.rename(graph.op("Add", logits, graph.constant(self.bias)), "logits")
        inputs = [
            self._input("input_ids", "INT64", ["batch", "target"]),
            self._input("encoder_hidden_states", "FLOAT", ["batch", "source", self.shape.dim]),
            self._input("encoder_attention_mask", "INT64", ["batch", "source"]),
            self._input("use_cache_branch", "BOOL", [1]),
        ]
        for layer in range(self.shape.decoder_layers):
            for side, size in (("decoder", "cached"), ("encoder", "cached_source")):
                for each in KEYS_VALUES:
                    inputs.append(self._input(_past(layer, side, each), "FLOAT", ["batch", heads, size, self.width]))
                    new = "total" if side == "decoder" else "source"
                    outputs.append(self._input(f"present.{layer}.{side}.{each}", "FLOAT", ["batch", heads, new, self.width]))
        return graph, inputs, outputs

    def _input(self, name: str, kind: str, size: Sequence[int | str]) -> Any:
        from onnx import TensorProto

        return self.helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(size))

    def _embed(self, graph: GraphBuilder, side: str, table: str, begin: str, end: str) -> str:
        """Embeddings [B, T, D] of input_ids, with those of their positions."""
        rows = graph.constant(self.tables[table], name="table")
        x = graph.scaled(graph.op("Gather", rows, "input_ids", axis=0), math.sqrt(self.shape.dim))
        places = self.shape.positions(side, self.weights)
        if places is None:
            return x
        return str(graph.op("Add", x, graph.op("Slice", graph.constant(places), begin, end, graph.constant([0]))))

    def _turn(self, graph: GraphBuilder, begin: str, end: str) -> tuple[str, str] | None:
        """Cosines and sines [T, width] of rotary positions."""
        if self.shape.rotary is None:
            return None
        both = rotation(torch.arange(LONGEST)[None], self.width, self.shape.rotary, torch.float32)
        cos, sin = (graph.op("Slice", graph.constant(each[0, 0]), begin, end, graph.constant([0])) for each in both)
        return cos, sin

    def _rotate(self, graph: GraphBuilder, x: str, turn: tuple[str, str] | None) -> str:
        """x [B, H, T, width] with each pair of channels rotated."""
        if turn is None:
            return x
        pairs = graph.op("Reshape", x, graph.constant([0, 0, 0, -1, 2]))
        even, odd = graph.op("Split", pairs, outputs=2, axis=4, num_outputs=2)
        quarter = graph.op("Concat", graph.op("Neg", odd), even, axis=4)
        quarter = graph.op("Reshape", quarter, graph.constant([0, 0, 0, self.width]))
        return str(graph.op("Add", graph.op("Mul", x, turn[0]), graph.op("Mul", quarter, turn[1])))

    def _hidden_keys(self, graph: GraphBuilder, mask: str) -> str:
        """[B, 1, 1, S]: what is added to the scores of keys, from a mask with 1 for tokens."""
        wide = graph.op("Unsqueeze", mask, graph.constant([1, 2]))
        padding = graph.op("Equal", wide, graph.constant([0]))
        return str(graph.op("Where", padding, graph.constant(HIDDEN, np.float32), graph.constant(0.0, np.float32)))

    def _future(self, graph: GraphBuilder, begin: str, end: str) -> str:
        """[T, P + T]: hides tokens that come later."""
        one = graph.constant(1)
        first, last = (graph.op("Squeeze", each, graph.constant([0])) for each in (begin, end))
        rows = graph.op("Unsqueeze", graph.op("Range", first, last, one), graph.constant([1]))
        later = graph.op("Greater", graph.op("Range", graph.constant(0), last, one), rows)
        return str(graph.op("Where", later, graph.constant(HIDDEN, np.float32), graph.constant(0.0, np.float32)))

    def _linear(self, graph: GraphBuilder, name: str, x: str) -> str:
        product = graph.op("MatMul", x, graph.constant(self.weights[f"{name}.weight"].t()))
        bias = self.weights.get(f"{name}.bias")
        return str(product if bias is None else graph.op("Add", product, graph.constant(bias)))

    def _norm(self, graph: GraphBuilder, name: str, x: str) -> str:
        gain, shift = (graph.constant(self.weights[f"{name}.{end}"]) for end in ("weight", "bias"))
        return str(graph.op("LayerNormalization", x, gain, shift, axis=-1, epsilon=1e-5))

    def _top(self, graph: GraphBuilder, side: str, x: str) -> str:
        return self._norm(graph, f"{side}.norm", x) if self.shape.norm == "pre" else x

    def _around(self, graph: GraphBuilder, prefix: str, role: str, x: str, run: Any) -> str:
        """A sub-layer with its residual connection and norm."""
        norm = f"{prefix}.{PARTS[role].name}"
        if self.shape.norm == "pre":
            return str(graph.op("Add", x, run(self._norm(graph, norm, x))))
        return self._norm(graph, norm, graph.op("Add", x, run(x)))

    def _heads(self, graph: GraphBuilder, x: str) -> str:
        """[B, T, D] → [B, H, T, width]"""
        parted = graph.op("Reshape", x, graph.constant([0, 0, self.shape.heads, self.width]))
        return str(graph.op("Transpose", parted, perm=[0, 2, 1, 3]))

    def _context(self, graph: GraphBuilder, q: str, k: str, v: str, hidden: str) -> str:
        """Attention of q [B, H, T, width] to the keys that are not hidden → [B, T, D]."""
        scores = graph.op("MatMul", graph.scaled(q, self.width**-0.5), graph.op("Transpose", k, perm=[0, 1, 3, 2]))
        shares = graph.op("Softmax", graph.op("Add", scores, hidden), axis=-1)
        context = graph.op("Transpose", graph.op("MatMul", shares, v), perm=[0, 2, 1, 3])
        return str(graph.op("Reshape", context, graph.constant([0, 0, self.shape.dim])))

    def _attend_self(
        self, graph: GraphBuilder, prefix: str, x: str, turn: tuple[str, str] | None, hidden: str, past: Sequence[str] = ()
    ) -> list[str]:
        """The context, and the keys and values with those of the cache before them."""
        joint = self._linear(graph, f"{prefix}.{PARTS['self'].name}", x)
        q, k, v = (self._heads(graph, part) for part in graph.op("Split", joint, outputs=3, axis=2, num_outputs=3))
        q, k = self._rotate(graph, q, turn), self._rotate(graph, k, turn)
        if past:
            k, v = (graph.op("Concat", before, now, axis=2) for before, now in zip(past, (k, v), strict=True))
        context = self._context(graph, q, k, v, hidden)
        return [self._linear(graph, f"{prefix}.{PARTS['self_out'].name}", context), k, v]

    def _attend_source(self, graph: GraphBuilder, prefix: str, layer: int, x: str, hidden: str) -> str:
        k, v = self._source_keys(graph, prefix, layer)
        for name, each in ((k, "key"), (v, "value")):
            graph.rename(name, f"present.{layer}.encoder.{each}")
        q = self._heads(graph, self._linear(graph, f"{prefix}.{PARTS['cross'].name}", x))
        return self._linear(graph, f"{prefix}.{PARTS['cross_out'].name}", self._context(graph, q, k, v, hidden))

    def _source_keys(self, graph: GraphBuilder, prefix: str, layer: int) -> list[str]:
        """Keys and values of the source: those of the cache, or new ones."""
        taken, made = graph.branch(), graph.branch()
        old = [taken.op("Identity", _past(layer, "encoder", each)) for each in KEYS_VALUES]
        joint = self._linear(made, f"{prefix}.{PARTS['memory'].name}", "encoder_hidden_states")
        new = [self._heads(made, part) for part in made.op("Split", joint, outputs=2, axis=2, num_outputs=2)]
        size = ["batch", self.shape.heads, None, self.width]
        branches = [
            self.helper.make_graph(each.nodes, label, [], [self._input(name, "FLOAT", size) for name in names])  # type: ignore[arg-type]
            for each, names, label in ((taken, old, "cached"), (made, new, "computed"))
        ]
        both: list[str] = graph.op("If", "use_cache_branch", outputs=2, then_branch=branches[0], else_branch=branches[1])
        return both

    def _feed(self, graph: GraphBuilder, prefix: str, x: str) -> str:
        hidden = self._linear(graph, f"{prefix}.{PARTS['up'].name}", x)
        kind = self.shape.activation
        if kind == "relu":
            hidden = graph.op("Relu", hidden)
        elif kind == "silu":
            hidden = graph.op("Mul", hidden, graph.op("Sigmoid", hidden))
        elif kind == "gelu":
            share = graph.op("Add", graph.op("Erf", graph.scaled(hidden, math.sqrt(0.5))), graph.constant(1.0, np.float32))
            hidden = graph.op("Mul", hidden, graph.scaled(share, 0.5))
        else:
            gate, value = graph.op("Split", hidden, outputs=2, axis=2, num_outputs=2)
            hidden = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), value)
        return self._linear(graph, f"{prefix}.{PARTS['down'].name}", hidden)


def _past(layer: int, side: str, each: str) -> str:
    """The name of a cached tensor."""
    return f"past_key_values.{layer}.{side}.{each}"


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
    graphs = TransformerGraph(onnx.helper, shape, weights, tables, bias)
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
