"""Decoding: one search loop for every decoder, the methods that `decode.search` chooses among, reranking, and predictors."""

SEARCHES = {
    "greedy": "weft.decoding.greedy_search:GreedySearch",
    "beam": "weft.decoding.beam_search:BeamSearch",
    "sample": "weft.decoding.sampling:SampleSearch",
    "noisy": "weft.decoding.noisy_decoding:NoisySearch",
    "one_pass": "weft.decoding.mask_predict:OnePassSearch",
    "refine": "weft.decoding.mask_predict:RefineSearch",
    "ctc": "weft.decoding.ctc_decoding:CtcSearch",
    "ctc_beam": "weft.decoding.ctc_decoding:CtcBeamSearch",
}

RULES: dict[str, str] = {}
"""The rules of `decode.rules`, all of installed packages; see `weft.decoding.ngram_blocking_and_rules:Rule`."""

FUSIONS = {
    "none": "weft.decoding.shallow_fusion:no_fusion",
    "shallow": "weft.decoding.shallow_fusion:ShallowFusion",
}

RERANKS = {
    "none": "weft.decoding.reranking:no_rerank",
    "mbr": "weft.decoding.reranking:MinimumBayesRisk",
    "model": "weft.decoding.reranking:ModelScore",
}
