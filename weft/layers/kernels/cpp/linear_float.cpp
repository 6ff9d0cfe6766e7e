// A float32 linear layer. A panel [inputs, 64] holds the weights of 64 outputs, so that they are read sequentially.

#include "linear.h"

namespace {

constexpr int64_t SHARE = 1 << 17;  // products from which a second thread pays off
#ifdef __AVX512F__
constexpr int PARTS = 4;  // vectors of outputs whose sums are in registers
#else
constexpr int PARTS = 1;
#endif

template <int ROWS>
void tile(const Linear& layer, const float* x, int64_t panel, int64_t from, const After& after, float* y) {
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
            const int64_t place = r * layer.outputs + output;
            store(y + place, after(sums[r][p] + bias, place, left), left);
        });
    });
}

}  // namespace

void multiply_float(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads) {
    in_chunks(rows, [&](int64_t begin, int64_t count) {
        const int crew = int(std::min<int64_t>(threads, 1 + count * layer.inputs * layer.outputs / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t panel = 0; panel < layer.outputs; panel += WIDE) {
            for (int64_t from = 0; from < WIDE && panel + from < layer.outputs; from += 16 * PARTS) {
                in_groups(count, [&](auto high, int64_t row, int64_t) INLINE {
                    const int64_t at = begin + row;
                    tile<high>(layer, x + at * layer.inputs, panel, from, after.from(at, layer.outputs), y + at * layer.outputs);
                });
            }
        }
    });
}

void multiply(const Linear& layer, const float* x, int64_t rows, const After& after, float* y, int threads) {
    (layer.scale ? multiply_int8 : multiply_float)(layer, x, rows, after, y, threads);
}
