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

// x [rows, inputs] → y [rows, outputs]. A row of the result depends on that row of x alone.
void multiply(const Linear& layer, const float* x, int64_t rows, float* y, int threads);

void multiply_int8(const Linear& layer, const float* x, int64_t rows, float* y, int threads);
void multiply_float(const Linear& layer, const float* x, int64_t rows, float* y, int threads);

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
