"""Search: one loop for every decoder, the methods that `decode.search` chooses among, and the constraints on their texts."""

SEARCHES = {
    "greedy": "weft.decoding.search_methods:GreedySearch",
    "beam": "weft.decoding.search_methods:BeamSearch",
    "sample": "weft.decoding.search_methods:SampleSearch",
    "noisy": "weft.decoding.noisy_decoding:NoisySearch",
    "one_pass": "weft.decoding.nonautoregressive_search:OnePassSearch",
    "refine": "weft.decoding.nonautoregressive_search:RefineSearch",
    "ctc": "weft.decoding.nonautoregressive_search:CtcSearch",
    "ctc_beam": "weft.decoding.nonautoregressive_search:CtcBeamSearch",
}

RULES: dict[str, str] = {}
"""The rules of `decode.rules`, all of installed packages; see `weft.decoding.constraints:Rule`."""
