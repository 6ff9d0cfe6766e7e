#include "program.h"

#include "attention.h"

namespace {

constexpr int64_t SHARE = 1 << 16;  // products from which a second thread pays off

void norm(const float* x, int64_t width, const float* gain, const float* shift, float epsilon, float* y) {
    Floats sum{}, squares{};
    for (int64_t i = 0; i < width; i += 16) sum += load(x + i, width - i, 0.0f);
    const float mean = sum_of(sum) / float(width);
    for (int64_t i = 0; i < width; i += 16) {
        const Floats away = load(x + i, width - i, mean) - mean;
        squares += away * away;
    }
    const float divisor = 1.0f / std::sqrt(sum_of(squares) / float(width) + epsilon);
    for (int64_t i = 0; i < width; i += 16) {
        const int64_t left = width - i;
        const Floats scaled = (load(x + i, left, 0.0f) - mean) * divisor;
        store(y + i, scaled * load(gain + i, left, 0.0f) + load(shift + i, left, 0.0f), left);
    }
}

// Rotates each pair of numbers of `heads` heads by the cosines and sines [width] each of a position.
void rotate(float* x, int64_t heads, int64_t width, const float* turn) {
    for (int64_t head = 0; head < heads; head++, x += width) {
        for (int64_t i = 0; i < width; i += 2) {
            const float even = x[i], odd = x[i + 1];
            x[i] = even * turn[i] - odd * turn[width + i];
            x[i + 1] = odd * turn[i + 1] + even * turn[width + i + 1];
        }
    }
}

}  // namespace

Machine::Machine(const Program& program, const Memory* memories, const float* const* tables, const int64_t* ids,
                 int64_t sources, int64_t beams, int64_t room, int threads)
    : program_(program), memories_(memories), tables_(tables), ids_(ids), sources_(sources), beams_(beams), room_(room),
      threads_(threads), registers_(program.registers), pages_(program.caches), ancestry_(sources * beams * room, 0),
      before_(beams * room) {
    for (int64_t at = 0; at < program.registers; at++) registers_[at].resize(sources * beams * program.widths[at]);
}

const float* Machine::run(const Rows& rows) {
    for (int64_t row = 0; row < rows.count() && program_.caches; row++) {
        const int64_t line = rows.source[row] * beams_ + rows.beam[row];
        ancestry_[line * room_ + rows.position[row]] = int16_t(rows.beam[row]);
    }
    for (int64_t at = 0; at < program_.count; at++) carry_out(program_.ops[at], rows);
    return registers_[program_.ops[program_.count - 1].to].data();
}

void Machine::carry_out(const Op& op, const Rows& rows) {
    const int64_t count = rows.count(), width = op.width, all = count * width;
    float* to = registers_[op.to].data();
    const float *from = registers_[op.from].data(), *other = registers_[op.other].data();
    switch (op.kind) {
        case EMBED:
            for (int64_t row = 0; row < count; row++) {
                const float* vector = op.first + (ids_ ? ids_[rows.token[row]] : rows.token[row]) * width;
                const float* place = op.number < 0 ? nullptr : tables_[op.number] + rows.position[row] * width;
                for (int64_t i = 0; i < width; i++) to[row * width + i] = vector[i] * op.value + (place ? place[i] : 0.0f);
            }
            return;
        case NORM:
            for (int64_t row = 0; row < count; row++) {
                norm(from + row * width, width, op.first, op.second, op.value, to + row * width);
            }
            return;
        case LINEAR: return multiply(op.layer, from, count, to, threads_);
        case ADD:
            for (int64_t i = 0; i < all; i++) to[i] = from[i] + other[i];
            return;
        case RELU:
            for (int64_t i = 0; i < all; i++) to[i] = from[i] < 0 ? 0 : from[i];
            return;
        case GELU:
            for (int64_t i = 0; i < all; i++) to[i] = 0.5f * from[i] * (1 + std::erf(from[i] * 0.70710678118654752f));
            return;
        case SWIGLU:
            for (int64_t row = 0; row < count; row++) {
                const float* gate = from + 2 * row * width;
                for (int64_t i = 0; i < width; i++) to[row * width + i] = gate[i] / (1 + std::exp(-gate[i])) * gate[width + i];
            }
            return;
        case ROTATE:  // queries and keys, in place
            for (int64_t row = 0; row < count; row++) {
                const float* turn = tables_[op.number] + rows.position[row] * 2 * op.width;
                rotate(to + row * 3 * op.heads * op.width, 2 * op.heads, op.width, turn);
            }
            return;
        case SELF: return attend_self(op, rows);
        case CROSS: return attend_cross(op, rows);
        case WHOLE: return attend_whole(op, rows);
    }
}

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
    const int crew = int(std::min<int64_t>(threads_, 1 + count * longest * dim / SHARE));
    const auto& pages = pages_[op.number];
    with_parts(op.width, [&](auto parts) {
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t row = 0; row < count; row++) {
            thread_local std::vector<float> scores;
            const int64_t end = rows.position[row] + 1, source = rows.source[row];
            const int64_t begin = op.past ? std::max<int64_t>(0, end - op.past) : 0;
            const int16_t* owner = ancestry_.data() + (source * beams_ + rows.beam[row]) * room_;
            scores.resize(end);
            for (int64_t head = 0; head < op.heads; head++) {
                const int64_t first = (source * op.heads + head) * beams_;
                const auto key = [&](int64_t s) INLINE {
                    return pages[s / PAGE].data() + ((first + owner[s]) * PAGE + s % PAGE) * (16 * parts);
                };
                look<parts>(from + row * 3 * dim + head * op.width, begin, end, key,
                            [&](int64_t s) INLINE { return key(s) + half; }, nullptr, scores.data(),
                            to + row * dim + head * op.width);
            }
        }
    });
}

