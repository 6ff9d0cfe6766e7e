// Operations on the elements of one row.

#pragma once

#include "lanes.h"

// σ(x), from e^−|x|, which never overflows.
INLINE static inline Floats sigmoid_of(Floats x) {
    const Floats e = exp_below_zero(-larger(x, -x)), above = 1.0f / (1.0f + e);
    return x < 0.0f ? e * above : above;
}

INLINE static inline Floats silu_of(Floats x) { return x * sigmoid_of(x); }

INLINE static inline Floats tanh_of(Floats x) {
    const Floats e = exp_below_zero(-2.0f * larger(x, -x)), size = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -size : size;
}

// x · Φ(x), with the error function of Abramowitz & Stegun, 7.1.26, which is right to 1.5 · 10⁻⁷.
INLINE static inline Floats gelu_of(Floats x) {
    const Floats size = larger(x, -x) * 0.70710678118654752f, t = 1.0f / (1.0f + 0.3275911f * size);
    Floats p = all(1.061405429f);
    for (const float factor : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = p * t + factor;
    const Floats beyond = 0.5f * p * t * exp_below_zero(-size * size);  // Φ(−|x|)
    return x * (x < 0.0f ? beyond : 1.0f - beyond);
}

// elu(x) + 1
INLINE static inline Floats elu_plus_one(Floats x) {
    const Floats zero{};
    return exp_below_zero(x < zero ? x : zero) + larger(x, zero);
}

// Sets y[i] = f(x[i]), sixteen at a time.
template <class F>
INLINE static inline void each(const float* x, int64_t count, float* y, F f) {
    for (int64_t i = 0; i < count; i += 16) store(y + i, f(load(x + i, count - i, 0.0f)), count - i);
}

// x [width] → y [width], (x − mean) / √(variance + ε) · gain + shift
void norm(const float* x, int64_t width, const float* gain, const float* shift, float epsilon, float* y);

// Rotates each pair of numbers of `heads` heads by the cosines and sines [width] each of a position.
void rotate(float* x, int64_t heads, int64_t width, const float* turn);

// x [2 · width] → y [width]: silu(first half) · second half, first half · σ(second half), and the larger of each pair.
void swiglu(const float* x, int64_t width, float* y);
void glu(const float* x, int64_t width, float* y);
void maxout(const float* x, int64_t width, float* y);

// The next state of a recurrent layer, in place, from the products of its input and of its state h: [3 · width] for a GRU, which
// keeps h, and [4 · width] for an LSTM, which keeps h and c. y is the new h.
void gru(const float* input, const float* past, int64_t width, float* state, float* y);
void lstm(const float* input, const float* past, int64_t width, float* state, float* y);
