"""Messages with Anthropic's client."""

import anthropic
import jsonschema
import pytest
from asking import CAPITAL, COUNTING, chat_answer, events
from conftest import MODEL
from test_tools import FUNCTIONS

TOOLS = [
    {"name": name, "description": function["description"], "input_schema": function["parameters"]}
    for name, function in FUNCTIONS.items()
]


# The client's functions know no temperature any more; its server and others do.
GREEDY = {"model": MODEL, "max_tokens": 32, "extra_body": {"temperature": 0}}


def ask(claude, messages=CAPITAL, **params):
    return claude.messages.create(messages=messages, **{**GREEDY, **params})


def final(claude, messages=CAPITAL, **params):
    with claude.messages.stream(messages=messages, **{**GREEDY, **params}) as stream:
        return stream.get_final_message()


def test_an_answer_has_every_part(claude, client, same_text):
    reply = ask(claude)
    (block,) = reply.content
    assert block.type == "text" and "Paris" in block.text
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL)
    assert reply.id.startswith("msg_")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    # The same model behind either API.
    chat = chat_answer(client, CAPITAL, False)
    assert block.text == chat.text
    usage = reply.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    same_text(block.text)


@pytest.mark.parametrize("max_tokens", [1, 9, 40])
def test_a_stream_says_the_same(claude, max_tokens):
    whole, streamed = (form(claude, COUNTING, max_tokens=max_tokens) for form in (ask, final))
    assert [block.text for block in streamed.content] == [block.text for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_stream_has_its_events_in_order(http):
    body = {"model": MODEL, "max_tokens": 6, "temperature": 0, "messages": COUNTING, "stream": True}
    names = [name for name, _ in events(http.post("/v1/messages", json=body)) if name != "ping"]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


def test_max_tokens_is_the_reason(claude):
    assert ask(claude, COUNTING, max_tokens=3).stop_reason == "max_tokens"


def test_a_stop_sequence_is_told_and_not_shown(claude):
    free = ask(claude, COUNTING).content[0].text
    stop = free[6:9]
    for form in (ask, final):
        reply = form(claude, COUNTING, stop_sequences=["nowhere", stop])
        assert reply.content[0].text.rstrip() == free[: free.find(stop)].rstrip()
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)


def test_a_system_prompt_counts(claude):
    def count(**params):
        return claude.messages.count_tokens(model=MODEL, messages=CAPITAL, **params).input_tokens

    text = "You speak in rhymes, always, and of nothing but the sea."
    assert count(system=text) == count(system=[{"type": "text", "text": text}]) != count()
    usage = ask(claude, system=text, max_tokens=1).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count(system=text)


def check_use(reply, names):
    uses = [block for block in reply.content if block.type == "tool_use"]
    assert uses and reply.stop_reason == "tool_use"
    for use in uses:
        assert use.id and use.name in names
        jsonschema.validate(use.input, FUNCTIONS[use.name]["parameters"])
    return [(use.name, use.input) for use in uses]


@pytest.mark.parametrize(
    "tool_choice,names",
    [
        ({"type": "any"}, set(FUNCTIONS)),
        ({"type": "tool", "name": "get_time"}, {"get_time"}),
        ({"type": "any", "disable_parallel_tool_use": True}, set(FUNCTIONS)),
    ],
    ids=["any", "named", "one"],
)
def test_a_forced_tool_is_used(claude, tool_choice, names):
    params = {"tools": TOOLS, "tool_choice": tool_choice, "max_tokens": 256}
    whole = check_use(ask(claude, **params), names)
    assert check_use(final(claude, **params), names) == whole
    if tool_choice.get("disable_parallel_tool_use"):
        assert len(whole) == 1


def test_none_uses_no_tool(claude):
    reply = ask(claude, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=8)
    assert [block.type for block in reply.content] == ["text"]


def test_a_conversation_with_tools_goes_on(claude):
    messages = [
        *CAPITAL,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {"city": "X"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "12:00"}]},
    ]
    assert ask(claude, messages, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=8).content


def test_fields_without_effect_are_accepted(claude):
    text = [{"type": "text", "text": CAPITAL[0]["content"], "cache_control": {"type": "ephemeral"}}]
    reply = ask(claude, [{"role": "user", "content": text}], metadata={"user_id": "me"}, thinking={"type": "disabled"})
    assert reply.content[0].text == ask(claude).content[0].text


def test_errors_have_anthropics_shape(claude, http):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, [{"role": "narrator", "content": "x"}])
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    reply = http.post("/v1/messages", json={"max_tokens": 1})
    assert reply.status_code == 400 and "messages" in reply.json()["error"]["message"]


def test_query_and_beta_headers_are_ignored(http):
    body = {"model": MODEL, "max_tokens": 1, "messages": CAPITAL}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "tools-2024-04-04"}
    assert http.post("/v1/messages?beta=true", json=body, headers=headers).status_code == 200
