"""Questions in all their forms, and what came back in one shape."""

import json
from dataclasses import dataclass, field

import openai
from conftest import MODEL, URL

COUNTING = [{"role": "user", "content": "Count from one to ten in words, separated by commas."}]
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]

# Emoji of several code points, CJK, accents: SmolLM2's tokens end inside most of these characters.
EXOTIC = "日本語の🦀と👩\u200d👧、naïve 中文😀 fin"


def gbnf(text):
    """A grammar that lets the model say this and nothing else, so that a test knows what was generated."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


# Its type of a text chunk has a finish_reason that is never null, which OpenAI's own server does not keep to either.
LOOSE = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)


@dataclass
class Answer:
    text: str = ""
    finish: str = ""
    pieces: list = field(default_factory=list)
    usage: object = None


def chat(client, messages, **params):
    params = {"temperature": 0, "max_tokens": 32, **params}
    return client.chat.completions.create(model=MODEL, messages=messages, **params)


def chat_answer(client, messages, stream, **params):
    """The one choice of a chat, whole or put together from its stream."""
    if not stream:
        reply = chat(client, messages, **params)
        choice = reply.choices[0]
        return Answer(choice.message.content, choice.finish_reason, usage=reply.usage)
    answer = Answer()
    for chunk in chat(client, messages, stream=True, stream_options={"include_usage": True}, **params):
        answer.usage = chunk.usage or answer.usage
        for choice in chunk.choices:
            answer.pieces += [choice.delta.content] if choice.delta.content else []
            answer.finish = choice.finish_reason or answer.finish
    answer.text = "".join(answer.pieces)
    return answer


def text(client, prompt, stream, **params):
    """The one choice of a text completion, whole or put together from its stream."""
    params = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 32, **params}
    if not stream:
        reply = client.completions.create(**params)
        return Answer(reply.choices[0].text, reply.choices[0].finish_reason, usage=reply.usage)
    answer = Answer()
    for chunk in LOOSE.completions.create(stream=True, **params):
        answer.usage = chunk.usage or answer.usage
        for choice in chunk.choices:
            answer.pieces += [choice.text] if choice.text else []
            answer.finish = choice.finish_reason or answer.finish
    answer.text = "".join(answer.pieces)
    return answer


def events(response):
    """The server-sent events of a reply: (event name or None, data), comments left out."""
    found = []
    for frame in response.text.split("\n\n"):
        lines = [line.split(": ", 1) for line in frame.splitlines() if line and not line.startswith(":")]
        if lines:
            fields = {name: value for name, value in lines}
            found.append((fields.get("event"), fields["data"]))
    return found
