"""The same command twice: which bytes are equal, on one machine.

    python benchmarks/campaigns/determinism.py --out DIR

Everything is done twice, in the same folder, by programs with different hash seeds of Python (PYTHONHASHSEED): two trainings,
one of them with LoRA, a training that is continued, translations, scores, pages, every export, a comparison, cleaned
data. All files and outputs must be equal byte for byte, except those of `TIMED`, which say when something was done or how long
it took, and these without their times. Then one thing changes at a time: the number of worker processes that translate, of
threads, and of processes that train, each number twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden_data import pairs, sentences

TIMED = {
    "log.jsonl": "seconds, seconds left, tokens per second, peak memory, energy",
    "train.log": "the same in words",
    "results.csv": "the same as a table",
    "results.png": "the same as curves",
    "README.md": "the training time and the peak memory",
    "state.json": "training time, peak memory and energy so far, and the speed that a schedule was planned from",
    "published.jsonl": "when weights were published",
    "run.lock": "the number of the process",
    "*.weft": "the README.md of the run that is packed",
    "compare.stdout": "times and speed of a comparison",
    **{
        f"compared/{name}": "the same"
        for name in ("results.json", "table.csv", "report.html", "chart.*", "logs/*", "measures/*")
    },
}
"""Files with times, and what these are. All others are equal byte for byte."""

CLOCKS = (
    *(
        "seconds",
        "seconds_left",
        "tokens_per_second",
        "per_second",
        "counts_a_step",
        "speed",
        "decoding",
        "memory",
        "peak_memory",
    ),
    *("joules", "energy", "time", "updates", "pauses", "paces"),
)

SETTINGS = {
    "data.vocabulary": "60",
    "model.dim": "32",
    "model.heads": "2",
    "model.feedforward": "64",
    "model.encoder_layers": "1",
    "model.decoder_layers": "1",
    "train.steps": "6",
    "train.batch_tokens": "400",
    "train.precision": "float32",
    "train.validate_every": "3",
    "train.save_every": "3",
    "train.device": "cpu",
    "train.tensorboard": "false",
}

EXPORTS = ("transformers", "ctranslate2", "onnx", "argos", "marian", "bergamot")


def sets(**changes: Any) -> list[str]:
    given = {**SETTINGS, **{name.replace("__", "."): str(value) for name, value in changes.items()}}
    return ["--set", *(f"{name}={value}" for name, value in given.items())]


def commands() -> dict[str, list[str]]:
    """The command lines, by name, in their order. They run in one folder."""
    data = ["--data", "train.tsv", "--valid", "valid.tsv"]
    one, cpu = sets(train__threads=1), ["--device", "cpu"]
    explain = ["explain", "run", "the red dog sees a cat", *cpu]
    return {
        "train": [
            "train",
            "transformer-portable",
            *data,
            "--out",
            "run",
            *one,
            "data.source_language=en",
            "data.target_language=de",
        ],
        "train LoRA": [
            "train",
            "--from",
            "run",
            *data,
            "--out",
            "lora",
            "--set",
            "model.lora.rank=2",
            "model.lora.embedding_rank=0",
            "train.steps=3",
            "train.device=cpu",
            "train.threads=1",
            "train.tensorboard=false",
        ],
        "train half": ["train", "transformer-portable", *data, "--out", "resumed", *one, "train.steps=3"],
        "resume": ["train", "--resume", "resumed", "--set", "train.steps=6"],
        "translate": ["translate", "run", "in.txt", "--json", "--n-best", "3", *cpu, "-o", "out.jsonl"],
        "translate, C++": ["translate", "run", "in.txt", "--json", *cpu, "--set", "decode.fast=true", "-o", "fast.jsonl"],
        "translate, samples": [
            "translate",
            "run",
            "in.txt",
            "--set",
            "decode.search={kind: sample, seed: 4}",
            *cpu,
            "-o",
            "samples.txt",
        ],
        "evaluate": ["evaluate", "run", "--data", "valid.tsv", "--json", *cpu],
        "explain": [*explain, "-o", "page.html"],
        "explain --inside": [*explain, "--inside", "-o", "inside.html"],
        "explain --inside, text": [*explain, "--inside", "-o", "inside.txt"],
        "explain, png": [*explain, "-o", "attention.png"],
        "explain, svg": [*explain, "-o", "attention.svg"],
        "explain, pdf": [*explain, "-o", "attention.pdf"],
        **{
            f"export {kind}": ["export", "run", "--to", kind, "--out", f"as-{kind}" + ".argosmodel" * (kind == "argos")]
            for kind in EXPORTS
        },
        "export peft": ["export", "lora", "--to", "peft", "--out", "as-peft"],
        "pack": ["pack", "run", "-o", "run.weft"],
        "average": ["average", "run", "--last", "2", "--out", "averaged"],
        "merge": ["merge", "lora", "--out", "merged"],
        "shortlist": ["shortlist", "merged", "--data", "train.tsv"],
        "align": ["align", "run", "--data", "valid.tsv", *cpu],
        "data check": ["data", "check", "train.tsv", "--report", "check.html", "--json"],
        "data clean": ["data", "clean", "train.tsv", "-o", "clean.tsv", "--json"],
        "compare": [
            "compare",
            "transformer-portable",
            "rnn-luong",
            *data,
            "--out",
            "compared",
            "--budget",
            "3-steps",
            "--lengths",
            "none",
            *(each for each in one if each.startswith(("--", "train.")) and not each.startswith("train.steps")),
            "data.tokenizer=words",
            "model.dim=32",
        ],
    }


def forked(*calls: tuple[Sequence[str], Mapping[str, str], Path]) -> list[int]:
    """Runs command lines side by side, in processes of their own. Their output goes into files."""
    children = []
    for call, environ, into in calls:
        if child := os.fork():
            children.append(child)
            continue
        status = 70
        try:
            for name, number in (("stdout", 1), ("stderr", 2)):
                os.dup2(os.open(f"{into}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.environ.update(environ)
            from weft import cli

            status = cli.run(list(call))
            sys.stdout.flush()
        finally:
            os._exit(status)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def write_data(folder: Path) -> None:
    for name, count, seed in (("train", 120, 1), ("valid", 20, 2)):
        pairs(folder, name, count, seed)
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in sentences(30, 3)), "utf-8")


def do_all(folder: Path) -> None:
    """Runs all commands in a folder."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_data(folder)
    (folder / "outputs").mkdir()
    for name, call in commands().items():
        into = folder / "outputs" / name.replace(" ", "_")
        status = forked((call, {}, into))[0]
        if status:
            print(f"{name}: status {status}: {Path(f'{into}.stderr').read_text('utf-8')[-300:]}", flush=True)
        Path(f"{into}.stderr").unlink()  # progress, with times
    for number in (1, 2, 4) if os.environ["PYTHONHASHSEED"] == "0" else ():
        changed(folder, number)


