#include "search.h"

float Turn::divisor(int64_t length) const {
    const float offset = task.selector.offset;
    return std::pow(offset == 0 ? float(length) : (float(length) + offset) / (1 + offset), task.selector.penalty);
}

namespace {

// Extends hypothesis k, which competes with no other, by a token; returns whether it runs on.
bool extend(const Turn& turn, int64_t k, int64_t token, float logp) {
    const Task& task = turn.task;
    const int64_t at = turn.source * task.beams + k;
    turn.parents[k] = k;
    turn.tokens[k] = task.pad;
    task.parent[at] = k;
    if (task.best[at] != -INFINITY) return false;
    turn.tokens[k] = token;
    task.score[at] += logp;
    if (token != task.eos && !turn.last()) return true;
    task.best[at] = task.score[at] / turn.divisor(turn.t + 1);
    task.when[at] = turn.t;
    task.token[at] = token;
    return false;
}

// A number in [0, 1) for a sentence, a sample and a step: the bit mixing of splitmix64.
float uniform(uint64_t seed, uint64_t sentence, uint64_t sample, uint64_t t) {
    uint64_t x = sentence * 0x1E3779B97F4A7C15u + sample * 0x3F4A7C15D1B54A33u + t * 0x5851F42D4C957F2Du;
    x += (seed * 0x2545F4914F6CDD1Du) & ((uint64_t(1) << 63) - 1);
    x = (x ^ (x >> 30)) * 0x3F58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x14D049BB133111EBu;
    x ^= x >> 31;
    return float((x >> 16) & 0xffffff) / float(1 << 24);
}

// Draws a token from the logits [V] of a row.
int64_t draw(const Selector& selector, const float* logits, int64_t size, float chance) {
    thread_local std::vector<std::pair<float, int64_t>> ranked;
    thread_local std::vector<float> ladder;
    ranked.resize(size);
    ladder.resize(size);
    for (int64_t i = 0; i < size; i++) ranked[i] = {-(logits[i] / selector.temperature), i};
    std::sort(ranked.begin(), ranked.end());
    double all = 0;
    for (int64_t i = 0; i < size; i++) all += std::exp(ranked[0].first - ranked[i].first);
    const int64_t most = selector.top_k ? std::min(selector.top_k, size) : size;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < most; i++) total += ladder[i] = float(std::exp(ranked[0].first - ranked[i].first) / all);
    int64_t count = 0;
    for (; count < most && !(selector.top_p < 1 && sum >= selector.top_p * total); count++) {
        sum += ladder[count];
        ladder[count] = float(sum);
    }
    const float throw_ = chance * ladder[count - 1];
    int64_t rung = 0;
    while (rung < count && ladder[rung] <= throw_) rung++;
    return ranked[std::min(rung, count - 1)].second;
}

struct Candidate {
    float score;
    int64_t parent, token;
};

// The best 2K continuations, best first.
void continuations(const Turn& turn, std::vector<Candidate>& found) {
    const int64_t each = 2 * turn.task.beams;
    thread_local std::vector<float> best;
    thread_local std::vector<int64_t> where;
    best.resize(each);
    where.resize(each);
    found.clear();
    for (int64_t row = 0; row < turn.rows; row++) {
        const float before = turn.task.score[turn.source * turn.task.beams + row] - turn.norm[row];
        best_of(turn.logits + row * turn.size(), turn.size(), each, best.data(), where.data());
        for (int64_t i = 0; i < each; i++) found.push_back({best[i] + before, row, where[i]});
    }
    const auto higher = [](const Candidate& one, const Candidate& other) { return one.score > other.score; };
    std::stable_sort(found.begin(), found.end(), higher);
    found.resize(each);
}

// Sorts a finished hypothesis into the table, after those that score the same.
void keep(const Turn& turn, float score, const Candidate& ending) {
    const Task& task = turn.task;
    const int64_t size = task.selector.keep, first = turn.source * size;
    if (!(score > task.best[first + size - 1])) return;
    int64_t at = first + size - 1;
    for (; at > first && task.best[at - 1] < score; at--) {
        task.best[at] = task.best[at - 1];
        task.when[at] = task.when[at - 1];
        task.parent[at] = task.parent[at - 1];
        task.token[at] = task.token[at - 1];
    }
    task.best[at] = score;
    task.when[at] = turn.t;
    task.parent[at] = ending.parent;
    task.token[at] = ending.token;
}

// Whether no running hypothesis can enter the table any more, if the best of them has the score `lead`.
bool decided(const Turn& turn, float lead) {
    const Selector& selector = turn.task.selector;
    const float worst = turn.task.best[(turn.source + 1) * selector.keep - 1];
    const bool full = worst > -INFINITY;
    if (lead == -INFINITY || (selector.stop == FIRST && full)) return true;
    int64_t length = turn.t + (selector.stop == EXACT ? 2 : 1);
    if (selector.stop == EXACT && selector.penalty > 0) length = turn.task.max_tokens[turn.source];
    return selector.stop != FIRST && full && lead / turn.divisor(length) <= worst;
}

}  // namespace

void choose_greedy(const Turn& turn) {
    float best;
    int64_t token;
    best_of(turn.logits, turn.size(), 1, &best, &token);
    turn.task.done[turn.source] = !extend(turn, 0, token, best - turn.norm[0]);
}

void choose_sample(const Turn& turn) {
    const Task& task = turn.task;
    bool running = false;
    for (int64_t k = 0; k < task.beams; k++) {
        const int64_t row = turn.rows == 1 ? 0 : k;
        const float* logits = turn.logits + row * turn.size();
        int64_t token = 0;
        if (task.best[turn.source * task.beams + k] != -INFINITY) {
            token = task.pad;  // it has ended
        } else if (task.selector.temperature == 0) {
            token = std::max_element(logits, logits + turn.size()) - logits;
        } else {
            const float chance = uniform(task.selector.seed, task.sentences[turn.source], k, turn.t);
            token = draw(task.selector, logits, turn.size(), chance);
        }
        running |= extend(turn, k, token, logits[token] - turn.norm[row]);
    }
    task.done[turn.source] = !running;
}

void choose_beam(const Turn& turn) {
    const Task& task = turn.task;
    thread_local std::vector<Candidate> found;
    continuations(turn, found);
    const float divisor = turn.divisor(turn.t + 1);
    float* score = task.score + turn.source * task.beams;
    int64_t running = 0;
    for (int64_t rank = 0; rank < int64_t(found.size()); rank++) {
        const Candidate& each = found[rank];
        if (each.token != task.eos && !turn.last()) {
            if (running == task.beams) continue;
            score[running] = each.score;
            turn.tokens[running] = each.token;
            turn.parents[running++] = each.parent;
        } else if (rank < task.beams && each.score > -INFINITY) {
            // A hypothesis that is cut off where EOS is forbidden ranks below all others.
            const bool may_end = turn.logits[each.parent * turn.size() + task.eos] > -INFINITY;
            const float final = each.score / divisor;
            keep(turn, may_end ? final : final - 1e6f, each);
        }
    }
    for (; running < task.beams; running++) {
        score[running] = -INFINITY;
        turn.tokens[running] = found[0].token;
        turn.parents[running] = found[0].parent;
    }
    task.done[turn.source] = turn.last() || decided(turn, score[0]);
}
