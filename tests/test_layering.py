"""Imports go one way. Walks the source with ast, so that imports inside functions count too.

From the bottom: errors, version, file_access, garbage_collection, torch_startup and worker_processes; the registry;
migrations of older runs, which every reader of files asks; batches; layers (with kernels); the cross-entropy of output
layers; attention (with mixers); nn, which makes plain modules of them; models; the other losses and the searches of decoding,
which know token ids only; the predictors of decoding; explain; tasks; runs; interop; training; serve; watch; bench; cli.
Three packages know almost nothing, and only predictors and what stands above them may import them: data (whose batches are
open to all), evaluation and config (whose registry is open to all). The contract suite, weft_contract, may import anything;
only weft.contract, which runs it, may import it. The studies, weft_studies, stand above weft like a package of others:
nothing in weft imports them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "weft"

LADDER = (
    {"errors", "version", "file_access", "garbage_collection", "torch_startup", "worker_processes"},
    {"config.registry"},
    {"runs.migrations"},
    {"data.batch"},
    {"layers"},
    {"losses.cross_entropy"},
    {"attention"},
    {"nn"},
    {"models"},
    {"losses", "decoding"},
    {"decoding.predictor"},
    {"inference"},
    {"explain"},
    {"tasks"},
    {"runs"},
    {"interop"},
    {"training"},
    {"serve"},
    {"watch"},
    {"bench"},
    {"cli"},
    {"__main__"},
    {"contract"},
)
BESIDE = {
    "data": {"errors", "file_access", "version", "worker_processes", "config.registry", "data.batch"},
    "evaluation": {"errors", "file_access", "config.registry"},
    "config": {"errors", "file_access", "version", "torch_startup", "config.registry", "runs.migrations"},
}
OPEN = {
    "config": ("config.registry", {"registry", "plugins"}),
    "data": ("data.batch", {"batch"}),
    "losses": ("losses.cross_entropy", {"cross_entropy"}),
    "decoding": (
        "decoding.predictor",
        {
            "decoding_options",
            "score_given_targets",
            "predictor",
            "reranking",
            "shallow_fusion",
            "shortlist",
        },
    ),
    "runs": ("runs.migrations", {"migrations"}),
}
"""Modules that have a place of their own in the order, above or below the rest of their package."""
SUITE, STUDIES = "weft_contract", "weft_studies"
RANK = {name: rank for rank, group in enumerate(LADDER) for name in group}
INTERFACES = {"base", "nonautoregressive", "ensembles_and_wrapped_decoders"}
"""Modules of models that decoding and losses may know."""
SHARED = {"transformer_blocks", "encoder_decoder", "frontends", "language_model", "pooling"}
"""Modules that model families share."""
MOST = 14
"""Other modules of weft that one may import."""
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def imports(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, full name of the module) for everything of the package, the contract suite and the studies that `file` imports."""
    known = (PACKAGE.name, SUITE, STUDIES)
    here = [package.name, *file.relative_to(package).with_suffix("").parts]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in known)
        elif isinstance(node, ast.ImportFrom):
            parts = here[: -node.level] if node.level else []
            base = ".".join([*parts, *(node.module.split(".") if node.module else [])])
            if base.split(".")[0] in known:
                yield from ((node.lineno, _module(package, base, alias.name)) for alias in node.names)


def _module(package: Path, base: str, name: str) -> str:
    """`from weft import config` imports weft.config; `from weft.config.sections import Config` imports weft.config too."""
    path = package.parent.joinpath(*base.split("."), name)
    return f"{base}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else base


def room(parts: tuple[str, ...]) -> str:
    """The part of the order that a module belongs to: its top-level package; registry and batches have places of their own."""
    place, modules = OPEN.get(parts[0], ("", set()))
    return place if len(parts) > 1 and parts[1] in modules else parts[0]


def may_import(importer: str, imported: str) -> bool:
    """Whether one top-level module or package of weft may import another."""
    if importer == imported:
        return True
    if importer in BESIDE:
        return imported in BESIDE[importer]
    if imported in BESIDE:
        return RANK[importer] >= RANK["decoding.predictor"]
    return RANK[imported] <= RANK[importer]


