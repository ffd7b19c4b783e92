//! The routes: what each takes and gives.

use utoipa::openapi::{
    Content, HttpMethod, Paths, PathsBuilder, Ref, RefOr, Required, ResponseBuilder, ResponsesBuilder,
    path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn, PathItem},
    request_body::RequestBodyBuilder,
    schema::{ObjectBuilder, Schema, SchemaFormat, Type},
};

/// What is done with one kind of thing, under one or several paths.
struct Endpoint {
    method: HttpMethod,
    paths: &'static [&'static str],
    tag: &'static str,
    summary: &'static str,
    /// Schema of the request's body.
    takes: Option<&'static str>,
    gives: Gives,
    /// Statuses of errors beside those that every endpoint has.
    errors: &'static [u16],
}

/// What a 200 brings.
#[derive(Clone, Copy)]
enum Gives {
    /// JSON of this schema.
    Json(&'static str),
    /// JSON of the first schema, or server-sent events with data of the second when `stream` is true.
    Stream(&'static str, &'static str),
    /// Text of this type.
    Text(&'static str),
    /// There is no 200.
    Nothing,
}

use Gives::{Json, Nothing, Stream, Text};

const GENERATION: &[u16] = &[400, 413, 500];
const BODY: &[u16] = &[400, 413];

const fn get(paths: &'static [&'static str], tag: &'static str, gives: Gives, summary: &'static str) -> Endpoint {
    Endpoint { method: HttpMethod::Get, paths, tag, summary, takes: None, gives, errors: &[] }
}

const fn post(
    paths: &'static [&'static str],
    tag: &'static str,
    takes: &'static str,
    gives: Gives,
    summary: &'static str,
) -> Endpoint {
    Endpoint { method: HttpMethod::Post, paths, tag, summary, takes: Some(takes), gives, errors: GENERATION }
}

/// An endpoint that answers 501.
const fn missing(paths: &'static [&'static str], summary: &'static str) -> Endpoint {
    Endpoint {
        method: HttpMethod::Post,
        paths,
        tag: "Not supported",
        summary,
        takes: None,
        gives: Nothing,
        errors: &[501],
    }
}

const ENDPOINTS: &[Endpoint] = &[
    get(&["/health", "/v1/health"], "Server", Json("Health"), "Whether the model is loaded; needs no key"),
    get(&["/v1/models", "/models"], "Models", Json("ModelList"), "The model that is served"),
    Endpoint { errors: &[404], ..get(&["/v1/models/{id}"], "Models", Json("Model"), "The model, if it has this name") },
    post(
        &["/v1/chat/completions", "/chat/completions"],
        "OpenAI",
        "ChatRequest",
        Stream("ChatCompletion", "ChatChunk"),
        "Answers a chat",
    ),
    post(
        &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        "OpenAI",
        "ChatRequest",
        Json("InputTokens"),
        "Counts the tokens of a prompt",
    ),
    post(&["/v1/completions"], "OpenAI", "CompletionRequest", Stream("Completion", "Completion"), "Continues texts"),
    Endpoint {
        errors: &[400, 413, 500, 501],
        ..post(&["/v1/embeddings"], "OpenAI", "EmbeddingRequest", Json("Embeddings"), "Texts to vectors")
    },
    post(
        &["/v1/responses", "/responses"],
        "OpenAI",
        "ResponsesRequest",
        Stream("Response", "ResponseEvent"),
        "Answers a chat, in the form of the Responses API; keeps nothing",
    ),
    post(
        &["/v1/responses/input_tokens", "/responses/input_tokens"],
        "OpenAI",
        "ResponsesRequest",
        Json("InputTokens"),
        "Counts the tokens of a prompt",
    ),
    post(
        &["/v1/messages"],
        "Anthropic",
        "MessagesRequest",
        Stream("AnthropicMessage", "AnthropicEvent"),
        "Answers a chat, in the form of the Messages API",
    ),
    post(
        &["/v1/messages/count_tokens"],
        "Anthropic",
        "MessagesRequest",
        Json("TokenCount"),
        "Counts the tokens of a prompt",
    ),
    post(
        &["/completion", "/completions"],
        "llama-server",
        "NativeRequest",
        Stream("NativeReply", "NativeChunk"),
        "Continues texts; several prompts give an array",
    ),
    Endpoint {
        errors: &[400, 413, 500, 501],
        ..post(
            &["/infill"],
            "llama-server",
            "InfillRequest",
            Stream("NativeReply", "NativeChunk"),
            "Fills in the middle",
        )
    },
    Endpoint {
        errors: &[400, 413, 500, 501],
        ..post(
            &["/embeddings", "/embedding"],
            "llama-server",
            "EmbeddingRequest",
            Json("NativeEmbeddings"),
            "Texts to vectors, in llama-server's form",
        )
    },
    post(&["/tokenize", "/v1/tokenize"], "llama-server", "TokenizeRequest", Json("Tokens"), "Text to token ids"),
    Endpoint {
        errors: BODY,
        ..post(
            &["/detokenize", "/v1/detokenize"],
            "llama-server",
            "DetokenizeRequest",
            Json("Text"),
            "Token ids to text",
        )
    },
    post(&["/apply-template"], "llama-server", "ChatRequest", Json("Prompt"), "The prompt that a chat would give"),
    get(&["/props"], "Server", Json("Props"), "Settings of the server, facts about the model"),
    Endpoint { errors: &[501], ..get(&["/slots"], "Server", Json("Slots"), "What is being worked on") },
    Endpoint {
        errors: &[400, 413, 500, 501],
        ..post(&["/slots/{id}"], "Server", "SlotRequest", Json("SlotReply"), "Saves, restores or erases a slot")
    },
    Endpoint {
        errors: &[501],
        ..get(&["/metrics"], "Server", Text("text/plain; version=0.0.4"), "Numbers for Prometheus")
    },
    get(&["/lora-adapters"], "Server", Json("Adapters"), "The adapters that are loaded: none"),
    Endpoint { errors: &[404], ..get(&["/"], "Server", Text("text/html; charset=utf-8"), "A page for people") },
    get(&["/openapi.json"], "Server", Json("Document"), "This document"),
    missing(&["/props"], "Settings do not change while the server runs"),
    missing(&["/lora-adapters"], "There are no adapters"),
    missing(&["/v1/rerank", "/v1/reranking", "/rerank", "/reranking", "/reranker"], "There is no reranking"),
    missing(&["/v1/audio/transcriptions"], "There is no audio"),
];

