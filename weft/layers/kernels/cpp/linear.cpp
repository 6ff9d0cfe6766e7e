// An int8 linear layer: y = scale ∘ (W q(x)) · size(x) + bias, with the rows of x rounded one by one.
//
// Sixteen outputs of four inputs each fill one register of weights. 64 outputs with all their inputs form a panel, so that
// weights are read sequentially and once per group of rows. Weights are stored as w + 128, since the instruction needs one
// unsigned factor. The excess, 128 Σ q(x), is one number per row. Products are summed as integers, so all CPUs agree.

#include "linear.h"

namespace {

constexpr int64_t SHARE = 1 << 18;  // products from which a second thread pays off

typedef int8_t Bytes __attribute__((vector_size(16)));

struct Rounded {
    const int8_t* numbers;   // [rows, inputs]
    const float* size;       // the largest absolute value of each row
    const int32_t* excess;   // 128 · the sum of each row's numbers
    int64_t inputs;          // a multiple of four
};

int64_t fours(int64_t inputs) { return (inputs + 3) / 4 * 4; }

// x [inputs] → numbers between −127 and 127. NaN and infinity make the size of the row, and so its outputs, NaN.
void round_row(const float* x, int64_t inputs, int8_t* numbers, float* size, int32_t* excess) {
    Floats most{}, strange{};
    for (int64_t i = 0; i < inputs; i += 16) {
        const Floats part = load(x + i, inputs - i, 0.0f);
        most = larger(larger(part, -part), most);
        strange += part * 0.0f;
    }
    const float largest = largest_of(most), shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to a whole number
    const float divisor = largest > 0 ? largest : INFINITY;
    Ints sum{};
    for (int64_t i = 0; i < inputs; i += 16) {
        // 128 is added before rounding, as in FBGEMM, so that both give the same bits.
        const Floats share = load(x + i, inputs - i, 0.0f) / divisor, above = share * 127.0f + 128.0f;
        const Ints whole = __builtin_convertvector((above + shift) - shift, Ints) - 128;
        sum += whole;
        const Bytes bytes = __builtin_convertvector(whole, Bytes);
        if (inputs - i >= 16) {
            std::memcpy(numbers + i, &bytes, 16);
        } else {
            std::memcpy(numbers + i, &bytes, fours(inputs) - i);
        }
    }
    int32_t total = 0;
    for (int j = 0; j < 16; j++) total += sum[j];
    *size = sum_of(strange) == 0.0f ? largest : NAN;
    *excess = 128 * total;
}

// Computes the outputs of some rows from their sums [rows, WIDE].
template <int ROWS>
INLINE static inline void write(const Rounded& x, int64_t first, const Linear& layer, int64_t panel, const int32_t* sums,
                                const After& after, float* y) {
    for (int64_t output = panel; output < std::min(panel + WIDE, layer.outputs); output += 16) {
        const int64_t left = layer.outputs - output;
        const Floats scale = load(layer.scale + output, left, 0.0f);
        const Floats bias = layer.bias ? load(layer.bias + output, left, 0.0f) : Floats{};
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = first + r, place = row * layer.outputs + output;
            Ints exact;
            std::memcpy(&exact, sums + r * WIDE + output - panel, sizeof exact);
            const Floats found = __builtin_convertvector(exact - x.excess[row], Floats) * scale * x.size[row] + bias;
            store(y + place, after(found, place, left), left);
        }
    }
}

#ifdef __AVX512VNNI__

INLINE inline __m512i read_four(const int8_t* numbers) {
    int32_t four;
    std::memcpy(&four, numbers, 4);
    return _mm512_set1_epi32(four);
}

// Sums are separate variables, stored before any other use: otherwise GCC spills them to memory in every iteration.
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define BEGIN(r) __m512i a##r = zero, b##r = zero, c##r = zero, d##r = zero;
#define MULTIPLY(r)                                                      \
    if constexpr (r < ROWS) {                                            \
        const __m512i read = read_four(numbers + r * x.inputs + i);      \
        a##r = _mm512_dpbusd_epi32(a##r, first, read);                   \
        b##r = _mm512_dpbusd_epi32(b##r, second, read);                  \
        c##r = _mm512_dpbusd_epi32(c##r, third, read);                   \
        d##r = _mm512_dpbusd_epi32(d##r, fourth, read);                  \
    }
