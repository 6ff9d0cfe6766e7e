"""Adapters of a run (model.lora) in the layout of peft, for the base model that `weft export --to transformers` writes.

peft has a pair of matrices for each layer of the base. weft has one layer for queries, keys and values: their A is written
three times, and their B is cut into three.
"""

from pathlib import Path

import torch
from torch import Tensor

from weft.errors import ConfigError
from weft.interop.bart_layout import TABLE, write_json
from weft.interop.transformer_weights import Architecture, architecture, require_sinusoids, sines_first
from weft.runs.open_run import TrainedRun
from weft.runs.run_folder import MODEL
from weft.runs.weight_files import read_tensors, write_tensors

PREFIX = "base_model.model."


def export(run: TrainedRun, out: Path) -> list[str]:
    """Writes adapter_config.json and adapter_model.safetensors, and returns what to say about them."""
    shape = architecture(run.config, "peft")
    require_sinusoids(shape, "peft")
    lora = run.config.model["lora"]
    if lora is None:
        raise ConfigError(f"model.lora: {run.folder} has no adapters; train some with --from RUN --set model.lora.rank=8")
    if lora["embedding_rank"]:
        raise ConfigError(
            "model.lora.embedding_rank: the adapters of tied embeddings have no place in peft; train with embedding_rank=0"
        )
    tensors, targets = adapter_tensors(read_tensors(run.folder / MODEL), shape)
    write_tensors(out / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": None,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "inference_mode": True,
    }
    write_json(out / "adapter_config.json", settings)
    base = run.config.start.run
    return [f"the base model is that of {base}: weft export {base} --to transformers --out BASE"]


def adapter_tensors(weights: dict[str, Tensor], shape: Architecture) -> tuple[dict[str, Tensor], list[str]]:
    """The adapters by peft's names, and the layers that have one."""
    order = torch.argsort(sines_first(shape.dim))
    tensors: dict[str, Tensor] = {}
    targets: list[str] = []
    used: set[str] = set()
    for name, part, theirs in TABLE.entries(shape):
        a, b = weights.get(f"{name}.lora_a"), weights.get(f"{name}.lora_b")
        if a is None or b is None:
            continue
        used |= {f"{name}.lora_a", f"{name}.lora_b"}
        a = a[:, order] if part.reads else a
        for (layer, _), rows in zip(theirs, b.chunk(part.matrices), strict=True):
            target = layer.removesuffix(".weight")
            targets.append(target)
            tensors[f"{PREFIX}{target}.lora_A.weight"] = a.clone().contiguous()
            tensors[f"{PREFIX}{target}.lora_B.weight"] = (rows[order] if part.writes else rows).clone().contiguous()
    rest = sorted(set(weights) - used)
    if rest:
        raise ConfigError(f"{rest[0]}: the run has trained more than adapters, which peft's layout cannot hold")
    return tensors, targets
