// Attention for one decoding step: every row has one query and reads only the cells that hold its own tokens.
//
// Shapes: G sources · K rows per source · H heads · C beams that wrote the cells · R cells per beam · D head width.

#include "vector.h"

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

template <int PARTS>  // D = 16 · PARTS
void look(const float* q, const Cells& cells, int64_t source, int64_t row, int64_t head, float* scores, float* out) {
    constexpr int64_t D = 16 * PARTS;
    const int64_t whole = cells.room * D, first = (source * cells.heads + head) * cells.beams * whole;
    const int64_t count = cells.length ? cells.length[source] : cells.room;
    const int16_t* owner = cells.ancestry ? cells.ancestry + (source * cells.rows + row) * cells.room : nullptr;
    const auto cell = [&](int64_t s) { return first + (owner ? owner[s] * whole : 0) + s * D; };
    __m512 query[PARTS];
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(float(D)));
    repeat<PARTS>([&](auto p) INLINE { query[p] = _mm512_mul_ps(_mm512_loadu_ps(q + 16 * p), scale); });
    float most = -INFINITY;
    for (int64_t s = 0; s < count; s++) {
        const float* key = cells.k + cell(s);
        __m512 sum = _mm512_setzero_ps();
        repeat<PARTS>([&](auto p) INLINE { sum = _mm512_fmadd_ps(query[p], _mm512_loadu_ps(key + 16 * p), sum); });
        scores[s] = _mm512_reduce_add_ps(sum) + (cells.bias ? cells.bias[source * cells.room + s] : 0.0f);
        most = std::max(most, scores[s]);
    }
    __m512 total = _mm512_setzero_ps();
    for (int64_t s = 0; s < count; s += 16) {
        const __mmask16 real = first_lanes(count - s);
        const __m512 shifted = _mm512_sub_ps(_mm512_maskz_loadu_ps(real, scores + s), _mm512_set1_ps(most));
        const __m512 weight = _mm512_maskz_mov_ps(real, exp_below_zero(shifted));
        total = _mm512_add_ps(total, weight);
        _mm512_mask_storeu_ps(scores + s, real, weight);
    }
    __m512 found[PARTS];
    repeat<PARTS>([&](auto p) INLINE { found[p] = _mm512_setzero_ps(); });
    for (int64_t s = 0; s < count; s++) {
        const float* value = cells.v + cell(s);
        const __m512 weight = _mm512_set1_ps(scores[s]);
        repeat<PARTS>([&](auto p) INLINE { found[p] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(value + 16 * p), found[p]); });
    }
    // A row that sees no cell gets 0.
    const __mmask16 something = most == -INFINITY ? 0 : 0xffff;
    const __m512 divisor = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    repeat<PARTS>([&](auto p) INLINE { _mm512_storeu_ps(out + 16 * p, _mm512_maskz_mul_ps(something, found[p], divisor)); });
}

template <int PARTS>
void attend(const float* q, int64_t stride, const Cells& cells, float* out, int threads) {
    constexpr int64_t D = 16 * PARTS;
    const int64_t all = cells.sources * cells.rows;
    const int crew = int(std::min<int64_t>(threads, 1 + all * cells.heads * cells.room * D / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1)
    for (int64_t at = 0; at < all; at++) {
        thread_local std::vector<float> scores;
        scores.resize(cells.room);
        for (int64_t head = 0; head < cells.heads; head++) {
            look<PARTS>(q + at * stride + head * D, cells, at / cells.rows, at % cells.rows, head, scores.data(),
                        out + (at * cells.heads + head) * D);
        }
    }
}

}  // namespace

// q: rows [H, D], `stride` numbers apart → out [G·K, H, D]. D: a multiple of 16, at most 128.
extern "C" void weft_attend(const float* q, int64_t stride, const float* k, const float* v, const int16_t* ancestry,
                            const int64_t* length, const float* bias, float* out, int64_t sources, int64_t rows,
                            int64_t heads, int64_t beams, int64_t room, int64_t width, int threads) {
    const Cells cells{k, v, ancestry, length, bias, sources, rows, heads, beams, room};
    switch (width / 16) {
        case 1: return attend<1>(q, stride, cells, out, threads);
        case 2: return attend<2>(q, stride, cells, out, threads);
        case 3: return attend<3>(q, stride, cells, out, threads);
        case 4: return attend<4>(q, stride, cells, out, threads);
        case 5: return attend<5>(q, stride, cells, out, threads);
        case 6: return attend<6>(q, stride, cells, out, threads);
        case 7: return attend<7>(q, stride, cells, out, threads);
        default: return attend<8>(q, stride, cells, out, threads);
    }
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
