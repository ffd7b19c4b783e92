// Chat templates, output parsing and schemas, from llama.cpp's `common`. See shim.h.
#include "guard.hpp"

#include "chat.h"
#include "json-schema-to-grammar.h"
#include "json.h"

struct onebit_chat {
    common_chat_templates_ptr templates;
    const llama_vocab *       vocab;
};

struct onebit_chat_parser {
    common_chat_parser_params params;
    common_chat_msg           previous;
    std::vector<std::string>  tool_call_ids;
};

namespace {

common_json parse_object(const char * text, const char * what) {
    common_json json = common_json::parse_no_throw(text);
    if (json.is_discarded() || !json.is_object()) {
        throw onebit_invalid(std::string(what) + " is not a JSON object");
    }
    return json;
}

bool has(const common_json & json, const char * key) {
    return json.contains(key) && !json.at(key).is_null();
}

bool flag(const common_json & json, const char * key, bool fallback) {
    return has(json, key) ? json.at(key).get<bool>() : fallback;
}

std::string text(const common_json & json, const char * key, const char * fallback = "") {
    return has(json, key) ? json.at(key).get<std::string>() : std::string(fallback);
}

common_chat_templates_inputs inputs_from(const common_json & request, const llama_vocab * vocab) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (has(request, "tools")) {
        inputs.tools       = common_chat_tools_parse_oaicompat(request.at("tools"));
        inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(text(request, "tool_choice", "auto"));
    }
    inputs.parallel_tool_calls   = flag(request, "parallel_tool_calls", false);
    inputs.add_generation_prompt = flag(request, "add_generation_prompt", true);
    if (has(request, "continue_final_message")) {
        inputs.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
    }
    inputs.grammar = text(request, "grammar");
    if (has(request, "json_schema")) {
        inputs.json_schema = request.at("json_schema").dump();
    }
    inputs.enable_thinking  = flag(request, "enable_thinking", true);
    inputs.reasoning_format = common_reasoning_format_from_name(text(request, "reasoning_format", "deepseek"));
    if (has(request, "chat_template_kwargs")) {
        for (const auto & item : request.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[item.key()] = item.value().dump();
        }
    }
    inputs.add_bos = llama_vocab_get_add_bos(vocab);
    inputs.add_eos = llama_vocab_get_add_eos(vocab);
    return inputs;
}

common_json params_to_json(const common_chat_params & params) {
    common_json triggers = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        triggers.push_back(common_json::object({ { "type", (int) trigger.type }, { "value", trigger.value }, { "token", trigger.token } }));
    }
    return common_json::object({
        { "prompt", params.prompt },
        { "format", (int) params.format },
        { "grammar", params.grammar },
        { "grammar_lazy", params.grammar_lazy },
        { "grammar_triggers", triggers },
        { "preserved_tokens", params.preserved_tokens },
        { "additional_stops", params.additional_stops },
        { "generation_prompt", params.generation_prompt },
        { "parser", params.parser },
        { "supports_thinking", params.supports_thinking },
        { "thinking_start_tag", params.thinking_start_tag },
        { "thinking_end_tags", params.thinking_end_tags },
    });
}

common_json delta_to_json(const common_chat_msg_diff & diff) {
    common_json delta = common_json::object();
    if (!diff.reasoning_content_delta.empty()) {
        delta["reasoning_content"] = diff.reasoning_content_delta;
    }
    if (!diff.content_delta.empty()) {
        delta["content"] = diff.content_delta;
    }
    if (diff.tool_call_index != std::string::npos) {
        delta["tool_call"] = common_json::object({
            { "index", diff.tool_call_index },
            { "id", diff.tool_call_delta.id },
            { "name", diff.tool_call_delta.name },
            { "arguments", diff.tool_call_delta.arguments },
        });
    }
    return delta;
}

} // namespace

onebit_status onebit_chat_new(const llama_model * model, const char * template_override, onebit_chat ** out, char ** err) {
    return onebit_guard(err, [&] {
        auto templates = common_chat_templates_init(model, template_override);
        *out = new onebit_chat{ std::move(templates), llama_model_get_vocab(model) };
    });
}

