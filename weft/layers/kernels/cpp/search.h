// A search without Python between its steps: feeding prefixes, choosing tokens, and feeding them. Each of its G places holds a
// source, which starts when it is admitted; others may start or be done at any time.
//
// `weft/decoding/cpp_search.py` has the same structs; `weft/decoding/token_selection.py` defines what is computed here.
// Shapes: G sources · K beams · V vocabulary · N finished hypotheses kept · T steps · P prefix tokens.

#pragma once

#include "logits.h"
#include "program.h"

enum Method : int64_t { GREEDY, BEAM, SAMPLE };
enum Stop : int64_t { EXACT, LENGTH, FIRST };

struct Selector {
    int64_t method, keep, stop;
    float penalty, offset;
    float temperature, top_p;
    int64_t top_k, seed;
};

struct Task {
    Program program;
    Inputs inputs;                            // tables and ids, which all sources share
    Linear output;
    Selector selector;
    int64_t sources, beams, room, prefix, threads;
    const int64_t *first, *prefix_lengths;    // [G, P], [G]
    const int64_t *max_tokens, *min_tokens, *sentences;  // [G]
    const float* bias;                        // [G, V] or null
    const int64_t* forbidden;
    int64_t forbidden_count, pad, eos;
    float *score, *best;                      // [G, K], [G, N]
    int64_t *when, *parent, *token;           // [G, N]
    bool* done;                               // [G]
    int64_t *tokens, *parents;                // [T, G, K]
};

// What a selector sees of one source, and what it decides.
struct Turn {
    const Task& task;
    int64_t source, t, rows;   // t: choices before this one · rows: hypotheses whose logits are there, 1 at first and then K
    const float* logits;       // [rows, V]
    const float* norm;         // [rows]
    int64_t *tokens, *parents; // [K]

    int64_t size() const { return task.output.outputs; }
    bool last() const { return t + 1 >= task.max_tokens[source]; }
    float divisor(int64_t length) const;
};

void choose_greedy(const Turn& turn);
void choose_beam(const Turn& turn);
void choose_sample(const Turn& turn);
