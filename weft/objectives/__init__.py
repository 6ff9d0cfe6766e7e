"""Training objectives beyond the cross-entropy of true tokens: scheduled sampling, rewards, REINFORCE, attention penalties."""

SAMPLINGS = {
    "none": "weft.objectives.scheduled_sampling:no_sampling",
    "steps": "weft.objectives.scheduled_sampling:step_sampling",
    "two_pass": "weft.objectives.scheduled_sampling:two_pass_sampling",
    "parallel": "weft.objectives.scheduled_sampling:parallel_sampling",
    "free": "weft.objectives.scheduled_sampling:free_running",
}

DECAYS = {
    "linear": "weft.objectives.scheduled_sampling:linear_decay",
    "exponential": "weft.objectives.scheduled_sampling:exponential_decay",
    "inverse_sigmoid": "weft.objectives.scheduled_sampling:inverse_sigmoid_decay",
}

REWARD_OBJECTIVES = {
    "none": "weft.objectives.rewards:no_reward",
    "minimum_risk": "weft.objectives.rewards:MinimumRisk",
    "reinforce": "weft.objectives.rewards:RewardReinforce",
    "self_critical": "weft.objectives.rewards:SelfCritical",
}
