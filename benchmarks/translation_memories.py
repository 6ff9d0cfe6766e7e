"""Time and memory of reading a large translation memory, beside a .tsv of the same pairs.

    python benchmarks/translation_memories.py [--units 1000000] [--folder DIR]

Each file is read in a process of its own. Their peaks of resident memory are compared with that of one that reads ten pairs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

from weft.data.formats import open_pairs


def write(folder: Path, units: int) -> dict[str, Path]:
    """A memory and a table with the same pairs, and a memory of ten pairs."""
    files = {name: folder / name for name in ("large.tmx", "large.tsv", "small.tmx")}
    for name, count in (("large.tmx", units), ("small.tmx", 10)):
        with files[name].open("w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n')
            for number in range(count):
                source, target = pair(number)
                file.write(f'<tu tuid="{number}"><tuv xml:lang="en"><seg>{source}</seg></tuv>')
                file.write(f'<tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n')
            file.write("</body></tmx>\n")
    with files["large.tsv"].open("w", encoding="utf-8") as file:
        file.writelines("\t".join(pair(number)) + "\n" for number in range(units))
    return files


def pair(number: int) -> tuple[str, str]:
    return (
        f"Open file number {number} and press the button again",
        f"Öffnen Sie die Datei Nummer {number} und drücken Sie erneut",
    )


def read(path: str) -> tuple[int, float, int]:
    """Pairs, seconds and the peak of resident memory in kilobytes."""
    began = time.perf_counter()
    count = sum(1 for _ in open_pairs(path))
    return count, time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        files = write(Path(folder), arguments.units)
        for name in ("small.tmx", "large.tmx", "large.tsv"):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                count, seconds, peak = pool.apply(read, (str(files[name]),))
            size = files[name].stat().st_size / 1e6
            print(f"{name:<10} {size:>8.1f} MB  {count:>10,} pairs  {seconds:>7.2f} s  peak {peak / 1024:>6.1f} MB")


if __name__ == "__main__":
    main()
