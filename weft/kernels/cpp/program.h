// A decoder or an encoder as a flat list of operations on registers, one vector per row, and the state that they read and write.
//
// `weft/kernels/plan.py` has the same structs. Shapes: G sources · K beams · H heads · D head width · S keys · P cells of a page.

#pragma once

#include "linear.h"

enum Kind : int64_t { EMBED, NORM, LINEAR, ADD, RELU, GELU, SWIGLU, ROTATE, SELF, CROSS, WHOLE };

struct Op {
    int64_t kind;
    int64_t to, from, other;   // registers
    int64_t number;            // of a cache, a memory or a table of positions; −1: none
    int64_t heads, width;      // of an attention, or the width of a register
    int64_t past;              // tokens that a query sees before and including itself, and in an encoder after; 0: all
    float value;               // ε of a norm, the scale of an embedding
    const float *first, *second;  // tables: of embeddings, or gain and shift of a norm
    Linear layer;
};

// The keys and values of encoded sources: k, v [G, H, S, D] and bias [G, S] or null.
struct Memory {
    const float *k, *v, *bias;
    int64_t keys;
};

struct Program {
    const Op* ops;
    int64_t count;
    const int64_t* widths;     // of each register; the last operation writes the hidden states
    int64_t registers;
    const int64_t* cells;      // the width H·D of each cache
    int64_t caches;
};

constexpr int64_t PAGE = 16;  // tokens for which a cache allocates memory at once

// Which rows run: the source and the beam of each, the token it reads, and its position.
struct Rows {
    std::vector<int64_t> source, beam, token, position;
    int64_t count() const { return int64_t(source.size()); }
    void clear() { source.clear(), beam.clear(), token.clear(), position.clear(); }
    void add(int64_t s, int64_t b, int64_t t, int64_t p) {
        source.push_back(s), beam.push_back(b), token.push_back(t), position.push_back(p);
    }
};

class Machine {
   public:
    // tables: vectors by position, one table per operation that adds or rotates by them · ids: of the tokens; null: the tokens.
    Machine(const Program& program, const Memory* memories, const float* const* tables, const int64_t* ids, int64_t sources,
            int64_t beams, int64_t room, int threads);

    // Runs the rows through all operations; returns the hidden states [rows, width], which are valid until the next call.
    const float* run(const Rows& rows);

    // Beam b of a source becomes what beam parents[b] was. Cells are not moved.
    void reorder(int64_t source, const int64_t* parents, int64_t length);

   private:
    void carry_out(const Op& op, const Rows& rows);
    void attend_self(const Op& op, const Rows& rows);
    void attend_cross(const Op& op, const Rows& rows);
    void attend_whole(const Op& op, const Rows& rows);
    float* page(int64_t cache, int64_t number);

    const Program& program_;
    const Memory* memories_;
    const float* const* tables_;
    const int64_t* ids_;
    const int64_t sources_, beams_, room_;
    const int threads_;
    std::vector<std::vector<float>> registers_;
    std::vector<std::vector<std::vector<float>>> pages_;  // by cache: keys of a page, then its values, [G, H, K, P, D] each
    std::vector<int16_t> ancestry_, before_;              // [G, K, room]: the beam whose cell holds a token
};
