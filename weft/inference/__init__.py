"""Inference: predictors that answer streams of inputs with a trained model, and the parts they share."""

FUSIONS = {
    "none": "weft.inference.shallow_fusion:no_fusion",
    "shallow": "weft.inference.shallow_fusion:ShallowFusion",
}

RERANKS = {
    "none": "weft.inference.reranking:no_rerank",
    "mbr": "weft.inference.reranking:MinimumBayesRisk",
    "model": "weft.inference.reranking:ModelScore",
}
