"""torch without the parts that using a model does not need: whoever asks for them gets them, as if they had been there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft.torch_startup import KNOWN, defer_compiler, defer_parts

known = pytest.mark.skipif(
    KNOWN not in Path(torch.__file__).with_name("version.py").read_text(), reason="this version of torch starts as a whole"
)

START = """if True:
    import json, os, sys, types
    from weft.torch_startup import DEFERRED, defer_parts
    defer_parts()
    import torch

    def waiting():
        return [name for name in DEFERRED if type(sys.modules[name]) is not types.ModuleType]

    first, cases = waiting(), json.load(sys.stdin)
    for name, code in cases.items():
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        found = {}
        try:
            exec(code, found)
            answer = found["found"]
        except BaseException as error:
            answer = repr(error)
        print(json.dumps([name, answer, first, waiting()]), flush=True)
        os._exit(0)
"""
"""Answers each of several questions in a process of its own, which begins after `import torch`."""

ALL, NONE = ["torch.export", "torch._meta_registrations"], list[str]()

TRAINING = (
    "import sys, weft.torch_startup as s; sys.meta_path.insert(0, s._Finder((s.COMPILER,)))\n"
    "optimizer = torch.optim.AdamW([weight := torch.nn.Parameter(torch.ones(2))], fused=True)\n"
    "weight.sum().backward(); optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
    "assert weight.tolist() != [1, 1] and weight.grad is None\n"
    "assert type(sys.modules[s.COMPILER]) is s._Deferred"
)

CASES = {
    "generators": ("found = torch.Generator().manual_seed(3).initial_seed()", 3, ALL),
    "a submodule": ("from torch.export.dynamic_shapes import Dim; found = torch.export.Dim is Dim", True, NONE),
    "a compiler's module": (
        "import torch._refs; found = type(torch._refs.__loader__).__name__",
        "SourceFileLoader",
        NONE,
    ),
    "fake tensors": (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode(): found = list(torch.nn.functional.layer_norm(torch.ones(3, 4), (4,)).shape)",
        [3, 4],
        NONE,
    ),
    "a pattern counted without data": (
        "from weft.attention import bigbird; from weft.attention.core import sparsity_patterns as patterns\n"
        "found = patterns._pairs(bigbird.Random(True), True, 8) > 0",
        True,
        NONE,
    ),
    "a package of others": (
        "from weft.config.registry import load; found = load({'a': 'json:dumps'}, 'a').__name__",
        "dumps",
        NONE,
    ),
    "the modules of a training": (
        "import sys, weft.training.train_run; found = 'torch.distributed.fsdp' in sys.modules",
        False,
        ALL,
    ),
    "the model of a training before it has data": (
        "import sys, tempfile, pathlib, weft.training.prepare_run as p; from weft.config.sections import load_config\n"
        "over = {'data.tokenizer': 'bytes', 'data.train': ['generated:reverse?count=9']}\n"
        "config = load_config('transformer-tiny', over=over)\n"
        "with tempfile.TemporaryDirectory() as out: p.prepare_run(config, pathlib.Path(out), torch.device('cpu'))\n"
        "found = [name for name in ('sympy', 'torch._dynamo') if name in sys.modules]",
        [],
        NONE,
    ),
    "the compiler, by optimisers": (
        f"{TRAINING}; found = sorted(name for name in sys.modules if name.startswith('torch._dynamo'))",
        ["torch._dynamo"],
        NONE,
    ),
    "the compiler, to compile": (
        f"{TRAINING}; from torch._dynamo.utils import counters; assert torch._dynamo.utils.counters is counters\n"
        "found = torch.compile(lambda x: x + 1, backend='eager')(torch.zeros(1)).tolist(); optimizer.zero_grad()",
        [1.0],
        NONE,
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: found = len(set(pool.map(lambda _: torch.export.Dim, range(4))))",
        1,
        NONE,
    ),
}
"""Code, what it finds, and what still waits afterwards."""


@known
def test_who_asks_for_a_part_of_torch_gets_it() -> None:
    codes = {name: f"import torch\n{code}" for name, (code, _, _) in CASES.items()}
    asked = subprocess.run([sys.executable, "-c", START], input=json.dumps(codes), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in asked.stdout.splitlines()]
    assert answers == [[name, found, ALL, waits] for name, (_, found, waits) in CASES.items()], asked.stderr


def test_a_program_that_has_imported_torch_has_all_of_it() -> None:
    """So have those that use weft's functions: only commands leave parts out."""
    before = list(sys.meta_path)
    defer_parts()
    defer_compiler()
    assert sys.meta_path == before


def test_the_version_that_weft_is_developed_with_is_known() -> None:
    constraints = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    (pinned,) = (line.partition("==")[2] for line in constraints if line.startswith("torch=="))
    assert f"__version__ = '{pinned}'".startswith(KNOWN)
