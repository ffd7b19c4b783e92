"""What people build with: LangChain's ChatOpenAI and LiteLLM."""

import jsonschema
import litellm
import openai
import pytest
from asking import CAPITAL, chat_answer
from conftest import MODEL, URL
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from test_tools import FUNCTIONS, TOOLS

QUESTION = CAPITAL[0]["content"]


class Score(BaseModel):
    """A score."""

    points: int = Field(ge=0, le=10)
    passed: bool


def langchain(**params):
    params = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "temperature": 0, "max_tokens": 64, **params}
    return ChatOpenAI(max_retries=0, **params)


def test_langchain_answers_and_streams(client, same_text):
    reply = langchain().invoke(QUESTION)
    assert reply.content == chat_answer(client, CAPITAL, False, max_tokens=64).text
    assert reply.usage_metadata["total_tokens"] > 0
    assert reply.response_metadata["finish_reason"] == "stop"
    chunks = list(langchain(stream_usage=True).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == reply.content
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) > 0
    same_text(reply.content)


def test_langchain_stops_and_batches():
    (one, two) = langchain(max_tokens=8).batch([QUESTION, "Say hello."])
    assert one.content and two.content
    assert langchain().bind(stop=["Paris"]).invoke(QUESTION).content.endswith("is ")


def test_langchain_reads_logprobs():
    reply = langchain(max_tokens=4).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert len(reply.response_metadata["logprobs"]["content"]) == 4


@pytest.mark.parametrize("choice", ["any", "get_time"])
def test_langchain_calls_tools(choice):
    model = langchain(max_tokens=256).bind_tools(TOOLS, tool_choice=choice)
    whole = model.invoke(QUESTION)
    streamed = None
    for chunk in model.stream(QUESTION):
        streamed = chunk if streamed is None else streamed + chunk
    for message in (whole, streamed):
        assert message.tool_calls and not message.invalid_tool_calls
        for call in message.tool_calls:
            jsonschema.validate(call["args"], FUNCTIONS[call["name"]]["parameters"])
            assert choice == "any" or call["name"] == choice
    assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in whole.tool_calls]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_structured_output(method):
    score = langchain(max_tokens=200).with_structured_output(Score, method=method).invoke("Rate this test.")
    assert isinstance(score, Score)


def test_langchain_sends_a_whole_conversation():
    call = {"name": "get_time", "args": {"city": "Rome"}, "id": "call_1"}
    history = [
        SystemMessage("Be brief."), HumanMessage("What time is it in Rome?"), AIMessage("", tool_calls=[call]),
        ToolMessage("12:00", tool_call_id="call_1"),
    ]
    assert langchain(max_tokens=8).invoke(history).content


def test_langchain_over_the_responses_api(client):
    reply = langchain(use_responses_api=True).invoke(QUESTION)
    assert reply.text == chat_answer(client, CAPITAL, False, max_tokens=64).text


def lite(stream=False, **params):
    params = {"messages": CAPITAL, "temperature": 0, "max_tokens": 64, "num_retries": 0, **params}
    return litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", stream=stream, **params)


def test_litellm_answers_and_streams(client, same_text):
    reply = lite()
    text = reply.choices[0].message.content
    assert text == chat_answer(client, CAPITAL, False, max_tokens=64).text
    assert reply.usage.completion_tokens > 0
    chunks = list(lite(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    rebuilt = litellm.stream_chunk_builder(chunks, messages=CAPITAL)
    assert rebuilt.choices[0].message.content == text
    assert rebuilt.usage.completion_tokens == reply.usage.completion_tokens
    same_text(text)


def test_litellm_calls_tools():
    whole = lite(tools=TOOLS, tool_choice="required", max_tokens=256)
    chunks = list(lite(stream=True, tools=TOOLS, tool_choice="required", max_tokens=256))
    streamed = litellm.stream_chunk_builder(chunks, messages=CAPITAL)
    found = []
    for reply in (whole, streamed):
        assert reply.choices[0].finish_reason == "tool_calls"
        calls = reply.choices[0].message.tool_calls
        found.append([(call.function.name, call.function.arguments) for call in calls])
    assert found[0] == found[1] and found[0]


def test_litellm_gives_json():
    reply = lite(response_format=Score, max_tokens=100)
    Score.model_validate_json(reply.choices[0].message.content)


def test_litellm_speaks_anthropics_language():
    reply = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=URL, api_key="none", messages=CAPITAL, max_tokens=32, temperature=0
    )
    assert "Paris" in reply.choices[0].message.content


def test_litellm_maps_errors():
    with pytest.raises(litellm.BadRequestError):
        lite(extra_body={"grammar": "root ::= oops"})
    with pytest.raises(litellm.ContextWindowExceededError):
        lite(messages=[{"role": "user", "content": "word " * 20000}])


def test_both_retry_nothing_that_is_wrong():
    with pytest.raises(openai.BadRequestError):
        langchain().bind(tool_choice="sometimes", tools=TOOLS).invoke(QUESTION)
