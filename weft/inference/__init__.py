"""Inference: predictors that answer streams of inputs with a trained model, and the parts they share."""

FUSIONS = {
    "none": "weft.inference.fusion:no_fusion",
    "shallow": "weft.inference.fusion:ShallowFusion",
}

RERANKS = {
    "none": "weft.inference.rerank:no_rerank",
    "mbr": "weft.inference.rerank:MinimumBayesRisk",
    "model": "weft.inference.rerank:ModelScore",
}
