"""Chat completions with OpenAI's client."""

import pytest
from asking import CAPITAL, COUNTING, MODEL, chat, chat_answer, events


def test_an_answer_has_every_part(client, same_text):
    reply = chat(client, CAPITAL)
    (choice,) = reply.choices
    assert "Paris" in choice.message.content
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert (reply.object, reply.model) == ("chat.completion", MODEL)
    assert reply.id.startswith("chatcmpl-") and reply.system_fingerprint.startswith("b")
    usage = reply.usage
    assert usage.prompt_tokens > 10 and usage.completion_tokens > 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    timings = reply.model_extra["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    assert timings["predicted_n"] == usage.completion_tokens
    same_text(choice.message.content)


@pytest.mark.parametrize("max_tokens", [1, 7, 24])
def test_a_stream_says_the_same(client, same_text, max_tokens):
    whole = chat_answer(client, COUNTING, False, max_tokens=max_tokens)
    streamed = chat_answer(client, COUNTING, True, max_tokens=max_tokens)
    assert (streamed.text, streamed.finish) == (whole.text, whole.finish)
    assert whole.finish == "length" and whole.usage.completion_tokens == max_tokens
    assert streamed.usage.completion_tokens == max_tokens
    assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens
    same_text(whole.text)


def test_a_stream_has_its_parts_in_order(client):
    chunks = list(chat(client, CAPITAL, stream=True))
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].id.startswith("chatcmpl-")
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    first, *middle, last = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", None)
    assert all(choice.delta.content and choice.delta.role is None for choice in middle)
    assert all(choice.finish_reason is None for choice in [first, *middle])
    assert (last.finish_reason, last.delta.content, last.delta.role) == ("stop", None, None)
    # The peers' own clients read timings there.
    assert chunks[-1].model_extra["timings"]["predicted_n"] > 0


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
def test_the_usage_chunk_comes_only_when_asked(client, options):
    chunks = list(chat(client, CAPITAL, stream=True, max_tokens=2, **({"stream_options": options} if options else {})))
    without_choices = [chunk for chunk in chunks if not chunk.choices]
    if options and options["include_usage"]:
        assert without_choices == chunks[-1:]
        usage = chunks[-1].usage
        assert usage.completion_tokens == 2 and usage.total_tokens == usage.prompt_tokens + 2
        assert all(chunk.usage is None for chunk in chunks[:-1])
    else:
        assert not without_choices
        assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_is_framed_as_clients_expect(http):
    body = {"messages": CAPITAL, "max_tokens": 2, "stream": True}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("\n\ndata: [DONE]\n\n")
    assert all(name is None for name, _ in events(reply))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "You are a helpful assistant."}],
        [],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi"}]}],
        [{"role": "user", "content": ""}],
        [
            {"role": "user", "content": "What is the weather in Rome?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ],
    ],
    ids=["system only", "empty list", "developer", "parts", "empty text", "null content with tool calls"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_unusual_conversations_are_answered(client, messages, stream):
    answer = chat_answer(client, messages, stream, max_tokens=4)
    assert answer.finish in ("stop", "length")
    assert answer.usage.prompt_tokens > 0


def test_a_tool_result_reaches_the_model(client, http):
    # The same question with two results has two prompts.
    def prompt(result):
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": result},
        ]
        return http.post("/apply-template", json={"messages": messages}).json()["prompt"]

    assert "sunny" in prompt("sunny") and "rainy" in prompt("rainy")


def test_a_prefilled_turn_is_continued(client):
    messages = [*CAPITAL, {"role": "assistant", "content": "The capital of France is"}]
    whole = chat_answer(client, messages, False, max_tokens=3)
    streamed = chat_answer(client, messages, True, max_tokens=3)
    assert whole.text == streamed.text
    assert "Paris" in whole.text and "capital" not in whole.text


def test_unknown_fields_are_ignored(client, same_text):
    extra = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    text = chat_answer(client, CAPITAL, False, extra_body={"unheard_of": {"x": 1}}, **extra).text
    assert text == chat_answer(client, CAPITAL, False).text
    same_text(text)


def test_null_counts_as_absent(client):
    names = ["stop", "seed", "n", "tools", "tool_choice", "response_format", "logit_bias", "top_p", "stream_options"]
    nulls = {name: None for name in names}
    assert chat_answer(client, CAPITAL, False, extra_body=nulls).text == chat_answer(client, CAPITAL, False).text


def test_a_token_can_be_forbidden(client, http):
    first = chat_answer(client, CAPITAL, False, max_tokens=1).text
    (token,) = http.post("/tokenize", json={"content": first}).json()["tokens"]
    forbidden = chat_answer(client, CAPITAL, False, max_tokens=1, logit_bias={str(token): -100}).text
    assert forbidden != first


def test_no_tokens_are_no_text(client):
    answer = chat_answer(client, CAPITAL, False, max_tokens=0)
    assert (answer.text or "", answer.finish, answer.usage.completion_tokens) == ("", "length", 0)


def test_max_completion_tokens_wins(client):
    answer = chat_answer(client, COUNTING, False, max_tokens=9, max_completion_tokens=2)
    assert answer.usage.completion_tokens == 2


def test_a_second_identical_question_is_cached(client):
    messages = [{"role": "user", "content": "Name three rivers of Europe, please."}]
    chat_answer(client, messages, False, max_tokens=2)
    usage = chat_answer(client, messages, False, max_tokens=2).usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL).id == MODEL
