#include "elements.h"

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

void rotate(float* x, int64_t heads, int64_t width, const float* turn) {
    for (int64_t head = 0; head < heads; head++, x += width) {
        for (int64_t i = 0; i < width; i += 2) {
            const float even = x[i], odd = x[i + 1];
            x[i] = even * turn[i] - odd * turn[width + i];
            x[i + 1] = odd * turn[i + 1] + even * turn[width + i + 1];
        }
    }
}

void swiglu(const float* x, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += 16) {
        const Floats gate = load(x + i, width - i, 0.0f);
        store(y + i, gate * sigmoid_of(gate) * load(x + width + i, width - i, 0.0f), width - i);
    }
}

void glu(const float* x, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += 16) {
        store(y + i, load(x + i, width - i, 0.0f) * sigmoid_of(load(x + width + i, width - i, 0.0f)), width - i);
    }
}

void maxout(const float* x, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i++) y[i] = std::max(x[2 * i], x[2 * i + 1]);
}

void gru(const float* input, const float* past, int64_t width, float* state, float* y) {
    for (int64_t i = 0; i < width; i += 16) {
        const int64_t left = width - i;
        const auto part = [&](const float* x, int64_t gate) INLINE { return load(x + gate * width + i, left, 0.0f); };
        const Floats reset = sigmoid_of(part(input, 0) + part(past, 0)), update = sigmoid_of(part(input, 1) + part(past, 1));
        const Floats fresh = tanh_of(part(input, 2) + reset * part(past, 2)), before = load(state + i, left, 0.0f);
        const Floats after = fresh + update * (before - fresh);
        store(state + i, after, left);
        store(y + i, after, left);
    }
}

void lstm(const float* input, const float* past, int64_t width, float* state, float* y) {
    for (int64_t i = 0; i < width; i += 16) {
        const int64_t left = width - i;
        const auto gate = [&](int64_t number) INLINE {
            return load(input + number * width + i, left, 0.0f) + load(past + number * width + i, left, 0.0f);
        };
        const Floats kept = sigmoid_of(gate(1)) * load(state + width + i, left, 0.0f);
        const Floats cell = kept + sigmoid_of(gate(0)) * tanh_of(gate(2)), after = sigmoid_of(gate(3)) * tanh_of(cell);
        store(state + width + i, cell, left);
        store(state + i, after, left);
        store(y + i, after, left);
    }
}
