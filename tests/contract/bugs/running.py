"""Bugs of attention by prefix sums, and of attention over compressed keys."""

from __future__ import annotations

from tests.contract.planting import Bug

RUNNING = [
    Bug(
        "linear attention sees one token ahead",
        "attention.core.feature_maps",
        "inside, summed, weights = inside.tril(), v, None",
        "inside, summed, weights = inside.tril(1), v, None",
        ("linear-causal-future",),
    ),
    Bug(
        "sums of all but the last piece are lost",
        "attention.core.feature_maps",
        "torch.cat([first[:, :, None], each], 2)",
        "torch.cat([0 * first[:, :, None], each], 2)",
        ("performer-causal-chunks", "running_sums: long_pieces_go_on_where_the_last_ended"),
    ),
    Bug(
        "earlier chunks are forgotten",
        "attention.core.feature_maps",
        "context, mass = torch.baddbmm(context, q, before), ",
        "mass = ",
        ("running_sums: linear_is_its_quadratic_form(causal)", "linear-causal-chunks"),
    ),
    Bug(
        "padded keys enter the sums",
        "attention.core.feature_maps",
        "k, v = torch.where(here, k, 0.0), torch.where(here, v, 0.0)",
        "v = torch.where(here, v, 0.0)",
        ("linear-cross-padding-content", "linear-causal-ragged"),
    ),
    Bug(
        "sums are kept in half precision",
        "attention.core.feature_maps",
        "first + each[:, :, 0]",
        "(first + each[:, :, 0]).bfloat16().float()",
        ("linear-causal-half-steps",),
    ),
    Bug(
        "the context is rounded to eight bits",
        "attention.core.feature_maps",
        "context, state = self._append(append, state, layout)",
        "context, state = self._append(append, state, layout)\n"
        "            context = context.to(torch.float8_e5m2 if query.dtype == torch.bfloat16 else None)",
        ("linear-encoder-half",),
    ),
    Bug(
        "a query that saw nothing is divided by 0",
        "attention.core.feature_maps",
        "norm = norm.clamp_min(LEAST) if floor is None",
        "norm = norm.clone() if floor is None",
        ("linear-cross-empty-row",),
    ),
    Bug(
        "the gradient of norms is lost",
        "attention.core.feature_maps",
        "along = torch.sum(values * context, -1, keepdim=True).neg_()",
        "along = 0 * torch.sum(values * context, -1, keepdim=True).neg_()",
        ("linear-encoder-gradients",),
    ),
    Bug(
        "the largest key of a chunk scales what came before it",
        "attention.core.feature_maps",
        "high = log_weight.detach().cummax(-1).values",
        "high = log_weight.detach().amax(-1, keepdim=True).expand_as(log_weight)",
        ("running_sums: performer_is_not_changed_by_a_heavy_key_to_come",),
    ),
    Bug(
        "the largest key may be padding",
        "attention.core.feature_maps",
        "torch.where(here[..., 0], log_weight, NOTHING)",
        "log_weight",
        ("performer-encoder-padding-content",),
    ),
    Bug(
        "scales of groups are not carried over",
        "attention.core.feature_maps",
        "outer * (above - top).exp()[..., None].to(sums.dtype)",
        "outer",
        ("running_sums: accumulating_in_groups_is_a_loop(17)",),
    ),
    Bug(
        "directions by plain QR",
        "attention.performer",
        "q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]",
        "pass",
        ("running_sums: performer_directions_prefer_none_and_are_orthogonal",),
    ),
    Bug(
        "an epsilon is added to features",
        "attention.performer",
        "out=torch.empty_like(power, dtype=x.dtype))",
        "out=torch.empty_like(power, dtype=x.dtype)).add_(1e-4)",
        ("running_sums: performer_is_its_quadratic_form(causal)",),
    ),
    Bug(
        "random features are not saved",
        "attention.core.feature_maps",
        'self.register_buffer("bits", draw(generator=None).view(torch.int32))',
        'self.register_buffer("bits", draw(generator=None).view(torch.int32), persistent=False)',
        ("performer-encoder-checkpoint",),
    ),
    Bug(
        "a negative norm is used as a divisor",
        "attention.core.feature_maps",
        "norm.maximum(floor).clamp_min_(LEAST)",
        "norm.abs().clamp_min_(LEAST)",
        ("running_sums: rfa_norms_are_never_less_than_the_kernel_allows(encoder)",),
    ),
    Bug(
        "gates do not decay the sums of earlier pieces",
        "attention.core.feature_maps",
        "after if decay is None else after.decayed(decay)",
        "after",
        ("gated_rfa-causal-chunks",),
    ),
    Bug(
        "gates of padding close",
        "attention.core.feature_maps",
        "kept = torch.where(mask[:, None], kept, 0.0)",
        "pass",
        ("gated_rfa-causal-ragged",),
    ),
]

SHORTENED = [
    Bug(
        "the softmax over positions includes padding",
        "attention.linear",
        "torch.where(here, k, NOTHING), torch.where(here, v, 0.0)",
        "k, torch.where(here, v, 0.0)",
        ("efficient-encoder-padding-content", "efficient-causal-ragged"),
    ),
    Bug(
        "the level at a chunk's end scales what came before",
        "attention.linear",
        "begin, end = level[..., :1, :], level[..., -1:, :]",
        "begin, end = level[..., -1:, :], level[..., -1:, :]",
        ("running_sums: efficient_is_not_changed_by_a_heavy_key_to_come",),
    ),
    Bug(
        "padding is mixed into Linformer's rows",
        "attention.linformer",
        "k, v = torch.where(here, k, 0.0), torch.where(here, v, 0.0)",
        "v = torch.where(here, v, 0.0)",
        ("linformer-encoder-padding-content",),
    ),
    Bug(
        "padded tokens fill the last window",
        "attention.memory_compressed",
        "key_value = torch.where(layout.mask[..., None], key_value, 0.0)",
        "pass",
        ("compressed-encoder-padding-content",),
    ),
    Bug(
        "a window is seen one token too early",
        "attention.memory_compressed",
        "(window + 1) * self.stride <= query + 1",
        "(window + 1) * self.stride <= query + 2",
        ("compressed-causal-reach", "compressed-causal-chunks"),
    ),
    Bug(
        "queries before the end of the first window see it",
        "attention.memory_compressed",
        "return F.pad(context, (0, 0, first, 0))[:, :, : q.size(2)]",
        "return torch.cat([context[:, :, :1].expand(-1, -1, first, -1), context], 2)[:, :, : q.size(2)]",
        ("compressed-causal-future",),
    ),
    Bug(
        "an incomplete window loses its tokens",
        "attention.memory_compressed",
        "left = (ended * self.stride)[:, None]",
        "left = (0 * ended)[:, None]",
        ("compressed-causal-chunks",),
    ),
]
