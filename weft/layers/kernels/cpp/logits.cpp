#include "logits.h"

#include "linear.h"

namespace {

constexpr int64_t SHARE = 1 << 16;  // numbers from which a second thread pays off

// Whether any of 64 numbers is larger than `least`.
INLINE inline bool any_above(const float* x, float least) {
    const Floats most = larger(larger(load(x), load(x + 16)), larger(load(x + 32), load(x + 48)));
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask((__m512)most, _mm512_set1_ps(least), _CMP_GT_OQ) != 0;
#else
    const Ints above = most > least;
    int64_t words[8], any = 0;
    std::memcpy(words, &above, sizeof words);
    for (const int64_t word : words) any |= word;
    return any != 0;
#endif
}

}  // namespace

float log_sum(const float* x, int64_t size) {
    Floats most = all(-INFINITY);
    for (int64_t i = 0; i < size; i += 16) most = larger(load(x + i, size - i, -INFINITY), most);
    const float largest = largest_of(most);
    Floats sums[4]{};
    int64_t i = 0;
    for (; i + 64 <= size; i += 64) {
        repeat<4>([&](auto j) INLINE { sums[j] += exp_below_zero(load(x + i + 16 * j) - largest); });
    }
    for (; i < size; i += 16) sums[0] += exp_below_zero(load(x + i, size - i, -INFINITY) - largest);
    return largest + std::log(sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

void best_of(const float* x, int64_t size, int64_t count, float* best, int64_t* where) {
    for (int64_t i = 0; i < count; i++) insert(x[i], i, best, where, i + 1);
    for (int64_t i = count; i < size; i += 64) {
        const int64_t end = std::min(size, i + 64);
        if (end - i == 64 && !any_above(x + i, best[count - 1])) continue;
        for (int64_t place = i; place < end; place++) {
            if (x[place] > best[count - 1]) insert(x[place], place, best, where, count);
        }
    }
}

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

// The most probable output of a layer for the first `lengths` rows of each sequence, x [count, extent, inputs], and its
// log-probability; 0 for the rows behind them. The first `barred` outputs count as impossible. Few rows have logits at a time, so
// that they stay in the cache.
extern "C" void weft_most_probable(const Linear* layer, const float* x, const int64_t* lengths, int64_t count, int64_t extent,
                                   int64_t barred, int64_t* where, float* logp, int threads) {
    constexpr int64_t TOGETHER = 48;
    const int64_t size = layer->outputs, width = layer->inputs;
    std::vector<int64_t> real;
    for (int64_t at = 0; at < count; at++) {
        for (int64_t place = 0; place < lengths[at]; place++) real.push_back(at * extent + place);
    }
    std::fill_n(where, count * extent, 0);
    std::fill_n(logp, count * extent, 0.0f);
    thread_local std::vector<float> read, logits;
    read.resize(TOGETHER * width);
    logits.resize(TOGETHER * size);
    for (auto first = real.begin(); first < real.end(); first += TOGETHER) {
        const int64_t rows = std::min<int64_t>(real.end() - first, TOGETHER);
        for (int64_t row = 0; row < rows; row++) std::copy_n(x + first[row] * width, width, read.data() + row * width);
        float* found = logits.data();
        multiply(*layer, read.data(), rows, After{}, found, threads);
        const int crew = int(std::min<int64_t>(threads, 1 + rows * size / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t row = 0; row < rows; row++) {
            float best, *mine = found + row * size;
            std::fill_n(mine, barred, -INFINITY);
            best_of(mine, size, 1, &best, where + first[row]);
            logp[first[row]] = best - log_sum(mine, size);
        }
    }
}