def problem(importer: tuple[str, ...], imported: tuple[str, ...]) -> str | None:
    """What is wrong with one import, given both modules as parts below the package; None if nothing is."""
    if not imported:
        if importer[0] == "cli":
            return None
        return "imports the package itself; import from the module that defines the name"
    if imported[0] == "cli" and importer[0] not in ("cli", "__main__"):
        return "imports the command line"
    if importer == ("__init__",):
        return None
    if not may_import(room(importer), room(imported)):
        return f"{room(importer)} must not know {room(imported)}"
    if imported[0] == "models" and len(imported) > 1 and imported[1] not in INTERFACES:
        if importer[0] == "models" and importer != imported and imported[1] not in SHARED and importer[1:2] != imported[1:2]:
            return "a model family imports another"
        if room(importer) in ("decoding", "losses"):
            return f"{importer[0]} must know no model family, only {', '.join('models.' + each for each in sorted(INTERFACES))}"
    return None


def fan_out(file: Path, package: Path) -> set[str]:
    """The other modules that a file imports."""
    known = {name for _, name in imports(file, package)}
    return {name for name in known if not any(other.startswith(f"{name}.") for other in known)}


def breaches(package: Path) -> list[str]:
    """Everything that is against the order, each with file and line."""
    found = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        place = file.relative_to(package.parent)
        if VAGUE & set(parts):
            found.append(f"{place}: a name that says nothing")
        top = room(parts)
        if top not in RANK and top not in BESIDE and parts != ("__init__",):
            found.append(f"{place}: {top} has no place in the order of tests/test_layering.py")
            continue
        for line, name in imports(file, package):
            imported = tuple(name.split(".")[1:])
            if name.split(".")[0] == STUDIES:
                found.append(f"{place}:{line}: imports {name}: weft finds the studies by their entry points only")
            elif name.split(".")[0] == SUITE:
                if parts[0] != "contract":
                    found.append(f"{place}:{line}: imports {name}: only weft.contract may run the contract suite")
            elif imported and room(imported) not in RANK and room(imported) not in BESIDE:
                found.append(f"{place}:{line}: imports {name}, which has no place in the order")
            elif text := problem(parts, imported):
                found.append(f"{place}:{line}: imports {name}: {text}")
    return found


def test_imports_go_one_way() -> None:
    assert not breaches(PACKAGE), "\n".join(breaches(PACKAGE))


def test_studies_know_neither_the_command_line_nor_the_contract_suite() -> None:
    studies = PACKAGE.parent / STUDIES
    named = {name for file in studies.rglob("*.py") for _, name in imports(file, studies)}
    assert named and not {name for name in named if name.startswith(("weft.cli", SUITE)) or name == "weft"}


GOOD = {
    "__init__.py": "from weft.runs.translator import load\n",
    "errors.py": "",
    "config/registry.py": "from weft.errors import WeftError\n",
    "data/batch.py": "import numpy\n",
    "config/sections.py": "from weft.config import registry\n",
    "data/__init__.py": "",
    "data/corpus_cache.py": "from weft.data.batch import Batch\nfrom weft.data import formats\n",
    "data/formats.py": "",
    "evaluation/metrics.py": "from weft.errors import WeftError\n",
    "models/__init__.py": "",
    "models/base.py": "from weft.data.batch import Batch\n",
    "models/rnn.py": "from weft.models.base import Model\nfrom weft.layers import norm\n",
    "layers/norm.py": "from weft.data.batch import Batch\n",
    "attention/full.py": "from weft.attention.mixers.base import Mixer\n",
    "attention/mixers/base.py": "from .. import full\n",
    "decoding/search_loop.py": "from weft.models.base import Model\n",
    "decoding/predictor.py": "from weft.decoding import search_loop\nfrom weft.config.sections import Config\n",
    "tasks/base.py": "from weft.decoding import predictor\nfrom weft.data import corpus\nfrom weft.evaluation import report\n",
    "training/training_loop.py": "from weft.tasks.base import Task\n",
    "runs/translator.py": "from weft.models.rnn import Rnn\n",
    "cli/__init__.py": "from weft.cli.train import train\nfrom weft.training.training_loop import run\n",
    "cli/train.py": "from weft import __version__\nfrom weft.runs.translator import load\n",
    "contract/test_parts.py": "from weft_contract.installed import installed_cases\n",
}


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "weft" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "weft"


