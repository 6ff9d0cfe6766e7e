#include "program.h"

#include <omp.h>

#include "elements.h"

namespace {

constexpr int64_t SHARE = 1 << 16;  // products from which a second thread pays off
constexpr int64_t BLOCK = 144;      // rows that are computed together, so that their vectors stay in the cache
constexpr int64_t FEW = 4;          // tokens that are not worth a second thread

}  // namespace

Machine::Machine(const Program& program, const Inputs& inputs, int64_t sources, int64_t beams, int64_t room, int threads)
    : program_(program), inputs_(inputs), sources_(sources), beams_(beams), room_(room), threads_(threads),
      registers_(program.registers), pages_(program.caches), states_(program.states), ancestry_(sources * beams * room, 0),
      before_(beams * room) {
    for (int64_t at = 0; at < program.registers; at++) registers_[at].resize(sources * beams * program.widths[at]);
    for (int64_t at = 0; at < program.states; at++) states_[at].resize(sources * beams * program.held[at]);
}

void Machine::admit(int64_t source, const Inputs& inputs, int64_t index) {
    if (origins_.empty()) origins_.resize(sources_);
    origins_[source] = {inputs.memories, index};
    for (int64_t at = 0; at < program_.states; at++) {
        const int64_t width = program_.held[at];
        float* mine = states_[at].data() + source * beams_ * width;
        std::fill_n(mine, beams_ * width, 0.0f);
        if (inputs.starts && inputs.starts[at]) std::copy_n(inputs.starts[at] + index * width, width, mine);
    }
}

const float* Machine::run(const Rows& rows) {
    for (int64_t row = 0; row < rows.count() && program_.caches; row++) {
        const int64_t line = rows.source[row] * beams_ + rows.beam[row];
        ancestry_[line * room_ + rows.position[row]] = int16_t(rows.beam[row]);
    }
    for (int64_t at = 0; at < program_.count; at++) carry_out(program_.ops[at], rows, 0);
    return registers_[program_.ops[program_.count - 1].to].data();
}

const float* Machine::run_together(const Rows& rows, int crew) {
    const Op& last = program_.ops[program_.count - 1];
#pragma omp parallel num_threads(crew) if (crew > 1)
    {
        const int64_t number = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t begin = rows.count() * number / team, end = rows.count() * (number + 1) / team;
        const Rows mine = rows.spread(begin, end, 1), spread = rows.spread(begin, end, last.rate);
        for (int64_t at = 0; at < program_.count; at++) {
            const Op& op = program_.ops[at];
            const bool meet = op.kind == WHOLE || op.kind == WITHIN || op.kind == WHOLE_SUMS || op.kind == AROUND;
            if (meet) {
#pragma omp barrier
            }
            carry_out(op, op.rate > 1 ? spread : mine, begin);
            if (meet) {
#pragma omp barrier
            }
        }
    }
    return registers_[last.to].data();
}

