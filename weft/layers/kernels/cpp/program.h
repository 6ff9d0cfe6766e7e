// A decoder or an encoder as a flat list of operations on registers, one vector per row, and the state that they read and write.
//
// `weft/layers/kernels/cpp_plan.py` has the same structs. Shapes: G sources · K beams · H heads · D head width · S keys · P cells of a
// page.

#pragma once

#include <memory>

#include "linear.h"

enum Kind : int64_t {
    EMBED, NORM, LINEAR, ADD, JOIN,
    RELU, GELU, SILU, TANH, SWIGLU, GLU, MAXOUT,
    RECALL, HOLD, GRU, LSTM,
    WINDOW, AROUND,
    ROTATE, SELF, WHOLE, CROSS, ADDITIVE, SUMS, WHOLE_SUMS, CROSS_SUMS,
    SPREAD, WITHIN,
};

struct Op {
    int64_t kind;
    int64_t to, from, other;      // registers
    int64_t number;               // of a cache, a state, a memory or a table of positions; −1: none
    int64_t heads, width;         // of an attention or a window of tokens, or the width of a register
    int64_t values;               // width of a head's values, or of the second vector that is joined
    int64_t past;                 // attention: tokens that a query sees before and including itself, and in an encoder after, 0:
                                  // all; a window: the distance of its tokens
    int64_t then;                 // the kind of the operation that a linear layer does with its outputs, RELU or ADD; 0: none
    int64_t rate;                 // rows per token that it writes: 1, or more behind a SPREAD
    float value;                  // ε of a norm, or the scale of embeddings, sums or scores
    const float *first, *second;  // tables: of embeddings, gain and shift of a norm, or the last layer of a score
    Linear layer;
};

// What a decoder reads of encoded sources that were given together: k [G, H, S, D], v [G, H, S, values], bias [G, S] or null, and gain [G], a factor of
// the context, or null. Of sums over sources (CROSS_SUMS) k [G, H, D, values] alone.
struct Memory {
    const float *k, *v, *bias, *gain;
    int64_t keys;
};

struct Program {
    const Op* ops;
    int64_t count;
    const int64_t* widths;     // of each register, for one token; the last operation writes the hidden states
    int64_t registers;
    const int64_t* cells;      // the width H·D of each cache
    int64_t caches;
    const int64_t* held;       // the width of each state
    int64_t states;
};

// What one call of `weft_search_admit` or `weft_encode` gives to a program.
struct Inputs {
    const Memory* memories;
    const float* const* tables;  // vectors by position, one table per operation that adds or rotates by them
    const float* const* starts;  // [G, width] of each state, null: zeros
    const int64_t* ids;          // of the tokens; null: the tokens
    const float* given;          // vectors by token, for an EMBED without a table
};

constexpr int64_t PAGE = 16;  // tokens for which a cache allocates memory at once

// Which rows run: the source and the beam of each, the token it reads, and its position; and, if the rows are whole sequences, one
// after the other, how many are left of its sequence, with itself.
struct Rows {
    std::vector<int64_t> source, beam, token, position, left;
    int64_t count() const { return int64_t(source.size()); }
    void clear() { source.clear(), beam.clear(), token.clear(), position.clear(), left.clear(); }
    void add(int64_t s, int64_t b, int64_t t, int64_t p, int64_t l = 0) {
        source.push_back(s), beam.push_back(b), token.push_back(t), position.push_back(p), left.push_back(l);
    }
    // Rows `begin` … `end` − 1, `rate` times each, as parts of longer sequences.
    Rows spread(int64_t begin, int64_t end, int64_t rate) const;
};

class Machine {
   public:
    // Until sources are admitted, source g reads the memories with number g of `inputs`.
    Machine(const Program& program, const Inputs& inputs, int64_t sources, int64_t beams, int64_t room, int threads);

    // Gives the place of a source to another one: number `index` of `inputs`, whose memories must outlive it.
    void admit(int64_t source, const Inputs& inputs, int64_t index);

    // Runs the rows through all operations; returns the hidden states [rows, width], which are valid until the next call.
    const float* run(const Rows& rows);

    // The same for whole sequences, whose rows are divided among `crew` threads. They wait for each other only where rows read
    // other rows. The machine itself must have one thread.
    const float* run_together(const Rows& rows, int crew);

    // Beam b of a source becomes what beam parents[b] was. Cells are not moved, states are.
    void reorder(int64_t source, const int64_t* parents, int64_t length);

   private:
    // The memories of some sources, and the number of one of them.
    struct Origin {
        const Memory* memories;
        int64_t index;
    };
    Origin origin(int64_t source) const { return origins_.empty() ? Origin{inputs_.memories, source} : origins_[source]; }
    int64_t keys(const Op& op, const Rows& rows) const;  // of all rows together
    float* vectors(int64_t number, int64_t first) { return registers_[number].data() + first * program_.widths[number]; }
    // `first`: the first of the tokens of these rows, if others run the ones before.
    void carry_out(const Op& op, const Rows& rows, int64_t first);
    void update(const Op& op, const Rows& rows);
    void attend_self(const Op& op, const Rows& rows);
    void attend_whole(const Op& op, const Rows& rows, int64_t first);
    void attend_cross(const Op& op, const Rows& rows, int64_t first);
    void attend_additive(const Op& op, const Rows& rows, int64_t first);
    void attend_sums(const Op& op, const Rows& rows);
    void attend_whole_sums(const Op& op, const Rows& rows, int64_t first);
    void attend_cross_sums(const Op& op, const Rows& rows, int64_t first);
    void gather_around(const Op& op, const Rows& rows, int64_t first);
    float* page(int64_t cache, int64_t number);
    float* state(const Op& op, const Rows& rows, int64_t row);
    int crew(int64_t products) const;

    const Program& program_;
    const Inputs inputs_;
    const int64_t sources_, beams_, room_;
    const int threads_;
    std::vector<std::vector<float>> registers_;
    // By cache: keys of a page, then its values, [G, H, K, P, D] each. Cells are not set before they are written, so memory that
    // no source reaches costs nothing.
    std::vector<std::vector<std::unique_ptr<float[]>>> pages_;
    std::vector<std::vector<float>> states_;              // by state: [G, K, width]
    std::vector<float> aside_;
    std::vector<Origin> origins_;                         // [G], or empty
    std::vector<int16_t> ancestry_, before_;              // [G, K, room]: the beam whose cell holds a token
};
