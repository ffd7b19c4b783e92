// Guards over llama.h, and the few numbers that only `common` knows. See shim.h.
#include "attention.hpp"
#include "guard.hpp"

#include "build-info.h"
#include "common.h"
#include "fit.h"
#include "llama-grammar.h"
#include "log.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

void onebit_string_free(char * text) {
    std::free(text);
}

onebit_status onebit_model_load(const char * path, llama_model_params params, llama_model ** out, char ** err) {
    return onebit_guard(err, [&] {
        llama_model * model = llama_model_load_from_file(path, params);
        if (!model) {
            throw std::runtime_error("llama.cpp refused the file");
        }
        *out = model;
    });
}

onebit_status onebit_context_init(llama_model * model, llama_context_params params, llama_context ** out, char ** err) {
    return onebit_guard(err, [&] {
        llama_context * ctx = llama_init_from_model(model, params);
        if (!ctx) {
            throw std::runtime_error("llama.cpp could not make a context");
        }
        *out = ctx;
    });
}

onebit_status onebit_decode(llama_context * ctx, llama_batch batch, int32_t * code, char ** err) {
    return onebit_guard(err, [&] {
        const onebit_decoding decoding;
        *code = llama_decode(ctx, batch);
    });
}

onebit_status onebit_tokenize(const llama_vocab * vocab, const char * text, int32_t len, llama_token * tokens, int32_t n_max,
                              bool add_special, bool parse_special, int32_t * n, char ** err) {
    return onebit_guard(err, [&] { *n = llama_tokenize(vocab, text, len, tokens, n_max, add_special, parse_special); });
}

onebit_status onebit_sampler_accept(llama_sampler * sampler, llama_token token, char ** err) {
    return onebit_guard(err, [&] { llama_sampler_accept(sampler, token); });
}

onebit_status onebit_sampler_apply(llama_sampler * sampler, llama_token_data_array * candidates, char ** err) {
    return onebit_guard(err, [&] { llama_sampler_apply(sampler, candidates); });
}

// llama_sampler_init_grammar prints a parse error to stderr, grammar and all, where a client's text could pass for our own
// lines. So the rules are parsed here first, with the same parser, and the error becomes the caller's.
static void check_grammar(const llama_vocab * vocab, const char * grammar) {
    llama_grammar_parser parser(vocab);
    const char * pos = grammar;
    try {
        while (true) {
            // Space and comments before the first rule; parse_rule eats those behind one.
            while (*pos == ' ' || *pos == '\t' || *pos == '\r' || *pos == '\n' || *pos == '#') {
                if (*pos == '#') {
                    while (*pos && *pos != '\n') {
                        ++pos;
                    }
                } else {
                    ++pos;
                }
            }
            if (!*pos) {
                break;
            }
            pos = parser.parse_rule(pos);
        }
    } catch (const std::exception & e) {
        throw onebit_invalid(std::string(e.what()).substr(0, 200));
    }
    for (const auto & symbol : parser.symbol_ids) {
        if (symbol.second >= parser.rules.size() || parser.rules[symbol.second].empty()) {
            throw onebit_invalid("rule '" + symbol.first.substr(0, 100) + "' is not defined");
        }
    }
}

onebit_status onebit_sampler_grammar(const llama_vocab * vocab, const char * grammar, const char * root, bool lazy,
                                     const char ** patterns, size_t n_patterns, const llama_token * tokens, size_t n_tokens,
                                     llama_sampler ** out, char ** err) {
    return onebit_guard(err, [&] {
        check_grammar(vocab, grammar);
        llama_sampler * sampler = lazy
            ? llama_sampler_init_grammar_lazy_patterns(vocab, grammar, root, patterns, n_patterns, tokens, n_tokens)
            : llama_sampler_init_grammar(vocab, grammar, root);
        if (!sampler) {
            throw onebit_invalid("the grammar cannot be parsed");
        }
        *out = sampler;
    });
}

onebit_status onebit_memory_seq_rm(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * removed, char ** err) {
    return onebit_guard(err, [&] { *removed = llama_memory_seq_rm(llama_get_memory(ctx), seq, p0, p1); });
}

onebit_status onebit_state_save_file(llama_context * ctx, const char * path, llama_seq_id seq, const llama_token * tokens,
                                     size_t n_tokens, size_t * n_bytes, char ** err) {
    return onebit_guard(err, [&] {
        const size_t n = llama_state_seq_save_file(ctx, path, seq, tokens, n_tokens);
        if (n == 0) {
            throw std::runtime_error("llama.cpp could not write the sequence state");
        }
        *n_bytes = n;
    });
}

onebit_status onebit_state_load_file(llama_context * ctx, const char * path, llama_seq_id seq, llama_token * tokens, size_t capacity,
                                     size_t * n_tokens, size_t * n_bytes, char ** err) {
    return onebit_guard(err, [&] {
        const size_t n = llama_state_seq_load_file(ctx, path, seq, tokens, capacity, n_tokens);
        if (n == 0) {
            throw onebit_invalid("llama.cpp refused the sequence state");
        }
        *n_bytes = n;
    });
}

void onebit_quiet_common_log(void) {
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
}

onebit_status onebit_rpc_add_server(const char * endpoint, char ** err) {
    return onebit_guard(err, [&] {
        ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
        if (!rpc) {
            throw onebit_invalid("this build has no RPC backend (cargo feature `rpc`)");
        }
        using add_server = ggml_backend_reg_t (*)(const char *);
        const auto add = reinterpret_cast<add_server>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
        ggml_backend_reg_t server = add ? add(endpoint) : nullptr;
        if (!server || ggml_backend_reg_dev_count(server) == 0) {
            throw std::runtime_error(std::string("no ggml RPC server answers at ") + endpoint);
        }
        ggml_backend_register(server);
    });
}

int32_t onebit_cpu_threads(void) {
    int32_t n = 1;
    onebit_guard(nullptr, [&] { n = common_cpu_get_num_math(); });
    return n > 0 ? n : 1;
}

void onebit_release_free_memory(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

int32_t onebit_llama_build_number(void) {
    return llama_build_number();
}

onebit_status onebit_memory_need(const char * path, llama_model_params mparams, llama_context_params cparams, size_t * model,
                                 size_t * context, size_t * compute, char ** err) {
    return onebit_guard(err, [&] {
        std::vector<ggml_backend_dev_t> devices;
        uint32_t n_gpu_layers = 0;
        uint32_t n_ctx_train  = 0;
        uint32_t n_expert     = 0;
        const auto data = common_get_device_memory_data(path, &mparams, &cparams, devices, n_gpu_layers, n_ctx_train, n_expert,
                                                        GGML_LOG_LEVEL_ERROR);
        // The last entry is the host.
        if (data.empty()) {
            throw std::runtime_error("llama.cpp reported no devices");
        }
        *model   = data.back().model;
        *context = data.back().context;
        *compute = data.back().compute;
    });
}
