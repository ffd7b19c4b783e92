"""Tool calls with OpenAI's client. The model is too small to call a tool by its own wish, so the calls are forced."""

import json

import jsonschema
import pytest
from asking import CAPITAL, MODEL, chat
from conftest import DEVICE

WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 24},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
TIME = {
    "name": "get_time",
    "description": "Tells the time in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
FUNCTIONS = {function["name"]: function for function in (WEATHER, TIME)}
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS.values()]
ASKED = [{"role": "user", "content": "What are the weather and the time in Paris?"}]
NAMED = {"type": "function", "function": {"name": "get_time"}}


def ask(client, **params):
    return chat(client, ASKED, **{"tools": TOOLS, "max_tokens": 256, **params})


def check_calls(choice):
    """Every call of an answer fits its function; returns the names."""
    calls = choice.message.tool_calls
    assert calls, choice
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len({call.id for call in calls}) == len(calls) and all(call.id for call in calls)
    for call in calls:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), FUNCTIONS[call.function.name]["parameters"])
    return [call.function.name for call in calls]


def plain(choice):
    calls = choice.message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("seed", range(4))
def test_required_is_a_call(client, seed):
    check_calls(ask(client, tool_choice="required", temperature=1.0, seed=seed).choices[0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_named_tool_is_called(client, name):
    for seed in range(3):
        choice = {"type": "function", "function": {"name": name}}
        names = check_calls(ask(client, tool_choice=choice, temperature=1.0, seed=seed).choices[0])
        assert set(names) == {name}


def test_a_greedy_call_is_the_same_everywhere(client, same_text):
    choice = ask(client, tool_choice=NAMED, parallel_tool_calls=False).choices[0]
    check_calls(choice)
    same_text(json.dumps(plain(choice)))


@pytest.mark.parametrize("tool_choice", ["required", NAMED], ids=["required", "named"])
def test_the_official_client_rebuilds_a_streamed_call(client, tool_choice):
    params = {"tool_choice": tool_choice, "temperature": 1.0, "seed": 3}
    whole = ask(client, **params).choices[0]
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=TOOLS, max_tokens=256, stream_options={"include_usage": True}, **params
    ) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0]
    assert check_calls(streamed) == check_calls(whole)
    assert plain(streamed) == plain(whole)
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds


def test_call_deltas_have_their_parts(client):
    started, arguments = {}, {}
    for chunk in ask(client, tool_choice="required", stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                if call.index not in started:
                    assert call.id and call.type == "function" and call.function.name
                    started[call.index] = call.function.name
                else:
                    assert call.id is None and call.function.name is None
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
            if choice.finish_reason:
                assert choice.finish_reason == "tool_calls"
    assert sorted(started) == list(range(len(started))) and started
    for index, name in started.items():
        jsonschema.validate(json.loads(arguments[index]), FUNCTIONS[name]["parameters"])


def two_calls(client, **params):
    """The first of some seeds whose answer has two calls or more."""
    for seed in range(16):
        params = {"tool_choice": "required", "parallel_tool_calls": True, "temperature": 1.2, **params, "seed": seed}
        choice = ask(client, max_tokens=320, **params).choices[0]
        if choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) > 1:
            return choice, params
    return pytest.fail("no seed gives two calls")


def test_two_calls_in_one_answer(client):
    whole, params = two_calls(client)
    check_calls(whole)
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=TOOLS, max_tokens=320, **params) as stream:
        streamed = stream.get_final_completion().choices[0]
    check_calls(streamed)
    assert plain(streamed) == plain(whole)


def test_one_call_when_only_one_is_wanted(client):
    for seed in range(6 if DEVICE == "cpu" else 2):
        reply = ask(client, tool_choice="required", parallel_tool_calls=False, temperature=1.2, seed=seed)
        assert len(check_calls(reply.choices[0])) == 1


def test_none_calls_nothing(client):
    choice = ask(client, tool_choice="none", max_tokens=24).choices[0]
    assert not choice.message.tool_calls and choice.finish_reason in ("stop", "length")


def test_auto_may_answer_in_words(client, same_text):
    message = chat(client, CAPITAL, tools=TOOLS, max_tokens=12).choices[0].message
    same_text(message.content or json.dumps([call.function.name for call in message.tool_calls]))


def test_a_conversation_with_calls_goes_on(client):
    first = ask(client, tool_choice=NAMED).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "12:00"} for call in first.tool_calls]
    history = [*ASKED, first.model_dump(exclude_none=True), *results]
    reply = chat(client, history, tools=TOOLS, tool_choice="none", max_tokens=16)
    assert reply.choices[0].message.content


def test_a_forced_call_cut_by_max_tokens_says_so(client):
    reply = ask(client, tool_choice="required", max_tokens=4)
    assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "change",
    [
        {"tool_choice": "sometimes"},
        {"tool_choice": {"type": "function", "function": {"name": "unheard_of"}}},
        {"tools": [{"type": "function"}]},
        {"tools": {"get_time": TIME}},
        {"tools": None, "tool_choice": "required"},
        {"grammar": 'root ::= "a"'},
    ],
    ids=str,
)
def test_what_cannot_be_called_is_refused(http, change):
    body = {"messages": ASKED, "tools": TOOLS, "max_tokens": 8, **change}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
