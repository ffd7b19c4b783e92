// Attention of a few queries over a long KV cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onebit_attention {

// Positions that are weighed together; K and V of so many fit the L1 cache.
constexpr int64_t BLOCK = 64;

// The queries that share one head of K and V, over positions of one sequence's cache.
struct Part {
    int64_t n_rows; // queries
    int64_t d_k;    // multiples of 16
    int64_t d_v;
    const float * q;             // [n_rows][d_k], scaled
    const uint16_t * const * mask; // of each row, f16, from position 0 on; NULL for none
    const char * k;              // f16, position 0
    const char * v;
    size_t k_stride; // bytes from one position to the next
    size_t v_stride;
};

// Of each row: the largest score, the sum of weights relative to it, and the weighed sum of V, [d_v].
struct Partial {
    float * max;
    float * sum;
    float * out;
    size_t stride; // floats from one row to the next, the same for all three
};

// Whether this CPU runs the code below.
bool is_supported();

// Over every `step`-th block of `n_positions`, a multiple of BLOCK, from block `first` on; `scores` has room for
// n_rows * BLOCK.
void attend(const Part & part, int64_t n_positions, int64_t first, int64_t step, float * scores, const Partial & partial);

} // namespace onebit_attention

// While one of these lives, its thread is decoding.
struct onebit_decoding {
    onebit_decoding();
    ~onebit_decoding();
    onebit_decoding(const onebit_decoding &) = delete;
};
