// One query of one head over cells, wherever they lie.

#pragma once

#include "lanes.h"

constexpr int64_t WIDEST_HEAD = 128;  // a multiple of 16, as all head widths

// q [D] → out [D], softmax(q kᵀ / √D + bias) v over cells `begin` … `end` − 1; D = 16 · PARTS. key(s) and value(s) point to cell
// s, and scores has room for `end` numbers. A query that sees no cell gets 0.
template <int PARTS, class Key, class Value>
INLINE static inline void look(const float* q, int64_t begin, int64_t end, Key key, Value value, const float* bias,
                               float* scores, float* out) {
    constexpr int64_t D = 16 * PARTS;
    Floats query[PARTS], found[PARTS];
    const float scale = 1.0f / std::sqrt(float(D));
    repeat<PARTS>([&](auto p) INLINE { query[p] = load(q + 16 * p) * scale, found[p] = Floats{}; });
    float most = -INFINITY;
    for (int64_t s = begin; s < end; s++) {
        const float* k = key(s);
        Floats sum{};
        repeat<PARTS>([&](auto p) INLINE { sum += query[p] * load(k + 16 * p); });
        scores[s] = sum_of(sum) + (bias ? bias[s] : 0.0f);
        most = std::max(most, scores[s]);
    }
    if (most == -INFINITY) {
        std::memset(out, 0, D * sizeof(float));
        return;
    }
    Floats total{};
    for (int64_t s = begin; s < end; s += 16) {
        const Floats weight = exp_below_zero(load(scores + s, end - s, -INFINITY) - most);
        total += weight;
        store(scores + s, weight, end - s);
    }
    for (int64_t s = begin; s < end; s++) {
        const float* v = value(s);
        repeat<PARTS>([&](auto p) INLINE { found[p] += scores[s] * load(v + 16 * p); });
    }
    const float divisor = 1.0f / sum_of(total);
    repeat<PARTS>([&](auto p) INLINE { store(out + 16 * p, found[p] * divisor); });
}

// Calls work(constant) with the number of registers of a head width.
template <class Work>
void with_parts(int64_t width, Work work) {
    switch (width / 16) {
        case 1: return work(std::integral_constant<int, 1>());
        case 2: return work(std::integral_constant<int, 2>());
        case 3: return work(std::integral_constant<int, 3>());
        case 4: return work(std::integral_constant<int, 4>());
        case 5: return work(std::integral_constant<int, 5>());
        case 6: return work(std::integral_constant<int, 6>());
        case 7: return work(std::integral_constant<int, 7>());
        default: return work(std::integral_constant<int, 8>());
    }
}
