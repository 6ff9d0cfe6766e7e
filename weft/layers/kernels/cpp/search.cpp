#include "search.h"

#include <memory>

namespace {

constexpr int64_t SHARE = 1 << 16;  // logits from which a second thread pays off

class Search {
   public:
    explicit Search(const Task& task)
        : task_(task),
          machine_(task_.program, task_.inputs, task_.sources, task_.beams, task_.room, int(task_.threads)),
          fed_(task_.sources, 0), hidden_(task_.sources * task_.beams * task_.output.inputs),
          logits_(task_.sources * task_.beams * task_.output.outputs), norm_(task_.sources * task_.beams),
          offset_(task_.sources), first_(task_.beams, 0) {
        read_prefix();
    }

    // Makes up to `steps` choices. Returns the number of sources that are not done.
    int64_t run(int64_t steps) {
        int64_t alive = running();
        for (int64_t i = 0; i < steps && alive; i++) {
            if (t_ > 0) feed();
            choose();
            t_++;
            alive = running();
        }
        return alive;
    }

   private:
    int64_t running() const { return std::count(task_.done, task_.done + task_.sources, false); }

    // Feeds BOS and the prefixes, one row per source. Prefixes may differ in length: a source drops out after its last token.
    void read_prefix() {
        for (int64_t place = 0; place < task_.prefix; place++) {
            rows_.clear();
            for (int64_t source = 0; source < task_.sources; source++) {
                if (place >= task_.prefix_lengths[source]) continue;
                rows_.add(source, 0, task_.first[source * task_.prefix + place], fed_[source]++);
            }
            advance([&](int64_t row) { return rows_.source[row]; });
        }
    }

    // Feeds the tokens chosen last to all sources that are not done.
    void feed() {
        rows_.clear();
        const int64_t before = (t_ - 1) * task_.sources;
        for (int64_t source = 0; source < task_.sources; source++) {
            if (task_.done[source]) continue;
            const int64_t line = (before + source) * task_.beams;
            // The prefix was read by the first beam alone.
            if (task_.beams > 1) machine_.reorder(source, t_ == 1 ? first_.data() : task_.parents + line, fed_[source]);
            for (int64_t k = 0; k < task_.beams; k++) rows_.add(source, k, task_.tokens[line + k], fed_[source]);
            fed_[source]++;
        }
        advance([](int64_t row) { return row; });
    }

    // Runs the rows and keeps their hidden states, each in the place that `place` gives it.
    template <class Place>
    void advance(Place place) {
        const int64_t width = task_.output.inputs;
        const float* found = machine_.run(rows_);
        for (int64_t row = 0; row < rows_.count(); row++) {
            std::copy_n(found + row * width, width, hidden_.data() + place(row) * width);
        }
    }

    void choose() {
        const int64_t size = task_.output.outputs, each = t_ == 0 ? 1 : task_.beams;
        int64_t rows = 0;
        for (int64_t source = 0; source < task_.sources; source++) {
            offset_[source] = rows;
            if (!task_.done[source]) rows += each;
        }
        multiply(task_.output, hidden_.data(), rows, After{}, logits_.data(), int(task_.threads));
        const int crew = int(std::min<int64_t>(task_.threads, 1 + rows * size / SHARE));
#pragma omp parallel for num_threads(crew) if (crew > 1) schedule(dynamic)
        for (int64_t source = 0; source < task_.sources; source++) {
            if (!task_.done[source]) choose_for(source, each);
        }
    }

    void choose_for(int64_t source, int64_t rows) {
        const int64_t size = task_.output.outputs, line = (t_ * task_.sources + source) * task_.beams;
        float *logits = logits_.data() + offset_[source] * size, *norm = norm_.data() + offset_[source];
        for (int64_t row = 0; row < rows; row++) {
            float* mine = logits + row * size;
            if (task_.bias) {
                for (int64_t i = 0; i < size; i++) mine[i] += task_.bias[source * size + i];
            }
            norm[row] = log_sum(mine, size);
            if (t_ < task_.min_tokens[source]) mine[task_.eos] = -INFINITY;
            for (int64_t i = 0; i < task_.forbidden_count; i++) mine[task_.forbidden[i]] = -INFINITY;
        }
        const Turn turn{task_, source, t_, rows, logits, norm, task_.tokens + line, task_.parents + line};
        switch (task_.selector.method) {
            case GREEDY: return choose_greedy(turn);
            case BEAM: return choose_beam(turn);
            case SAMPLE: return choose_sample(turn);
        }
    }

    const Task task_;
    Machine machine_;
    int64_t t_ = 0;
    std::vector<int64_t> fed_;
    Rows rows_;
    std::vector<float> hidden_, logits_, norm_;
    std::vector<int64_t> offset_;  // of each source among the rows of logits
    const std::vector<int64_t> first_;  // parents at the first step
};

}  // namespace

// The task and everything it points to must outlive the search.
extern "C" void* weft_search_open(const Task* task) { return new Search(*task); }

extern "C" int64_t weft_search_run(void* search, int64_t steps) { return static_cast<Search*>(search)->run(steps); }

extern "C" void weft_search_close(void* search) { delete static_cast<Search*>(search); }

// The sizes of the structs, so that Python can check that it has the same.
extern "C" int64_t weft_struct_size(int64_t which) { return which == 0 ? sizeof(Op) : which == 1 ? sizeof(Memory) : sizeof(Task); }
