// Operations on rows of logits for search: log-sum-exp, and the best entries.

#include "vector.h"

namespace {

constexpr int64_t SHARE = 1 << 16;  // numbers from which a second thread pays off

float log_sum(const float* x, int64_t size) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < size; i += 16) {
        const __mmask16 real = first_lanes(size - i);
        most = _mm512_mask_max_ps(most, real, most, _mm512_maskz_loadu_ps(real, x + i));
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 shift = _mm512_set1_ps(largest);
    __m512 sums[4];
    repeat<4>([&](auto j) INLINE { sums[j] = _mm512_setzero_ps(); });
    int64_t i = 0;
    for (; i + 64 <= size; i += 64) {
        repeat<4>([&](auto j) INLINE {
            sums[j] = _mm512_add_ps(sums[j], exp_below_zero(_mm512_sub_ps(_mm512_loadu_ps(x + i + 16 * j), shift)));
        });
    }
    for (; i < size; i += 16) {
        const __mmask16 real = first_lanes(size - i);
        const __m512 part = exp_below_zero(_mm512_sub_ps(_mm512_maskz_loadu_ps(real, x + i), shift));
        sums[0] = _mm512_mask_add_ps(sums[0], real, sums[0], part);
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    return largest + std::log(_mm512_reduce_add_ps(sum));
}

// Inserts a value into the list of the best `count`, in descending order; equal values keep their order.
void insert(float value, int64_t place, float* best, int64_t* where, int64_t count) {
    int64_t at = count - 1;
    for (; at > 0 && best[at - 1] < value; at--) {
        best[at] = best[at - 1];
        where[at] = where[at - 1];
    }
    best[at] = value;
    where[at] = place;
}

void best_of(const float* x, int64_t size, int64_t count, float* best, int64_t* where) {
    for (int64_t i = 0; i < count; i++) insert(x[i], i, best, where, i + 1);
    for (int64_t i = count; i < size; i += 64) {
        __mmask64 higher = 0;
        const __m512 least = _mm512_set1_ps(best[count - 1]);
        repeat<4>([&](auto j) INLINE {
            const __mmask16 real = first_lanes(size - i - 16 * j);
            const __m512 part = _mm512_maskz_loadu_ps(real, x + i + 16 * j);
            higher |= __mmask64(_mm512_mask_cmp_ps_mask(real, part, least, _CMP_GT_OQ)) << (16 * j);
        });
        for (; higher; higher &= higher - 1) {
            const int64_t place = i + __builtin_ctzll(higher);
            if (x[place] > best[count - 1]) insert(x[place], place, best, where, count);
        }
    }
}

}  // namespace

// x [rows, size] → out [rows], log Σ eˣ.
extern "C" void weft_log_sum(const float* x, int64_t rows, int64_t size, float* out, int threads) {
    const int crew = int(std::min<int64_t>(threads, 1 + rows * size / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
    for (int64_t row = 0; row < rows; row++) out[row] = log_sum(x + row * size, size);
}

// x [rows, size] → the `count` largest of each row, in descending order, and their indices: [rows, count]. count ≤ size.
extern "C" void weft_best(const float* x, int64_t rows, int64_t size, int64_t count, float* best, int64_t* where, int threads) {
    const int crew = int(std::min<int64_t>(threads, 1 + rows * size / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
    for (int64_t row = 0; row < rows; row++) {
        best_of(x + row * size, size, count, best + row * count, where + row * count);
    }
}
