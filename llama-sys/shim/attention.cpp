// An accelerator in ggml's sense, as BLAS is one: it takes from the CPU the one operation that decoding deep in a context
// waits for. ggml's own kernel for a few queries goes through the cache once for each query head and sums in f16; this one
// goes through it once for all heads that share it, and sums in f32.
#include "attention.hpp"
#include "guard.hpp"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cmath>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

using namespace onebit_attention;

namespace {

// ggml works in tiles from 64 queries on (GGML_FA_TILE_Q). Below, a token's result must not depend on how many are evaluated
// with it: what is evaluated alone behind a restored state is then what it was as the end of a short prompt, bit by bit.
constexpr int64_t MAX_QUERIES = 63;

// llama.cpp asks on which device attention is while a context is made, and gives flash attention up when it is not the
// cache's. So nothing is taken but within a call of onebit_decode.
thread_local bool is_decoding = false;

thread_local uint64_t n_computed = 0;

struct Backend {
    int n_threads = 1;
    std::vector<float> partials;
    std::vector<float> scratch;
    std::vector<const uint16_t *> masks;
};

bool is_cache(const ggml_tensor * tensor) {
    return tensor->type == GGML_TYPE_F16 && tensor->nb[0] == sizeof(ggml_fp16_t) && tensor->ne[0] % 16 == 0;
}

bool is_attention(const ggml_tensor * op) {
    if (op->op != GGML_OP_FLASH_ATTN_EXT || op->type != GGML_TYPE_F32) {
        return false;
    }
    const ggml_tensor * q = op->src[0];
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const ggml_tensor * mask = op->src[3];
    const bool is_plain = ggml_get_op_params_f32(op, 1) == 0.0f // ALiBi
        && ggml_get_op_params_f32(op, 2) == 0.0f                // soft-capped scores
        && !op->src[4];                                         // sinks
    return is_plain && is_cache(k) && is_cache(v) && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float)
        && q->ne[1] <= MAX_QUERIES && k->ne[1] % BLOCK == 0
        && q->ne[0] == k->ne[0] && k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0
        && q->ne[3] == k->ne[3] && q->ne[3] == v->ne[3]
        && (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t) && mask->ne[0] >= k->ne[1]));
}

const char * at(const ggml_tensor * tensor, int64_t i1, int64_t i2, int64_t i3) {
    return static_cast<const char *>(tensor->data) + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3];
}

// One operation, its numbers, and where its threads put theirs.
struct Job {
    ggml_tensor * dst;
    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * mask;
    float scale;
    int64_t n_q;
    int64_t n_heads;
    int64_t n_shared; // query heads to one of K and V
    int64_t n_rows;   // of one K head
    size_t stride;    // of a partial: max, sum, out
    size_t n_scratch; // floats of a thread
    int n_threads;
    float * partials; // [n_threads][n_heads * n_q][stride], rows in the order of heads
    float * scratch;
    const uint16_t ** masks; // [n_threads][n_rows]

    Job(ggml_tensor * op, Backend & backend, int n_threads)
        : dst(op), q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]),
          scale(ggml_get_op_params_f32(op, 0)), n_q(q->ne[1]), n_heads(q->ne[2]), n_shared(n_heads / k->ne[2]),
          n_rows(n_shared * n_q), stride(2 + v->ne[0]), n_scratch(n_rows * (k->ne[0] + BLOCK)), n_threads(n_threads) {
        backend.partials.resize(n_threads * n_heads * n_q * stride);
        backend.scratch.resize(n_threads * n_scratch);
        backend.masks.resize(n_threads * n_rows);
        partials = backend.partials.data();
        scratch  = backend.scratch.data();
        masks    = backend.masks.data();
    }

    float * partial(int thread, int64_t row) const {
        return partials + (thread * n_heads * n_q + row) * stride;
    }

    // A thread's share of the positions of sequence `s`, for all heads: every n-th block, because those in sight lie together.
    void attend_share(int thread, int64_t s) const {
        float * scaled = scratch + thread * n_scratch;
        const uint16_t ** of_rows = masks + thread * n_rows;
        for (int64_t kv_head = 0; kv_head < k->ne[2]; kv_head++) {
            for (int64_t row = 0; row < n_rows; row++) {
                const int64_t head = kv_head * n_shared + row / n_q;
                const int64_t i = row % n_q;
                const float * of_q = reinterpret_cast<const float *>(at(q, i, head, s));
                for (int64_t d = 0; d < k->ne[0]; d++) {
                    scaled[row * k->ne[0] + d] = of_q[d] * scale;
                }
                of_rows[row] = mask ? reinterpret_cast<const uint16_t *>(at(mask, i, head % mask->ne[2], s % mask->ne[3])) : nullptr;
            }
            const Part part = { n_rows, k->ne[0], v->ne[0], scaled, of_rows, at(k, 0, kv_head, s), at(v, 0, kv_head, s), k->nb[1], v->nb[1] };
            float * first = partial(thread, kv_head * n_rows);
            attend(part, k->ne[1], thread, n_threads, scaled + n_rows * k->ne[0], { first, first + 1, first + 2, stride });
        }
    }

    // A thread's share of the rows of sequence `s`, from what all threads found.
    void merge_share(int thread, int64_t s) const {
        const int64_t n_all = n_heads * n_q;
        for (int64_t row = n_all * thread / n_threads; row < n_all * (thread + 1) / n_threads; row++) {
            float max = -INFINITY;
            for (int t = 0; t < n_threads; t++) {
                max = std::max(max, partial(t, row)[0]);
            }
            float * out = reinterpret_cast<float *>(static_cast<char *>(dst->data) + row / n_q * dst->nb[1] + row % n_q * dst->nb[2] + s * dst->nb[3]);
            std::fill_n(out, v->ne[0], 0.0f);
            float sum = 0;
            for (int t = 0; t < n_threads && max > -INFINITY; t++) {
                const float * found = partial(t, row);
                const float weight = std::exp(found[0] - max);
                sum += found[1] * weight;
                for (int64_t d = 0; d < v->ne[0]; d++) {
                    out[d] += found[2 + d] * weight;
                }
            }
            for (int64_t d = 0; d < v->ne[0] && sum != 0; d++) {
                out[d] /= sum;
            }
        }
    }
};