/// All of them.
pub fn paths() -> Paths {
    let mut paths = PathsBuilder::new();
    for endpoint in ENDPOINTS {
        for path in endpoint.paths {
            paths = paths.path(*path, PathItem::new(endpoint.method.clone(), operation(endpoint, path)));
        }
    }
    paths.build()
}

fn operation(endpoint: &Endpoint, path: &str) -> Operation {
    let method = if endpoint.method == HttpMethod::Get { "get" } else { "post" };
    let mut operation = OperationBuilder::new()
        .operation_id(Some(format!("{method}{}", path.replace(['/', '-', '.'], "_").replace(['{', '}'], ""))))
        .tag(endpoint.tag)
        .summary(Some(endpoint.summary));
    if path.contains("{id}") {
        operation = operation.parameter(parameter("id", ParameterIn::Path, Type::String, &[]));
    }
    if path == "/slots/{id}" {
        let actions = ["save", "restore", "erase"];
        operation = operation.parameter(parameter("action", ParameterIn::Query, Type::String, &actions));
    }
    if path == "/slots" {
        let fail = ParameterBuilder::new().name("fail_on_no_slot").parameter_in(ParameterIn::Query);
        operation = operation.parameter(fail.required(Required::False).schema(Some(object(Type::String, &[]))));
    }
    if let Some(schema) = endpoint.takes {
        let content = Content::new(Some(Ref::from_schema_name(schema)));
        let required = if path == "/slots/{id}" { Required::False } else { Required::True };
        let body = RequestBodyBuilder::new().content("application/json", content).required(Some(required)).build();
        operation = operation.request_body(Some(body));
    }
    operation.responses(responses(endpoint)).build()
}

fn parameter(name: &str, place: ParameterIn, kind: Type, words: &[&str]) -> ParameterBuilder {
    ParameterBuilder::new().name(name).parameter_in(place).required(Required::True).schema(Some(object(kind, words)))
}

fn object(kind: Type, words: &[&str]) -> RefOr<Schema> {
    let words = (!words.is_empty()).then(|| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
    RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(kind).enum_values(words).build()))
}

fn responses(endpoint: &Endpoint) -> utoipa::openapi::Responses {
    let mut responses = ResponsesBuilder::new();
    let json = |schema| Content::new(Some(Ref::from_schema_name(schema)));
    let good = match endpoint.gives {
        Json(schema) => Some(ResponseBuilder::new().content("application/json", json(schema))),
        Stream(whole, chunk) => Some(
            ResponseBuilder::new().content("application/json", json(whole)).content("text/event-stream", json(chunk)),
        ),
        Text(kind) => {
            let text = ObjectBuilder::new().schema_type(Type::String).format(None::<SchemaFormat>).build();
            Some(ResponseBuilder::new().content(kind, Content::new(Some(RefOr::T(Schema::Object(text))))))
        }
        Nothing => None,
    };
    if let Some(good) = good {
        responses = responses.response("200", good.description("Done").build());
    }
    for status in endpoint.errors.iter().chain(&[401, 403, 503]) {
        let error = ResponseBuilder::new().content("application/json", json("ErrorReply"));
        responses = responses.response(status.to_string(), error.description(reason(*status)).build());
    }
    responses.build()
}

fn reason(status: u16) -> &'static str {
    match status {
        400 => "The request cannot be used; `param` names the field",
        401 => "No API key, or a wrong one",
        403 => "Another host's name, or another site's page",
        404 => "There is no such thing",
        413 => "The body is too large",
        500 => "The server's fault",
        501 => "Not with this model, or not with these flags",
        _ => "The model is still loading, or the server is stopping",
    }
}
