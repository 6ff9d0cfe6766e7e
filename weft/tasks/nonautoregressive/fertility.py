"""Fertilities: how many target tokens each source token stands for.

A teacher's attention aligns the tokens. Without a teacher, an alignment is counted from the corpus, by IBM Model 2 with a prior
that prefers the diagonal. Fertilities are part of a run, because a resumed run has to learn from the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.data.array_files import read_arrays
from weft.data.batch import Layout
from weft.data.batching import spread
from weft.data.corpus import Corpus, Rows
from weft.data.ibm_model_2 import Ids, TranslationTable, diagonal
from weft.file_access import replacing_file

FILE = "fertility.npz"
COLUMN = "fertility"
PAIRS = 100_000

WINDOW = 256
"""Pairs that are aligned together."""
NEAR = 1e-3

Count = Callable[[Sequence[tuple[Ids, Ids]]], list[Ids]]
"""The fertilities of the source tokens of some pairs."""


def counted_alignment(corpus: Corpus, targets: int) -> Count:
    """Counts the fertilities by an alignment of evenly spaced pairs of the corpus. Each target token is aligned with one."""
    rows = np.linspace(0, len(corpus) - 1, min(PAIRS, len(corpus))).round().astype(np.int64)
    table = TranslationTable.count([tokens_of(corpus, row) for row in rows.tolist()], targets)
    return lambda pairs: [np.bincount(table.links(*pair), minlength=len(pair[0])) for pair in pairs]


def tokens_of(corpus: Corpus, row: int) -> tuple[Ids, Ids]:
    """The tokens of a pair, without EOS."""
    source, target = (corpus.row(name, row)[:-1].astype(np.int64) for name in ("source", "target"))
    return source, target


def attach(run: Path, corpora: Sequence[Corpus], fertilities: Callable[[], Count]) -> None:
    """Gives the corpora a column of fertilities, one per entry of the column `source`; EOS stands for nothing.

    They are saved in the run. Those that are not there yet are counted by `fertilities()`.
    """
    file = run / FILE
    saved = read_arrays(file) if file.exists() else {}
    if missing := [corpus for corpus in corpora if corpus.folder.name not in saved]:
        count = fertilities()
        saved |= {corpus.folder.name: _counted(corpus, count) for corpus in missing}
        with replacing_file(file) as written:
            np.savez(written, **saved)  # type: ignore[arg-type]
    for corpus in corpora:
        corpus.values[COLUMN], corpus.offsets[COLUMN] = saved[corpus.folder.name], corpus.offsets["source"]


def attached(corpus: Corpus, rows: Rows, layout: Layout) -> Tensor:
    """The attached fertilities of some rows, in the layout of their sources."""
    return spread(corpus.gather(COLUMN, rows)[0], layout)


def _counted(corpus: Corpus, count: Count) -> NDArray[np.uint16]:
    fertilities, begins = np.zeros(len(corpus.values["source"]), np.uint16), corpus.offsets["source"]
    for first in range(0, len(corpus), WINDOW):
        rows = range(first, min(first + WINDOW, len(corpus)))
        for row, each in zip(rows, count([tokens_of(corpus, row) for row in rows]), strict=True):
            begin = int(begins[row])
            fertilities[begin : begin + len(each)] = each
    return fertilities


def linked(weights: NDArray[Any]) -> Ids:
    """[S]: how many target tokens have their largest weight [T, S] at each source token; among equals, near the diagonal."""
    return np.bincount((weights + NEAR * diagonal(*weights.shape)).argmax(1), minlength=weights.shape[1])
