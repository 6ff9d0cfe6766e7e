// The attentions of a program.

#include "attention.h"
#include "program.h"

namespace {

constexpr float LEAST = 1e-30f;  // the minimum of a norm, as in weft/attention/core/prefix_sums.py

// out [width] = Σ φ(q) S / Σ φ(q) n for one head with features [count] of a query, where S [count, width] and n [count] are
// `stride` apart.
void divide_sums(const float* features, int64_t count, const float* sums, const float* norms, int64_t stride, int64_t width,
                 float* out) {
    float norm = 0;
    for (int64_t f = 0; f < count; f++) norm += features[f] * norms[f * stride];
    mix<0>(features, 0, count, [&](int64_t f) INLINE { return sums + f * stride; }, width, 1.0f / std::max(norm, LEAST), out);
}

// Adds φ(k) [v, 1]ᵀ to sums [width, width + 1].
void add_key(const float* features, const float* value, int64_t width, float* sums) {
    for (int64_t f = 0; f < width; f++, sums += width + 1) {
        for (int64_t i = 0; i < width; i++) sums[i] += features[f] * value[i];
        sums[width] += features[f];
    }
}

}  // namespace

void Machine::attend_self(const Op& op, const Rows& rows) {
    const int64_t dim = op.heads * op.width, half = sources_ * beams_ * PAGE * dim, count = rows.count();
    const float* from = registers_[op.from].data();
    float* to = registers_[op.to].data();
    int64_t longest = 0;
    for (int64_t row = 0; row < count; row++) {
        const int64_t position = rows.position[row];
        const float* key = from + row * 3 * dim + dim;
        longest = std::max(longest, position + 1);
        for (int64_t head = 0; head < op.heads; head++) {
            const int64_t place = ((rows.source[row] * op.heads + head) * beams_ + rows.beam[row]) * PAGE + position % PAGE;
            float* cell = page(op.number, position / PAGE) + place * op.width;
            std::memcpy(cell, key + head * op.width, op.width * sizeof(float));
            std::memcpy(cell + half, key + dim + head * op.width, op.width * sizeof(float));
        }
    }
    const int many = crew(count * longest * dim);
    const auto& pages = pages_[op.number];
    with_parts(op.width, [&](auto parts) {
        const int64_t width = parts ? 16 * parts : op.width;
#pragma omp parallel for num_threads(many) if (many > 1)
        for (int64_t row = 0; row < count; row++) {
            thread_local std::vector<float> scores;
            const int64_t end = rows.position[row] + 1, source = rows.source[row];
            const int64_t begin = op.past ? std::max<int64_t>(0, end - op.past) : 0;
            const int16_t* owner = ancestry_.data() + (source * beams_ + rows.beam[row]) * room_;
            scores.resize(end);
            for (int64_t head = 0; head < op.heads; head++) {
                const int64_t first = (source * op.heads + head) * beams_;
                const auto key = [&](int64_t s) INLINE {
                    return pages[s / PAGE].get() + ((first + owner[s]) * PAGE + s % PAGE) * width;
                };
                look<parts>(from + row * 3 * dim + head * width, width, width, op.value, begin, end, key,
                            [&](int64_t s) INLINE { return key(s) + half; }, nullptr, scores.data(), to + row * dim + head * width);
            }
        }
    });
}

// The rows are whole sequences, one after the other; every row attends to those of its sequence. Queries, keys and values are a
// joint product (WHOLE), or rows that have been spread attend to the keys and values of the tokens (WITHIN).
void Machine::attend_whole(const Op& op, const Rows& rows, int64_t first) {
    const bool joint = op.kind == WHOLE;
    const int64_t dim = op.heads * op.width, rate = joint ? 1 : op.rate;
    const int64_t query_step = joint ? 3 * dim : dim, key_step = joint ? 3 * dim : 2 * dim;
    const float* from = vectors(op.from, first);
    const float* keys_from = joint ? from + dim : vectors(op.other, first);
    float* to = vectors(op.to, first);
    with_parts(op.width, [&](auto parts) {
        const int64_t width = parts ? 16 * parts : op.width;
        std::vector<float> scores;
        for (int64_t row = 0; row < rows.count(); row++) {
            // The tokens of the sequence, counted from the first of these rows, which may lie behind its start.
            const int64_t of = row / rate, start = of - rows.position[row] / rate, end = of + (rows.left[row] + rate - 1) / rate;
            const int64_t begin = op.past ? std::max(start, row + 1 - op.past) : start;
            const int64_t length = (op.past ? std::min(end, row + op.past) : end) - begin;
            scores.resize(length);
            for (int64_t head = 0; head < op.heads; head++) {
                const float* key = keys_from + begin * key_step + head * width;
                look<parts>(
                    from + row * query_step + head * width, width, width, op.value, 0, length,
                    [&](int64_t s) INLINE { return key + s * key_step; },
                    [&](int64_t s) INLINE { return key + dim + s * key_step; }, nullptr, scores.data(),
                    to + row * dim + head * width);
            }
        }
    });
}

