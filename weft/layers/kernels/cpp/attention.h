// One query of one head over cells, wherever they lie.

#pragma once

#include "elements.h"

// Makes weights of scores `begin` … `end` − 1, up to the factor that it returns, so that their softmax is weight · factor. A
// query that sees no cell gets 0.
INLINE static inline float soften(float* scores, int64_t begin, int64_t end) {
    Floats largest = all(-INFINITY);
    for (int64_t s = begin; s < end; s += 16) largest = larger(load(scores + s, end - s, -INFINITY), largest);
    const float most = largest_of(largest);
    if (most == -INFINITY) {
        std::fill(scores + begin, scores + end, 0.0f);
        return 0.0f;
    }
    Floats total{};
    for (int64_t s = begin; s < end; s += 16) {
        const Floats weight = exp_below_zero(load(scores + s, end - s, -INFINITY) - most);
        total += weight;
        store(scores + s, weight, end - s);
    }
    return 1.0f / sum_of(total);
}

// out [width] = factor · Σ weight · value. Widths that are not known at compile time take four registers at a time.
template <int PARTS, class Value>
INLINE static inline void mix(const float* weights, int64_t begin, int64_t end, Value value, int64_t width, float factor,
                              float* out) {
    constexpr int HELD = PARTS ? PARTS : 4;
    for (int64_t from = 0; from < width; from += 16 * HELD) {
        const int64_t left = width - from;
        Floats even[HELD], odd[HELD];  // two sums, since an addition waits for the one before it
        repeat<HELD>([&](auto p) INLINE { even[p] = odd[p] = Floats{}; });
        const auto add = [&](int64_t s, Floats* sums) INLINE {
            const float* v = value(s) + from;
            repeat<HELD>([&](auto p) INLINE {
                if (PARTS || 16 * p < left) sums[p] += weights[s] * (PARTS ? load(v + 16 * p) : load(v + 16 * p, left - 16 * p, 0));
            });
        };
        for (int64_t s = begin; s + 1 < end; s += 2) add(s, even), add(s + 1, odd);
        if ((end - begin) % 2) add(end - 1, even);
        repeat<HELD>([&](auto p) INLINE {
            if (PARTS || 16 * p < left) store(out + from + 16 * p, (even[p] + odd[p]) * factor, PARTS ? 16 : left - 16 * p);
        });
    }
}

// q [width] → out [values], softmax(scale · q kᵀ + bias) v over cells `begin` … `end` − 1. key(s) and value(s) point to cell s,
// and scores has room for `end` numbers. PARTS: both widths are 16 · PARTS; 0: any widths.
template <int PARTS, class Key, class Value>
INLINE static inline void look(const float* q, int64_t width, int64_t values, float scale, int64_t begin, int64_t end, Key key,
                               Value value, const float* bias, float* scores, float* out) {
    if constexpr (PARTS > 0) {
        Floats query[PARTS];
        repeat<PARTS>([&](auto p) INLINE { query[p] = load(q + 16 * p) * scale; });
        for (int64_t s = begin; s < end; s++) {
            const float* k = key(s);
            Floats sum{};
            repeat<PARTS>([&](auto p) INLINE { sum += query[p] * load(k + 16 * p); });
            scores[s] = sum_of(sum) + (bias ? bias[s] : 0.0f);
        }
    } else {
        for (int64_t s = begin; s < end; s++) {
            const float* k = key(s);
            Floats sum{};
            for (int64_t i = 0; i < width; i += 16) sum += load(q + i, width - i, 0) * load(k + i, width - i, 0);
            scores[s] = sum_of(sum) * scale + (bias ? bias[s] : 0.0f);
        }
    }
    const float factor = soften(scores, begin, end);
    mix<PARTS>(scores, begin, end, value, values, factor, out);
}

// Calls work(constant) with the number of registers of a head, or with 0 for unusual widths, which take longer.
template <class Work>
void with_parts(int64_t width, Work work) {
    switch (width) {
        case 32: return work(std::integral_constant<int, 2>());
        case 48: return work(std::integral_constant<int, 3>());
        case 64: return work(std::integral_constant<int, 4>());
        default: return work(std::integral_constant<int, 0>());
    }
}