#define KEEP(r)                                                          \
    if constexpr (r < ROWS) {                                            \
        _mm512_storeu_si512(sums + r * WIDE, a##r);                      \
        _mm512_storeu_si512(sums + r * WIDE + 16, b##r);                 \
        _mm512_storeu_si512(sums + r * WIDE + 32, c##r);                 \
        _mm512_storeu_si512(sums + r * WIDE + 48, d##r);                 \
    }

template <int ROWS>
void tile(const Rounded& x, const int8_t* numbers, const uint8_t* weights, const uint8_t* ahead, int32_t* sums) {
    const __m512i zero = _mm512_setzero_si512();
    EACH_ROW(BEGIN)
    for (int64_t i = 0; i < x.inputs; i += 4, weights += 4 * WIDE, ahead += 2 * WIDE) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        _mm_prefetch(ahead + WIDE, _MM_HINT_T1);
        __m512i first = _mm512_loadu_si512(weights), second = _mm512_loadu_si512(weights + 64);
        __m512i third = _mm512_loadu_si512(weights + 128), fourth = _mm512_loadu_si512(weights + 192);
        asm("" : "+v"(first), "+v"(second), "+v"(third), "+v"(fourth));  // otherwise GCC reloads them for every row
        EACH_ROW(MULTIPLY)
    }
    EACH_ROW(KEEP)
}

#else

// The same with whatever vectors the compiler has, sixteen outputs at a time.
template <int ROWS>
void tile(const Rounded& x, const int8_t* numbers, const uint8_t* weights, const uint8_t*, int32_t* sums) {
    for (int64_t from = 0; from < WIDE; from += 16) {
        int32_t found[ROWS][16] = {};
        const uint8_t* four = weights + 4 * from;
        for (int64_t i = 0; i < x.inputs; i += 4, four += 4 * WIDE) {
            for (int r = 0; r < ROWS; r++) {
                const int8_t* read = numbers + r * x.inputs + i;
                for (int j = 0; j < 16; j++) {
                    int32_t sum = 0;
                    for (int k = 0; k < 4; k++) sum += int32_t(four[4 * j + k]) * read[k];
                    found[r][j] += sum;
                }
            }
        }
        for (int r = 0; r < ROWS; r++) std::memcpy(sums + r * WIDE + from, found[r], sizeof found[r]);
    }
}

#endif

}  // namespace

void multiply_int8(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads) {
    const int64_t depth = fours(layer.inputs);
    const uint8_t* panels = static_cast<const uint8_t*>(layer.panels);
    thread_local std::vector<int8_t> numbers;
    thread_local std::vector<float> size;
    thread_local std::vector<int32_t> excess;
    in_chunks(rows, [&](int64_t begin, int64_t count) {
        numbers.resize(count * depth);
        size.resize(count);
        excess.resize(count);
        const Rounded rounded{numbers.data(), size.data(), excess.data(), depth};  // of this thread; the others have their own
        const auto round = [&, numbers = numbers.data(), size = size.data(), excess = excess.data()](int64_t r) {
            round_row(x + (begin + r) * layer.inputs, layer.inputs, numbers + r * depth, size + r, excess + r);
        };
        const After then = after.from(begin, layer.outputs);
        float* into = y + begin * layer.outputs;
        const int crew = int(std::min<int64_t>(threads, 1 + count * depth * layer.outputs / SHARE));
        const bool together = crew > 1 && count > HIGH;  // fewer rows are rounded before another thread could help
        for (int64_t r = 0; r < count && !together; r++) round(r);
#pragma omp parallel num_threads(crew) if (crew > 1)
        {
            if (together) {
#pragma omp for
                for (int64_t r = 0; r < count; r++) round(r);
            }
#pragma omp for
            for (int64_t panel = 0; panel < layer.outputs; panel += WIDE) {
                in_groups(count, [&](auto high, int64_t row, int64_t g) INLINE {
                    // The first two groups prefetch one half each of the next panel; the hardware prefetcher is too late.
                    const uint8_t* ahead = g < 2 ? panels + (panel + WIDE + g * WIDE / 2) * depth : panels + panel * depth;
                    alignas(64) int32_t sums[high * WIDE];
                    tile<high>(rounded, rounded.numbers + row * depth, panels + panel * depth, ahead, sums);
                    write<high>(rounded, row, layer, panel, sums, then, into);
                });
            }
        }
    });
}

// x [rows, inputs] → y [rows, outputs]; scale [outputs]; bias [outputs] or null.
extern "C" void weft_linear(const float* x, int64_t rows, int64_t inputs, const uint8_t* panels, const float* scale,
                            const float* bias, int64_t outputs, float* y, int threads) {
    multiply_int8(Linear{panels, scale, bias, inputs, outputs}, x, rows, After{}, y, threads);
}
