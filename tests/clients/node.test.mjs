// Chat, text, responses and tools with OpenAI's client for Node.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const MODEL = "smollm2";
const URL = process.env.ONEBIT_URL;
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });

const CAPITAL = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const GREEDY = { model: MODEL, messages: CAPITAL, temperature: 0, max_tokens: 32 };
const EXOTIC = "日本語の🦀と👩‍👩‍👧、naïve 中文😀 fin";
const TIME = {
  name: "get_time",
  description: "Tells the time in a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", maxLength: 24 } },
    required: ["city"],
    additionalProperties: false,
  },
};
const TOOLS = [{ type: "function", function: TIME }];

async function joined(stream) {
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  return text;
}

test("a stream says the same as the whole", async () => {
  const whole = await client.chat.completions.create(GREEDY);
  const text = whole.choices[0].message.content;
  assert.match(text, /Paris/);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.equal(await joined(await client.chat.completions.create({ ...GREEDY, stream: true })), text);
  const helper = client.chat.completions.stream({ ...GREEDY, stream_options: { include_usage: true } });
  assert.equal(await helper.finalContent(), text);
  assert.equal((await helper.totalUsage()).completion_tokens, whole.usage.completion_tokens);
});

test("the usage chunk comes only when asked", async () => {
  for (const asked of [false, true]) {
    const options = asked ? { stream_options: { include_usage: true } } : {};
    const chunks = [];
    for await (const chunk of await client.chat.completions.create({ ...GREEDY, stream: true, ...options })) {
      chunks.push(chunk);
    }
    assert.equal(chunks.filter((chunk) => chunk.usage).length, asked ? 1 : 0);
    assert.equal(chunks.filter((chunk) => chunk.choices.length === 0).length, asked ? 1 : 0);
  }
});

test("characters survive token borders", async () => {
  const params = { ...GREEDY, max_tokens: 120, grammar: `root ::= ${JSON.stringify(EXOTIC)}` };
  assert.equal((await client.chat.completions.create(params)).choices[0].message.content, EXOTIC);
  assert.equal(await joined(await client.chat.completions.create({ ...params, stream: true })), EXOTIC);
});

test("nothing of a stop string is shown", async () => {
  const params = { ...GREEDY, stop: ["aris"] };
  const whole = (await client.chat.completions.create(params)).choices[0].message.content;
  assert.match(whole, /P$/);
  assert.equal(await joined(await client.chat.completions.create({ ...params, stream: true })), whole);
});

test("a forced tool call is rebuilt from its stream", async () => {
  for (const tool_choice of ["required", { type: "function", function: { name: "get_time" } }]) {
    const params = { ...GREEDY, max_tokens: 200, tools: TOOLS, tool_choice };
    const whole = (await client.chat.completions.create(params)).choices[0];
    const streamed = (await client.chat.completions.stream(params).finalChatCompletion()).choices[0];
    for (const choice of [whole, streamed]) {
      assert.equal(choice.finish_reason, "tool_calls");
      for (const call of choice.message.tool_calls) {
        assert.equal(call.function.name, "get_time");
        assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
      }
    }
    const plain = (choice) => choice.message.tool_calls.map((call) => call.function);
    assert.deepEqual(plain(streamed).map((f) => f.arguments), plain(whole).map((f) => f.arguments));
  }
});

test("tools are run and their results sent back", async () => {
  const asked = [];
  const tool = { ...TIME, parse: JSON.parse, function: ({ city }) => (asked.push(city), "12:00") };
  const runner = client.chat.completions.runTools(
    { ...GREEDY, max_tokens: 64, tools: [{ type: "function", function: tool }], tool_choice: TOOLS[0] && "required" },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert.ok(asked.length > 0);
});

test("a schema holds", async () => {
  const schema = {
    type: "object",
    properties: { colour: { enum: ["red", "blue"] }, n: { type: "integer", minimum: 1, maximum: 9 } },
    required: ["colour", "n"],
    additionalProperties: false,
  };
  const response_format = { type: "json_schema", json_schema: { name: "pick", strict: true, schema } };
  for (let seed = 0; seed < 5; seed++) {
    const reply = await client.chat.completions.create({ ...GREEDY, temperature: 1, seed, response_format });
    const { colour, n, ...rest } = JSON.parse(reply.choices[0].message.content);
    assert.ok(["red", "blue"].includes(colour) && n >= 1 && n <= 9);
    assert.deepEqual(rest, {});
  }
});

test("responses say the same as chat, streamed or not", async () => {
  const text = (await client.chat.completions.create(GREEDY)).choices[0].message.content;
  const params = { model: MODEL, input: CAPITAL[0].content, temperature: 0, max_output_tokens: 32 };
  assert.equal((await client.responses.create(params)).output_text, text);
  const final = await client.responses.stream(params).finalResponse();
  assert.equal(final.output_text, text);
  assert.equal(final.status, "completed");
});

test("text completions stream", async () => {
  const params = { model: MODEL, prompt: "The sky is", temperature: 0, max_tokens: 6 };
  const whole = (await client.completions.create(params)).choices[0].text;
  let text = "";
  for await (const chunk of await client.completions.create({ ...params, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, whole);
});

test("a stream that is left frees the server", async () => {
  for (let i = 0; i < 5; i++) {
    const stream = await client.chat.completions.create({ ...GREEDY, max_tokens: 1500, ignore_eos: true, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
  }
  assert.ok((await client.chat.completions.create({ ...GREEDY, max_tokens: 1 })).choices.length);
});

test("models, and errors of the client's own kinds", async () => {
  const models = await client.models.list();
  assert.equal(models.data[0].id, MODEL);
  await assert.rejects(client.chat.completions.create({ ...GREEDY, temperature: "hot" }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(client.models.retrieve("another"), OpenAI.NotFoundError);
  const small = { baseURL: `${process.env.ONEBIT_SMALL_URL}/v1`, maxRetries: 0 };
  await assert.rejects(new OpenAI({ ...small, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
  assert.ok((await new OpenAI({ ...small, apiKey: process.env.ONEBIT_API_KEY }).models.list()).data.length);
});
