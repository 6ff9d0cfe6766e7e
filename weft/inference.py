"""Packages of others import predictors as `weft.inference.predictor`. The module itself is `weft.decoding.predictor`."""

import sys

from weft.decoding import predictor

__path__: list[str] = []
sys.modules[f"{__name__}.predictor"] = predictor
