// Helpers for AVX-512 registers of sixteen floats.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define INLINE __attribute__((always_inline))

template <class Work, int... I>
INLINE static inline void repeat(std::integer_sequence<int, I...>, Work work) {
    (work(std::integral_constant<int, I>()), ...);
}

// Unrolls work(0) … work(N − 1): arrays stay in registers only if all indices are compile-time constants.
template <int N, class Work>
INLINE static inline void repeat(Work work) {
    repeat(std::make_integer_sequence<int, N>(), work);
}

// A mask of the lanes that `left` numbers fill.
INLINE static inline __mmask16 first_lanes(int64_t left) {
    return left >= 16 ? 0xffff : left > 0 ? __mmask16((1 << left) - 1) : 0;
}

// eˣ for x ≤ 0, within two units in the last place: 2ⁿ · 2ᶠ with |f| ≤ ½, the second by its series. −inf gives 0, NaN gives NaN.
INLINE static inline __m512 exp_below_zero(__m512 x) {
    const __m512 clipped = _mm512_max_ps(_mm512_set1_ps(-120.0f), x);
    const __m512 power = _mm512_mul_ps(clipped, _mm512_set1_ps(1.44269504088896341f));
    const __m512 n = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts, the first with few digits, so that x − n ln 2 loses no precision.
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), clipped);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(factor));
    }
    return _mm512_scalef_ps(p, n);
}
