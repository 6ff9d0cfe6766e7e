"""Metrics, rewards, tests of significance, and evaluation reports."""

METRICS = {
    "bleu": "weft.evaluation.metrics:Bleu",
    "chrf": "weft.evaluation.metrics:Chrf",
    "ter": "weft.evaluation.metrics:Ter",
    "exact": "weft.evaluation.metrics:ExactMatch",
    "accuracy": "weft.evaluation.metrics:TokenAccuracy",
}

REWARDS = {
    "bleu": "weft.evaluation.rewards:BleuReward",
    "chrf": "weft.evaluation.rewards:ChrfReward",
    "constant": "weft.evaluation.rewards:ConstantReward",
}
