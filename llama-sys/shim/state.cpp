// A sequence's state from memory into llama.cpp's. See shim.h.
//
// llama_state_seq_set_data does the same with one buffer and one thread. Here the state may lie in several places, so that
// what a context wants otherwise than a file has it needs no second copy, and the rows are copied by all threads: that is
// most of what a restore takes.
#include "guard.hpp"

#include "llama-io.h"
#include "llama-memory.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

// Bytes that one thread copies before it asks for more.
constexpr size_t PIECE = 1 << 20;

struct piece {
    uint8_t * to;
    const uint8_t * from;
    size_t size;
};

// Copies from one thread and then as many more as the system gives, up to n_threads.
void copy_all(const std::vector<piece> & pieces, size_t n_threads) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i = next++; i < pieces.size(); i = next++) {
            std::memcpy(pieces[i].to, pieces[i].from, pieces[i].size);
        }
    };
    const size_t n = std::min(n_threads, pieces.size());
    std::vector<std::thread> helpers;
    helpers.reserve(n);
    try {
        while (helpers.size() + 1 < n) {
            helpers.emplace_back(work);
        }
    } catch (...) {
        // Without more help, then: what is thrown past threads that are not joined ends the process.
    }
    work();
    for (auto & helper : helpers) {
        helper.join();
    }
}

// Reads from parts, of which no field goes across two; a tensor's rows may. They are copied by `finish` only, as llama.cpp's own
// reader does it: a state that is refused half way has changed no tensor.
class parts_reader : public llama_io_read_i {
public:
    parts_reader(const onebit_part * parts, size_t n_parts) : part(parts), end(parts + n_parts) {}

    void read(void * to, size_t size) override {
        if (const uint8_t * from = take(size)) {
            std::memcpy(to, from, size);
        }
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        if (offset > ggml_nbytes(tensor) || size > ggml_nbytes(tensor) - offset) {
            throw onebit_invalid("the state holds more rows than the memory");
        }
        while (size > 0) {
            skip_empty();
            const size_t n = std::min(size, part == end ? size : part->size - at);
            rows.push_back({tensor, offset, take(n), n});
            offset += n;
            size -= n;
        }
    }

    size_t n_bytes() override { return n_read; }

    bool is_at_end() {
        skip_empty();
        return part == end;
    }

    void finish(size_t n_threads) {
        std::vector<piece> pieces;
        for (const auto & row : rows) {
            ggml_backend_buffer_t buffer = row.tensor->view_src ? row.tensor->view_src->buffer : row.tensor->buffer;
            if (ggml_backend_buffer_get_type(buffer) != ggml_backend_cpu_buffer_type()) {
                ggml_backend_tensor_set(row.tensor, row.from, row.offset, row.size);
                continue;
            }
            uint8_t * to = static_cast<uint8_t *>(row.tensor->data) + row.offset;
            for (size_t at = 0; at < row.size; at += PIECE) {
                pieces.push_back({to + at, row.from + at, std::min(PIECE, row.size - at)});
            }
        }
        copy_all(pieces, n_threads);
    }

private:
    struct row_range {
        ggml_tensor * tensor;
        size_t offset;
        const uint8_t * from;
        size_t size;
    };

    void skip_empty() {
        while (part != end && at == part->size) {
            ++part;
            at = 0;
        }
    }

    // Layers without a state of their own have rows of no bytes, which may come behind the last part.
    const uint8_t * take(size_t size) {
        if (size == 0) {
            return nullptr;
        }
        skip_empty();
        if (part == end || size > part->size - at) {
            throw onebit_invalid("the state ends too early");
        }
        const uint8_t * from = part->data + at;
        at += size;
        n_read += size;
        return from;
    }

    const onebit_part * part;
    const onebit_part * end;
    size_t at = 0;
    size_t n_read = 0;
    std::vector<row_range> rows;
};

} // namespace

onebit_status onebit_state_load(llama_context * ctx, llama_seq_id seq, const onebit_part * parts, size_t n_parts, size_t n_threads,
                                char ** err) {
    return onebit_guard(err, [&] {
        llama_synchronize(ctx);
        llama_memory_t memory = llama_get_memory(ctx);
        if (!memory) {
            throw onebit_invalid("this model has no memory");
        }
        parts_reader reader(parts, n_parts);
        memory->state_read(reader, seq, 0);
        if (!reader.is_at_end()) {
            throw onebit_invalid("the state goes on after its end");
        }
        reader.finish(n_threads);
    });
}
