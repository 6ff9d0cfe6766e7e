// Operations on rows of logits for search: log-sum-exp, and the best entries.

#pragma once

#include "lanes.h"

// log Σ eˣ over x [size].
float log_sum(const float* x, int64_t size);

// The `count` largest of x [size] in descending order, and their indices; equal values stay in order. count ≤ size.
void best_of(const float* x, int64_t size, int64_t count, float* best, int64_t* where);

// Inserts a value into the list of the best `count`, in descending order; equal values keep their order.
inline void insert(float value, int64_t place, float* best, int64_t* where, int64_t count) {
    int64_t at = count - 1;
    for (; at > 0 && best[at - 1] < value; at--) {
        best[at] = best[at - 1];
        where[at] = where[at - 1];
    }
    best[at] = value;
    where[at] = place;
}