def changed(folder: Path, number: int) -> None:
    """The work of `number` workers, threads and processes, twice within one process that is forked."""
    own = folder / f"with-{number}"
    own.mkdir()
    data = ["--data", "train.tsv", "--valid", "valid.tsv"]
    for turn in (1, 2):
        workers = [
            "translate",
            "run",
            "in.txt",
            "--json",
            "--device",
            "cpu",
            "--set",
            f"decode.workers={number}",
            "decode.batch_tokens=64",
        ]
        threads = ["train", "transformer-portable", *data, *sets(train__threads=number), "--out", str(own / f"threads-{turn}")]
        together = ["train", "transformer-portable", *data, *sets(train__threads=1, train__accumulate=4, train__clip=0)]
        forked((workers, {}, own / f"workers-{turn}"))
        forked((threads, {}, own / f"thread-{turn}"))
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            port = opened.getsockname()[1]
        shared = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        out = ["--out", str(own / f"processes-{turn}")]
        ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
        forked(*(([*together, *out], environ, own / f"rank-{turn}-{environ['RANK']}") for environ in ranks))


def files(folder: Path) -> dict[str, Path]:
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not name.startswith("with-")}


def timeless(file: Path) -> Any:
    """The content of a file of `TIMED` without its times; None if nothing is left that can be compared."""
    if file.suffix not in (".jsonl", ".json"):
        return None
    text = file.read_text("utf-8")
    documents = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]
    return [without_clocks(each) for each in documents]


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_clocks(each) for name, each in value.items() if name not in CLOCKS}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def compare(first: Path, second: Path) -> Iterator[tuple[str, str]]:
    """Each file with "equal", "equal but for times" or "DIFFERENT"."""
    one, two = files(first), files(second)
    for name in sorted(one.keys() | two.keys()):
        if name not in one or name not in two:
            yield name, "DIFFERENT: only one has it"
        elif one[name].read_bytes() == two[name].read_bytes():
            yield name, "equal"
        elif not any(fnmatch(name, timed) or fnmatch(Path(name).name, timed) for timed in TIMED):
            yield name, "DIFFERENT"
        else:
            a, b = timeless(one[name]), timeless(two[name])
            yield name, "equal but for times" if a == b else "DIFFERENT in more than times"