def test_a_clean_tree_has_no_breach(tmp_path: Path) -> None:
    assert breaches(plant(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("models/rnn.py", "from weft.training.training_loop import run", "models must not know training"),
        (
            "models/rnn.py",
            "def f():\n    import weft.decoding.ngram_blocking_and_rules",
            "weft/models/rnn.py:2: imports weft.decoding.ngram",
        ),
        ("models/rnn.py", "from ..tasks import base", "models must not know tasks"),
        ("models/transformer.py", "from weft.models.rnn import Rnn", "a model family imports another"),
        ("models/transformer.py", "from .rnn import Rnn", "a model family imports another"),
        ("models/transformer.py", "from weft.models import rnn", "a model family imports another"),
        ("models/rnn.py", "from weft.config.sections import Config", "models must not know config"),
        ("models/rnn.py", "from weft.data import corpus as corpus_cache", "models must not know data"),
        ("decoding/search_loop.py", "from weft.models.rnn import Rnn", "decoding must know no model family"),
        ("decoding/search_loop.py", "from weft.models import rnn", "decoding must know no model family"),
        ("data/corpus_cache.py", "from weft.layers import linear_norm_dropout as norm", "data must not know layers"),
        ("data/corpus_cache.py", "from weft.config.sections import Config", "data must not know config"),
        ("evaluation/metrics.py", "from weft.tasks.base import Task", "evaluation must not know tasks"),
        ("explain/html_page.py", "from weft.tasks.base import Task", "explain must not know tasks"),
        ("decoding/predictor.py", "from weft.tasks.base import Task", "decoding.predictor must not know tasks"),
        ("config/sections.py", "from weft.models import base", "config must not know models"),
        ("layers/norm.py", "from weft import attention", "layers must not know attention"),
        ("training/training_loop.py", "from weft.cli.train import train", "imports the command line"),
        ("__init__.py", "from weft import cli", "imports the command line"),
        ("tasks/base.py", "import weft", "imports the package itself"),
        ("tasks/base.py", "from weft import load", "imports the package itself"),
        ("errors.py", "from weft.config.registry import fill", "errors must not know config.registry"),
        ("models/rnn.py", "from weft import config", "models must not know config"),
        ("runs/open_run.py", "from weft.training.training_loop import fit", "runs must not know training"),
        ("tasks/base.py", "from weft_contract import suite", "only weft.contract may run the contract suite"),
        ("tasks/base.py", "from weft import contract as test_parts", "tasks must not know contract"),
        ("cli/train.py", "from weft_studies import couplets", "by their entry points only"),
        ("layers/utils.py", "", "a name that says nothing"),
        ("helpers/norm.py", "", "a name that says nothing"),
        ("zoo.py", "", "zoo has no place in the order"),
        ("tasks/base.py", "from weft.zoo import lion", "which has no place in the order"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, text: str, message: str) -> None:
    found = breaches(plant(tmp_path, {**GOOD, file: text}))
    assert len([line for line in found if message in line]) == 1, found


def test_no_package_has_a_name_of_one_of_its_modules() -> None:
    """Importing the module would replace the name: which of the two a caller gets would depend on what was imported before."""
    for file in PACKAGE.rglob("__init__.py"):
        modules = {path.stem for path in file.parent.iterdir() if path.name != file.name}
        names = {name for node in ast.parse(file.read_text("utf-8")).body for name in _defined(node)}
        assert not names & modules, f"{file}: {names & modules}"


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("package", [PACKAGE, PACKAGE.parent / STUDIES], ids=lambda path: path.name)
def test_no_module_imports_many_others(package: Path) -> None:
    """A module that needs everything does too much; the worst once imported 28."""
    counts = {file.relative_to(package.parent): len(fan_out(file, package)) for file in package.rglob("*.py")}
    assert {str(file): count for file, count in counts.items() if count > MOST} == {}
