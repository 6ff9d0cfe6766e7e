"""Bugs of models, and of the layers and poolings they are made of."""

from __future__ import annotations

from contract.planting import Bug

MODELS = [
    Bug(
        "the decoder is an encoder",
        "models.transformer",
        'build_self(decoder_self, block.site("causal"))',
        'build_self(decoder_self, block.site("encoder"))',
        ("transformer-causality",),
    ),
    Bug(
        "embeddings are rounded to eight bits",
        "layers.embedding",
        "x = self.table(tokens) * self.scale",
        'torch = __import__("torch")\n'
        '        eight = torch.float8_e5m2 if torch.is_autocast_enabled("cpu") else torch.float32\n'
        "        x = (self.table(tokens) * self.scale).to(eight).float()",
        ("transformer-half",),
    ),
    Bug(
        "every piece begins at position 0",
        "models.transformer",
        "positions = token_positions(tokens, layout) + state.fed[:, None]",
        "positions = token_positions(tokens, layout)",
        ("transformer-chunks",),
    ),
    Bug(
        "padding counts as fed",
        "models.transformer",
        "fed = tokens.size(1) if layout is None else layout.lengths",
        "fed = tokens.size(1)",
        ("transformer-ragged",),
    ),
    Bug(
        "the decoder sees the padding of the source",
        "models.transformer",
        "each.cross.start(memory, source.layout)",
        "each.cross.start(memory)",
        ("transformer-padding",),
    ),
    Bug(
        "post-norm sub-layers are normed on the way in",
        "models.blocks",
        "return self.norm(x) if self.pre else x",
        "return self.norm(x)",
        ("limits: encoder_layer_equals_torch(post)",),
    ),
    Bug(
        "pre-norm sub-layers are normed on the way out",
        "models.blocks",
        "return x if self.pre else self.norm(x)",
        "return self.norm(x)",
        ("limits: encoder_layer_equals_torch(pre)",),
    ),
    Bug(
        "the look at the source skips its norm",
        "models.blocks",
        "self.cross(self.around_cross.enter(x), source, layout=layout)",
        "self.cross(x, source, layout=layout)",
        ("limits: decoder_layer_equals_torch(pre)",),
    ),
    Bug(
        "the look at the source replaces the target",
        "models.blocks",
        "x = self.around_cross.leave(x, self.project(looked.context))",
        "x = self.around_cross.leave(0 * x, self.project(looked.context))",
        ("limits: decoder_layer_equals_torch(post)",),
    ),
    Bug(
        "embeddings drop out outside training",
        "layers.embedding",
        "dropout(x, self.dropout, self.training)",
        "dropout(x, self.dropout)",
        ("transformer-pure",),
    ),
    Bug(
        "packed positions run on through the row",
        "batch",
        "np.arange(total) - np.repeat(starts[:-1], count)",
        "np.arange(total)",
        ("transformer-packed",),
    ),
    Bug(
        "packed sentences have one number",
        "batch",
        "np.repeat(np.arange(1, len(count) + 1, dtype=np.int32), count)",
        "np.repeat(np.ones(len(count), dtype=np.int32), count)",
        ("transformer-packed",),
    ),
]

LAYERS = [
    Bug(
        "sine and cosine change places",
        "layers.position",
        "[turn.sin(), turn.cos()]",
        "[turn.cos(), turn.sin()]",
        ("limits: sinusoids_are_the_published_formula",),
    ),
    Bug(
        "angles in half precision",
        "layers.position",
        "turn = angles(positions, width, base)[:, None]",
        "turn = angles(positions, width, base)[:, None].to(dtype)",
        ("limits: rotary_angles_are_exact_in_half_precision", "full-rotary-causal-half-steps"),
    ),
    Bug(
        "a rotation that is a reflection",
        "layers.position",
        "[-x[..., 1::2], x[..., ::2]]",
        "[x[..., 1::2], x[..., ::2]]",
        ("limits: rotary_turns_by_the_published_angle",),
    ),
    Bug(
        "the gate is the value",
        "layers.feedforward",
        "F.silu(gate) * value",
        "F.silu(value) * gate",
        ("limits: feedforward_is_its_formula(swiglu)",),
    ),
    Bug(
        "a smoothed gradient without the label's place",
        "layers.readout",
        "slope.sub_(smoothing / size)",
        "slope.sub_(smoothing / (size - 1))",
        ("loss",),
    ),
    Bug(
        "only the last chunk trains the output layer",
        "layers.readout",
        "grad_weight += slope.t() @ rows",
        "grad_weight.copy_(slope.t() @ rows)",
        ("loss",),
    ),
    Bug(
        "padding has a gradient",
        "layers.readout",
        "slope.masked_fill_(~real[:, None], 0.0)",
        "slope",
        ("transformer-loss",),
    ),
    Bug(
        "the gradient ignores what comes from above",
        "layers.readout",
        "grad_hidden * grad.to(grad_hidden.dtype)",
        "grad_hidden * 1.0",
        ("loss",),
    ),
    Bug(
        "the mean counts padding",
        "pooling.mean",
        "layout.lengths.clamp_min(1)[:, None, None]",
        "layout.ok.size(1)",
        ("mean-padding",),
    ),
    Bug(
        "pooling weighs padding",
        "pooling.self_attentive",
        "None if layout is None else layout.ok[:, None].expand_as(scores)",
        "None",
        ("self_attentive-three-rows-padding",),
    ),
    Bug(
        "the mean skips every other token",
        "pooling.mean",
        "memory.mean(1, keepdim=True)",
        "memory[:, ::2].mean(1, keepdim=True)",
        ("mean-alive", "mean-key-order"),
    ),
    Bug(
        "the mean is rounded to eight bits",
        "pooling.mean",
        "memory, 0.0).sum(1, keepdim=True)",
        "memory if memory.dtype == torch.float32 else memory.to(torch.float8_e5m2).to(memory.dtype), 0.0).sum(1, keepdim=True)",
        ("mean-half",),
    ),
    Bug(
        "weights are not those that were used",
        "pooling.self_attentive",
        "return Pooled(weights @ memory, weights, terms)",
        "return Pooled(weights @ memory, 2 * weights, terms)",
        ("self_attentive-weights",),
    ),
    Bug(
        "pooling drops out outside training",
        "pooling.self_attentive",
        "torch.tanh(self.hidden(memory))",
        "nn.functional.dropout(torch.tanh(self.hidden(memory)))",
        ("self_attentive-pure",),
    ),
    Bug(
        "a term outside training",
        "pooling.self_attentive",
        "if self.training:",
        "if True:",
        ("self_attentive-gradients",),
    ),
]
