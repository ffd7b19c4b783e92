// A sequence's state into llama.cpp's. See shim.h.
//
// llama_state_seq_set_data does the same with one buffer and one thread. Here the state may lie in several places, so that
// what a context wants otherwise than a file has it needs no second copy. The rows are most of what a restore takes: all
// threads bring them, and they may come from elsewhere than memory.
#include "guard.hpp"

#include "llama-io.h"
#include "llama-memory.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

// Bytes that one thread brings before it asks for more; half of a small L2 cache, for readers that look at what they read.
constexpr size_t PIECE = 256 << 10;

// Some rows of a tensor, and where they stand in the state.
struct row_range {
    ggml_tensor * tensor;
    size_t offset;
    const uint8_t * from;
    size_t size;

    bool is_host() const {
        ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
        return ggml_backend_buffer_get_type(buffer) == ggml_backend_cpu_buffer_type();
    }

    uint8_t * to() const { return static_cast<uint8_t *>(tensor->data) + offset; }
};

// Brings rows from the state into their tensors.
class row_loader {
public:
    explicit row_loader(onebit_row_reader reader) : reader(reader) {}

    void add(ggml_tensor * tensor, size_t offset, const uint8_t * from, size_t size) {
        // Whole blocks of a quantized type, which a reader looks at one by one.
        const size_t most = PIECE - PIECE % ggml_type_size(tensor->type);
        while (size > 0) {
            const size_t n = std::min(size, most);
            ranges.push_back({tensor, offset, from, n});
            offset += n;
            from += n;
            size -= n;
        }
    }

    // Whether all rows came. Otherwise they are zeroed: attention multiplies what it masks too, so what was not found good must
    // not stay.
    bool load(size_t n_threads) {
        std::vector<piece> host;
        std::vector<piece> device;
        for (const auto & p : pieces()) {
            (p.first->is_host() ? host : device).push_back(p);
        }
        std::atomic<bool> all_came{true};
        bring_all(host, n_threads, all_came);
        bring_all(device, 1, all_came);
        if (!all_came) {
            const std::vector<uint8_t> zeros(PIECE);
            for (const auto & range : ranges) {
                put(range, zeros.data());
            }
        }
        return all_came;
    }

private:
    // Ranges that follow each other in the state.
    struct piece {
        const row_range * first;
        const row_range * last;
        size_t size;
    };

    std::vector<piece> pieces() const {
        std::vector<piece> all;
        for (const auto & range : ranges) {
            const bool follows = !all.empty() && all.back().first->from + all.back().size == range.from &&
                                 all.back().size + range.size <= PIECE && all.back().first->is_host() == range.is_host();
            if (!follows) {
                all.push_back({&range, &range, 0});
            }
            all.back().last = &range + 1;
            all.back().size += range.size;
        }
        return all;
    }

    // On one thread and then as many more as the system gives, up to n_threads.
    void bring_all(const std::vector<piece> & pieces, size_t n_threads, std::atomic<bool> & all_came) const {
        std::atomic<size_t> next{0};
        const auto work = [&] {
            for (size_t i = next++; i < pieces.size(); i = next++) {
                if (!bring(pieces[i])) {
                    all_came = false;
                }
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

    static void put(const row_range & range, const uint8_t * bytes) {
        if (range.is_host()) {
            std::memcpy(range.to(), bytes, range.size);
        } else {
            ggml_backend_tensor_set(range.tensor, bytes, range.offset, range.size);
        }
    }

    bool bring(const piece & p) const {
        const uint8_t * from = p.first->from;
        std::unique_ptr<uint8_t[]> read;
        if (reader.read) {
            if (p.first + 1 == p.last && p.first->is_host()) {
                return reader.read(reader.data, from, p.first->to(), p.size);
            }
            read.reset(new (std::nothrow) uint8_t[p.size]());
            if (!read || !reader.read(reader.data, from, read.get(), p.size)) {
                return false;
            }
            from = read.get();
        }
        for (const row_range * range = p.first; range != p.last; ++range) {
            put(*range, from);
            from += range->size;
        }
        return true;
    }

    onebit_row_reader reader;
    std::vector<row_range> ranges;
};

// Reads from parts, of which no field goes across two; a tensor's rows may. They are only noted, as
// llama.cpp's own reader does it: a state that is refused half way has changed no tensor.
class parts_reader : public llama_io_read_i {
public:
    parts_reader(const onebit_part * parts, size_t n_parts, row_loader & rows) : part(parts), end(parts + n_parts), rows(rows) {}

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
            rows.add(tensor, offset, take(n), n);
            offset += n;
            size -= n;
        }
    }

    size_t n_bytes() override { return n_read; }

    bool is_at_end() {
        skip_empty();
        return part == end;
    }

private:
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
    row_loader & rows;
};

} // namespace

onebit_status onebit_state_load(llama_context * ctx, llama_seq_id seq, const onebit_part * parts, size_t n_parts,
                                onebit_row_reader reader, size_t n_threads, char ** err) {
    return onebit_guard(err, [&] {
        llama_synchronize(ctx);
        llama_memory_t memory = llama_get_memory(ctx);
        if (!memory) {
            throw onebit_invalid("this model has no memory");
        }
        row_loader rows(reader);
        parts_reader state(parts, n_parts, rows);
        memory->state_read(state, seq, 0);
        if (!state.is_at_end()) {
            throw onebit_invalid("the state goes on after its end");
        }
        if (!rows.load(n_threads)) {
            throw onebit_invalid("the rows of the state were not read");
        }
    });
}
