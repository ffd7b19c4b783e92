// The arithmetic, for CPUs with AVX2. This file alone is compiled for them, so nothing of the standard library is used in it:
// the linker might keep its copy of an inline function for everybody.
#include "attention.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>
#include <math.h>

namespace onebit_attention {

namespace {

// Rows whose sums stay in registers together.
constexpr int64_t GROUP = 4;

inline __m256 widen(const void * halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(halves)));
}

inline float sum_of(__m256 x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

inline float max_of(__m256 x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// e^x for x <= 0, within 2 ulp; 0 below -87, where it leaves the normal numbers. A polynomial for the part of x * log2(e)
// behind the point, the rest goes into the exponent.
inline __m256 exp_of(__m256 x) {
    const __m256 too_small = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // x - n * ln 2, with ln 2 in two parts
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_andnot_ps(too_small, power);
}

// The mask of a block into its scores. Returns whether the block is in sight.
bool load_mask(const uint16_t * mask, float * scores) {
    if (!mask) {
        for (int64_t i = 0; i < BLOCK; i += 8) {
            _mm256_storeu_ps(scores + i, _mm256_setzero_ps());
        }
        return true;
    }
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (int64_t i = 0; i < BLOCK; i += 8) {
        const __m256 x = widen(mask + i);
        most = _mm256_max_ps(most, x);
        _mm256_storeu_ps(scores + i, x);
    }
    return max_of(most) > -INFINITY;
}

// Adds q K to the scores of N rows.
template <int64_t N>
void add_scores(const float * q, int64_t d_k, const char * k, size_t k_stride, float * scores) {
    for (int64_t i = 0; i < BLOCK; i++, k += k_stride) {
        __m256 sums[N];
        for (int64_t row = 0; row < N; row++) {
            sums[row] = _mm256_setzero_ps();
        }
        for (int64_t d = 0; d < d_k; d += 8) {
            const __m256 x = widen(k + 2 * d);
            for (int64_t row = 0; row < N; row++) {
                sums[row] = _mm256_fmadd_ps(x, _mm256_loadu_ps(q + row * d_k + d), sums[row]);
            }
        }
        for (int64_t row = 0; row < N; row++) {
            scores[row * BLOCK + i] += sum_of(sums[row]);
        }
    }
}

// Turns a row's scores into weights relative to the largest score so far, and what was summed before as well.
void weigh(float * scores, float * max, float * sum, float * out, int64_t d_v) {
    __m256 most = _mm256_set1_ps(*max);
    for (int64_t i = 0; i < BLOCK; i += 8) {
        most = _mm256_max_ps(most, _mm256_loadu_ps(scores + i));
    }
    const float new_max = max_of(most);
    if (new_max == -INFINITY) {
        for (int64_t i = 0; i < BLOCK; i += 8) {
            _mm256_storeu_ps(scores + i, _mm256_setzero_ps());
        }
        return;
    }
    if (new_max > *max) {
        const float scale = expf(*max - new_max);
        *max = new_max;
        *sum *= scale;
        for (int64_t d = 0; d < d_v; d += 8) {
            _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), _mm256_set1_ps(scale)));
        }
    }
    __m256 sums = _mm256_setzero_ps();
    for (int64_t i = 0; i < BLOCK; i += 8) {
        const __m256 weight = exp_of(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(new_max)));
        sums = _mm256_add_ps(sums, weight);
        _mm256_storeu_ps(scores + i, weight);
    }
    *sum += sum_of(sums);
}

// Adds V, weighed, to the sums of N rows. A few positions at a time: the rows of a whole block may lie so that they push each
// other out of the L1 cache.
template <int64_t N>
void add_values(const float * weights, const char * v, size_t v_stride, int64_t d_v, float * out, size_t out_stride) {
    constexpr int64_t FEW = 16;
    for (int64_t first = 0; first < BLOCK; first += FEW, v += FEW * v_stride) {
        for (int64_t d = 0; d < d_v; d += 16) {
            __m256 low[N];
            __m256 high[N];
            for (int64_t row = 0; row < N; row++) {
                low[row]  = _mm256_loadu_ps(out + row * out_stride + d);
                high[row] = _mm256_loadu_ps(out + row * out_stride + d + 8);
            }
            const char * at = v + 2 * d;
            for (int64_t i = first; i < first + FEW; i++, at += v_stride) {
                const __m256 x = widen(at);
                const __m256 y = widen(at + 16);
                for (int64_t row = 0; row < N; row++) {
                    const __m256 weight = _mm256_set1_ps(weights[row * BLOCK + i]);
                    low[row]  = _mm256_fmadd_ps(x, weight, low[row]);
                    high[row] = _mm256_fmadd_ps(y, weight, high[row]);
                }
            }
            for (int64_t row = 0; row < N; row++) {
                _mm256_storeu_ps(out + row * out_stride + d, low[row]);
                _mm256_storeu_ps(out + row * out_stride + d + 8, high[row]);
            }
        }
    }
}

// Rows `first` to `first + N` over one block.
template <int64_t N>
void attend_rows(const Part & part, int64_t first, const char * k, const char * v, float * scores, const Partial & partial) {
    float * of_rows = scores + first * BLOCK;
    const size_t at = first * partial.stride;
    add_scores<N>(part.q + first * part.d_k, part.d_k, k, part.k_stride, of_rows);
    for (int64_t row = 0; row < N; row++) {
        const size_t i = at + row * partial.stride;
        weigh(of_rows + row * BLOCK, partial.max + i, partial.sum + i, partial.out + i, part.d_v);
    }
    add_values<N>(of_rows, v, part.v_stride, part.d_v, partial.out + at, partial.stride);
}

} // namespace

bool is_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

void attend(const Part & part, int64_t n_positions, int64_t first, int64_t step, float * scores, const Partial & partial) {
    for (int64_t row = 0; row < part.n_rows; row++) {
        const size_t i = row * partial.stride;
        partial.max[i] = -INFINITY;
        partial.sum[i] = 0;
        for (int64_t d = 0; d < part.d_v; d++) {
            partial.out[i + d] = 0;
        }
    }
    for (int64_t position = first * BLOCK; position < n_positions; position += step * BLOCK) {
        bool in_sight = false;
        for (int64_t row = 0; row < part.n_rows; row++) {
            const uint16_t * mask = part.mask[row];
            in_sight |= load_mask(mask ? mask + position : nullptr, scores + row * BLOCK);
        }
        if (!in_sight) {
            continue;
        }
        const char * k = part.k + position * part.k_stride;
        const char * v = part.v + position * part.v_stride;
        for (int64_t row = 0; row < part.n_rows; row += GROUP) {
            switch (part.n_rows - row) {
                case 1:  attend_rows<1>(part, row, k, v, scores, partial); break;
                case 2:  attend_rows<2>(part, row, k, v, scores, partial); break;
                case 3:  attend_rows<3>(part, row, k, v, scores, partial); break;
                default: attend_rows<GROUP>(part, row, k, v, scores, partial);
            }
        }
    }
}

} // namespace onebit_attention

#else

namespace onebit_attention {

bool is_supported() {
    return false;
}

void attend(const Part &, int64_t, int64_t, int64_t, float *, const Partial &) {}

} // namespace onebit_attention

#endif
