// Linear layers: y = W x + b, in int8 (with scales) or float32 (without).

#pragma once

#include "lanes.h"

constexpr int64_t WIDE = 64;  // outputs per panel
constexpr int HIGH = 6;       // rows whose sums are in registers: with AVX-512 6 × 4 of 32; the others hold weights and an input

struct Linear {
    const void* panels;   // the weights of 64 outputs, input by input; see the files of the two precisions
    const float* scale;   // [outputs]; null: float32
    const float* bias;    // [outputs] or null
    int64_t inputs, outputs;
};

// What is done with the outputs before they are stored: max(y, 0) or, with `add` [rows, outputs], (y + add) · scale.
struct After {
    bool relu = false;
    const float* add = nullptr;
    float scale = 1.0f;

    // The same for later rows.
    After from(int64_t row, int64_t outputs) const { return {relu, add ? add + row * outputs : nullptr, scale}; }

    INLINE Floats operator()(Floats y, int64_t place, int64_t left) const {
        if (relu) return y < 0.0f ? Floats{} : y;  // NaN stays NaN
        return add ? (y + load(add + place, left, 0.0f)) * scale : y;
    }
};

// x [rows, inputs] → y [rows, outputs]. A row of the result depends on that row of x alone.
void multiply(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads);

void multiply_int8(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads);
void multiply_float(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads);

// Calls work(first row, count) for groups of nearly equal size, whose inputs stay in the cache while all panels are read.
template <class Work>
static inline void in_chunks(int64_t rows, Work work) {
    constexpr int64_t CHUNK = 144;
    const int64_t groups = (rows + CHUNK - 1) / CHUNK;
    for (int64_t g = 0; g < groups; g++) work(rows * g / groups, rows * (g + 1) / groups - rows * g / groups);
}

// Calls work(rows as a constant, first row) for groups of at most HIGH rows, of nearly equal size.
template <class Work>
INLINE static inline void in_groups(int64_t rows, Work work) {
    const int64_t groups = (rows + HIGH - 1) / HIGH;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t row = rows * g / groups;
        switch (rows * (g + 1) / groups - row) {
            case 1: work(std::integral_constant<int, 1>(), row, g); break;
            case 2: work(std::integral_constant<int, 2>(), row, g); break;
            case 3: work(std::integral_constant<int, 3>(), row, g); break;
            case 4: work(std::integral_constant<int, 4>(), row, g); break;
            case 5: work(std::integral_constant<int, 5>(), row, g); break;
            default: work(std::integral_constant<int, HIGH>(), row, g);
        }
    }
}
