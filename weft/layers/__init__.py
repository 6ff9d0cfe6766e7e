"""Building blocks without attention."""

ABSOLUTE_POSITIONS = {
    "sinusoidal": "sines and cosines of the position, for any length (Vaswani et al. 2017)",
    "tensor2tensor": "the same with the frequencies of Tensor2Tensor and Marian",
    "learned": "a learned vector for each of model.max_length positions (Gehring et al. 2017)",
    "none": "no absolute positions: for relative ones, recurrent and convolutional layers, and bags of words",
}
"""The absolute positions that `model.position` names, in words."""

RELATIVE_POSITIONS = {
    "rotary": "rotates queries and keys by their positions (Su et al. 2021)",
    "alibi": "lowers a score with the distance, at a fixed rate for each head (Press et al. 2022)",
    "shaw": "adds a learned vector for each distance to keys and values (Shaw et al. 2018)",
}
"""The positions in the scores of self-attention: the option `position` of `full`, in words."""

POSITIONS = {**ABSOLUTE_POSITIONS, **RELATIVE_POSITIONS}

CELLS = {
    "gru": "two gates and one state (Cho et al. 2014)",
    "lstm": "three gates and two states (Hochreiter & Schmidhuber 1997)",
    "rnn": "no gates: the tanh of a linear map of input and state (Elman 1990)",
    "sru": "gates that read only the input, so that all tokens are computed at once but for a sum (Lei et al. 2017)",
}
"""The cells of recurrent layers that `model.cell` names, in words."""