void onebit_chat_free(onebit_chat * chat) {
    delete chat;
}

onebit_status onebit_chat_info(const onebit_chat * chat, char ** json, char ** err) {
    return onebit_guard(err, [&] {
        const auto * templates = chat->templates.get();
        common_json info = common_json::object({
            { "source", common_chat_templates_source(templates) },
            { "explicit", common_chat_templates_was_explicit(templates) },
            { "supports_thinking", common_chat_templates_support_enable_thinking(templates) },
            { "caps", common_chat_templates_get_caps(templates) },
        });
        const std::string tool_use = common_chat_templates_source(templates, "tool_use");
        info["tool_use_source"]    = tool_use.empty() ? common_json(nullptr) : common_json(tool_use);
        *json = onebit_copy(info.dump());
    });
}

onebit_status onebit_chat_apply(const onebit_chat * chat, const char * request, char ** json, char ** err) {
    return onebit_guard(err, [&] {
        try {
            const auto inputs = inputs_from(parse_object(request, "the chat request"), chat->vocab);
            *json = onebit_copy(params_to_json(common_chat_templates_apply(chat->templates.get(), inputs)).dump());
        } catch (const onebit_invalid &) {
            throw;
        } catch (const std::exception & e) {
            // Messages that the template refuses, and fields of the wrong type, are the client's to mend.
            throw onebit_invalid(e.what());
        }
    });
}

onebit_status onebit_chat_parser_new(const char * params, onebit_chat_parser ** out, char ** err) {
    return onebit_guard(err, [&] {
        const common_json         json = parse_object(params, "the parser's parameters");
        common_chat_parser_params parsed;
        parsed.format            = static_cast<common_chat_format>(json.at("format").get<int>());
        parsed.reasoning_format  = common_reasoning_format_from_name(text(json, "reasoning_format", "deepseek"));
        parsed.generation_prompt = text(json, "generation_prompt");
        parsed.parse_tool_calls  = flag(json, "parse_tool_calls", true);
        parsed.is_continuation   = flag(json, "is_continuation", false);
        const std::string arena  = text(json, "parser");
        if (!arena.empty()) {
            parsed.parser.load(arena);
        }
        *out = new onebit_chat_parser{ std::move(parsed), {}, {} };
    });
}

void onebit_chat_parser_free(onebit_chat_parser * parser) {
    delete parser;
}

onebit_status onebit_chat_parser_parse(onebit_chat_parser * parser, const char * answer, size_t len, bool is_partial, char ** json, char ** err) {
    return onebit_guard(err, [&] {
        common_chat_msg msg = common_chat_parse(std::string(answer, len), is_partial, parser->params);
        msg.set_tool_call_ids(parser->tool_call_ids, [] { return std::string(); });
        common_json deltas = common_json::array();
        for (const auto & diff : common_chat_msg_diff::compute_diffs(parser->previous, msg)) {
            deltas.push_back(delta_to_json(diff));
        }
        common_json calls = common_json::array();
        for (const auto & call : msg.tool_calls) {
            calls.push_back(common_json::object({ { "id", call.id }, { "name", call.name }, { "arguments", call.arguments } }));
        }
        const common_json reply = common_json::object({
            { "content", msg.content },
            { "reasoning_content", msg.reasoning_content },
            { "tool_calls", calls },
            { "deltas", deltas },
        });
        *json            = onebit_copy(reply.dump());
        parser->previous = std::move(msg);
    });
}

onebit_status onebit_schema_to_grammar(const char * schema, char ** grammar, char ** err) {
    return onebit_guard(err, [&] {
        try {
            *grammar = onebit_copy(json_schema_to_grammar(parse_object(schema, "the schema"), /*force_gbnf=*/true));
        } catch (const onebit_invalid &) {
            throw;
        } catch (const std::exception & e) {
            throw onebit_invalid(e.what());
        }
    });
}
