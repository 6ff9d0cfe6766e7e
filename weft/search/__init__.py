"""Search: one loop for every decoder, the methods that `decode.search` chooses among, and the constraints on their texts."""

SEARCHES = {
    "greedy": "weft.search.methods:GreedySearch",
    "beam": "weft.search.methods:BeamSearch",
    "sample": "weft.search.methods:SampleSearch",
    "noisy": "weft.search.methods:NoisySearch",
    "one_pass": "weft.search.parallel:OnePassSearch",
    "refine": "weft.search.parallel:RefineSearch",
    "ctc": "weft.search.parallel:CtcSearch",
    "ctc_beam": "weft.search.parallel:CtcBeamSearch",
}
