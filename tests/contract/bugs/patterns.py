"""Bugs of attention by pattern, of relative positions and of the Synthesizer."""

from __future__ import annotations

from tests.contract.planting import Bug

PATTERNS = [
    Bug(
        "chunks start one token late",
        "attention.core.sparsity_patterns",
        "(before, fill + after))",
        "(before + 1, fill + after - 1 if fill + after else 0))",
        ("local-window-3-encoder-weights",),
    ),
    Bug(
        "keys beyond the ends are seen",
        "attention.core.sparsity_patterns",
        "part.allows(query, key) & (key >= 0)",
        "part.allows(query, key)",
        ("local-window-3-encoder-padding-length",),
    ),
    Bug(
        "a key of two patterns counts twice",
        "attention.core.sparsity_patterns",
        "allowed = allowed & ~other.allows(query, key)",
        "pass",
        ("longformer-window-3-encoder-weights", "joined-sparse-encoder-weights"),
    ),
    Bug(
        "groups see padding",
        "attention.core.sparsity_patterns",
        "mask = mask & _beside(self.keys(ok))[:, :, None]",
        "pass",
        ("strided-stride-3-encoder-padding-content",),
    ),
    Bug(
        "groups see the future",
        "attention.core.sparsity_patterns",
        "masks.append(allowed & (key <= query) if self.causal else allowed)",
        "masks.append(allowed)",
        ("strided-stride-3-causal-future", "global-three-causal-future"),
    ),
    Bug(
        "global tokens see as little as others",
        "attention.core.sparsity_patterns",
        "for places in pattern.everywhere(extent, q.device):",
        "for places in []:",
        ("global-three-encoder-reach",),
    ),
    Bug(
        "global tokens see padding",
        "attention.core.sparsity_patterns",
        "mask = None if ok is None else ok[:, None, None]",
        "mask = None",
        ("longformer-window-3-encoder-padding-content",),
    ),
    Bug(
        "global tokens of a decoder see the future",
        "attention.core.sparsity_patterns",
        "past = torch.arange(extent, device=q.device) <= places[:, None, :, None]",
        "past = torch.arange(extent, device=q.device) >= 0 * places[:, None, :, None]",
        ("global_tokens: a_decoders_global_tokens_see_what_is_before_them",),
    ),
    Bug(
        "global tokens at the end are those of the padded row",
        "attention.longformer",
        "return replace(self, length=length)",
        "return replace(self, length=int(torch.as_tensor(length).max()))",
        ("longformer-end-encoder-padding-length",),
    ),
    Bug(
        "learned tokens see padding",
        "attention.core.sparsity_patterns",
        "seen, _ = mix(q[:, :, : self.count], k, v, ok, dropout, False)",
        "seen, _ = mix(q[:, :, : self.count], k, v, None, dropout, False)",
        ("longformer-learned-encoder-padding-content", "longformer-learned-encoder-packed"),
    ),
    Bug(
        "joined patterns have equal shares",
        "attention.core.sparsity_patterns",
        "torch.stack(sums).softmax(0)",
        "torch.stack(sums).mul(0).softmax(0)",
        ("joined-sparse-causal-weights",),
    ),
    Bug(
        "heads by pattern are reordered",
        "attention.core.sparsity_patterns",
        "torch.cat(contexts, 1)",
        "torch.cat(contexts[::-1], 1)",
        ("mixed-four-encoder-weights",),
    ),
    Bug(
        "the gathered blocks are not those drawn",
        "attention.bigbird",
        "where = row + self._blocks(x, count)",
        "where = row + self._blocks(x, count).flip(1)",
        ("random-block-8-encoder-weights",),
    ),
    Bug(
        "blocks are drawn from padding",
        "attention.bigbird",
        "return replace(self, length=length)",
        "return replace(self, length=int(torch.as_tensor(length).max()))",
        ("random-block-8-encoder-padding-length",),
    ),
    Bug(
        "a causal draw depends on the length",
        "attention.bigbird",
        "number = _hash(block, draw + 1, self.seed) % (top + 1)",
        "number = _hash(block, draw + 1, self.seed + block.numel()) % (top + 1)",
        ("random_blocks: a_causal_draw_is_the_same_at_any_length",),
    ),
    Bug(
        "a block is drawn twice",
        "attention.bigbird",
        "number = torch.where(number == earlier, top, number)",
        "pass",
        ("random_blocks: every_block_gets_as_many_as_asked_or_all(random, encoder)",),
    ),
    Bug(
        "bigbird draws what its window shows",
        "attention.bigbird",
        "Random(self.causal, near, first,",
        "Random(self.causal, 0, 0,",
        ("random_blocks: every_block_gets_as_many_as_asked_or_all(bigbird, causal)",),
    ),
    Bug(
        "the stride is relative to the row",
        "attention.sparse_transformer",
        "return (query - key) % self.stride == 0",
        "return key % self.stride + 0 * query == 0",
        ("patterns: one_softmax_over_all_that_is_joined",),
    ),
]