void Machine::attend_cross(const Op& op, const Rows& rows, int64_t first) {
    const int64_t dim = op.heads * op.width, count = rows.count(), out = op.heads * op.values;
    const float* from = vectors(op.from, first);
    float* to = vectors(op.to, first);
    const int many = crew(keys(op, rows) * dim);
    with_parts(op.width == op.values ? op.width : 0, [&](auto parts) {
        const int64_t width = parts ? 16 * parts : op.width, values = parts ? 16 * parts : op.values;
#pragma omp parallel for num_threads(many) if (many > 1)
        for (int64_t row = 0; row < count; row++) {
            thread_local std::vector<float> scores;
            const auto [memories, source] = origin(rows.source[row]);
            const Memory& memory = memories[op.number];
            scores.resize(memory.keys);
            const float* bias = memory.bias ? memory.bias + source * memory.keys : nullptr;
            for (int64_t head = 0; head < op.heads; head++) {
                const int64_t key = (source * op.heads + head) * memory.keys;
                look<parts>(
                    from + row * dim + head * width, width, values, op.value, 0, memory.keys,
                    [&](int64_t s) INLINE { return memory.k + (key + s) * width; },
                    [&](int64_t s) INLINE { return memory.v + (key + s) * values; }, bias, scores.data(),
                    to + row * out + head * values);
            }
            for (int64_t i = 0; i < out && memory.gain; i++) to[row * out + i] *= memory.gain[source];
        }
    });
}

// One head, whose scores are vᵀ tanh(q + k).
void Machine::attend_additive(const Op& op, const Rows& rows, int64_t first) {
    const int64_t count = rows.count(), width = op.width;
    const float* from = vectors(op.from, first);
    float* to = vectors(op.to, first);
    const int many = crew(keys(op, rows) * width * 8);
#pragma omp parallel for num_threads(many) if (many > 1)
    for (int64_t row = 0; row < count; row++) {
        thread_local std::vector<float> scores;
        const auto [memories, source] = origin(rows.source[row]);
        const Memory& memory = memories[op.number];
        scores.resize(memory.keys);
        const int64_t key = source * memory.keys;
        const float* q = from + row * width;
        for (int64_t s = 0; s < memory.keys; s++) {
            scores[s] = memory.bias ? memory.bias[key + s] : 0.0f;
            if (scores[s] == -INFINITY) continue;
            const float* k = memory.k + (key + s) * width;
            Floats sum{};
            for (int64_t i = 0; i < width; i += 16) {
                const int64_t left = width - i;
                sum += load(op.first + i, left, 0) * tanh_of(load(q + i, left, 0) + load(k + i, left, 0));
            }
            scores[s] += sum_of(sum);
        }
        const float factor = soften(scores.data(), 0, memory.keys);
        const auto value = [&](int64_t s) INLINE { return memory.v + (key + s) * op.values; };
        mix<0>(scores.data(), 0, memory.keys, value, op.values, factor, to + row * op.values);
    }
}

// Attention by sums over the past, φ(x) = elu(x) + 1; the state of a head is [width, width + 1].
void Machine::attend_sums(const Op& op, const Rows& rows) {
    const int64_t width = op.width, dim = op.heads * width, each_head = width * (width + 1);
    float *from = registers_[op.from].data(), *to = registers_[op.to].data();
    const int many = crew(rows.count() * op.heads * each_head);
#pragma omp parallel for num_threads(many) if (many > 1)
    for (int64_t row = 0; row < rows.count(); row++) {
        float* joint = from + row * 3 * dim;
        each(joint, 2 * dim, joint, elu_plus_one);
        for (int64_t head = 0; head < op.heads; head++) {
            float* sums = state(op, rows, row) + head * each_head;
            add_key(joint + dim + head * width, joint + 2 * dim + head * width, width, sums);
            divide_sums(joint + head * width, width, sums, sums + width, width + 1, width, to + row * dim + head * width);
        }
    }
}

// Of the sequences that begin in these rows.
void Machine::attend_whole_sums(const Op& op, const Rows& rows, int64_t first) {
    const int64_t width = op.width, dim = op.heads * width, each_head = width * (width + 1);
    float *from = vectors(op.from, first), *to = vectors(op.to, first);
    for (int64_t start = 0; start < rows.count(); start++) {
        if (rows.position[start]) continue;
        std::vector<float> sums(op.heads * each_head, 0.0f);
        const int64_t end = start + rows.left[start];
        for (int64_t row = start; row < end; row++) {
            float* joint = from + row * 3 * dim;
            each(joint, 2 * dim, joint, elu_plus_one);
            for (int64_t head = 0; head < op.heads; head++) {
                add_key(joint + dim + head * width, joint + 2 * dim + head * width, width, sums.data() + head * each_head);
            }
        }
        for (int64_t row = start; row < end; row++) {
            for (int64_t head = 0; head < op.heads; head++) {
                const float* mine = sums.data() + head * each_head;
                divide_sums(from + row * 3 * dim + head * width, width, mine, mine + width, width + 1, width,
                            to + row * dim + head * width);
            }
        }
    }
}

void Machine::attend_cross_sums(const Op& op, const Rows& rows, int64_t first) {
    const int64_t width = op.width, dim = op.heads * width;
    float *from = vectors(op.from, first), *to = vectors(op.to, first);
    for (int64_t row = 0; row < rows.count(); row++) {
        const auto [memories, source] = origin(rows.source[row]);
        const Memory& memory = memories[op.number];
        each(from + row * dim, dim, from + row * dim, elu_plus_one);
        for (int64_t head = 0; head < op.heads; head++) {
            const float* sums = memory.k + (source * op.heads + head) * width * op.values;
            divide_sums(from + row * dim + head * width, width, sums, sums + width, op.values, width,
                        to + row * dim + head * width);
        }
    }
}
