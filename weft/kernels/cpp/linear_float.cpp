// A float32 linear layer. A panel [inputs, 64] holds the weights of 64 outputs, so that they are read sequentially.

#include "linear.h"

namespace {

constexpr int64_t SHARE = 1 << 17;  // products from which a second thread pays off
constexpr int64_t CHUNK = 96;       // rows that stay in the cache while all panels are read
#ifdef __AVX512F__
constexpr int PARTS = 4;  // vectors of outputs whose sums are in registers
#else
constexpr int PARTS = 1;
#endif

template <int ROWS>
void tile(const Linear& layer, const float* x, int64_t panel, int64_t from, float* y) {
    const float* weights = static_cast<const float*>(layer.panels) + panel * layer.inputs + from;
    Floats sums[ROWS][PARTS];
    repeat<ROWS>([&](auto r) INLINE { repeat<PARTS>([&](auto p) INLINE { sums[r][p] = Floats{}; }); });
    for (int64_t i = 0; i < layer.inputs; i++, weights += WIDE) {
        Floats part[PARTS];
        repeat<PARTS>([&](auto p) INLINE {
            part[p] = load(weights + 16 * p);
#ifdef __AVX512F__
            asm("" : "+v"(part[p]));  // otherwise GCC reloads them for every row
#endif
        });
        repeat<ROWS>([&](auto r) INLINE {
            const float factor = x[r * layer.inputs + i];
            repeat<PARTS>([&](auto p) INLINE { sums[r][p] += factor * part[p]; });
        });
    }
    repeat<ROWS>([&](auto r) INLINE {
        repeat<PARTS>([&](auto p) INLINE {
            const int64_t output = panel + from + 16 * p, left = layer.outputs - output;
            if (left <= 0) return;
            const Floats bias = layer.bias ? load(layer.bias + output, left, 0.0f) : Floats{};
            store(y + r * layer.outputs + output, sums[r][p] + bias, left);
        });
    });
}

}  // namespace

void multiply_float(const Linear& layer, const float* x, int64_t rows, float* y, int threads) {
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        const int64_t count = std::min(CHUNK, rows - begin);
        const int crew = int(std::min<int64_t>(threads, 1 + count * layer.inputs * layer.outputs / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t panel = 0; panel < layer.outputs; panel += WIDE) {
            for (int64_t from = 0; from < WIDE && panel + from < layer.outputs; from += 16 * PARTS) {
                in_groups(count, [&](auto high, int64_t row, int64_t) INLINE {
                    tile<high>(layer, x + (begin + row) * layer.inputs, panel, from, y + (begin + row) * layer.outputs);
                });
            }
        }
    }
}

void multiply(const Linear& layer, const float* x, int64_t rows, float* y, int threads) {
    (layer.scale ? multiply_int8 : multiply_float)(layer, x, rows, y, threads);
}