#ifdef _OPENMP
void compute(ggml_tensor * op, Backend & backend) {
    const Job job(op, backend, backend.n_threads);
    // The threads are those of ggml's own parallel regions: the same run-time, entered from the same thread.
    #pragma omp parallel num_threads(job.n_threads)
    {
        // Fewer threads than asked for would leave shares undone.
        const int n = omp_get_num_threads();
        for (int64_t s = 0; s < job.q->ne[3]; s++) {
            for (int share = omp_get_thread_num(); share < job.n_threads; share += n) {
                job.attend_share(share, s);
            }
            #pragma omp barrier
            for (int share = omp_get_thread_num(); share < job.n_threads; share += n) {
                job.merge_share(share, s);
            }
            #pragma omp barrier
        }
    }
}
constexpr bool HAS_THREADS = true;
#else
void compute(ggml_tensor *, Backend &) {}

constexpr bool HAS_THREADS = false;
#endif

// --- what ggml asks of a backend ---

const char * name(ggml_backend_t) {
    return "ATTN";
}

void free_backend(ggml_backend_t backend) {
    delete static_cast<Backend *>(backend->context);
    delete backend;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    try {
        for (int i = 0; i < graph->n_nodes; i++) {
            ggml_tensor * node = graph->nodes[i];
            if (node->op == GGML_OP_FLASH_ATTN_EXT) {
                compute(node, *static_cast<Backend *>(backend->context));
                n_computed++;
            }
        }
        return GGML_STATUS_SUCCESS;
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    }
}

ggml_guid_t guid() {
    static ggml_guid guid = { 'o', 'n', 'e', 'b', 'i', 't', '-', 'a', 't', 't', 'e', 'n', 't', 'i', 'o', 'n' };
    return &guid;
}

ggml_backend_t init(ggml_backend_dev_t device, const char *) {
    ggml_backend_i iface = {};
    iface.get_name      = name;
    iface.free          = free_backend;
    iface.graph_compute = graph_compute;
    return new ggml_backend { guid(), iface, device, new Backend };
}

void set_n_threads(ggml_backend_t backend, int n_threads) {
    static_cast<Backend *>(backend->context)->n_threads = std::max(n_threads, 1);
}

void get_props(ggml_backend_dev_t, ggml_backend_dev_props * props) {
    *props = {};
    props->name        = "ATTN";
    props->description = "attention of a few queries over a long cache";
    props->type        = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        default:
            return is_decoding && is_attention(op);
    }
}

ggml_backend_dev_t get_device(ggml_backend_reg_t reg, size_t) {
    static ggml_backend_device device = [reg] {
        ggml_backend_device_i iface = {};
        iface.get_name        = [](ggml_backend_dev_t) { return "ATTN"; };
        iface.get_description = [](ggml_backend_dev_t) { return "attention of a few queries over a long cache"; };
        iface.get_memory      = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; };
        iface.get_type        = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
        iface.get_props       = get_props;
        iface.init_backend    = init;
        iface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
        iface.supports_op     = supports_op;
        iface.supports_buft   = [](ggml_backend_dev_t, ggml_backend_buffer_type_t buft) { return ggml_backend_buft_is_host(buft); };
        return ggml_backend_device { iface, reg, nullptr };
    }();
    return &device;
}

void * get_proc_address(ggml_backend_reg_t, const char * wanted) {
    return std::strcmp(wanted, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void *>(set_n_threads) : nullptr;
}

} // namespace

void onebit_attention_register(void) {
    static ggml_backend_reg reg = {
        GGML_BACKEND_API_VERSION,
        {
            [](ggml_backend_reg_t) { return "ATTN"; },
            [](ggml_backend_reg_t) { return size_t(1); },
            get_device,
            get_proc_address,
        },
        nullptr,
    };
    if (HAS_THREADS && is_supported()) {
        onebit_guard(nullptr, [] { ggml_backend_register(&reg); });
    }
}

uint64_t onebit_attention_computed(void) {
    return n_computed;
}

onebit_decoding::onebit_decoding() {
    is_decoding = true;
}

onebit_decoding::~onebit_decoding() {
    is_decoding = false;
}