void Machine::attend_cross(const Op& op, const Rows& rows) {
    const int64_t dim = op.heads * op.width, count = rows.count();
    const Memory& memory = memories_[op.number];
    const float* from = registers_[op.from].data();
    float* to = registers_[op.to].data();
    const int crew = int(std::min<int64_t>(threads_, 1 + count * memory.keys * dim / SHARE));
    with_parts(op.width, [&](auto parts) {
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t row = 0; row < count; row++) {
            thread_local std::vector<float> scores;
            scores.resize(memory.keys);
            const int64_t source = rows.source[row];
            const float* bias = memory.bias ? memory.bias + source * memory.keys : nullptr;
            for (int64_t head = 0; head < op.heads; head++) {
                const int64_t first = (source * op.heads + head) * memory.keys * op.width;
                look<parts>(
                    from + row * dim + head * op.width, 0, memory.keys,
                    [&](int64_t s) INLINE { return memory.k + first + s * (16 * parts); },
                    [&](int64_t s) INLINE { return memory.v + first + s * (16 * parts); }, bias, scores.data(),
                    to + row * dim + head * op.width);
            }
        }
    });
}

// The rows are whole sequences, one after the other; every token attends to those of its sequence.
void Machine::attend_whole(const Op& op, const Rows& rows) {
    const int64_t dim = op.heads * op.width, count = rows.count(), row_width = 3 * dim;
    const float* from = registers_[op.from].data();
    float* to = registers_[op.to].data();
    std::vector<int64_t> ends(count);  // of the sequence of each row
    for (int64_t row = count - 1; row >= 0; row--) {
        ends[row] = row + 1 < count && rows.source[row + 1] == rows.source[row] ? ends[row + 1] : row + 1;
    }
    const int crew = int(std::min<int64_t>(threads_, 1 + count * dim / SHARE));
    with_parts(op.width, [&](auto parts) {
#pragma omp parallel for num_threads(crew) if (crew > 1)
        for (int64_t row = 0; row < count; row++) {
            thread_local std::vector<float> scores;
            const int64_t start = row - rows.position[row];
            const int64_t begin = op.past ? std::max(start, row + 1 - op.past) : start;
            const int64_t length = (op.past ? std::min(ends[row], row + op.past) : ends[row]) - begin;
            scores.resize(length);
            for (int64_t head = 0; head < op.heads; head++) {
                const float* key = from + begin * row_width + dim + head * op.width;
                look<parts>(
                    from + row * row_width + head * op.width, 0, length,
                    [&](int64_t s) INLINE { return key + s * row_width; },
                    [&](int64_t s) INLINE { return key + dim + s * row_width; }, nullptr, scores.data(),
                    to + row * dim + head * op.width);
            }
        }
    });
}

float* Machine::page(int64_t cache, int64_t number) {
    auto& pages = pages_[cache];
    while (int64_t(pages.size()) <= number) pages.emplace_back(2 * sources_ * beams_ * PAGE * program_.cells[cache]);
    return pages[number].data();
}

void Machine::reorder(int64_t source, const int64_t* parents, int64_t length) {
    int16_t* own = ancestry_.data() + source * beams_ * room_;
    for (int64_t beam = 0; beam < beams_; beam++) std::copy_n(own + beam * room_, length, before_.data() + beam * room_);
    for (int64_t beam = 0; beam < beams_; beam++) {
        std::copy_n(before_.data() + parents[beam] * room_, length, own + beam * room_);
    }
}

// Encodes sequences, one after the other: tokens and positions [count], where each sequence begins at position 0 → out [count, D].
extern "C" void weft_encode(const Program* program, const float* const* tables, const int64_t* tokens,
                            const int64_t* positions, int64_t count, float* out, int threads) {
    Rows rows;
    int64_t source = -1;
    for (int64_t row = 0; row < count; row++) {
        source += positions[row] == 0;
        rows.add(source, 0, tokens[row], positions[row]);
    }
    Machine machine(*program, nullptr, tables, nullptr, count, 1, 0, threads);
    const float* found = machine.run(rows);
    std::copy_n(found, count * program->widths[program->ops[program->count - 1].to], out);
}
