"""Compares the C++ kernels bit by bit between instruction sets, with ARM's emulated, on a machine with AVX2 or AVX512-VNNI.

    apt-get install g++ g++-aarch64-linux-gnu qemu-user
    python benchmarks/arm.py

Linear layers in int8 and float32, norms, activations, log-sums, the best of many, and attention get the same numbers
everywhere. Prints each operation with how many of its outputs are equal to those of this machine's widest instruction set.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from trainings import about, markdown

from weft.layers.kernels.cpp.compiled_library import FLAGS, HERE, INSTRUCTIONS, instructions

SOURCES = ("linear.cpp", "linear_float.cpp", "elements.cpp", "logits.cpp")


def outputs(name: str, folder: Path) -> list[str]:
    """The lines that the kernels print if they are compiled for these instructions."""
    arm, program = name == "NEON", folder / name
    compiler = "aarch64-linux-gnu-g++" if arm else "g++"
    sources = [str(Path(__file__).with_suffix(".cpp")), *(str(HERE / source) for source in SOURCES)]
    more = ["-static"] if arm else []
    subprocess.run(
        [compiler, *FLAGS, *INSTRUCTIONS[name], f"-I{HERE}", *sources, *more, "-o", str(program)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    command = ["qemu-aarch64", str(program)] if arm else [str(program)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    own = instructions()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: outputs(name, Path(folder)) for name in dict.fromkeys((own, "AVX2", "NEON"))}
    count = Counter(line.split()[0] for line in found[own])
    same = {
        name: Counter(a.split()[0] for a, b in zip(found[own], lines, strict=True) if a == b) for name, lines in found.items()
    }
    rows = [(operation, *(f"{same[name][operation]} of {count[operation]}" for name in found)) for operation in count]
    print(f"{about()}\n\n{markdown(('operation', *found), rows)}")


if __name__ == "__main__":
    main()
