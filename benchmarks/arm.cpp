// Runs the kernels of weft/layers/kernels/cpp on numbers that are the same everywhere, and prints their outputs as bits: see arm.py.

#include <cstdio>

#include "attention.h"
#include "linear.h"
#include "logits.h"

static uint32_t state = 12345;

static uint32_t draw() { return state = state * 1664525u + 1013904223u; }

static std::vector<float> numbers(int64_t count, float size) {
    std::vector<float> found(count);
    for (float& x : found) x = ((draw() >> 8) / 16777216.0f - 0.5f) * size;
    return found;
}

static void show(const char* name, const std::vector<float>& found) {
    uint32_t hash = 2166136261u;
    for (const float x : found) {
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        hash = (hash ^ bits) * 16777619u;
    }
    std::printf("%s %08x %.9g\n", name, hash, double(found[0]));
}

static void linear(int64_t inputs, int64_t outputs, int64_t rows) {
    const int64_t width = (outputs + WIDE - 1) / WIDE * WIDE;
    std::vector<uint8_t> bytes(width * ((inputs + 3) / 4 * 4));
    for (uint8_t& x : bytes) x = uint8_t(draw() >> 24);
    const auto x = numbers(rows * inputs, 4), scale = numbers(outputs, 0.04f), bias = numbers(outputs, 4);
    const auto weights = numbers(width * inputs, 0.25f), add = numbers(rows * outputs, 4);
    std::vector<float> y(rows * outputs);
    multiply_int8(Linear{bytes.data(), scale.data(), bias.data(), inputs, outputs}, x.data(), rows, After{false, add.data(), 0.5f}, y.data(), 2);
    show("int8", y);
    multiply_float(Linear{weights.data(), nullptr, bias.data(), inputs, outputs}, x.data(), rows, After{true}, y.data(), 2);
    show("float32", y);
}

int main() {
    for (const int64_t inputs : {37, 256, 1024}) {
        for (const int64_t outputs : {70, 256}) {
            for (const int64_t rows : {1, 5, 33}) linear(inputs, outputs, rows);
        }
    }
    constexpr int64_t COUNT = 1000, WIDTH = 64, CELLS = 57;
    const auto x = numbers(COUNT, 16), gain = numbers(COUNT, 2), shift = numbers(COUNT, 2);
    std::vector<float> y(COUNT), scores(CELLS), mixed(WIDTH);
    norm(x.data(), COUNT, gain.data(), shift.data(), 1e-5f, y.data());
    show("norm", y);
    each(x.data(), COUNT, y.data(), [](Floats v) { return gelu_of(v); });
    show("gelu", y);
    each(x.data(), COUNT, y.data(), [](Floats v) { return tanh_of(v); });
    show("tanh", y);
    each(x.data(), COUNT, y.data(), [](Floats v) { return sigmoid_of(v); });
    show("sigmoid", y);
    show("log-sum", {log_sum(x.data(), COUNT)});
    std::vector<int64_t> where(5);
    best_of(x.data(), COUNT, 5, y.data(), where.data());
    show("best", y);
    const auto keys = numbers(CELLS * WIDTH, 4), values = numbers(CELLS * WIDTH, 4);
    const auto key = [&](int64_t cell) { return keys.data() + cell * WIDTH; };
    const auto value = [&](int64_t cell) { return values.data() + cell * WIDTH; };
    look<4>(x.data(), WIDTH, WIDTH, 0.125f, 0, CELLS, key, value, nullptr, scores.data(), mixed.data());
    show("attention", mixed);
}
