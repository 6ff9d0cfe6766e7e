"""Bugs that were made, or would be easy to make, each with the cases that must catch it."""

from __future__ import annotations

from tests.contract.bugs.aligned import ALIGNED
from tests.contract.bugs.attention import ATTENTION
from tests.contract.bugs.attention_free import ATTENTION_FREE
from tests.contract.bugs.convolutional import CONVOLUTIONAL
from tests.contract.bugs.copying import COPYING
from tests.contract.bugs.decoding import COVERAGE, NOISE, PAST
from tests.contract.bugs.kernel import CACHE, KERNEL
from tests.contract.bugs.language import LANGUAGE
from tests.contract.bugs.mixers import MIXERS
from tests.contract.bugs.models import LAYERS, MODELS
from tests.contract.bugs.native import NATIVE
from tests.contract.bugs.patterns import DISTANCES, PARTS, PATTERNS, RING, SYNTHESIZER
from tests.contract.bugs.recurrent import RECURRENT
from tests.contract.bugs.relative import RELATIVE
from tests.contract.bugs.running import RUNNING, SHORTENED
from tests.contract.bugs.single import SINGLE
from tests.contract.bugs.sorting import REVERSIBLE, SORTING

BUGS = [
    *KERNEL, *CACHE, *ATTENTION, *RUNNING, *SHORTENED, *MIXERS, *MODELS, *LAYERS, *CONVOLUTIONAL, *RECURRENT, *SINGLE, *ALIGNED,
    *ATTENTION_FREE, *SORTING, *REVERSIBLE, *COPYING, *RELATIVE,
    *PATTERNS, *RING, *DISTANCES, *SYNTHESIZER, *PARTS, *LANGUAGE, *PAST, *COVERAGE, *NOISE, *NATIVE,
]  # fmt: skip
