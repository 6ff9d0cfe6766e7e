// Vectors of sixteen floats, by the vector extensions of GCC and Clang: one register of AVX-512, two of AVX2, four of NEON.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

template <class Work, int... I>
INLINE static inline void repeat(std::integer_sequence<int, I...>, Work work) {
    (work(std::integral_constant<int, I>()), ...);
}

// Unrolls work(0) … work(N − 1): arrays stay in registers only if all indices are compile-time constants.
template <int N, class Work>
INLINE static inline void repeat(Work work) {
    repeat(std::make_integer_sequence<int, N>(), work);
}

INLINE static inline Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

INLINE static inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

#ifdef __AVX512F__
INLINE static inline __mmask16 first_lanes(int64_t count) { return __mmask16((1u << std::max<int64_t>(count, 0)) - 1); }
#endif

// The first `count` of sixteen numbers, if there are fewer; the other lanes are `rest`.
INLINE static inline Floats load(const float* from, int64_t count, float rest) {
    if (count >= 16) return load(from);
#ifdef __AVX512F__
    return (Floats)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), first_lanes(count), from);
#else
    float lanes[16];
    for (int64_t i = 0; i < 16; i++) lanes[i] = i < count ? from[i] : rest;
    return load(lanes);
#endif
}

INLINE static inline void store(float* to, Floats x, int64_t count) {
    if (count >= 16) return store(to, x);
#ifdef __AVX512F__
    _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)x);
#else
    std::memcpy(to, &x, count * sizeof(float));
#endif
}

INLINE static inline Floats all(float x) { return x + Floats{}; }

INLINE static inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }

INLINE static inline float sum_of(Floats x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    float lanes[16];
    store(lanes, x);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    return lanes[0];
#endif
}

INLINE static inline float largest_of(Floats x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    float lanes[16];
    store(lanes, x);
    return *std::max_element(lanes, lanes + 16);
#endif
}

// eˣ for x ≤ 0, within two units in the last place: 2ⁿ · 2ᶠ with |f| ≤ ½, the second by its series. −inf gives 0, NaN gives NaN.
INLINE static inline Floats exp_below_zero(Floats x) {
    const Floats least = all(-87.0f), clipped = x < least ? least : x;
    const float shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to a whole number
    const Floats n = (clipped * 1.44269504088896341f + shift) - shift;
    // ln 2 in two parts, the first with few digits, so that x − n ln 2 loses no precision.
    const Floats f = clipped - n * 0.693359375f - n * -2.12194440e-4f;
    Floats p = all(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * f + factor;
    const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
    Floats power;
    std::memcpy(&power, &exponent, sizeof power);
    const Floats found = p * power;
    return x < least ? Floats{} : found;
}