RING = [
    Bug(
        "a ring drops one token too many",
        "attention.core.sparsity_patterns",
        "return max(span[0] for span in spans if span)",
        "return max(span[0] - 1 for span in spans if span)",
        ("local-window-3-causal-chunks",),
    ),
    Bug(
        "a ring keeps the cells of padding",
        "attention.core.kv_cache",
        "cell = self.fed[:, None] + torch.arange",
        "cell = self.new + 0 * self.fed[:, None] + torch.arange",
        ("local-window-3-causal-ragged",),
    ),
    Bug(
        "a ring counts padding",
        "attention.core.kv_cache",
        "fed = None if layout is None else layout.lengths",
        "fed = None",
        ("local-window-3-causal-ragged",),
    ),
    Bug(
        "a ring's empty cells are seen",
        "attention.core.kv_cache",
        "return position, (position >= 0) & (position < self.length[:, None])",
        "return position, position < self.length[:, None]",
        ("local-causal-beams",),
    ),
    Bug(
        "a ring grows at its end",
        "attention.core.kv_cache",
        "k=F.pad(self.k, (0, 0, more, 0))",
        "k=F.pad(self.k, (0, 0, 0, more))",
        ("local-causal-chunks",),
    ),
    Bug(
        "weights of a ring are over its cells",
        "attention.core.kv_cache",
        "place = torch.where(real, position, 0)[:, None, None]",
        "place = torch.where(real, position - position.amin(1, keepdim=True), 0).clamp_max(size - 1)[:, None, None]",
        ("local-window-3-causal-step-weights",),
    ),
]

DISTANCES = [
    Bug(
        "distances count from another row's positions",
        "attention.core.relative_positions",
        "        if consecutive:  # positions are the same in all rows",
        "        if True:",
        ("full-alibi-causal-ragged",),
    ),
    Bug(
        "alibi favours distant keys",
        "attention.core.relative_positions",
        "bias = -offsets.away.abs()",
        "bias = offsets.away.abs()",
        ("relative: the_formula_pair_by_pair(alibi, causal)",),
    ),
    Bug(
        "the fused kernel ignores a bias",
        "attention.core.dot_product",
        "mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)",
        "pass",
        ("full-alibi-encoder-weights",),
    ),
    Bug(
        "shaw's values are those of the other side",
        "attention.core.relative_positions",
        "share @ self.values.to(v.dtype)",
        "share.flip(-1) @ self.values.to(v.dtype)",
        ("relative: the_formula_pair_by_pair(shaw, causal)",),
    ),
]

SYNTHESIZER = [
    Bug(
        "a table is indexed by position in the call",
        "attention.core.rnn_attention",
        "return self.queries[:, None] + token",
        "return 0 * self.queries[:, None] + token",
        ("synthesizer-random-cross-chunks",),
    ),
    Bug(
        "a synthesizer sees padding",
        "attention.synthesizer",
        "mask = source.mask(rows, layout)",
        "mask = None",
        ("synthesizer-encoder-padding-content", "synthesizer-cross-padding-length"),
    ),
    Bug(
        "a synthesizer sees the future",
        "attention.synthesizer",
        "<= place[..., None]",
        "<= place[..., None] + 1",
        ("synthesizer-causal-future",),
    ),
    Bug(
        "a synthesizer uses positions in the packed row",
        "attention.synthesizer",
        "if source.positions is None and count <= self.max_length:",
        "if count <= self.max_length:",
        ("synthesizer-encoder-packed",),
    ),
]

PARTS = [
    Bug(
        "parts see each other's share",
        "attention.mixed_heads",
        "shares = self.share(query).chunk(len(self.parts), -1)",
        "shares = self.share(query).chunk(len(self.parts), -1)[::-1]",
        ("parts-causal-earlier-segment",),
    ),
]
