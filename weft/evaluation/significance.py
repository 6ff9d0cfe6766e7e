"""Paired tests of significance between two systems on the same sentences.

Both tests work on the counts of each sentence (see `metrics`), so a resample is a row of a matrix product and text is scored
only once. They follow sacreBLEU, and agree with it.

Shapes: N sentences · S counts per sentence · R resamples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.errors import ConfigError
from weft.evaluation.metrics import Counts, Metric

Test = Literal["bootstrap", "randomisation"]
SEED = 12345
CELLS = 1 << 22
"""Resamples are drawn in blocks of about this many numbers, whatever the size of the test set."""


@dataclass(frozen=True)
class Significance:
    """A system compared with a baseline under one metric.

    delta  value minus baseline (for TER, negative is better)
    ci     interval that contains the delta of 95 % of resampled test sets
    p      probability of a difference at least this large if the systems were equally good
    """

    metric: str
    value: float
    baseline: float
    delta: float
    ci: tuple[float, float]
    p: float
    test: Test
    samples: int
    seed: int
    higher_is_better: bool

    @property
    def better(self) -> bool:
        return self.delta != 0 and (self.delta > 0) == self.higher_is_better


def confidence(metric: Metric, counts: Counts, samples: int = 1000, seed: int = SEED) -> tuple[float, float]:
    """The 95 % confidence interval of a system's value over resampled test sets (Koehn 2004)."""
    return _middle(metric.value(_resample(counts, samples, seed)))


def paired_bootstrap(metric: Metric, ours: Counts, theirs: Counts, samples: int = 1000, seed: int = SEED) -> Significance:
    """Paired bootstrap: draws test sets of the same size with replacement, the same for both systems (Koehn 2004).

    p is computed as in Moses and sacreBLEU, to be comparable with published values. It is close to a one-sided p: about half
    of what `approximate_randomisation` gives.
    """
    deltas = _deltas(metric, ours, theirs, samples, seed)
    # Under the null hypothesis the differences spread around 0 as the resamples spread around their mean.
    return _significance(metric, ours, theirs, np.abs(deltas) - np.abs(deltas).mean(), deltas, "bootstrap", seed)


def approximate_randomisation(
    metric: Metric, ours: Counts, theirs: Counts, samples: int = 1000, seed: int = SEED
) -> Significance:
    """Swaps the outputs of the two systems for randomly chosen sentences (Riezler and Maxwell 2005)."""
    both, difference = ours + theirs, theirs - ours

    def exchange(rng: np.random.Generator, rows: int) -> Counts:
        return rng.integers(2, size=(rows, len(ours)), dtype=bool).astype(np.float64) @ difference

    mixed = ours.sum(0) + _in_blocks(exchange, len(ours), samples, seed)
    chance = np.abs(metric.value(mixed) - metric.value(both.sum(0) - mixed))
    deltas = _deltas(metric, ours, theirs, samples, seed)
    return _significance(metric, ours, theirs, chance, deltas, "randomisation", seed)


TESTS: dict[Test, Callable[[Metric, Counts, Counts, int, int], Significance]] = {
    "bootstrap": paired_bootstrap,
    "randomisation": approximate_randomisation,
}


def _significance(
    metric: Metric,
    ours: Counts,
    theirs: Counts,
    chance: NDArray[np.float64],
    deltas: NDArray[np.float64],
    test: Test,
    seed: int,
) -> Significance:
    """`chance` [R]: differences under the null hypothesis; `deltas` [R]: differences on resampled test sets."""
    value, baseline = float(metric.value(ours.sum(0))), float(metric.value(theirs.sum(0)))
    reached = int((chance >= abs(value - baseline) - 1e-9).sum())
    # Add one for the test set itself, so that p is never lower than the number of resamples can support.
    p = (reached + 1) / (len(chance) + 1)
    return Significance(
        metric.name, value, baseline, value - baseline, _middle(deltas), p, test, len(chance), seed, metric.higher_is_better
    )


def _deltas(metric: Metric, ours: Counts, theirs: Counts, samples: int, seed: int) -> Counts:
    """[R]: the differences of the systems on test sets drawn with replacement, the same for both."""
    sums = _resample(np.concatenate([ours, theirs], 1), samples, seed)
    return metric.value(sums[:, : ours.shape[1]]) - metric.value(sums[:, ours.shape[1] :])


def _resample(counts: Counts, samples: int, seed: int) -> Counts:
    """[R, S]: the sums of counts [N, S] over test sets drawn with replacement."""
    size = len(counts)

    def draw(rng: np.random.Generator, rows: int) -> Counts:
        chosen = rng.choice(size, size=(rows, size), replace=True) + np.arange(rows)[:, None] * size
        times = np.bincount(chosen.ravel(), minlength=rows * size).reshape(rows, size)
        return times.astype(np.float64) @ counts

    return _in_blocks(draw, size, samples, seed)


def _in_blocks(draw: Callable[[np.random.Generator, int], Counts], size: int, samples: int, seed: int) -> Counts:
    if samples < 1:
        raise ConfigError(f"a test of significance needs at least 1 resample, not {samples}; 1000 is common")
    rng = np.random.default_rng(seed)
    rows = max(1, CELLS // size)
    return np.concatenate([draw(rng, min(rows, samples - start)) for start in range(0, samples, rows)])


def _middle(values: NDArray[np.float64]) -> tuple[float, float]:
    """The interval that leaves out 2.5 % of the values at each end."""
    ordered = np.sort(values)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])