def scores(file: Path) -> list[tuple[str, float]]:
    return [(line["text"], line["score"]) for line in map(json.loads, file.read_text("utf-8").splitlines())]


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "validation"]


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()[:16]


def numbers(folder: Path) -> Iterator[str]:
    """Results that depend on the number of workers, threads and processes."""
    texts = {number: [scores(folder / f"with-{number}/workers-{turn}.stdout") for turn in (1, 2)] for number in (1, 2, 4)}
    for number, (one, two) in texts.items():
        same = [a[0] for a in one] == [b[0] for b in texts[1][0]]
        apart = max(abs(a[1] - b[1]) for a, b in zip(one, texts[1][0], strict=True))
        yield f"{number} workers: twice {_equal(one == two)}; texts of one worker: {_equal(same)}, scores within {apart:.1e}"
    for kind in ("threads", "processes"):
        for number in (1, 2, 4):
            runs = [folder / f"with-{number}/{kind}-{turn}" for turn in (1, 2)]
            one, alone = weights(runs[0]), weights(folder / f"with-1/{kind}-1")
            apart = max(abs(a - b) for a, b in zip(losses(runs[0]), losses(folder / f"with-1/{kind}-1"), strict=True))
            twice = _equal(one == weights(runs[1]))
            yield f"{number} {kind}: twice {twice}; weights of one: {_equal(one == alone)}, losses within {apart:.1e}"


def _equal(same: bool) -> str:
    return "equal" if same else "DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of both times")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    out = given.out.absolute()
    if given.once:
        import torch

        import weft.cli.train
        import weft.runs.run_evaluation
        import weft.training.train_run  # noqa: F401

        torch.set_num_threads(1)
        do_all(out / "work")
        return
    out.mkdir(parents=True, exist_ok=True)
    for seed in ("0", "12345"):
        if not (out / f"hash-{seed}").exists():
            shutil.rmtree(out / "work", ignore_errors=True)
            environ = {**os.environ, "PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(out / f"cache-{seed}")}
            subprocess.run([sys.executable, __file__, "--out", str(out), "--once"], env=environ, check=True)
            os.rename(out / "work", out / f"hash-{seed}")
    report(out)


def report(out: Path) -> None:
    """Prints what differs and what is equal; exits with 1 if something differs that must not."""
    found = dict(compare(out / "hash-0", out / "hash-12345"))
    for verdict in sorted(set(found.values())):
        names = [name for name, each in found.items() if each == verdict]
        kinds = sorted({re.sub(r"step-\d+", "step-N", Path(name).name) for name in names})
        print(f"{len(names):4} files {verdict}" + ("" if verdict == "equal" else f": {', '.join(kinds)}"))
    print(f"{len(commands())} commands")
    said = list(numbers(out / "hash-0"))
    print(*said, sep="\n")
    (out / "found.json").write_text(json.dumps({"files": found, "numbers": said}, indent=1))
    sys.exit(any("DIFFERENT" in verdict for verdict in found.values()))


if __name__ == "__main__":
    main()
