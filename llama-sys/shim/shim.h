// The C surface that onebit needs beside llama.h.
//
// Two kinds of function. Guards repeat a llama.h call and turn a C++ exception into a status, because an exception that
// reaches Rust ends the process. Chat functions reach llama.cpp's `common` library (templates, tool-call and reasoning
// parsing, JSON schema to grammar), JSON in and JSON out.
//
// Every function returns an onebit_status. On a status other than ONEBIT_OK, *err (when err is not NULL) is a
// NUL-terminated text to be freed with onebit_string_free, and the other out parameters are untouched.
#pragma once

#include "llama.h"
#include "ggml-backend.h"
#include "gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum onebit_status {
    ONEBIT_OK      = 0,
    ONEBIT_INVALID = 1, // the caller's input is at fault: bad JSON, a template that raises, a schema that cannot be converted
    ONEBIT_FAILED  = 2, // anything else
} onebit_status;

void onebit_string_free(char * text);

// --- guards ---

// *out is never NULL after ONEBIT_OK.
onebit_status onebit_model_load(const char * path, struct llama_model_params params, struct llama_model ** out, char ** err);
onebit_status onebit_context_init(struct llama_model * model, struct llama_context_params params, struct llama_context ** out, char ** err);
// *code: what llama_decode returned.
onebit_status onebit_decode(struct llama_context * ctx, struct llama_batch batch, int32_t * code, char ** err);
// *n: what llama_tokenize returned.
onebit_status onebit_tokenize(const struct llama_vocab * vocab, const char * text, int32_t len, llama_token * tokens,
                              int32_t n_max, bool add_special, bool parse_special, int32_t * n, char ** err);
onebit_status onebit_sampler_accept(struct llama_sampler * sampler, llama_token token, char ** err);
onebit_status onebit_sampler_apply(struct llama_sampler * sampler, llama_token_data_array * candidates, char ** err);
// A grammar sampler whose parse error is told; NULL patterns and tokens make it eager.
onebit_status onebit_sampler_grammar(const struct llama_vocab * vocab, const char * grammar, const char * root, bool lazy,
                                     const char ** patterns, size_t n_patterns, const llama_token * tokens, size_t n_tokens,
                                     struct llama_sampler ** out, char ** err);
// Removes positions [p0, p1) of a sequence; *removed is llama_memory_seq_rm's answer.
onebit_status onebit_memory_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * removed, char ** err);
// Bytes written or read; 0 bytes count as ONEBIT_FAILED.
onebit_status onebit_state_save_file(struct llama_context * ctx, const char * path, llama_seq_id seq, const llama_token * tokens,
                                     size_t n_tokens, size_t * n_bytes, char ** err);
onebit_status onebit_state_load_file(struct llama_context * ctx, const char * path, llama_seq_id seq, llama_token * tokens,
                                     size_t capacity, size_t * n_tokens, size_t * n_bytes, char ** err);

// Bytes that somebody else owns.
typedef struct onebit_part {
    const uint8_t * data;
    size_t          size;
} onebit_part;
// Reads the size bytes that have their place at `from` to `to`; false when they cannot be had or are not good. Called from
// several threads at once, and for the other rows also after a false. NULL: they are in memory, at `from`.
typedef struct onebit_row_reader {
    bool (*read)(void * data, const uint8_t * from, uint8_t * to, size_t size);
    void * data;
} onebit_row_reader;
// The memory of a state (what stands in a file behind the ids) into a sequence, which is emptied first. The parts, one after
// the other, are the state; no field goes across two. They must have been proven well-formed: llama.cpp asserts
// on some of what they may hold. n_threads bring the rows, through the reader if there is one. After a status other than
// ONEBIT_OK the sequence is to be cleared; rows of it that a reader brought are zeros then.
onebit_status onebit_state_load(struct llama_context * ctx, llama_seq_id seq, const onebit_part * parts, size_t n_parts,
                                onebit_row_reader reader, size_t n_threads, char ** err);

// --- what only `common` knows ---

// Keeps common's own logger, which writes to stdout and stderr by itself, to errors.
void onebit_quiet_common_log(void);
// Adds this project's attention kernel to ggml's registry, where the CPU and the build can run it. Once.
void onebit_attention_register(void);
// How often this thread used it.
uint64_t onebit_attention_computed(void);
// Adds the devices of a ggml RPC server ("host:port") to ggml's registry.
onebit_status onebit_rpc_add_server(const char * endpoint, char ** err);
// Threads that llama.cpp's own tools would use here (physical, performance cores).
int32_t onebit_cpu_threads(void);
// Gives memory that the allocator holds free back to the system, where it can (glibc).
void onebit_release_free_memory(void);
// llama.cpp's build number; 0 when unknown.
int32_t onebit_llama_build_number(void);
// Bytes of host memory that this model with this context would take, by a dry run of both that allocates nothing.
// mmapped weights count as `model`; they are the page cache's, not ours.
onebit_status onebit_memory_need(const char * path, struct llama_model_params mparams, struct llama_context_params cparams,
                                 size_t * model, size_t * context, size_t * compute, char ** err);

// A model's chat templates. Read-only after construction: one object may serve many threads at once.
typedef struct onebit_chat onebit_chat;
// template_override: Jinja source, or "" for the model's own.
onebit_status onebit_chat_new(const struct llama_model * model, const char * template_override, onebit_chat ** out, char ** err);
void          onebit_chat_free(onebit_chat * chat);
// {"source", "tool_use_source"|null, "explicit", "supports_thinking", "caps": {name: bool}}
onebit_status onebit_chat_info(const onebit_chat * chat, char ** json, char ** err);
// In: {"messages": [...], "tools"?: [...], "tool_choice"?: "auto"|"required"|"none", "parallel_tool_calls"?: bool,
//      "add_generation_prompt"?: bool, "continue_final_message"?: bool|string, "json_schema"?: object, "grammar"?: string,
//      "enable_thinking"?: bool, "reasoning_format"?: string, "chat_template_kwargs"?: {name: any}}
// Out: {"prompt", "format", "grammar", "grammar_lazy", "grammar_triggers": [{"type","value","token"}], "preserved_tokens": [text],
//       "additional_stops": [text], "generation_prompt", "parser", "supports_thinking", "thinking_start_tag", "thinking_end_tags"}
onebit_status onebit_chat_apply(const onebit_chat * chat, const char * request, char ** json, char ** err);

// A parser of one answer, made from what onebit_chat_apply returned.
typedef struct onebit_chat_parser onebit_chat_parser;
// params: onebit_chat_apply's reply, plus "reasoning_format"?: string, "parse_tool_calls"?: bool, "is_continuation"?: bool.
onebit_status onebit_chat_parser_new(const char * params, onebit_chat_parser ** out, char ** err);
void          onebit_chat_parser_free(onebit_chat_parser * parser);
// text: the whole answer so far. Out: {"content", "reasoning_content", "tool_calls": [{"id","name","arguments"}],
// "deltas": [{"reasoning_content"?, "content"?, "tool_call"?: {"index","id","name","arguments"}}]};
// deltas are since the previous call on this parser.
onebit_status onebit_chat_parser_parse(onebit_chat_parser * parser, const char * text, size_t len, bool is_partial, char ** json, char ** err);

// JSON schema to GBNF.
onebit_status onebit_schema_to_grammar(const char * schema, char ** grammar, char ** err);

#ifdef __cplusplus
}
#endif
