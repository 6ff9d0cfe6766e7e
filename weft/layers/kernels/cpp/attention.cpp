// Attention for one decoding step: every row has one query and reads only the cells that hold its own tokens.
//
// Shapes: G sources · K rows per source · H heads · C beams that wrote the cells · R cells per beam · D head width.

#include "attention.h"

namespace {

constexpr int64_t SHARE = 1 << 16;  // products from which a second thread pays off

struct Cells {
    const float* k;            // [G, H, C, R, D], as is v
    const float* v;
    const int16_t* ancestry;   // [G, K, R], the beam whose cell holds a token; null: the first
    const int64_t* length;     // [G], cells in use; null: all
    const float* bias;         // [G, R], added to scores; null: none
    int64_t sources, rows, heads, beams, room;
};

template <int PARTS>
void attend(const float* q, int64_t stride, const Cells& cells, int64_t width, float* out, int threads) {
    const int64_t D = PARTS ? 16 * PARTS : width, all = cells.sources * cells.rows, whole = cells.room * D;
    const float scale = 1.0f / std::sqrt(float(D));
    const int crew = int(std::min<int64_t>(threads, 1 + all * cells.heads * whole / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
    for (int64_t at = 0; at < all; at++) {
        thread_local std::vector<float> scores;
        scores.resize(cells.room);
        const int64_t source = at / cells.rows, count = cells.length ? cells.length[source] : cells.room;
        const int16_t* owner = cells.ancestry ? cells.ancestry + at * cells.room : nullptr;
        const float* bias = cells.bias ? cells.bias + source * cells.room : nullptr;
        for (int64_t head = 0; head < cells.heads; head++) {
            const int64_t first = (source * cells.heads + head) * cells.beams * whole;
            const auto cell = [&](int64_t s) INLINE { return first + (owner ? owner[s] * whole : 0) + s * D; };
            look<PARTS>(
                q + at * stride + head * D, D, D, scale, 0, count, [&](int64_t s) INLINE { return cells.k + cell(s); },
                [&](int64_t s) INLINE { return cells.v + cell(s); }, bias, scores.data(), out + (at * cells.heads + head) * D);
        }
    }
}

}  // namespace

// q: rows [H, D], `stride` numbers apart → out [G·K, H, D]. Fastest if D is 32, 48 or 64.
extern "C" void weft_attend(const float* q, int64_t stride, const float* k, const float* v, const int16_t* ancestry,
                            const int64_t* length, const float* bias, float* out, int64_t sources, int64_t rows,
                            int64_t heads, int64_t beams, int64_t room, int64_t width, int threads) {
    const Cells cells{k, v, ancestry, length, bias, sources, rows, heads, beams, room};
    with_parts(width, [&](auto parts) { attend<parts>(q, stride, cells, width, out, threads); });
}

// Writes one token per row, k and v [H, D] each, into stores [G, H, K, R, D] at length [G]. Returns false if one is full.
extern "C" bool weft_append(const float* k, int64_t k_stride, const float* v, int64_t v_stride, float* keys, float* values,
                            const int64_t* length, int64_t sources, int64_t rows, int64_t heads, int64_t room, int64_t width) {
    if (std::any_of(length, length + sources, [room](int64_t each) { return each >= room; })) return false;
    for (int64_t at = 0; at < sources * rows; at++) {
        const int64_t source = at / rows;
        for (int64_t head = 0; head < heads; head++) {
            const int64_t cell = (((source * heads + head) * rows + at % rows) * room + length[source]) * width;
            std::memcpy(keys + cell, k + at * k_stride + head * width, width * sizeof(float));
            std::memcpy(values + cell, v + at * v_stride + head * width, width * sizeof(float));
        }
    }
    return true;
}
