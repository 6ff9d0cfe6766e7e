// An int8 linear layer: y = scale ∘ (W q(x)) · size(x) + bias, with the rows of x rounded one by one.
//
// Sixteen outputs of four inputs each fill one register of weights. 64 outputs with all their inputs form a panel, so that
// weights are read sequentially and once per group of rows. Weights are stored as w + 128, since the instruction needs one
// unsigned factor. The excess, 128 Σ q(x), is one number per row.

#include "vector.h"

namespace {

constexpr int64_t WIDE = 64;    // outputs per panel
constexpr int64_t CHUNK = 96;   // rows whose numbers stay in the cache while all panels are read
constexpr int HIGH = 6;         // rows whose sums are in registers: 6 × 4 of 32; the others hold weights and an input
constexpr int64_t SHARE = 1 << 18;  // products from which a second thread pays off

struct Rounded {
    const int8_t* numbers;   // [rows, inputs]
    const float* size;       // the largest absolute value of each row
    const int32_t* excess;   // 128 · the sum of each row's numbers
    int64_t inputs;          // a multiple of four
};

struct Layer {
    const uint8_t* panels;
    const float* scale;
    const float* bias;
    int64_t outputs;
};

int64_t fours(int64_t inputs) { return (inputs + 3) / 4 * 4; }

// x [inputs] → numbers between −127 and 127. NaN and infinity make the size of the row, and so its outputs, NaN.
void round_row(const float* x, int64_t inputs, int8_t* numbers, float* size, int32_t* excess) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 strange = 0;
    for (int64_t i = 0; i < inputs; i += 16) {
        const __m512 part = _mm512_maskz_loadu_ps(first_lanes(inputs - i), x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(part));
        strange |= _mm512_fpclass_ps_mask(part, 0x99);  // either kind of NaN, either infinity
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 divisor = _mm512_set1_ps(largest), steps = _mm512_set1_ps(127.0f), zero = _mm512_set1_ps(128.0f);
    const __mmask16 something = largest > 0 ? 0xffff : 0;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < inputs; i += 16) {
        const __mmask16 real = first_lanes(inputs - i);
        const __m512 share = _mm512_maskz_div_ps(real & something, _mm512_maskz_loadu_ps(real, x + i), divisor);
        // 128 is added before rounding, as in FBGEMM, so that both give the same bits.
        const __m512i whole = _mm512_sub_epi32(_mm512_cvtps_epi32(_mm512_fmadd_ps(share, steps, zero)), _mm512_set1_epi32(128));
        sum = _mm512_add_epi32(sum, whole);
        _mm512_mask_cvtepi32_storeu_epi8(numbers + i, first_lanes(fours(inputs) - i), whole);
    }
    *size = strange ? NAN : largest;
    *excess = 128 * _mm512_reduce_add_epi32(sum);
}

INLINE inline __m512i read_four(const int8_t* numbers) {
    int32_t four;
    std::memcpy(&four, numbers, 4);
    return _mm512_set1_epi32(four);
}

// Computes the outputs of one row from its sums.
void write(const Rounded& x, int64_t row, const Layer& layer, int64_t panel, const int32_t* sums, float* y) {
    const __m512i excess = _mm512_set1_epi32(x.excess[row]);
    const __m512 size = _mm512_set1_ps(x.size[row]);
    for (int64_t output = panel; output < std::min(panel + WIDE, layer.outputs); output += 16) {
        const __mmask16 real = first_lanes(layer.outputs - output);
        const __m512 scale = _mm512_maskz_loadu_ps(real, layer.scale + output);
        const __m512 bias = layer.bias ? _mm512_maskz_loadu_ps(real, layer.bias + output) : _mm512_setzero_ps();
        const __m512i exact = _mm512_sub_epi32(_mm512_loadu_si512(sums + output - panel), excess);
        const __m512 found = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale), size, bias);
        _mm512_mask_storeu_ps(y + row * layer.outputs + output, real, found);
    }
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
void tile(const Rounded& x, int64_t row, const Layer& layer, int64_t panel, const uint8_t* ahead, float* y) {
    const uint8_t* weights = layer.panels + panel * x.inputs;
    const int8_t* numbers = x.numbers + row * x.inputs;
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
    alignas(64) int32_t sums[ROWS * WIDE];
    EACH_ROW(KEEP)
    for (int r = 0; r < ROWS; r++) write(x, row + r, layer, panel, sums + r * WIDE, y);
}

void tiles(const Rounded& x, int64_t row, int count, const Layer& layer, int64_t panel, const uint8_t* ahead, float* y) {
    switch (count) {
        case 1: return tile<1>(x, row, layer, panel, ahead, y);
        case 2: return tile<2>(x, row, layer, panel, ahead, y);
        case 3: return tile<3>(x, row, layer, panel, ahead, y);
        case 4: return tile<4>(x, row, layer, panel, ahead, y);
        case 5: return tile<5>(x, row, layer, panel, ahead, y);
        default: return tile<HIGH>(x, row, layer, panel, ahead, y);
    }
}

}  // namespace

// x [rows, inputs] → y [rows, outputs]; scale [outputs]; bias [outputs] or null.
extern "C" void weft_linear(const float* x, int64_t rows, int64_t inputs, const uint8_t* panels, const float* scale,
                            const float* bias, int64_t outputs, float* y, int threads) {
    const int64_t depth = fours(inputs), most = std::min(rows, CHUNK);
    const Layer layer{panels, scale, bias, outputs};
    thread_local std::vector<int8_t> numbers;
    thread_local std::vector<float> size;
    thread_local std::vector<int32_t> excess;
    numbers.resize(most * depth);
    size.resize(most);
    excess.resize(most);
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        const int64_t count = std::min(CHUNK, rows - begin), groups = (count + HIGH - 1) / HIGH;
        for (int64_t r = 0; r < count; r++) {
            round_row(x + (begin + r) * inputs, inputs, numbers.data() + r * depth, &size[r], &excess[r]);
        }
        const Rounded rounded{numbers.data(), size.data(), excess.data(), depth};
        float* into = y + begin * outputs;
        const int crew = int(std::min<int64_t>(threads, 1 + count * depth * outputs / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t panel = 0; panel < outputs; panel += WIDE) {
            for (int64_t g = 0; g < groups; g++) {  // groups of nearly equal size
                const int64_t row = count * g / groups;
                // The first two groups prefetch one half each of the next panel, since the hardware prefetcher is too late.
                const uint8_t* ahead = g < 2 ? panels + (panel + WIDE + g * WIDE / 2) * depth : panels + panel * depth;
                tiles(rounded, row, int(count * (g + 1) / groups - row), layer, panel, ahead, into);
            }
        }
    }
}