void Machine::carry_out(const Op& op, const Rows& rows, int64_t first) {
    const int64_t count = rows.count(), width = op.width, all = count * width;
    float* to = vectors(op.to, first);
    const float *from = vectors(op.from, first), *other = vectors(op.other, first);
    switch (op.kind) {
        case EMBED:
            for (int64_t row = 0; row < count; row++) {
                const int64_t id = inputs_.ids ? inputs_.ids[rows.token[row]] : rows.token[row];
                const float* vector = (op.first ? op.first : inputs_.given) + id * width;
                const float* place = op.number < 0 ? nullptr : inputs_.tables[op.number] + rows.position[row] * width;
                for (int64_t i = 0; i < width; i++) to[row * width + i] = vector[i] * op.value + (place ? place[i] : 0.0f);
            }
            return;
        case NORM:
            for (int64_t row = 0; row < count; row++) {
                norm(from + row * width, width, op.first, op.second, op.value, to + row * width);
            }
            return;
        case LINEAR: {
            const After after{op.then == RELU, op.then == ADD ? other : nullptr, op.value};
            return multiply(op.layer, from, count, after, to, threads_);
        }
        case ADD:
            for (int64_t i = 0; i < all; i++) to[i] = (from[i] + other[i]) * op.value;
            return;
        case JOIN:
            for (int64_t row = 0; row < count; row++) {
                float* joint = to + row * (width + op.values);
                std::copy_n(from + row * width, width, joint);
                std::copy_n(other + row * op.values, op.values, joint + width);
            }
            return;
        case RELU:
            for (int64_t i = 0; i < all; i++) to[i] = from[i] < 0 ? 0 : from[i];
            return;
        case GELU: return each(from, all, to, gelu_of);
        case SILU: return each(from, all, to, silu_of);
        case TANH: return each(from, all, to, tanh_of);
        case SWIGLU:
        case GLU:
        case MAXOUT: {
            const auto halve = op.kind == SWIGLU ? swiglu : op.kind == GLU ? glu : maxout;
            for (int64_t row = 0; row < count; row++) halve(from + 2 * row * width, width, to + row * width);
            return;
        }
        case ROTATE:  // queries and keys, in place
            for (int64_t row = 0; row < count; row++) {
                const float* turn = inputs_.tables[op.number] + rows.position[row] * 2 * width;
                rotate(to + row * 3 * op.heads * width, 2 * op.heads, width, turn);
            }
            return;
        case SPREAD:  // the parts of a token's vector become rows
            for (int64_t row = 0; row < count; row++) {
                const float* place = op.number < 0 ? nullptr : inputs_.tables[op.number] + rows.position[row] * width;
                for (int64_t i = row * width; i < (row + 1) * width; i++) to[i] = from[i] + (place ? place[i - row * width] : 0.0f);
            }
            return;
        case RECALL:
        case HOLD:
        case GRU:
        case LSTM:
        case WINDOW: return update(op, rows);
        case AROUND: return gather_around(op, rows, first);
        case SELF: return attend_self(op, rows);
        case WHOLE:
        case WITHIN: return attend_whole(op, rows, first);
        case CROSS: return attend_cross(op, rows, first);
        case ADDITIVE: return attend_additive(op, rows, first);
        case SUMS: return attend_sums(op, rows);
        case WHOLE_SUMS: return attend_whole_sums(op, rows, first);
        case CROSS_SUMS: return attend_cross_sums(op, rows, first);
    }
}

// Operations that read a state, or replace it.
void Machine::update(const Op& op, const Rows& rows) {
    const int64_t width = op.width, span = (op.heads - 1) * op.past;  // of a window
    float* to = registers_[op.to].data();
    const float *from = registers_[op.from].data(), *other = registers_[op.other].data();
    for (int64_t row = 0; row < rows.count(); row++) {
        float* mine = state(op, rows, row);
        switch (op.kind) {
            case RECALL: std::copy_n(mine, width, to + row * width); break;
            case HOLD: std::copy_n(from + row * width, width, mine); break;
            case GRU: gru(from + row * 3 * width, other + row * 3 * width, width, mine, to + row * width); break;
            case LSTM: lstm(from + row * 4 * width, other + row * 4 * width, width, mine, to + row * width); break;
            default:  // WINDOW: the state is the tail [span, width]
                for (int64_t tap = 0; tap + 1 < op.heads; tap++) {
                    std::copy_n(mine + tap * op.past * width, width, to + (row * op.heads + tap) * width);
                }
                std::copy_n(from + row * width, width, to + ((row + 1) * op.heads - 1) * width);
                std::copy(mine + std::min<int64_t>(1, span) * width, mine + span * width, mine);
                if (span) std::copy_n(from + row * width, width, mine + (span - 1) * width);
        }
    }
}

// The tokens around each token, `past` apart; beyond the ends of its sequence zeros.
void Machine::gather_around(const Op& op, const Rows& rows, int64_t first) {
    const float* from = vectors(op.from, first);
    for (int64_t row = 0; row < rows.count(); row++) {
        float* to = vectors(op.to, first) + row * op.heads * op.width;
        for (int64_t tap = 0; tap < op.heads; tap++, to += op.width) {
            const int64_t at = row + (tap - op.heads / 2) * op.past;
            if (at < row - rows.position[row] || at >= row + rows.left[row]) {
                std::fill_n(to, op.width, 0.0f);
            } else {
                std::copy_n(from + at * op.width, op.width, to);
            }
        }
    }
}

