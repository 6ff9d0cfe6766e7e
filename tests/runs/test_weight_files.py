"""Weight files: those that weft writes, which others read, and those of others."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from weft.errors import RunError
from weft.runs.weight_files import DTYPES, read_metadata, write_tensors, zero_initialized


def test_metadata_of_another_program_is_an_error_that_says_so(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors", {"weft": "0.1.0"})
    with pytest.raises(RunError, match="metadata"):
        read_metadata(tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "plain.safetensors")
    assert read_metadata(tmp_path / "plain.safetensors") == {}


def test_files_of_weft_are_safetensors_of_every_type(tmp_path):
    torch.manual_seed(0)
    given = {f"{number}.ü": (10 * torch.rand(number % 3 + 1, 3)).to(dtype) for number, dtype in enumerate(DTYPES)}
    given |= {"none": torch.zeros(0, 4), "step": torch.tensor(7.0), "turned": torch.rand(3, 5).T, "tie": given["0.ü"]}
    write_tensors(tmp_path / "weft.safetensors", given, {"by": "train"})
    del given["tie"]
    found = load_file(tmp_path / "weft.safetensors")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in given.items())
    assert read_metadata(tmp_path / "weft.safetensors") == {"by": "train"}
    write_tensors(tmp_path / "again.safetensors", dict(reversed(given.items())), {"by": "train"})
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "weft.safetensors").read_bytes()


def test_no_random_weights_for_a_model_that_loads_a_file():
    before = torch.random.get_rng_state()
    with zero_initialized():
        parts = nn.Linear(4, 4), nn.Embedding(5, 4), nn.GRU(4, 4)
        nn.init.orthogonal_(parts[0].weight)
        ones = nn.LayerNorm(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(not parameter.any() and parameter.requires_grad for part in parts for parameter in part.parameters())
    assert ones.weight.all(), "what is not drawn is as ever"
    assert nn.Linear(4, 4).weight.any()


SLOW = [
    "html",
    "matplotlib",
    "rich.console",
    "sacrebleu",
    "torch._decomp",
    "torch._dynamo",
    "torch._export",
    "torch._inductor",
    "torch.distributed.tensor",
    "weft.cli.train",
    "weft.explain.html_page",
    "weft.runs.translation_confidence",
    "weft.tasks.translation.documents",
    "weft.tasks.translation.explanation",
    "weft_studies",
]
"""Modules that take time to import and that translating a line does not need."""


def test_translating_imports_only_what_it_needs(reverse_run):
    asked = f"""if True:
        import os, sys
        from weft.cli import main
        sys.argv = ["weft", "translate", {str(reverse_run)!r}, "a b"]
        os._exit = lambda status: None  # the program would end here
        try:
            main()
        except SystemExit as end:
            print(end.code, [name for name in {SLOW} if name in sys.modules], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 []"
