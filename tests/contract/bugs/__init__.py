"""Bugs that were made, or would be easy to make, each with the cases that must catch it."""

from __future__ import annotations

from contract.bugs.aligned import ALIGNED
from contract.bugs.attention import ATTENTION
from contract.bugs.attention_free import ATTENTION_FREE
from contract.bugs.convolutional import CONVOLUTIONAL
from contract.bugs.copying import COPYING
from contract.bugs.decoding import COVERAGE, NOISE, PAST
from contract.bugs.kernel import CACHE, KERNEL
from contract.bugs.language import LANGUAGE
from contract.bugs.mixers import MIXERS
from contract.bugs.models import LAYERS, MODELS
from contract.bugs.native import NATIVE
from contract.bugs.patterns import DISTANCES, PARTS, PATTERNS, RING, SYNTHESIZER
from contract.bugs.recurrent import RECURRENT
from contract.bugs.relative import RELATIVE
from contract.bugs.running import RUNNING, SHORTENED
from contract.bugs.single import SINGLE
from contract.bugs.sorting import REVERSIBLE, SORTING

BUGS = [
    *KERNEL, *CACHE, *ATTENTION, *RUNNING, *SHORTENED, *MIXERS, *MODELS, *LAYERS, *CONVOLUTIONAL, *RECURRENT, *SINGLE, *ALIGNED,
    *ATTENTION_FREE, *SORTING, *REVERSIBLE, *COPYING, *RELATIVE,
    *PATTERNS, *RING, *DISTANCES, *SYNTHESIZER, *PARTS, *LANGUAGE, *PAST, *COVERAGE, *NOISE, *NATIVE,
]  # fmt: skip
