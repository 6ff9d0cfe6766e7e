"""Schedules against values computed by hand from the formulas in the papers."""

import math

import pytest

from weft.config.registry import build
from weft.errors import ConfigError
from weft.training.lr_schedules import ScheduleContext

PLAN = ScheduleContext(steps=1000, dim=512)


def rates(spec: dict[str, object], *at: int, plan: ScheduleContext = PLAN) -> list[float]:
    schedule = build("weft.training:SCHEDULES", spec, plan)
    return [schedule(update) for update in at]


def test_noam_is_that_of_the_paper() -> None:
    peak = 512**-0.5 * 4000**-0.5
    assert rates({"kind": "noam"}, 1, 4000, 16000) == pytest.approx([peak / 4000, peak, peak / 2])
    assert peak == pytest.approx(6.98771e-4, rel=1e-5)
    assert rates({"kind": "noam", "scale": 2.0, "warmup": 100}, 100) == pytest.approx([2 * 512**-0.5 / 10])


def test_inverse_square_root_rises_from_start_and_halves_at_four_times_the_warmup() -> None:
    spec = {"kind": "inverse_sqrt", "rate": 1e-3, "warmup": 100, "start": 2e-4}
    assert rates(spec, 1, 50, 100, 400) == pytest.approx([2.08e-4, 6e-4, 1e-3, 5e-4])
    assert rates({"kind": "inverse_sqrt", "rate": 1e-3, "warmup": 0}, 1, 4) == pytest.approx([1e-3, 5e-4])


def test_cosine_passes_the_middle_half_way_and_ends_at_the_floor() -> None:
    spec = {"kind": "cosine", "rate": 1.0, "warmup": 200, "floor": 0.1}
    quarter = 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2
    assert rates(spec, 100, 200, 400, 600, 1000, 5000) == pytest.approx([0.5, 1.0, quarter, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("wrong", [{"ratio": 0}, {"rate": -1}, {"cut_frac": 1}])
def test_impossible_triangles_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        rates({"kind": "slanted_triangular", **wrong}, 1)


def test_constant_warms_up_and_stays() -> None:
    assert rates({"kind": "constant", "rate": 0.3}, 1, 999) == [0.3, 0.3]
    assert rates({"kind": "constant", "rate": 0.3, "warmup": 3}, 1, 2, 3, 4) == pytest.approx([0.1, 0.2, 0.3, 0.3])


def test_slanted_triangular_peaks_at_the_cut_and_ends_at_rate_over_ratio() -> None:
    spec = {"kind": "slanted_triangular", "rate": 0.32, "cut_frac": 0.1, "ratio": 32.0}
    assert rates(spec, 50, 100, 550, 1000) == pytest.approx([0.165, 0.32, 0.165, 0.01])


def test_slanted_triangular_never_falls_below_its_end_in_a_short_run() -> None:
    spec = {"kind": "slanted_triangular", "rate": 0.32, "cut_frac": 0.1, "ratio": 32.0}
    assert min(rates(spec, *range(1, 20), plan=ScheduleContext(19, 8))) == pytest.approx(0.01)


@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt", "cosine", "constant", "slanted_triangular"])
def test_every_schedule_is_positive_and_survives_short_runs(kind: str) -> None:
    for plan in (ScheduleContext(1, 8), ScheduleContext(5, 8), ScheduleContext(20000, 8)):
        found = rates({"kind": kind}, *range(1, plan.steps), plan=plan)
        assert all(rate > 0 and math.isfinite(rate) for rate in found)