Rows Rows::spread(int64_t begin, int64_t end, int64_t rate) const {
    Rows found;
    for (int64_t row = begin * rate; row < end * rate; row++) {
        const int64_t of = row / rate, part = row % rate;
        found.add(source[of], beam[of], token[of], position[of] * rate + part, left[of] * rate - part);
    }
    return found;
}

float* Machine::page(int64_t cache, int64_t number) {
    auto& pages = pages_[cache];
    while (int64_t(pages.size()) <= number) pages.emplace_back(new float[2 * sources_ * beams_ * PAGE * program_.cells[cache]]);
    return pages[number].get();
}

float* Machine::state(const Op& op, const Rows& rows, int64_t row) {
    return states_[op.number].data() + (rows.source[row] * beams_ + rows.beam[row]) * program_.held[op.number];
}

int64_t Machine::keys(const Op& op, const Rows& rows) const {
    int64_t sum = 0;
    for (const int64_t source : rows.source) sum += origin(source).memories[op.number].keys;
    return sum;
}

int Machine::crew(int64_t products) const { return int(std::min<int64_t>(threads_, 1 + products / SHARE)); }

void Machine::reorder(int64_t source, const int64_t* parents, int64_t length) {
    int16_t* own = ancestry_.data() + source * beams_ * room_;
    for (int64_t beam = 0; beam < beams_; beam++) std::copy_n(own + beam * room_, length, before_.data() + beam * room_);
    for (int64_t beam = 0; beam < beams_; beam++) {
        std::copy_n(before_.data() + parents[beam] * room_, length, own + beam * room_);
    }
    for (int64_t at = 0; at < program_.states; at++) {
        const int64_t width = program_.held[at];
        float* mine = states_[at].data() + source * beams_ * width;
        aside_.assign(mine, mine + beams_ * width);
        for (int64_t beam = 0; beam < beams_; beam++) {
            if (parents[beam] != beam) std::copy_n(aside_.data() + parents[beam] * width, width, mine + beam * width);
        }
    }
}

// Reads whole sequences: tokens [count, extent] or, if null, given vectors, of which the first `lengths` of each sequence are real
// → out [count, extent, D], 0 behind the end of a sequence. A sequence reads the memory with its number.
extern "C" void weft_encode(const Program* program, const Inputs* inputs, const int64_t* tokens, const int64_t* lengths,
                            int64_t count, int64_t extent, float* out, int threads) {
    const Op& last = program->ops[program->count - 1];
    std::vector<int64_t> begins{0};  // of blocks of sequences
    for (int64_t at = 0, size = 0; at < count; at++) {
        if (size && size + lengths[at] * last.rate > BLOCK) begins.push_back(at), size = 0;
        size += lengths[at] * last.rate;
    }
    begins.push_back(count);
    const int64_t blocks = int64_t(begins.size()) - 1, width = program->widths[last.to];
    const auto read = [&](int64_t block, int crew) {
        Rows rows;
        for (int64_t at = begins[block]; at < begins[block + 1]; at++) {
            for (int64_t place = 0; place < lengths[at]; place++) {
                rows.add(at, 0, tokens ? tokens[at * extent + place] : at * extent + place, place, lengths[at] - place);
            }
        }
        Machine machine(*program, *inputs, rows.count(), 1, 0, 1);
        const float* found = machine.run_together(rows, int(std::min<int64_t>(crew, 1 + rows.count() / FEW)));
        for (int64_t at = begins[block]; at < begins[block + 1]; at++) {
            const int64_t size = lengths[at] * width;
            float* end = std::copy_n(found, size, out + at * extent * width);
            std::fill(end, out + (at + 1) * extent * width, 0.0f);
            found += size;
        }
    };
    // A single block has all threads to itself, and must not be read inside a parallel region, not even one of a single thread: its
    // own region would be nested, and OpenMP starts new threads for every nested region.
    if (blocks == 1) return read(0, threads);
    const int crew = int(std::min<int64_t>(threads, blocks));
#pragma omp parallel for num_threads(crew) schedule(dynamic)
    for (int64_t block = 0; block < blocks; block++) read(block, 1);
}
