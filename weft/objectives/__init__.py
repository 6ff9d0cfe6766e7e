"""Training objectives beyond the cross-entropy of the true tokens: scheduled sampling, REINFORCE, penalties on attention."""

SAMPLINGS = {
    "none": "weft.objectives.scheduled_sampling:NoSampling",
    "steps": "weft.objectives.scheduled_sampling:StepSampling",
    "two_pass": "weft.objectives.scheduled_sampling:TwoPassSampling",
    "parallel": "weft.objectives.scheduled_sampling:ParallelSampling",
    "free": "weft.objectives.scheduled_sampling:FreeRunning",
}

DECAYS = {
    "linear": "weft.objectives.scheduled_sampling:LinearDecay",
    "exponential": "weft.objectives.scheduled_sampling:ExponentialDecay",
    "inverse_sigmoid": "weft.objectives.scheduled_sampling:InverseSigmoidDecay",
}
