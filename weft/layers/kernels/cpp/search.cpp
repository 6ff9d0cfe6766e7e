#include "search.h"

#include <memory>

namespace {

constexpr int64_t SHARE = 1 << 16;  // logits from which a second thread pays off

class Search {
   public:
    explicit Search(const Task& task)
        : task_(task),
          machine_(task_.program, task_.inputs, task_.sources, task_.beams, task_.room, int(task_.threads)),
          fed_(task_.sources, 0), t_(task_.sources, 0), offset_(task_.sources),
          hidden_(task_.sources * task_.beams * task_.output.inputs),
          logits_(task_.sources * task_.beams * task_.output.outputs), norm_(task_.sources * task_.beams),
          first_(task_.beams, 0) {}

    // Starts the sources of `inputs` in these places, whose lines of the task's tables the caller has filled.
    void admit(const Inputs& inputs, const int64_t* places, int64_t count) {
        for (int64_t index = 0; index < count; index++) {
            fed_[places[index]] = t_[places[index]] = 0;
            machine_.admit(places[index], inputs, index);
        }
    }

    // Makes up to `steps` steps, fewer if all sources are done before. Returns the number of sources that are not.
    int64_t run(int64_t steps) {
        int64_t alive = running();
        for (int64_t i = 0; i < steps && alive; i++, alive = running()) {
            const float* found = feed();
            choose(found);
        }
        return alive;
    }

   private:
    int64_t running() const { return std::count(task_.done, task_.done + task_.sources, false); }

    // A source reads its prefix with one row; when it has chosen, each of its beams is a row.
    int64_t rows_of(int64_t source) const { return t_[source] == 0 ? 1 : task_.beams; }

    // Feeds the next token of its prefix, or the tokens chosen last, to each source that is not done. Returns the hidden states.
    const float* feed() {
        rows_.clear();
        for (int64_t source = 0; source < task_.sources; source++) {
            if (task_.done[source]) continue;
            if (t_[source] == 0) {
                rows_.add(source, 0, task_.first[source * task_.prefix + fed_[source]], fed_[source]);
            } else {
                const int64_t line = ((t_[source] - 1) * task_.sources + source) * task_.beams;
                // The prefix was read by the first beam alone.
                const int64_t* parents = t_[source] == 1 ? first_.data() : task_.parents + line;
                if (task_.beams > 1) machine_.reorder(source, parents, fed_[source]);
                for (int64_t k = 0; k < task_.beams; k++) rows_.add(source, k, task_.tokens[line + k], fed_[source]);
            }
            fed_[source]++;
        }
        return machine_.run(rows_);
    }

    // Chooses for each source that is not done and has read its prefix.
    void choose(const float* found) {
        const int64_t size = task_.output.outputs, width = task_.output.inputs;
        int64_t rows = 0;
        ready_.clear();
        for (int64_t source = 0; source < task_.sources; source++) {
            if (task_.done[source]) continue;
            const int64_t each = rows_of(source);
            if (fed_[source] >= task_.prefix_lengths[source]) {
                std::copy_n(found, each * width, hidden_.data() + rows * width);
                ready_.push_back(source);
                offset_[source] = rows;
                rows += each;
            }
            found += each * width;
        }
        if (ready_.empty()) return;
        multiply(task_.output, hidden_.data(), rows, After{}, logits_.data(), int(task_.threads));
        const int crew = int(std::min<int64_t>(task_.threads, 1 + rows * size / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1) schedule(dynamic)
        for (int64_t at = 0; at < int64_t(ready_.size()); at++) {
            choose_for(ready_[at], rows_of(ready_[at]));
            t_[ready_[at]]++;
        }
    }

    void choose_for(int64_t source, int64_t rows) {
        const int64_t size = task_.output.outputs, t = t_[source], line = (t * task_.sources + source) * task_.beams;
        float *logits = logits_.data() + offset_[source] * size, *norm = norm_.data() + offset_[source];
        for (int64_t row = 0; row < rows; row++) {
            float* mine = logits + row * size;
            if (task_.bias) {
                for (int64_t i = 0; i < size; i++) mine[i] += task_.bias[source * size + i];
            }
            norm[row] = log_sum(mine, size);
            if (t < task_.min_tokens[source]) mine[task_.eos] = -INFINITY;
            for (int64_t i = 0; i < task_.forbidden_count; i++) mine[task_.forbidden[i]] = -INFINITY;
        }
        const Turn turn{task_, source, t, rows, logits, norm, task_.tokens + line, task_.parents + line};
        switch (task_.selector.method) {
            case GREEDY: return choose_greedy(turn);
            case BEAM: return choose_beam(turn);
            case SAMPLE: return choose_sample(turn);
        }
    }

    const Task task_;
    Machine machine_;
    std::vector<int64_t> fed_, t_;     // tokens that each source has read, and choices that it has made
    std::vector<int64_t> offset_;      // of each source among the rows of logits
    std::vector<int64_t> ready_;       // sources that choose in this step
    Rows rows_;
    std::vector<float> hidden_, logits_, norm_;
    const std::vector<int64_t> first_;  // parents at the first step
};

}  // namespace

// The task and everything it points to must outlive the search. Places are empty, and `done`, until sources are admitted.
extern "C" void* weft_search_open(const Task* task) { return new Search(*task); }

// What the inputs point to must outlive their sources.
extern "C" void weft_search_admit(void* search, const Inputs* inputs, const int64_t* places, int64_t count) {
    static_cast<Search*>(search)->admit(*inputs, places, count);
}

extern "C" int64_t weft_search_run(void* search, int64_t steps) { return static_cast<Search*>(search)->run(steps); }

extern "C" void weft_search_close(void* search) { delete static_cast<Search*>(search); }

// The sizes of the structs, so that Python can check that it has the same.
extern "C" int64_t weft_struct_size(int64_t which) { return which == 0 ? sizeof(Op) : which == 1 ? sizeof(Memory) : sizeof(Task); }
