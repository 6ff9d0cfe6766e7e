"""Metrics, rewards, tests of significance, and evaluation reports."""

REWARDS = {
    "bleu": "weft.evaluation.rewards:BleuReward",
    "chrf": "weft.evaluation.rewards:ChrfReward",
    "constant": "weft.evaluation.rewards:ConstantReward",
}
