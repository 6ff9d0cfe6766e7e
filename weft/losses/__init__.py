"""Training objectives beyond the cross-entropy of true tokens: scheduled sampling, rewards, REINFORCE, attention penalties."""

LOSSES = {"cross_entropy": "weft.losses.cross_entropy:CrossEntropy"}
"""Losses of the next token, which `task.loss` names."""

SAMPLINGS = {
    "none": "weft.losses.scheduled_sampling:no_sampling",
    "steps": "weft.losses.scheduled_sampling:step_sampling",
    "two_pass": "weft.losses.scheduled_sampling:two_pass_sampling",
    "parallel": "weft.losses.scheduled_sampling:parallel_sampling",
    "free": "weft.losses.scheduled_sampling:free_running",
}

DECAYS = {
    "linear": "weft.losses.scheduled_sampling:linear_decay",
    "exponential": "weft.losses.scheduled_sampling:exponential_decay",
    "inverse_sigmoid": "weft.losses.scheduled_sampling:inverse_sigmoid_decay",
}

REWARD_OBJECTIVES = {
    "none": "weft.losses.minimum_risk_and_reinforce:no_reward",
    "minimum_risk": "weft.losses.minimum_risk_and_reinforce:MinimumRisk",
    "reinforce": "weft.losses.minimum_risk_and_reinforce:SequenceReinforce",
    "self_critical": "weft.losses.minimum_risk_and_reinforce:SelfCritical",
}
